//! What becomes a qTD (EHCI 3.5).

use vm_usb::usb::Pid;

use super::spec::token;

/// One qTD to be.
#[derive(Clone, Copy, Debug)]
pub struct Td {
    pub pid: Pid,
    pub buffer: u32,
    pub len: u32,
    /// For queues that take the toggle from the qTD.
    pub toggle: bool,
    pub ioc: bool,
    /// Alternate Next; `None` for T = 1.
    pub alternate: Option<u32>,
    pub cerr: u32,
}

impl Td {
    pub fn new(pid: Pid, buffer: u32, len: u32) -> Self {
        Self { pid, buffer, len, toggle: false, ioc: false, alternate: None, cerr: 3 }
    }

    pub fn ioc(self) -> Self {
        Self { ioc: true, ..self }
    }

    pub fn toggle(self, toggle: bool) -> Self {
        Self { toggle, ..self }
    }

    pub fn alternate(self, qtd: u32) -> Self {
        Self { alternate: Some(qtd), ..self }
    }

    pub fn cerr(self, cerr: u32) -> Self {
        Self { cerr, ..self }
    }

    /// The token of the active qTD.
    pub fn token(&self) -> u32 {
        let pid = match self.pid {
            Pid::Out => token::OUT,
            Pid::In => token::IN,
            Pid::Setup => token::SETUP,
        };
        token::ACTIVE
            | pid
            | self.cerr << 10
            | self.len << 16
            | if self.ioc { token::IOC } else { 0 }
            | if self.toggle { token::TOGGLE } else { 0 }
    }

    /// The five buffer pointers of contiguous memory.
    pub fn pages(&self) -> [u32; 5] {
        std::array::from_fn(|n| match n {
            0 => self.buffer,
            n => (self.buffer & !0xfff).wrapping_add(0x1000 * n as u32),
        })
    }
}
