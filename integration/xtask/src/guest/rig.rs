//! What is plugged in: controllers and the devices behind them, ours or QEMU's own.

use std::path::{Path, PathBuf};

use guest_protocol::{PciAddress, TestPattern};

/// The kinds of controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Ehci,
    Ohci,
    /// QEMU's only, to compare with.
    Xhci,
}

/// Whose controller it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// This project's, served by `vm-usbd`.
    Ours,
    /// QEMU's own: what ours is measured against.
    Qemu,
}

/// A device behind a controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attachment {
    Disk(Disk),
    Keyboard,
    Tablet,
    /// What it prints goes to this file. Ours only: QEMU has none.
    Printer(PathBuf),
    /// The source and sink that the kernel's `usbtest` wants. Ours only: QEMU has none.
    Loopback(Loopback),
}

/// A disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Disk {
    pub(crate) image: PathBuf,
    pub(crate) transport: Transport,
}

/// How the guest talks to a disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    BulkOnly,
    Uas,
}

impl Transport {
    /// What a maker's disk speaks when nothing is said.
    pub(crate) fn of(maker: Maker) -> Self {
        match maker {
            Maker::Ours => Self::Uas,
            Maker::Qemu => Self::BulkOnly,
        }
    }

    /// The stock Linux driver for it.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Self::BulkOnly => "usb-storage",
            Self::Uas => "uas",
        }
    }
}

impl Attachment {
    /// A maker's disk as it comes.
    pub(crate) fn disk(maker: Maker, image: PathBuf) -> Self {
        Self::Disk(Disk { image, transport: Transport::of(maker) })
    }
}

/// A source and sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Loopback {
    pub(crate) pattern: TestPattern,
    /// The bulk source's messages, each ended by a short packet, in bytes; endless data if `None`.
    pub(crate) message: Option<u32>,
    /// How many of them come, in Mbit/s; the next one is always there if `None`.
    pub(crate) pace: Option<u32>,
    /// An isochronous packet's bytes, packets at a time, and bInterval; the device's own if `None`.
    pub(crate) isochronous: Option<(u16, u8, u8)>,
}

impl Loopback {
    /// The device as it is when nothing more is said.
    pub(crate) fn plain(pattern: TestPattern) -> Self {
        Self { pattern, message: None, pace: None, isochronous: None }
    }
}

/// How devices reach their controller. Hubs are ours only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Wiring {
    /// In its own ports.
    Direct,
    /// Through a hub of the controller's speed.
    Hub,
    /// At full speed through a high-speed hub's transaction translator.
    Translator,
}

/// A controller with its devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Controller {
    /// Names it on command lines; no two of a rig have the same.
    pub(crate) id: &'static str,
    pub(crate) kind: Kind,
    pub(crate) maker: Maker,
    /// Its device number on PCI bus 0.
    pub(crate) slot: u8,
    /// The EHCI controller in whose ports its devices are; then it is a further function of that one's device.
    pub(crate) companion_of: Option<&'static str>,
    /// Whether EHCI reports completions at once.
    pub(crate) prompt_commit: bool,
    /// The PCI id of one of ours, as `vm-usbd` takes it; its own if `None`.
    pub(crate) pci_id: Option<&'static str>,
    /// How many KiB of what the guest does with it are recorded, if that is.
    pub(crate) tape_kibibytes: Option<u32>,
    /// How the devices reach it.
    pub(crate) wiring: Wiring,
    pub(crate) devices: Vec<Attachment>,
}

/// Everything plugged into one guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rig {
    pub(crate) controllers: Vec<Controller>,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ehci => "ehci",
            Self::Ohci => "ohci",
            Self::Xhci => "xhci",
        }
    }

    /// The stock Linux driver for it.
    pub(crate) fn driver(self) -> &'static str {
        match self {
            Self::Ehci => "ehci-pci",
            Self::Ohci => "ohci-pci",
            Self::Xhci => "xhci_hcd",
        }
    }

    /// The low byte of the PCI class code.
    pub(crate) fn programming_interface(self) -> u8 {
        match self {
            Self::Ehci => 0x20,
            Self::Ohci => 0x10,
            Self::Xhci => 0x30,
        }
    }

    /// A device's signalling rate behind it, in Mbit/s as sysfs writes it. (The devices here can do both.)
    pub(crate) fn speed(self) -> &'static str {
        match self {
            Self::Ehci => "480",
            Self::Ohci => "12",
            Self::Xhci => "5000",
        }
    }
}

impl Maker {
    /// Whose it is, before a noun.
    pub(crate) fn whose(self) -> &'static str {
        match self {
            Self::Ours => "our",
            Self::Qemu => "QEMU's",
        }
    }
}

impl Controller {
    /// A controller with `devices` in its own ports.
    pub(crate) fn new(
        id: &'static str,
        kind: Kind,
        maker: Maker,
        slot: u8,
        devices: Vec<Attachment>,
    ) -> Self {
        let (wiring, companion_of, prompt_commit) = (Wiring::Direct, None, true);
        let (pci_id, tape_kibibytes) = (None, None);
        Self {
            id,
            kind,
            maker,
            slot,
            companion_of,
            prompt_commit,
            pci_id,
            tape_kibibytes,
            wiring,
            devices,
        }
    }

    pub(crate) fn address(&self) -> PciAddress {
        format!("0000:00:{:02x}.{}", self.slot, self.function())
    }

    /// Its function number.
    pub(crate) fn function(&self) -> u8 {
        self.companion_of.is_some().into()
    }

    /// The signalling rate of its devices, hubs left out, in Mbit/s as sysfs writes it.
    pub(crate) fn device_speed(&self) -> &'static str {
        if self.is_slowed() { Kind::Ohci.speed() } else { self.kind.speed() }
    }

    /// Whether the devices, which can do high speed, are kept from it where a port offers it.
    pub(crate) fn is_slowed(&self) -> bool {
        self.wiring == Wiring::Translator || self.companion_of.is_some()
    }

    /// What the devices are plugged into.
    pub(crate) fn bus(&self) -> String {
        match self.wiring {
            Wiring::Direct => self.companion_of.unwrap_or(self.id).to_owned(),
            _ => format!("{}-hub", self.id),
        }
    }

    pub(crate) fn device_id(&self, device: &Attachment) -> String {
        let kind = match device {
            Attachment::Disk(_) => "disk",
            Attachment::Keyboard => "keyboard",
            Attachment::Tablet => "tablet",
            Attachment::Printer(_) => "printer",
            Attachment::Loopback(_) => "loopback",
        };
        format!("{}-{kind}", self.id)
    }
}

impl Rig {
    /// EHCI and OHCI of one maker with a disk behind each, a keyboard behind OHCI and a tablet behind EHCI.
    pub(crate) fn standard(maker: Maker, ehci_image: &Path, ohci_image: &Path) -> Self {
        let disk = |image: &Path| Attachment::disk(maker, image.to_owned());
        let devices = vec![disk(ehci_image), Attachment::Tablet];
        let ehci = Controller::new("e0", Kind::Ehci, maker, 4, devices);
        let devices = vec![disk(ohci_image), Attachment::Keyboard];
        let ohci = Controller::new("o0", Kind::Ohci, maker, 5, devices);
        Self { controllers: vec![ehci, ohci] }
    }

    /// The same with this in between everywhere. Behind a translator are EHCI's devices only; OHCI's are behind a hub
    /// then.
    pub(crate) fn wired(mut self, wiring: Wiring) -> Self {
        for controller in &mut self.controllers {
            controller.wiring = match (controller.kind, wiring) {
                (Kind::Ohci, Wiring::Translator) => Wiring::Hub,
                _ => wiring,
            };
        }
        self
    }

    /// The same with all disks over `transport`.
    pub(crate) fn over(mut self, transport: Transport) -> Self {
        let devices = self.controllers.iter_mut().flat_map(|controller| &mut controller.devices);
        for device in devices {
            if let Attachment::Disk(disk) = device {
                disk.transport = transport;
            }
        }
        self
    }

    /// A controller of ours of each kind, with nothing plugged in.
    pub(crate) fn empty() -> Self {
        let controller = |id, kind, slot| Controller::new(id, kind, Maker::Ours, slot, vec![]);
        Self { controllers: vec![controller("e0", Kind::Ehci, 4), controller("o0", Kind::Ohci, 5)] }
    }

    /// One controller of ours with one device.
    pub(crate) fn single(kind: Kind, device: Attachment) -> Self {
        let id = match kind {
            Kind::Ehci => "e0",
            Kind::Ohci => "o0",
            Kind::Xhci => "x0",
        };
        Self { controllers: vec![Controller::new(id, kind, Maker::Ours, 4, vec![device])] }
    }

    pub(crate) fn of(&self, maker: Maker) -> impl Iterator<Item = &Controller> {
        self.controllers.iter().filter(move |controller| controller.maker == maker)
    }

    pub(crate) fn disks(&self) -> usize {
        let devices = self.controllers.iter().flat_map(|controller| &controller.devices);
        devices.filter(|device| matches!(device, Attachment::Disk(_))).count()
    }

    pub(crate) fn input_devices(&self) -> usize {
        self.input_devices_of(Maker::Ours) + self.input_devices_of(Maker::Qemu)
    }

    pub(crate) fn input_devices_of(&self, maker: Maker) -> usize {
        let devices = self.of(maker).flat_map(|controller| &controller.devices);
        devices.filter(|device| matches!(device, Attachment::Keyboard | Attachment::Tablet)).count()
    }

    /// The controller and name of the first device that `is_wanted`.
    pub(crate) fn device_id(&self, wanted: &Attachment) -> Option<String> {
        let controller =
            self.controllers.iter().find(|controller| controller.devices.contains(wanted))?;
        Some(controller.device_id(wanted))
    }
}
