//! What holds whatever a guest does.

use proptest::prelude::*;
use vm_usb::devices::storage::RamDisk;
use vm_usb::usb::{Pid, Speed, Status};

use crate::driver::enumerate::clear_halt;
use crate::driver::mass_storage::{Data, ten};
use crate::rig::{BLOCK, rig, rig_with};

/// A step of a disk's life.
#[derive(Clone, Debug)]
enum Step {
    Read { lba: u16, blocks: u16 },
    Write { lba: u16, blocks: u16, seed: u8 },
    Unmap { lba: u16, blocks: u16 },
    WriteSame { lba: u16, blocks: u16, seed: u8, unmap: bool },
}

const BLOCKS: u16 = 96;

fn extent() -> impl Strategy<Value = (u16, u16)> {
    (0..BLOCKS).prop_flat_map(|lba| (Just(lba), 1..=BLOCKS - lba))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        extent().prop_map(|(lba, blocks)| Step::Read { lba, blocks }),
        (extent(), any::<u8>()).prop_map(|((lba, blocks), seed)| Step::Write { lba, blocks, seed }),
        extent().prop_map(|(lba, blocks)| Step::Unmap { lba, blocks }),
        (extent(), 0..3u8, any::<bool>()).prop_map(|((lba, blocks), seed, unmap)| {
            Step::WriteSame { lba, blocks, seed, unmap }
        }),
    ]
}

fn unmap_list(lba: u16, blocks: u16) -> Vec<u8> {
    let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
    list.extend(u64::from(lba).to_be_bytes());
    list.extend(u32::from(blocks).to_be_bytes());
    list.extend([0; 4]);
    list
}

/// A command block as a hostile guest would write it: anything, or a real command with any fields.
fn command_block() -> impl Strategy<Value = Vec<u8>> {
    let opcodes = [
        0x00, 0x03, 0x08, 0x0a, 0x12, 0x1a, 0x1b, 0x1e, 0x25, 0x28, 0x2a, 0x2f, 0x35, 0x41, 0x42,
        0x5a, 0x88, 0x8a, 0x8f, 0x91, 0x93, 0x9e, 0xa0, 0xa8, 0xaa, 0xaf,
    ];
    let real = (prop::sample::select(opcodes.to_vec()), any::<[u8; 15]>(), any::<bool>());
    prop_oneof![
        prop::collection::vec(any::<u8>(), 1..=16),
        real.prop_map(|(opcode, mut rest, tame)| {
            if tame {
                // Small numbers, so that many commands are within the medium.
                rest.iter_mut().for_each(|byte| *byte &= 3);
                rest[1..4].fill(0);
            }
            [&[opcode][..], &rest].concat()
        }),
    ]
}

/// What a host may do to the two endpoints.
#[derive(Clone, Debug)]
enum Touch {
    Wrapper { flags: u8, lun: u8, len: u32, block: Vec<u8> },
    Out(Vec<u8>),
    In(usize),
    ClearHalts,
    ClassReset,
}

fn touch() -> impl Strategy<Value = Touch> {
    prop_oneof![
        4 => (prop_oneof![Just(0u8), Just(0x80), any::<u8>()], 0..2u8, 0..5000u32, command_block())
            .prop_map(|(flags, lun, len, block)| Touch::Wrapper { flags, lun, len, block }),
        2 => prop::collection::vec(any::<u8>(), 0..2000).prop_map(Touch::Out),
        4 => (0..3000usize).prop_map(Touch::In),
        2 => Just(Touch::ClearHalts),
        1 => Just(Touch::ClassReset),
    ]
}

/// The blocks that a command may write, read from its block independently of the disk.
fn writable(block: &[u8], data: &[u8]) -> Vec<std::ops::Range<u64>> {
    let be = |bytes: &[u8]| bytes.iter().fold(0u64, |v, b| v << 8 | u64::from(*b));
    let mut long = block.to_vec();
    long.resize(16, 0);
    let (lba, blocks) = match long[0] {
        0x0a => (be(&long[1..4]) & 0x1f_ffff, if long[4] == 0 { 256 } else { long[4].into() }),
        0x2a | 0x41 => (be(&long[2..6]), be(&long[7..9])),
        0xaa => (be(&long[2..6]), be(&long[6..10])),
        0x8a | 0x93 => (be(&long[2..10]), be(&long[10..14])),
        0x42 => {
            let descriptors = data.get(8..).unwrap_or_default().chunks_exact(16);
            return descriptors
                .map(|d| be(&d[..8])..be(&d[..8]).saturating_add(be(&d[8..12])))
                .collect();
        }
        _ => return vec![],
    };
    std::iter::once(lba..lba.saturating_add(blocks)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn a_disk_equals_its_model(
        steps in prop::collection::vec(step(), 1..40),
        high in any::<bool>(),
        piece in prop::sample::select(vec![64, 512, 4096, 16384]),
    ) {
        let speed = if high { Speed::High } else { Speed::Full };
        let piece = if high { piece.max(512) } else { piece };
        let mut rig = rig_with(speed, RamDisk::zeroed(BLOCKS.into()));
        rig.host.piece = piece;
        let mut model = vec![0u8; usize::from(BLOCKS) * BLOCK];
        let range = |lba: u16, blocks: u16| {
            usize::from(lba) * BLOCK..(usize::from(lba) + usize::from(blocks)) * BLOCK
        };
        for step in steps {
            match step {
                Step::Read { lba, blocks } => {
                    let range = range(lba, blocks);
                    let cdb = ten(0x28, lba.into(), blocks.into());
                    let read = rig.scsi(&cdb, Data::In(range.len())).unwrap();
                    prop_assert!(read == model[range]);
                }
                Step::Write { lba, blocks, seed } => {
                    let range = range(lba, blocks);
                    let data: Vec<_> = range.clone().map(|at| (at / 3) as u8 ^ seed).collect();
                    rig.scsi(&ten(0x2a, lba.into(), blocks.into()), Data::Out(&data)).unwrap();
                    model[range].copy_from_slice(&data);
                }
                Step::Unmap { lba, blocks } => {
                    let cdb = [0x42, 0, 0, 0, 0, 0, 0, 0, 24, 0];
                    rig.scsi(&cdb, Data::Out(&unmap_list(lba, blocks))).unwrap();
                    model[range(lba, blocks)].fill(0);
                }
                Step::WriteSame { lba, blocks, seed, unmap } => {
                    let mut cdb = ten(0x41, lba.into(), blocks.into());
                    cdb[1] = u8::from(unmap) << 3;
                    rig.scsi(&cdb, Data::Out(&[seed; BLOCK])).unwrap();
                    model[range(lba, blocks)].fill(seed);
                }
            }
        }
        prop_assert!(rig.disk.contents() == model);
    }

    #[test]
    fn whatever_a_guest_does_only_the_blocks_it_names_change_and_recovery_works(
        touches in prop::collection::vec(touch(), 1..60),
    ) {
        let mut rig = rig();
        let (input, output) = (rig.driver.input, rig.driver.output);
        // Commands that may still be going on, each with what may have been its data.
        let mut candidates: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
        for touch in touches {
            let before = rig.disk.contents();
            match touch {
                Touch::Wrapper { flags, lun, len, block } => {
                    let mut wrapper = rig.driver.wrapper(lun, &block, Data::None);
                    wrapper[8..12].copy_from_slice(&len.to_le_bytes());
                    wrapper[12] = flags;
                    let sent = rig.host.transact(&output, Pid::Out, &mut wrapper.to_vec());
                    candidates.iter_mut().for_each(|(_, data)| data.extend(wrapper));
                    if sent.status == Status::Complete {
                        candidates.push((block, Vec::new()));
                    }
                }
                Touch::Out(mut bytes) => {
                    rig.host.transact(&output, Pid::Out, &mut bytes);
                    candidates.iter_mut().for_each(|(_, data)| data.extend(&bytes));
                }
                Touch::In(len) => {
                    let mut buffer = vec![0; len];
                    let outcome = rig.host.transact(&input, Pid::In, &mut buffer);
                    prop_assert!(outcome.bytes <= len);
                    if outcome.bytes == 13 && buffer.starts_with(b"USBS") {
                        candidates.clear();
                    }
                }
                Touch::ClearHalts => {
                    clear_halt(&mut rig.host, &input).unwrap();
                    clear_halt(&mut rig.host, &output).unwrap();
                }
                Touch::ClassReset => {
                    rig.driver.class_reset(&mut rig.host).unwrap();
                    candidates.clear();
                }
            }
            let allowed: Vec<_> =
                candidates.iter().flat_map(|(block, data)| writable(block, data)).collect();
            let after = rig.disk.contents();
            for (n, (before, after)) in before.chunks(BLOCK).zip(after.chunks(BLOCK)).enumerate() {
                let may_change = allowed.iter().any(|range| range.contains(&(n as u64)));
                prop_assert!(before == after || may_change, "block {n} changed: {candidates:x?}");
            }
        }
        rig.driver.reset_recovery(&mut rig.host).unwrap();
        // START STOP UNIT may have stopped it.
        let _ = rig.scsi(&[0x1b, 0, 0, 0, 1, 0], Data::None);
        rig.assert_ready();
    }
}
