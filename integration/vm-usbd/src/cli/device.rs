//! `--device`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use vm_usb::devices::hub::{HubOptions, MOST_PORTS, Translators};
use vm_usb::devices::loopback::{Isochronous, LoopbackOptions, Messages, Pattern};
use vm_usb::devices::storage::Transports;
use vm_usb::usb::Speed;

use crate::options::{OptionError, Options};

// A help text of its own: in a documentation comment its brackets would be links.
pub(super) const HELP: &str = "\
A device: storage,bus=BUS,file=PATH[,readonly=on][,uas=off], (keyboard|tablet),bus=BUS,
printer,bus=BUS[,file=PATH], debug,bus=BUS[,file=PATH] (a console for port=1 of an ehci),
loopback,bus=BUS[,pattern=zero|mod63|any][,message=BYTES[,pace=MBIT/S]][,iso-packet=1..1024][,iso-packets=1..3]
[,iso-interval=1..16], or
hub,bus=BUS,id=ID[,ports=N][,speed=full|high][,tt=single|multiple]; and for each
[,port=N][,id=ID][,speed=full]. BUS is the id of a controller, or of a hub named before";

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A disk.
    Storage {
        /// The image or block device.
        file: PathBuf,
        /// Whether writes are refused.
        readonly: bool,
        /// How the guest may talk to it.
        transports: Transports,
    },
    /// A keyboard.
    Keyboard,
    /// A pointer with absolute coordinates.
    Tablet,
    /// A printer.
    Printer {
        /// What takes the print data; without one it is thrown away.
        file: Option<PathBuf>,
    },
    /// The far end of an early console on an EHCI debug port.
    Debug {
        /// What takes the text; standard output if not said.
        file: Option<PathBuf>,
    },
    /// A source and sink of test data.
    Loopback(LoopbackOptions),
    /// A hub.
    Hub(HubOptions),
}

impl DeviceKind {
    /// The file it reads, or writes.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Self::Storage { file, .. } => Some(file),
            Self::Printer { file } | Self::Debug { file } => file.as_deref(),
            Self::Keyboard | Self::Tablet | Self::Loopback(_) | Self::Hub(_) => None,
        }
    }

    /// Its name on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Storage { .. } => "storage",
            Self::Keyboard => "keyboard",
            Self::Tablet => "tablet",
            Self::Printer { .. } => "printer",
            Self::Debug { .. } => "debug",
            Self::Loopback(_) => "loopback",
            Self::Hub(_) => "hub",
        }
    }
}

/// `--device`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceOptions {
    /// What it is.
    pub kind: DeviceKind,
    /// The controller or hub it is plugged into.
    pub bus: String,
    /// Which of its ports, from 1; the first free one if not said.
    pub port: Option<u8>,
    /// Its name, if said.
    pub id: Option<String>,
    /// Whether it is kept from high speed.
    pub full_speed: bool,
}

impl FromStr for DeviceOptions {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut options: Options = text.parse()?;
        let bus = options.take("bus");
        let port = options.number("port", 1..=15, "ports count from 1 to at most 15")?;
        let id = options.take("id");
        let kind = match options.kind() {
            "storage" => {
                let file = options.take("file");
                let readonly = options.switch("readonly", false)?;
                let transports = match options.switch("uas", true)? {
                    true => Transports::BulkOnlyAndUas,
                    false => Transports::BulkOnly,
                };
                let file = file.ok_or(OptionError::Missing("file"))?.into();
                DeviceKind::Storage { file, readonly, transports }
            }
            "keyboard" => DeviceKind::Keyboard,
            "tablet" => DeviceKind::Tablet,
            "printer" => DeviceKind::Printer { file: options.take("file").map(PathBuf::from) },
            "debug" => DeviceKind::Debug { file: options.take("file").map(PathBuf::from) },
            "loopback" => DeviceKind::Loopback(loopback(&mut options)?),
            "hub" => DeviceKind::Hub(hub(&mut options)?),
            other => {
                return Err(OptionError::Kind {
                    found: other.to_owned(),
                    known: "storage, keyboard, tablet, printer, debug, loopback, hub",
                });
            }
        };
        let is_hub = matches!(kind, DeviceKind::Hub(_));
        let expected = "leave it out, or say full";
        let full_speed = !is_hub && options.choice("speed", &["full"], expected)?.is_some();
        options.finish()?;
        if is_hub && id.is_none() {
            return Err(OptionError::Missing("id"));
        }
        Ok(Self { kind, bus: bus.ok_or(OptionError::Missing("bus"))?, port, id, full_speed })
    }
}

/// What a source and sink is like.
fn loopback(options: &mut Options) -> Result<LoopbackOptions, OptionError> {
    let pattern = pattern(options)?;
    let expected = "a message has 1 byte or more";
    let message = options.number("message", 1..=usize::MAX, expected)?;
    let message = message.and_then(NonZeroUsize::new);
    let expected = "messages come at 1 to 10000 Mbit/s";
    let pace = options.number("pace", 1..=10_000, expected)?.and_then(NonZeroU32::new);
    if pace.is_some() && message.is_none() {
        return Err(OptionError::Missing("message"));
    }
    let packet = options.number("iso-packet", 1..=1024, "a packet has 1 to 1024 bytes")?;
    let packets = options.number("iso-packets", 1..=3, "there are 1 to 3 packets at a time")?;
    let interval = options.number("iso-interval", 1..=16, "say 1 to 16, as bInterval has it")?;
    // One packet of the largest size every millisecond, unless said otherwise.
    let isochronous =
        Isochronous::new(packet.unwrap_or(1024), packets.unwrap_or(1), interval.unwrap_or(4))
            .unwrap_or_default();
    let messages = message.map(|bytes| Messages { bytes, pace });
    Ok(LoopbackOptions { pattern, messages, isochronous })
}

/// What a source sends and a sink accepts; zeros if not said.
fn pattern(options: &mut Options) -> Result<Pattern, OptionError> {
    let Some(value) = options.take("pattern") else {
        return Ok(Pattern::Zeros);
    };
    match &*value {
        "zero" => Ok(Pattern::Zeros),
        "mod63" => Ok(Pattern::Mod63),
        "any" => Ok(Pattern::Unchecked),
        _ => {
            let expected = "say zero, mod63 or any";
            Err(OptionError::Value { key: "pattern", value, expected })
        }
    }
}

/// What kind of hub.
fn hub(options: &mut Options) -> Result<HubOptions, OptionError> {
    let mut hub = HubOptions::default();
    if let Some(ports) = options.number("ports", 1..=MOST_PORTS, "a hub has 1 to 15 ports")? {
        hub.ports = ports;
    }
    let choice = options.choice("speed", &["high", "full"], "a hub's speed is high or full")?;
    if choice == Some("full") {
        hub.speed = Speed::Full;
    }
    let choice = options.choice("tt", &["single", "multiple"], "say single or multiple")?;
    if choice == Some("multiple") {
        hub.translators = Translators::Multiple;
    }
    Ok(hub)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_an_option_is_said_in_one_phrase() {
        let device = |text: &str| text.parse::<DeviceOptions>().unwrap_err().to_string();
        assert_eq!(
            device("mouse,bus=o0"),
            "\"mouse\" is not one of storage, keyboard, tablet, printer, debug, loopback, hub"
        );
        assert_eq!(device("keyboard"), "bus= is missing");
        assert_eq!(device("storage,bus=e0"), "file= is missing");
        assert_eq!(device("tablet,bus=e0,speed=low"), "speed=low: leave it out, or say full");
        assert_eq!(device("storage,bus=e0,file=f,readonly=yes"), "readonly=yes: say on or off");
        let printer = "printer,bus=o0,file=out.prn".parse::<DeviceOptions>().unwrap();
        assert_eq!(printer.kind, DeviceKind::Printer { file: Some("out.prn".into()) });
        let debug = "debug,bus=e0,port=1".parse::<DeviceOptions>().unwrap();
        assert_eq!((debug.kind, debug.port), (DeviceKind::Debug { file: None }, Some(1)));
        let loopback = "loopback,bus=o0,pattern=mod63".parse::<DeviceOptions>().unwrap();
        assert_eq!(loopback.kind, DeviceKind::Loopback(Pattern::Mod63.into()));
        let camera = "loopback,bus=e0,message=1500,iso-packets=3,iso-interval=1";
        let expected = LoopbackOptions {
            messages: Some(Messages { bytes: NonZeroUsize::new(1500).unwrap(), pace: None }),
            isochronous: Isochronous::new(1024, 3, 1).unwrap(),
            ..LoopbackOptions::default()
        };
        let camera = camera.parse::<DeviceOptions>().unwrap();
        assert_eq!(camera.kind, DeviceKind::Loopback(expected));
        assert_eq!(
            device("loopback,bus=e0,iso-packets=4"),
            "iso-packets=4: there are 1 to 3 packets at a time"
        );
        for pace in [1, 200, 10_000] {
            let adapter = format!("loopback,bus=e0,message=12000,pace={pace}");
            let messages =
                Messages { bytes: NonZeroUsize::new(12_000).unwrap(), pace: NonZeroU32::new(pace) };
            let expected =
                LoopbackOptions { messages: Some(messages), ..LoopbackOptions::default() };
            let adapter = adapter.parse::<DeviceOptions>().unwrap();
            assert_eq!(adapter.kind, DeviceKind::Loopback(expected));
        }
        for pace in ["0", "10001", "fast"] {
            assert_eq!(
                device(&format!("loopback,bus=e0,message=12000,pace={pace}")),
                format!("pace={pace}: messages come at 1 to 10000 Mbit/s")
            );
        }
        assert_eq!(device("loopback,bus=e0,pace=200"), "message= is missing");
        assert_eq!(device("loopback,bus=o0,pattern=1"), "pattern=1: say zero, mod63 or any");
        assert_eq!(device("hub,bus=e0"), "id= is missing");
        assert_eq!(device("hub,bus=e0,id=h,ports=16"), "ports=16: a hub has 1 to 15 ports");
        assert_eq!(device("hub,bus=e0,id=h,speed=low"), "speed=low: a hub's speed is high or full");
        let hub =
            "hub,bus=e0,id=h,speed=full,ports=4,tt=multiple".parse::<DeviceOptions>().unwrap();
        let expected = HubOptions {
            ports: 4,
            speed: Speed::Full,
            translators: Translators::Multiple,
            ..HubOptions::default()
        };
        assert_eq!(hub.kind, DeviceKind::Hub(expected));
        assert_eq!(
            device("keyboard,bus=e0,file=f"),
            "unknown option \"file\"; there are bus, port, id, speed"
        );
    }
}
