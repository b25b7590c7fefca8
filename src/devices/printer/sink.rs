//! Where a printer's bytes go: the embedder's side.

use serde::{Deserialize, Serialize};

use crate::usb::{EndpointAddress, Notifier};

/// The state of the paper, as a host asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Paper {
    /// Ready to print.
    #[default]
    Loaded,
    /// The tray is empty.
    Empty,
    /// Something is wrong that a person has to look at.
    Error,
}

impl Paper {
    /// The byte of GET_PORT_STATUS (USB printer class 1.1, 4.2.2): bit 5 paper empty, bit 4 selected,
    /// bit 3 no error.
    pub const fn port_status(self) -> u8 {
        match self {
            Self::Loaded => 0x18,
            Self::Empty => 0x38,
            Self::Error => 0x10,
        }
    }
}

/// Takes what is printed. Every method returns at once.
pub trait PrintSink: Send {
    /// The printer was plugged in. A sink whose [`room`](Self::room) can run out keeps `ready` to say
    /// when there is some again.
    fn attached(&mut self, ready: Ready) {
        let _ = ready;
    }

    /// How many bytes the sink can take now. Less than a packet (64 bytes at full speed, 512 at high
    /// speed) may stop the host until [`Ready::room`].
    fn room(&mut self) -> usize {
        usize::MAX
    }

    /// The next bytes, no more than there is room for.
    fn print(&mut self, bytes: &[u8]);

    /// What a host that asks is to hear.
    fn paper(&self) -> Paper {
        Paper::Loaded
    }

    /// The host starts again: what belongs to an unfinished page can be dropped.
    fn reset(&mut self) {}
}

/// A sink that throws everything away.
#[derive(Clone, Copy, Debug, Default)]
pub struct Discard;

impl PrintSink for Discard {
    fn print(&mut self, _bytes: &[u8]) {}
}

/// Says that a sink has room again; usable from any thread.
#[derive(Clone, Debug)]
pub struct Ready {
    notifier: Notifier,
    endpoint: EndpointAddress,
}

impl Ready {
    pub(super) fn new(notifier: Notifier, endpoint: EndpointAddress) -> Self {
        Self { notifier, endpoint }
    }

    /// There is room now: the host goes on.
    pub fn room(&self) {
        self.notifier.ready(self.endpoint);
    }
}
