//! Root ports (EHCI 2.3.9, 4.2, 4.3).

use serde::{Deserialize, Serialize};

use super::spec::{PortSc, test_mode};
use crate::journal::PortState;
use crate::snapshot::Offset;
use crate::time::Time;
use crate::topology::{Host, PortLink};
use crate::usb::{EndpointAddress, LinkAnswer, LinkSleep, Speed, Suspension};

/// What a port has to tell the rest of the controller.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PortEvents {
    /// A change bit went from 0 to 1, or a device asks to resume: USBSTS.PCD.
    pub change: bool,
    /// The device left, was reset, suspended or disabled: its transfers are over.
    pub lost: bool,
    /// Something happened that is to wake a sleeping system.
    pub wakeup: bool,
}

impl PortEvents {
    pub(super) fn merge(&mut self, other: Self) {
        self.change |= other.change;
        self.lost |= other.lost;
        self.wakeup |= other.wakeup;
    }
}

/// A [`RootPort`] in a snapshot.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedPort {
    sc: PortSc,
    generation: u64,
    occupied: bool,
    debug: DebugUse,
    woken: bool,
    resume_ends: Option<Offset>,
}

/// What of the rest of the controller counts for a write to PORTSC.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortRules {
    /// CONFIGFLAG.
    pub configured: bool,
    /// USBCMD.HIRD, if there is link power management.
    pub lpm: Option<u8>,
    pub now: Time,
}

/// One root port.
#[derive(Debug)]
pub(super) struct RootPort {
    link: PortLink,
    sc: PortSc,
    /// The socket as of the last look.
    generation: u64,
    occupied: bool,
    debug: DebugUse,
    /// The device set FPR: news, until the resume is over.
    woken: bool,
    /// When a resume from L1 that software began is over.
    resume_ends: Option<Time>,
}

/// What the debug port does with this port (EHCI C.3.1); on all but root port 1 always nothing.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct DebugUse {
    /// OWNER: the companion has no say, whatever PO and CONFIGFLAG are.
    claimed: bool,
    /// ENABLED: the device is the debug port's, and the schedules do not reach it.
    enabled: bool,
}

impl RootPort {
    pub(super) fn new(link: PortLink) -> Self {
        let debug = DebugUse::default();
        let mut port = Self {
            link,
            sc: PortSc::new(),
            generation: 0,
            occupied: false,
            debug,
            woken: false,
            resume_ends: None,
        };
        port.reset();
        port
    }

    /// Power-on and HCRESET: no power of ours, and the port belongs to the companion. The device
    /// sees no reset (EHCI 2.3.1).
    pub(super) fn reset(&mut self) {
        let over_current = self.link.view().over_current;
        self.sc = PortSc::new().with_owner(true).with_over_current(over_current);
        self.debug = DebugUse::default();
        self.end_resume();
        self.link.set_owner(Host::Classic);
        self.note_socket();
    }

    pub(super) fn save(&self, now: Time) -> SavedPort {
        let Self { link: _, sc, generation, occupied, debug, woken, resume_ends } = self;
        SavedPort {
            sc: *sc,
            generation: *generation,
            occupied: *occupied,
            debug: *debug,
            woken: *woken,
            resume_ends: resume_ends.map(|end| Offset::of(end, now)),
        }
    }

    /// The socket's owner is part of the socket's own state.
    pub(super) fn restore(&mut self, state: SavedPort, now: Time) {
        let SavedPort { sc, generation, occupied, debug, woken, resume_ends } = state;
        self.sc = sc;
        self.generation = generation;
        self.occupied = occupied;
        self.debug = debug;
        self.woken = woken;
        self.resume_ends = resume_ends.map(|end| end.at(now));
    }

    /// The device's side of the port.
    pub(super) fn link(&self) -> &PortLink {
        &self.link
    }

    /// Whether transactions reach the device.
    pub(super) fn carries_traffic(&self) -> bool {
        let signals = test_mode::SIGNALS.contains(&self.sc.test());
        let idle = self.sc.suspend() || self.sc.reset() || self.debug.enabled || signals;
        self.sc.enabled() && !idle
    }

    /// Whether there is a change that software has not acknowledged, or a device that asks to resume
    /// (EHCI 1.1, USBSTS 31:16).
    pub(super) fn has_news(&self) -> bool {
        u32::from(self.sc) & PortSc::CHANGES != 0 || self.woken
    }

    /// When a resume from L1 is to be ended.
    pub(super) fn resume_ends(&self) -> Option<Time> {
        self.resume_ends
    }

    /// Whether the debug port's transactions reach the device. Software may well have cleared PE.
    pub(super) fn takes_debug(&self) -> bool {
        self.debug.enabled && !self.sc.suspend() && !self.sc.reset()
    }

    /// OWNER of the debug port.
    pub(super) fn claimed(&self) -> bool {
        self.debug.claimed
    }

    /// ENABLED of the debug port.
    pub(super) fn debugging(&self) -> bool {
        self.debug.enabled
    }

    /// The debug port takes the port from the companion or lets go of it (EHCI C.3.1, OWNER_CNT).
    ///
    /// It switches the port's power on: early consoles never write PP, on the chips they were made
    /// for ports are always powered.
    pub(super) fn claim(&mut self, on: bool) -> PortEvents {
        if on == self.debug.claimed {
            return PortEvents::default();
        }
        self.debug.claimed = on;
        let mut events = self.route_socket();
        if on && !self.sc.power() {
            events.merge(self.set_power(true));
        }
        events
    }

    /// The debug port is switched on, which takes an enabled port, or off (EHCI C.3.1, ENABLED_CNT).
    pub(super) fn set_debugging(&mut self, on: bool) -> PortEvents {
        let on = on && (self.debug.enabled || self.sc.enabled());
        let lost = on != self.debug.enabled;
        self.debug.enabled = on;
        PortEvents { lost, ..PortEvents::default() }
    }

    /// What the port is to this controller, in a word; `companion` tells whether there is another.
    pub(super) fn state(&self, companion: bool) -> PortState {
        match self.sc {
            sc if sc.owner() && companion => PortState::HandedOver,
            sc if sc.reset() => PortState::Resetting,
            sc if sc.force_resume() => PortState::Resuming,
            sc if sc.suspend() => PortState::Suspended,
            sc if sc.enabled() => PortState::Enabled,
            sc if sc.current_connect() => PortState::Connected,
            _ => PortState::Empty,
        }
    }

    /// PORTSC as the guest reads it.
    pub(super) fn read(&self) -> u32 {
        self.sc.with_line_status(self.line_status()).into()
    }

    /// LS shows the pull-up of a device that is neither enabled nor in reset; a high-speed device
    /// starts out as a full-speed one.
    fn line_status(&self) -> u8 {
        let idle = self.sc.current_connect() && !self.sc.enabled() && !self.sc.reset();
        match self.link.view().device.filter(|_| idle) {
            Some(Speed::Low) => PortSc::LINE_K,
            Some(_) => PortSc::LINE_J,
            None => 0,
        }
    }

    /// The endpoints whose devices became ready since the last look.
    pub(super) fn take_ready(&self) -> impl Iterator<Item = EndpointAddress> + use<> {
        self.link.take_ready()
    }

    /// Looks at the socket: plugging and remote wakeup; and at the clock.
    pub(super) fn poll(&mut self, configured: bool, now: Time) -> PortEvents {
        let mut events = PortEvents::default();
        if self.resume_ends.is_some_and(|end| now >= end) {
            self.finish_resume();
        }
        let view = self.link.view();
        if view.generation != self.generation {
            let was_occupied = self.occupied;
            self.generation = view.generation;
            self.occupied = view.occupied;
            if self.is_companions() && configured && was_occupied {
                // The device of a companion-owned port was pulled: the port comes back (EHCI 4.2.2).
                self.sc.set_owner(false);
                self.link.set_owner(Host::High);
                self.note_socket();
            }
            events.merge(self.reconnect(true));
        }
        if view.over_current != self.sc.over_current() {
            events.merge(self.set_over_current(view.over_current));
        }
        if self.link.take_babble() && (self.sc.enabled() || self.debug.enabled) {
            // The hub's end-of-frame watch disables the port (EHCI 2.3.9, PEC).
            self.disable();
            events.change |= !self.sc.enable_change();
            self.sc.set_enable_change(true);
            events.lost = true;
        }
        if self.link.take_remote_wakeup() && self.sc.enabled() && self.sc.suspend() {
            if !self.sc.force_resume() {
                self.sc.set_force_resume(true);
                self.woken = true;
                events.change = true;
            }
            events.wakeup = true;
        }
        events
    }

    /// CONFIGFLAG changed: the port goes to this controller or to its companion (EHCI 2.3.8).
    pub(super) fn route(&mut self, configured: bool) -> PortEvents {
        self.set_owner(!configured)
    }

    /// A write to PORTSC: the bits of `mask` become those of `value` (EHCI 2.3.9).
    ///
    /// What the write acknowledges is cleared first, so an event it causes stays visible.
    pub(super) fn write(&mut self, value: u32, mask: u32, rules: &PortRules) -> PortEvents {
        let mut events = PortEvents::default();
        let before = self.sc;
        self.sc = PortSc::from(u32::from(before) & !(value & mask & PortSc::CHANGES));
        let wanted = PortSc::from((u32::from(before) & !mask) | (value & mask));

        if wanted.power() != before.power() {
            events.merge(self.set_power(wanted.power()));
        }
        if wanted.owner() != before.owner() && rules.configured {
            events.merge(self.set_owner(wanted.owner()));
        }
        if before.enabled() && !wanted.enabled() && self.sc.enabled() {
            self.sc.set_enabled(false);
            events.lost = true;
        }
        if wanted.reset() != before.reset() && self.sc.power() {
            events.merge(self.set_reset(wanted.reset()));
        }
        if !self.sc.reset() {
            events.merge(self.set_suspension(before, wanted, rules));
        }
        if self.sc.power() {
            events.merge(self.set_test(wanted.test()));
            self.sc.set_wake_on_connect(wanted.wake_on_connect());
            self.sc.set_wake_on_disconnect(wanted.wake_on_disconnect());
            self.sc.set_wake_on_over_current(wanted.wake_on_over_current());
            if rules.lpm.is_some() {
                self.sc.set_suspend_using_l1(wanted.suspend_using_l1());
                self.sc.set_device_address(wanted.device_address());
            }
        }
        events
    }

    /// Port test modes (EHCI 4.14). Patterns are for an oscilloscope: what they mean here is that the
    /// port carries nothing else. A port that is forced on is enabled as if its device had agreed to
    /// high speed, which a device that did not cannot follow.
    fn set_test(&mut self, mode: u8) -> PortEvents {
        let before = self.sc.test();
        self.sc.set_test(mode);
        let entered = mode != before;
        if entered && mode == test_mode::FORCE_ENABLE {
            let speed = self.link.with(|function| function.speed());
            let at_high_speed = speed.is_none_or(|speed| speed == Speed::High);
            self.sc.set_enabled(self.sc.enabled() || (at_high_speed && !self.is_companions()));
        }
        let lost = entered && test_mode::SIGNALS.contains(&mode) && self.sc.enabled();
        PortEvents { lost, ..PortEvents::default() }
    }

    /// Port power: without it the port shows nothing (EHCI 2.3.9, PP).
    fn set_power(&mut self, on: bool) -> PortEvents {
        if on {
            self.sc.set_power(true);
            return self.reconnect(false);
        }
        let lost = self.sc.enabled();
        self.disable();
        self.sc = PortSc::new()
            .with_owner(self.sc.owner())
            .with_over_current(self.sc.over_current())
            .with_over_current_change(self.sc.over_current_change());
        // A device without power forgets its address and configuration.
        self.link.with(|function| function.bus_reset(Speed::High));
        PortEvents { lost, ..PortEvents::default() }
    }

    /// Over-current comes or goes (EHCI 2.3.9, OCA and OCC). Power stays as software set it.
    fn set_over_current(&mut self, on: bool) -> PortEvents {
        let events = PortEvents {
            change: !self.sc.over_current_change(),
            lost: on && self.sc.enabled(),
            wakeup: on && self.sc.wake_on_over_current(),
        };
        self.sc.set_over_current(on);
        self.sc.set_over_current_change(true);
        if on {
            self.disable();
        }
        events
    }

    /// The port is disabled other than by software: whatever was done with the device is over.
    fn disable(&mut self) {
        self.debug.enabled = false;
        self.sc.set_enabled(false);
        self.sc.set_suspend(false);
        self.sc.set_force_resume(false);
        self.end_resume();
    }

    /// There is no resume to wait for any more.
    fn end_resume(&mut self) {
        self.woken = false;
        self.resume_ends = None;
    }

    /// Whether the companion serves the port.
    fn is_companions(&self) -> bool {
        self.sc.owner() && !self.debug.claimed
    }

    fn set_owner(&mut self, companion: bool) -> PortEvents {
        if self.sc.owner() == companion {
            return PortEvents::default();
        }
        self.sc.set_owner(companion);
        self.route_socket()
    }

    /// Connects the device with the controller that is to have it.
    fn route_socket(&mut self) -> PortEvents {
        self.link.set_owner(if self.is_companions() { Host::Classic } else { Host::High });
        self.note_socket();
        self.reconnect(false)
    }

    /// Bus reset (EHCI 2.3.9, PR). The device sees one reset, when the pulse ends; that it works at
    /// high speed is known at once.
    fn set_reset(&mut self, on: bool) -> PortEvents {
        self.sc.set_reset(on);
        if on {
            let lost = self.sc.enabled();
            self.sc.set_enabled(false);
            self.sc.set_suspend(false);
            self.sc.set_force_resume(false);
            self.end_resume();
            return PortEvents { lost, ..PortEvents::default() };
        }
        if self.sc.current_connect() {
            let speed = self.link.with(|function| function.bus_reset(Speed::High));
            self.sc.set_enabled(speed == Some(Speed::High));
        }
        PortEvents::default()
    }

    /// Suspend and resume by software (EHCI 4.3.1).
    fn set_suspension(&mut self, before: PortSc, wanted: PortSc, rules: &PortRules) -> PortEvents {
        let l1 = rules.lpm.filter(|_| wanted.suspend_using_l1());
        if before.force_resume() && !wanted.force_resume() {
            self.finish_resume();
        } else if wanted.suspend() && !self.sc.suspend() && self.sc.enabled() {
            let sleeps = match l1 {
                Some(resume) => self.ask_to_sleep(wanted.device_address(), resume),
                None => {
                    self.link.with(|function| function.suspension(Suspension::Suspended));
                    true
                }
            };
            self.sc.set_suspend(sleeps);
            return PortEvents { lost: sleeps, ..PortEvents::default() };
        } else if wanted.force_resume() && self.sc.suspend() && !self.sc.force_resume() {
            self.sc.set_force_resume(true);
            // From L1 the controller ends the resume itself, unless software does so before.
            self.resume_ends = l1.map(|resume| {
                rules.now.after_micros(LinkSleep { resume, remote_wakeup: true }.resume_micros())
            });
        }
        PortEvents::default()
    }

    /// Sends the token that asks the device at `address` to enter L1, and shows the answer (EHCI 1.1,
    /// PORTSC 24:23); returns whether the device sleeps.
    fn ask_to_sleep(&mut self, address: u8, resume: u8) -> bool {
        let sleep = LinkSleep { resume, remote_wakeup: true };
        let answer = self.link.with(|function| function.sleep(address, sleep)).unwrap_or_default();
        self.sc.set_suspend_status(match answer {
            LinkAnswer::Ack => 0,
            LinkAnswer::NotYet => 1,
            LinkAnswer::Stall => 2,
            LinkAnswer::Silence => 3,
        });
        answer == LinkAnswer::Ack
    }

    /// Resume signalling ends: the device is awake.
    fn finish_resume(&mut self) {
        self.end_resume();
        self.sc.set_force_resume(false);
        self.sc.set_suspend(false);
        self.link.with(|function| function.suspension(Suspension::Resumed));
    }

    /// Brings CCS up to date. `plugged` says that the device in the socket, if any, is a new one.
    fn reconnect(&mut self, plugged: bool) -> PortEvents {
        let mut events = PortEvents::default();
        let was = self.sc.current_connect();
        let present = self.sc.power() && !self.is_companions() && self.link.view().device.is_some();
        if was && (plugged || !present) {
            events.lost = self.sc.enabled();
            self.disable();
            events.wakeup |= self.sc.wake_on_disconnect();
        }
        if present && (plugged || !was) {
            events.wakeup |= self.sc.wake_on_connect();
        }
        self.sc.set_current_connect(present);
        if (was != present || (plugged && was)) && !self.sc.connect_change() {
            self.sc.set_connect_change(true);
            events.change = true;
        }
        events
    }

    /// Takes the socket as it is for known.
    fn note_socket(&mut self) {
        let view = self.link.view();
        self.generation = view.generation;
        self.occupied = view.occupied;
    }
}
