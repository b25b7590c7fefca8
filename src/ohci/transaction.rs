//! A visit to an endpoint descriptor: one transfer descriptor, one answer of the device
//! (OHCI 1.0a, 4.3.1.3 and 6.4.4).

use vm_memory::GuestMemory;

use super::budget::Budget;
use super::descriptors::{Ed, Td};
use super::done_queue::DoneQueue;
use super::endpoints::Offer;
use super::isochronous::Attendance;
use super::root_hub::RootHub;
use super::spec::ConditionCode;
use super::{ListKind, Unrecoverable};
use crate::dma::{Dma, DmaError, Page};
use crate::time::Time;
use crate::usb::{EndpointAddress, Outcome, Pid, Readiness, Status, Toggle, Transfer};

/// Frames between two visits to a periodic ED at most: there are 32 lists.
pub(super) const LONGEST_INTERVAL: u32 = 32;

/// Errors in a row after which a TD is given up (4.3.2: the third).
const LAST_ERROR: u8 = 2;

/// What came of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Met {
    /// Bytes moved or a TD was retired.
    Progress,
    /// A TD that waits for its device to announce something.
    Parked,
    /// A TD that must be tried again.
    Again,
    /// A TD for which this frame has no room left; it was not tried.
    Full,
}

/// How a transaction left its TD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Stays(Met),
    Retires(ConditionCode),
}

/// A TD about to be tried.
#[derive(Clone, Copy, Debug)]
struct Transaction {
    ed: Ed,
    td: Td,
    pid: Pid,
    toggle: Toggle,
    /// Bytes left.
    left: u32,
    /// Bytes of them that the device is asked for.
    asked: u32,
}

/// What a visit works with.
pub(super) struct Bus<'a, 'm, M: GuestMemory + ?Sized> {
    pub(super) dma: Dma<'m, M>,
    /// Where the last ED was: drivers take their EDs from few pages.
    pub(super) eds: Page<'m, M>,
    pub(super) hub: &'a mut RootHub,
    pub(super) done: &'a mut DoneQueue,
    pub(super) budget: &'a mut Budget,
    pub(super) attendance: &'a mut Attendance,
    pub(super) now: Time,
}

impl<M: GuestMemory + ?Sized> Bus<'_, '_, M> {
    /// Loads the ED at `address`.
    pub(super) fn ed(&mut self, address: u32) -> Result<Ed, DmaError> {
        let words = self.dma.load_near(&mut self.eds, address.into())?;
        Ok(Ed::new(address, words))
    }

    /// Serves the first TD of a live ED: all that is left of it for a control or bulk endpoint, one
    /// packet for a periodic one. `seen` is the list's count, by which transfers in flight that no
    /// list leads to any more are told.
    pub(super) fn serve(
        &mut self,
        ed: &Ed,
        list: ListKind,
        seen: u32,
    ) -> Result<Met, Unrecoverable> {
        let td = Td::load(&self.dma, ed.head_p())?;
        let left = td.len()?;
        let toggle = td.toggle(ed.head.c());
        let Some(pid) = td.pid(ed.control) else {
            // DP names no token: nothing can be sent.
            self.budget.spend(0, false);
            return self.retire(ed, &td, &td, toggle, ConditionCode::UnexpectedPid);
        };
        let packet = u32::from(ed.control.mps());
        let single = list == ListKind::Periodic || self.budget.is_wire();
        let asked = if single { left.min(packet) } else { left };
        if !self.budget.has_room(asked, ed.control.s()) {
            return Ok(Met::Full);
        }
        let transaction = Transaction { ed: *ed, td, pid, toggle, left, asked };
        match self.ask(&transaction, list, seen)? {
            Some(outcome) => self.conclude(&transaction, outcome),
            None => Ok(Met::Parked),
        }
    }

    /// The device's answer; `None` if there is no point in asking before it announces something.
    fn ask(
        &mut self,
        transaction: &Transaction,
        list: ListKind,
        seen: u32,
    ) -> Result<Option<Outcome>, Unrecoverable> {
        let Transaction { ed, td, pid, toggle, left, asked } = transaction;
        let number = ed.control.en();
        let endpoint = match (number, pid) {
            (0, _) | (_, Pid::Setup) => EndpointAddress::CONTROL,
            (_, Pid::In) => EndpointAddress::r#in(number),
            (_, Pid::Out) => EndpointAddress::out(number),
        };
        let port = self.hub.route(ed.control.fa(), ed.control.s());
        let Some(port) = port.filter(|_| ed.control.mps() != 0 || *left == 0) else {
            // Nobody listens; or no packet can carry what is left, as none may carry a byte.
            self.budget.spend(*asked, ed.control.s());
            return Ok(Some(Outcome::TIMEOUT));
        };
        let offer = Offer::new(list, ed, td);
        if !port.gate(endpoint, &offer, seen) {
            return Ok(None);
        }
        self.budget.spend(*asked, ed.control.s());
        let mut buffer = self.dma.buffer(&td.segments(*asked)?)?;
        let transfer = Transfer {
            pid: *pid,
            endpoint: number,
            max_packet: ed.control.mps(),
            toggle: *toggle,
            buffer: &mut buffer,
            now: self.now,
        };
        Ok(Some(port.transact(endpoint, transfer, offer, seen)))
    }

    /// Takes back what is in flight but no longer what the driver wants: its list is off, its ED is
    /// skipped, halted or has moved on, its descriptors say something else, or no list has led to it
    /// for `frames` (periodic; the others notice at the end of a pass).
    ///
    /// Memory that the driver has reused is only read here.
    pub(super) fn recall(&mut self, enabled: impl Fn(ListKind) -> bool, frames: u32) {
        let dma = self.dma;
        self.hub.retain_flights(|flight| {
            let Offer { list, ed, td, .. } = flight.offer;
            let forgotten =
                list == ListKind::Periodic && frames.wrapping_sub(flight.seen) > LONGEST_INTERVAL;
            enabled(list)
                && !forgotten
                && Ed::load(&dma, ed).is_ok_and(|ed| {
                    ed.is_live()
                        && ed.head_p() == td
                        && Td::load(&dma, td)
                            .is_ok_and(|td| Offer::new(list, &ed, &td) == flight.offer)
                })
        });
    }

    /// Writes back what came of it: data is in memory already, then follows the TD, then the ED.
    fn conclude(
        &mut self,
        transaction: &Transaction,
        outcome: Outcome,
    ) -> Result<Met, Unrecoverable> {
        let Transaction { ed, td, pid, toggle, left, asked } = *transaction;
        let moved = u32::try_from(outcome.bytes).unwrap_or(u32::MAX);
        let overrun = moved > asked;
        let moved = moved.min(asked);
        let packets = Outcome { bytes: moved as usize, ..outcome }.packets(
            pid,
            asked as usize,
            ed.control.mps(),
        );
        let toggle = toggle.after(packets);
        let mut after = td;
        if packets != 0 {
            after.cbp = td.cbp_after(moved)?;
            after.control.set_ec(0);
            after.control.set_t(2 | u8::from(toggle.bit()));
        }
        let full = moved == left;
        let fate = match outcome.status {
            _ if overrun => Fate::Retires(ConditionCode::DataOverrun),
            Status::Complete if full => Fate::Retires(ConditionCode::NoError),
            Status::Complete if pid == Pid::In && moved < asked => {
                Fate::Retires(if td.control.r() {
                    ConditionCode::NoError
                } else {
                    ConditionCode::DataUnderrun
                })
            }
            // The device took nothing, which is what NAK says.
            Status::Complete if packets == 0 => Fate::Stays(Met::Again),
            Status::Complete => Fate::Stays(Met::Progress),
            Status::Nak(Readiness::Poll) => Fate::Stays(Met::Again),
            Status::Nak(Readiness::Announced) | Status::Pending => Fate::Stays(Met::Parked),
            Status::Stall => Fate::Retires(ConditionCode::Stall),
            Status::Error(error) => {
                let code = ConditionCode::from(error);
                if code.is_retried() && after.control.ec() < LAST_ERROR {
                    after.control.set_ec(after.control.ec().saturating_add(1));
                    Fate::Stays(Met::Again)
                } else {
                    Fate::Retires(code)
                }
            }
        };
        match fate {
            Fate::Stays(met) => {
                after.store(&self.dma, &td)?;
                Ok(if packets != 0 && met == Met::Again { Met::Progress } else { met })
            }
            Fate::Retires(code) => self.retire(&ed, &td, &after, toggle, code),
        }
    }

    /// Moves a TD from its ED to the done queue (4.4.2.3). An error halts the ED.
    fn retire(
        &mut self,
        ed: &Ed,
        before: &Td,
        after: &Td,
        carry: Toggle,
        code: ConditionCode,
    ) -> Result<Met, Unrecoverable> {
        let mut after = *after;
        after.control.set_cc(code as u8);
        after.next_td = self.done.push(before.address, code, before.control.di());
        after.store(&self.dma, before)?;
        let halted = code != ConditionCode::NoError;
        ed.store_head(&self.dma, before.next_td, carry, halted)?;
        Ok(Met::Progress)
    }
}
