//! The root hub: its registers, power modes and ports (OHCI 1.0a, 7.4).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use super::endpoints::Flight;
use super::port::{News, RootPort, SavedPort};
use super::spec::{HcRhDescriptorA, HcRhDescriptorB, HcRhPortStatus, HcRhStatus, Hcfs};
use crate::journal::PortState;
use crate::snapshot::RestoreError;
use crate::time::Time;
use crate::topology::PortLink;
use crate::usb::Wake;

/// Most ports a root hub can have (7.4.1).
pub(super) const MAX_PORTS: usize = 15;

/// How the power of the ports is switched: what NPS, PSM and PPCM read after reset (OHCI 1.0a, 7.4.1,
/// 7.4.2). A driver may choose another mode then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum PowerSwitching {
    /// Not at all: the ports are powered while the controller is.
    #[default]
    None,
    /// All together, by SetGlobalPower and ClearGlobalPower. They are off after reset.
    Global,
    /// Each on its own, by SetPortPower and ClearPortPower. They are off after reset.
    PerPort,
}

/// Who watches for over-current, the state that [`Port::set_over_current`] sets: what NOCP and OCPM
/// read after reset (OHCI 1.0a, 7.4.1). A driver may choose another mode then.
///
/// [`Port::set_over_current`]: crate::topology::Port::set_over_current
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum OverCurrentProtection {
    /// Nobody: it goes unnoticed.
    #[default]
    None,
    /// The hub: one port that draws too much takes the power from all, and HcRhStatus tells of it.
    Global,
    /// Each port on its own: only its power is taken, and its HcRhPortStatus tells of it.
    PerPort,
}

/// Set by ports and devices that have something to say, so that nobody needs to ask each of them on
/// every register access.
#[derive(Debug, Default)]
struct Attention(AtomicBool);

impl Wake for Attention {
    fn wake(&self) {
        self.0.store(true, Ordering::Release);
    }
}

/// What a look at the root hub brought.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct HubNews {
    /// RootHubStatusChange.
    pub(super) changed: bool,
    /// ResumeDetected.
    pub(super) resume: bool,
    /// The suspended bus resumes.
    pub(super) bus_resumes: bool,
    /// An endpoint has something to say, or a port's state may let packets through.
    pub(super) ready: bool,
}

/// The root hub in a snapshot.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HubState {
    descriptor_a: HcRhDescriptorA,
    descriptor_b: HcRhDescriptorB,
    drwe: bool,
    bus_idle: bool,
    oci: bool,
    ocic: bool,
    switching: PowerSwitching,
    protection: OverCurrentProtection,
    ports: Vec<SavedPort>,
}

/// The root hub.
#[derive(Debug)]
pub(super) struct RootHub {
    descriptor_a: HcRhDescriptorA,
    descriptor_b: HcRhDescriptorB,
    drwe: bool,
    /// OverCurrentIndicator and its change.
    oci: bool,
    ocic: bool,
    switching: PowerSwitching,
    protection: OverCurrentProtection,
    ports: Vec<RootPort>,
    attention: Arc<Attention>,
    /// The driver has let the bus go idle.
    bus_idle: bool,
}

impl RootHub {
    pub(super) fn new(links: Vec<PortLink>) -> Self {
        let attention = Arc::new(Attention::default());
        let ports = links.into_iter().take(MAX_PORTS).map(|link| {
            link.attend(attention.clone());
            RootPort::new(link)
        });
        let mut hub = Self {
            descriptor_a: HcRhDescriptorA::new(),
            descriptor_b: HcRhDescriptorB::new(),
            drwe: false,
            oci: false,
            ocic: false,
            switching: PowerSwitching::None,
            protection: OverCurrentProtection::None,
            ports: ports.collect(),
            attention,
            bus_idle: false,
        };
        hub.reset();
        hub
    }

    /// Power switching and over-current protection as the platform has them; to be followed by a reset.
    pub(super) fn set_power_modes(
        &mut self,
        switching: Option<PowerSwitching>,
        protection: Option<OverCurrentProtection>,
    ) {
        self.switching = switching.unwrap_or(self.switching);
        self.protection = protection.unwrap_or(self.protection);
    }

    /// Hardware reset. The values of the descriptors are the implementation's; power is good after
    /// 2 ms.
    pub(super) fn reset(&mut self) {
        let ports = self.ports.len();
        self.descriptor_a = HcRhDescriptorA::new()
            .with_ndp(u8::try_from(ports).unwrap_or(0))
            .with_nps(self.switching == PowerSwitching::None)
            .with_psm(self.switching == PowerSwitching::PerPort)
            .with_nocp(self.protection == OverCurrentProtection::None)
            .with_ocpm(self.protection == OverCurrentProtection::PerPort)
            .with_potpgt(1);
        let all_ports = (1..=ports).fold(0, |mask, port| mask | 1 << (port & 15));
        let ppcm = if self.descriptor_a.psm() { all_ports } else { 0 };
        self.descriptor_b = HcRhDescriptorB::new().with_ppcm(ppcm);
        self.drwe = false;
        self.oci = false;
        self.ocic = false;
        self.bus_idle = false;
        for port in &mut self.ports {
            port.reset(self.descriptor_a.nps());
        }
        self.attention.wake();
    }

    pub(super) fn save(&self, now: Time) -> HubState {
        let Self {
            descriptor_a,
            descriptor_b,
            drwe,
            ports,
            // Set by the restore.
            attention: _,
            bus_idle,
            oci,
            ocic,
            switching,
            protection,
        } = self;
        HubState {
            descriptor_a: *descriptor_a,
            descriptor_b: *descriptor_b,
            drwe: *drwe,
            bus_idle: *bus_idle,
            oci: *oci,
            ocic: *ocic,
            switching: *switching,
            protection: *protection,
            ports: ports.iter().map(|port| port.save(now)).collect(),
        }
    }

    pub(super) fn restore(&mut self, state: &HubState, now: Time) -> Result<(), RestoreError> {
        let HubState {
            descriptor_a,
            descriptor_b,
            drwe,
            bus_idle,
            oci,
            ocic,
            switching,
            protection,
            ports,
        } = state;
        let platform = |ports: usize, switching, protection| {
            format!(
                "{ports} ports, power switching {switching:?} and over-current protection \
                 {protection:?}"
            )
        };
        RestoreError::same(
            platform(ports.len(), *switching, *protection),
            platform(self.ports.len(), self.switching, self.protection),
        )?;
        self.descriptor_a = descriptor_a.with_ndp(self.descriptor_a.ndp());
        self.descriptor_b = *descriptor_b;
        self.drwe = *drwe;
        self.bus_idle = *bus_idle;
        self.oci = *oci;
        self.ocic = *ocic;
        for (port, state) in self.ports.iter_mut().zip(ports) {
            port.restore(*state, now);
        }
        self.attention.wake();
        Ok(())
    }

    /// HcRhDescriptorA.
    pub(super) fn descriptor_a(&self) -> HcRhDescriptorA {
        self.descriptor_a
    }

    /// HcRhDescriptorB.
    pub(super) fn descriptor_b(&self) -> HcRhDescriptorB {
        self.descriptor_b
    }

    /// HcRhStatus: there is no local power supply to watch.
    pub(super) fn status(&self) -> HcRhStatus {
        HcRhStatus::new().with_drwe(self.drwe).with_oci(self.oci).with_ocic(self.ocic)
    }

    /// HcRhPortStatus of port `index`, from 0; `None` if there is no such port.
    pub(super) fn port_status(&self, index: usize) -> Option<HcRhPortStatus> {
        self.ports.get(index).map(RootPort::status)
    }

    /// What each port is to this controller, in a word.
    pub(super) fn states(&self) -> impl Iterator<Item = PortState> {
        self.ports.iter().map(RootPort::state)
    }

    /// A write to HcRhDescriptorA; returns whether a change bit was set. Taking power switching away
    /// powers all ports; giving it back leaves them as they are.
    pub(super) fn write_descriptor_a(&mut self, value: u32) -> bool {
        let fixed = self.descriptor_a.into_bits() & !HcRhDescriptorA::WRITABLE;
        self.descriptor_a = HcRhDescriptorA::from_bits(fixed | (value & HcRhDescriptorA::WRITABLE));
        if self.descriptor_a.nps() {
            self.ports.iter_mut().for_each(|port| {
                port.set_power(true);
            });
            self.attention.wake();
        }
        self.watch_current()
    }

    /// A write to HcRhDescriptorB.
    pub(super) fn write_descriptor_b(&mut self, value: u32) {
        self.descriptor_b = HcRhDescriptorB::from_bits(value);
    }

    /// A write to HcRhStatus; returns whether a port's change bit was set.
    pub(super) fn write_status(&mut self, value: u32) -> bool {
        let command = HcRhStatus::from_bits(value);
        if command.drwe() {
            self.drwe = true;
        }
        if command.crwe() {
            self.drwe = false;
        }
        if command.ocic() {
            self.ocic = false;
        }
        let mut changed = false;
        for (on, commanded) in [(false, command.lps()), (true, command.lpsc() && !self.oci)] {
            if commanded && !self.descriptor_a.nps() {
                for index in 0..self.ports.len() {
                    if !self.is_switched_alone(index) {
                        let port = self.ports.get_mut(index);
                        changed |= port.is_some_and(|port| port.switch_power(on));
                    }
                }
                self.attention.wake();
            }
        }
        changed
    }

    /// Whether port `index` obeys SetPortPower and ClearPortPower (7.4.1, 7.4.2).
    fn is_switched_alone(&self, index: usize) -> bool {
        let mask = self.descriptor_b.ppcm().checked_shr(index as u32).unwrap_or(0) >> 1;
        !self.descriptor_a.nps() && self.descriptor_a.psm() && mask & 1 != 0
    }

    /// A write to HcRhPortStatus of port `index`, from 0; returns whether a change bit was set.
    pub(super) fn write_port(&mut self, index: usize, value: u32, now: Time) -> bool {
        // While the hub as a whole has over-current, no port gets power.
        let switched = self.is_switched_alone(index) && !self.oci;
        let idle = self.bus_idle;
        let Some(port) = self.ports.get_mut(index) else {
            return false;
        };
        let changed = port.write(value, switched, now);
        port.tell_suspension(idle);
        self.attention.wake();
        changed
    }

    /// Compares what the ports draw with what the protection allows (7.4.1, OCPM and NOCP); returns
    /// whether a change bit was set. Where power is not switched, a port is only disabled.
    fn watch_current(&mut self) -> bool {
        let (watched, per_port) = (!self.descriptor_a.nocp(), self.descriptor_a.ocpm());
        let switchable = !self.descriptor_a.nps();
        let mut changed = false;
        for port in &mut self.ports {
            changed |= port.set_over_current(watched && per_port, switchable);
        }
        let oci = watched && !per_port && self.ports.iter().any(RootPort::draws_too_much);
        if oci != self.oci {
            self.oci = oci;
            self.ocic = true;
            changed = true;
            if oci {
                self.ports.iter_mut().for_each(|port| port.trip(switchable));
            }
        }
        changed
    }

    /// The driver moved the bus to another state (7.1.2).
    pub(super) fn set_state(&mut self, hcfs: Hcfs) {
        self.bus_idle = hcfs == Hcfs::Suspend;
        for port in &mut self.ports {
            match hcfs {
                Hcfs::Reset => port.reset_bus(),
                Hcfs::Resume => port.resume_bus(),
                Hcfs::Operational | Hcfs::Suspend => {}
            }
            port.tell_suspension(self.bus_idle);
        }
    }

    /// Looks at ports and devices that have something to say, and at the time.
    pub(super) fn poll(&mut self, now: Time, hcfs: Hcfs) -> HubNews {
        let mut news = HubNews::default();
        let look = self.attention.0.swap(false, Ordering::Acquire);
        for port in &mut self.ports {
            let ended = port.tick(now);
            let heard = if look { port.look() } else { News::default() };
            news.changed |= ended.changed || heard.changed;
            news.ready |= ended.changed || heard.changed || heard.ready;
            match hcfs {
                // A connection counts as wakeup if the driver says so (7.4.3).
                Hcfs::Suspend if heard.wakeup || (heard.connection && self.drwe) => {
                    news.resume = true;
                    news.bus_resumes = true;
                }
                Hcfs::Operational if heard.wakeup => news.resume |= port.resume(now),
                _ => {}
            }
            if ended.changed || heard != News::default() {
                port.tell_suspension(self.bus_idle);
            }
        }
        if look {
            news.changed |= self.watch_current();
        }
        news
    }

    /// When some port's signalling ends.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.ports.iter().filter_map(RootPort::deadline).min()
    }

    /// The port behind which a device listens to `address` at this speed.
    pub(super) fn route(&mut self, address: u8, low_speed: bool) -> Option<&mut RootPort> {
        self.ports.iter_mut().find(|port| port.answers(address, low_speed))
    }

    /// Whether a driver may be about to schedule isochronous transfers.
    pub(super) fn may_stream(&self) -> bool {
        self.ports.iter().any(RootPort::may_stream)
    }

    /// Whether a device has begun something that it has not finished.
    pub(super) fn has_flights(&self) -> bool {
        self.ports.iter().any(RootPort::has_flights)
    }

    /// Takes back the transfers in flight for which `keep` is false.
    pub(super) fn retain_flights(&mut self, mut keep: impl FnMut(&Flight) -> bool) {
        for port in self.ports.iter_mut().filter(|port| port.has_flights()) {
            port.retain_flights(&mut keep);
        }
    }
}
