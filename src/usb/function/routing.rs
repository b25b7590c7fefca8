//! The way through hubs: which device a token, a cancellation or a split is for.

use std::sync::Arc;

use super::Function;
use crate::usb::hub::{Upstream, UsbHub};
use crate::usb::{
    CompleteAnswer, CompleteSplit, Endpoint, EndpointAddress, Pid, Speed, StartAnswer, StartSplit,
};

impl Function {
    /// Calls `action` with the device that answers to `address`: this one, or one behind it if it is a
    /// hub. `None` if the packet reaches no such device.
    ///
    /// Packets pass enabled ports that are not suspended; at high speed they reach high-speed devices
    /// only, the others hear of [splits](Self::start_split).
    pub fn reach<R>(&mut self, address: u8, action: impl FnOnce(&mut Function) -> R) -> Option<R> {
        if self.address == address {
            return Some(action(self));
        }
        let hub = self.device.as_hub()?;
        let (mut action, mut answer) = (Some(action), None);
        search(hub, address, &mut |function| answer = action.take().map(|act| act(function)));
        answer
    }

    /// Gives up the transfer that is pending at `endpoint` of the device with `address`, this one or
    /// one behind it, however it was reached.
    pub fn cancel_at(&mut self, address: u8, endpoint: EndpointAddress) {
        if self.address == address {
            self.cancel(endpoint);
        }
        if let Some(hub) = self.device.as_hub() {
            hub.each(&mut |function| function.cancel_at(address, endpoint));
        }
    }

    /// A start-split for the hub it names, which is this device or one behind it. `None` if the
    /// packet reaches no device at the hub's address.
    pub fn start_split(&mut self, split: &StartSplit<'_>) -> Option<StartAnswer> {
        self.reach(split.token.hub, |function| match function.translator() {
            Some(hub) => hub.start_split(split),
            None => StartAnswer::Silence,
        })
    }

    /// A complete-split for the hub it names, as for [`start_split`](Self::start_split); `data` takes
    /// the bytes of an IN transaction.
    pub fn complete_split(
        &mut self,
        split: &CompleteSplit,
        data: &mut Vec<u8>,
    ) -> Option<CompleteAnswer> {
        self.reach(split.token.hub, |function| match function.translator() {
            Some(hub) => hub.complete_split(split, data),
            None => CompleteAnswer::Silence,
        })
    }

    /// Only a hub that works at high speed translates.
    fn translator(&mut self) -> Option<&mut dyn UsbHub> {
        if self.speed == Speed::High { self.device.as_hub() } else { None }
    }

    /// Largest packet of an endpoint that exists in the present settings, as the device has it.
    pub(crate) fn packet_size(&self, pid: Pid, endpoint: u8) -> Option<u16> {
        if endpoint == 0 {
            return Some(self.device.description().control_packet_size(self.speed));
        }
        let address = match pid {
            Pid::In => EndpointAddress::r#in(endpoint),
            Pid::Out => EndpointAddress::out(endpoint),
            Pid::Setup => return None,
        };
        self.endpoints.iter().find(|e| e.address == address).map(Endpoint::packet_size)
    }

    /// Gives up whatever is pending here and behind.
    pub(crate) fn quiesce(&mut self) {
        self.drop_pending();
        if let Some(hub) = self.device.as_hub() {
            hub.each(&mut Self::quiesce);
        }
    }

    /// Whether the device, suspended, signals resume, now that it or one behind it asked for it.
    pub(crate) fn resumes(&mut self) -> bool {
        // Leave to wake from L1 comes with each request to sleep, not as a feature.
        let enabled = self.remote_wakeup || self.dozing;
        self.device.as_hub().map_or(enabled, |hub| hub.resumes(enabled))
    }
}

/// Looks for `address` behind a hub.
fn search(hub: &mut dyn UsbHub, address: u8, found: &mut dyn FnMut(&mut Function)) -> bool {
    hub.repeat(&mut |function| {
        if function.address == address {
            found(function);
            return true;
        }
        function.device.as_hub().is_some_and(|hub| search(hub, address, found))
    })
}

/// How many hubs there are on the longest way through `hub`, itself included; `None` if the way leads
/// through the port that `port` belongs to.
pub(crate) fn height(hub: &mut dyn UsbHub, port: &Arc<Upstream>) -> Option<usize> {
    if Arc::ptr_eq(hub.upstream(), port) {
        return None;
    }
    let mut highest = Some(0);
    hub.each(&mut |function| {
        let below = function.device.as_hub().map_or(Some(0), |hub| height(hub, port));
        highest = highest.zip(below).map(|(a, b)| a.max(b));
    });
    highest.map(|below: usize| below.saturating_add(1))
}
