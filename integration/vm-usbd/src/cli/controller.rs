//! `--controller`.

use std::path::PathBuf;
use std::str::FromStr;

use crate::options::{OptionError, Options};

// A help text of its own: in a documentation comment its brackets would be links.
pub(super) const HELP: &str = "\
A host controller: ehci,id=ID,socket=PATH[,ports=N][,addendum=on|off][,prompt-commit=on|off] or
ohci,id=ID,socket=PATH[,ports=N][,companion-of=EHCI-ID]; and for each [,pci-id=VENDOR:DEVICE], in
hexadecimal: drivers know it by its class, but treat some chips specially; and [,tape=PATH[,tape-limit=KIB]],
a file for a replay of what the guest does and the controller reads of its memory. With addendum=on EHCI is of
revision 1.1 (link power management, a change bit for each port), not 1.0. Without prompt-commit it
reports completions with the end of the frame, to show what reporting them at once gains";

/// The two kinds of controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControllerKind {
    /// High speed.
    Ehci,
    /// Full and low speed.
    Ohci,
}

impl ControllerKind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ehci => "ehci",
            Self::Ohci => "ohci",
        }
    }
}

/// What a function says it is on PCI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciId {
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
}

impl FromStr for PciId {
    type Err = ();

    /// `VENDOR:DEVICE`, each of four hexadecimal digits; FFFF is what nobody answers with.
    fn from_str(text: &str) -> Result<Self, ()> {
        let number = |text: &str| {
            let is_whole = text.len() == 4 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
            u16::from_str_radix(text, 16).ok().filter(|_| is_whole)
        };
        let (vendor, device) = text.split_once(':').ok_or(())?;
        let vendor = number(vendor).filter(|vendor| *vendor != 0xffff).ok_or(())?;
        Ok(Self { vendor, device: number(device).ok_or(())? })
    }
}

/// `--controller`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerOptions {
    /// Which kind.
    pub kind: ControllerKind,
    /// Its name.
    pub id: String,
    /// Where it is offered.
    pub socket: PathBuf,
    /// How many ports it has, if said.
    pub ports: Option<u8>,
    /// The EHCI controller whose ports it shares.
    pub companion_of: Option<String>,
    /// Whether EHCI reports completions at once.
    pub prompt_commit: bool,
    /// Whether EHCI is of revision 1.1, with the whole addendum.
    pub addendum: bool,
    /// What it says it is, if not what it is.
    pub pci_id: Option<PciId>,
    /// What takes the guest's accesses, if anything.
    pub tape: Option<TapeOptions>,
}

/// `tape=` and `tape-limit=` of a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TapeOptions {
    /// The file; an old one is replaced.
    pub file: PathBuf,
    /// Most bytes of it.
    pub limit: u64,
}

impl TapeOptions {
    const DEFAULT_KIBIBYTES: u64 = 1024;

    fn take(options: &mut Options) -> Result<Option<Self>, OptionError> {
        let file = options.take("tape");
        let limit = options.number("tape-limit", 1..=1 << 20, "say 1 to 1048576, in KiB")?;
        match (file, limit) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(OptionError::Missing("tape")),
            (Some(file), limit) => Ok(Some(Self {
                file: file.into(),
                limit: limit.unwrap_or(Self::DEFAULT_KIBIBYTES) << 10,
            })),
        }
    }
}

impl FromStr for ControllerOptions {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        let mut options: Options = text.parse()?;
        let kind = match options.kind() {
            "ehci" => ControllerKind::Ehci,
            "ohci" => ControllerKind::Ohci,
            other => {
                return Err(OptionError::Kind { found: other.to_owned(), known: "ehci, ohci" });
            }
        };
        let controller = Self {
            kind,
            companion_of: match kind {
                ControllerKind::Ohci => options.take("companion-of"),
                ControllerKind::Ehci => None,
            },
            prompt_commit: match kind {
                ControllerKind::Ehci => options.switch("prompt-commit", true)?,
                ControllerKind::Ohci => true,
            },
            addendum: match kind {
                ControllerKind::Ehci => options.switch("addendum", false)?,
                ControllerKind::Ohci => false,
            },
            tape: TapeOptions::take(&mut options)?,
            ports: options.number("ports", 1..=15, "a controller has 1 to 15 ports")?,
            pci_id: pci_id(&mut options)?,
            id: options.take("id").unwrap_or_default(),
            socket: options.take("socket").unwrap_or_default().into(),
        };
        options.finish()?;
        if controller.id.is_empty() {
            return Err(OptionError::Missing("id"));
        }
        if controller.socket.as_os_str().is_empty() {
            return Err(OptionError::Missing("socket"));
        }
        Ok(controller)
    }
}

/// The id to show, if one is given.
fn pci_id(options: &mut Options) -> Result<Option<PciId>, OptionError> {
    let Some(value) = options.take("pci-id") else {
        return Ok(None);
    };
    let expected = "say VENDOR:DEVICE, such as 1af4:10f1, with a vendor below ffff";
    value.parse().map(Some).map_err(|()| OptionError::Value { key: "pci-id", value, expected })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_an_option_is_said_in_one_phrase() {
        let controller = |text: &str| text.parse::<ControllerOptions>().unwrap_err().to_string();
        assert_eq!(controller("xhci,id=x"), "\"xhci\" is not one of ehci, ohci");
        assert_eq!(controller("ehci,socket=/s"), "id= is missing");
        assert_eq!(controller("ehci,id=e"), "socket= is missing");
        assert_eq!(
            controller("ehci,id=e,socket=/s,prompt-commit=no"),
            "prompt-commit=no: say on or off"
        );
        for id in ["0000:0000", "8086:24cd", "fffe:FFFF"] {
            let options = format!("ehci,id=e,socket=/s,pci-id={id}").parse::<ControllerOptions>();
            let PciId { vendor, device } = options.unwrap().pci_id.unwrap();
            assert_eq!(format!("{vendor:04x}:{device:04x}"), id.to_lowercase());
        }
        for id in ["ffff:0001", "8086", "8086:", "8086:24c", "8086:024cd", "+086:24cd", "8086:24cg"]
        {
            assert_eq!(
                controller(&format!("ohci,id=o,socket=/s,pci-id={id}")),
                format!(
                    "pci-id={id}: say VENDOR:DEVICE, such as 1af4:10f1, with a vendor below ffff"
                )
            );
        }
        assert_eq!(
            controller("ehci,id=e,socket=/s,companion-of=f"),
            "unknown option \"companion-of\"; there are prompt-commit, addendum, tape, tape-limit, ports, pci-id, id, socket"
        );
        assert_eq!(controller("ehci,id=e,socket=/s,addendum=1.1"), "addendum=1.1: say on or off");
        assert_eq!(
            controller("ohci,id=e,socket=/s,addendum=on"),
            "unknown option \"addendum\"; there are companion-of, tape, tape-limit, ports, pci-id, id, socket"
        );
        let ehci = "ehci,id=e,socket=/s,addendum=on".parse::<ControllerOptions>().unwrap();
        assert!(ehci.addendum && ehci.prompt_commit);
        assert_eq!(
            controller("ohci,id=e,socket=/s,ports=16"),
            "ports=16: a controller has 1 to 15 ports"
        );
        assert_eq!(controller("ehci,id=e,socket=/s,tape-limit=4"), "tape= is missing");
        assert_eq!(
            controller("ehci,id=e,socket=/s,tape=t,tape-limit=0"),
            "tape-limit=0: say 1 to 1048576, in KiB"
        );
        let taped = "ohci,id=o,socket=/s,tape=o.tape".parse::<ControllerOptions>().unwrap();
        let tape = TapeOptions { file: "o.tape".into(), limit: 1 << 20 };
        assert_eq!(taped.tape, Some(tape));
    }
}
