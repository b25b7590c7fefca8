//! Statistics of a device's endpoints, and its observer.

use std::sync::Arc;

use crate::time::Time;
use crate::usb::{
    Endpoint, EndpointAddress, EndpointStatistics, Observer, Outcome, Pid, Sight, Speed, Status,
    Transfer, TransferType,
};

/// Endpoints a device can have: 16 numbers, two directions.
const ENDPOINTS: usize = 32;

/// An endpoint that some setting of the device had.
struct Slot {
    statistics: EndpointStatistics,
    /// Since when the device has had the transfer that is pending.
    began: Option<Time>,
}

/// What is known of the transfers of one device. Its size depends on the device's descriptors alone.
#[derive(Default)]
pub(super) struct Watch {
    slots: [Option<Box<Slot>>; ENDPOINTS],
    observer: Option<Arc<dyn Observer>>,
}

/// A transfer that was offered and not answered yet.
pub(super) struct Offer {
    address: u8,
    speed: Speed,
    pid: Pid,
    endpoint: EndpointAddress,
    asked: usize,
    call: Time,
    /// When it was offered, by the observer's clock.
    time: Time,
}

impl Watch {
    pub(super) fn observe(&mut self, observer: Option<Arc<dyn Observer>>) {
        self.observer = observer;
    }

    /// The device has these endpoints now, besides the control endpoint.
    pub(super) fn know(&mut self, endpoints: &[Endpoint]) {
        let known = endpoints.iter().map(|e| (e.address, e.transfer_type));
        for (address, kind) in known.chain([(EndpointAddress::CONTROL, TransferType::Control)]) {
            let Some(slot) = self.slots.get_mut(address.index() as usize) else { continue };
            match slot {
                Some(slot) => slot.statistics.transfer_type = kind,
                None => {
                    let statistics = EndpointStatistics::new(address, kind);
                    *slot = Some(Box::new(Slot { statistics, began: None }));
                }
            }
        }
    }

    /// A transfer is about to be offered to the device.
    pub(super) fn offered(&self, address: u8, speed: Speed, transfer: &Transfer<'_>) -> Offer {
        let endpoint = match (transfer.endpoint, transfer.pid) {
            (0, _) => EndpointAddress::CONTROL,
            (number, Pid::In) => EndpointAddress::r#in(number),
            (number, Pid::Out | Pid::Setup) => EndpointAddress::out(number),
        };
        let (pid, call, asked) = (transfer.pid, transfer.now, transfer.buffer.len());
        let mut offer = Offer { address, speed, pid, endpoint, asked, call, time: call };
        if let Some(observer) = &self.observer {
            offer.time = observer.now(call);
            observer.offered(&self.sight(&offer, offer.time, transfer));
        }
        offer
    }

    /// The device has answered.
    pub(super) fn answered(&mut self, offer: &Offer, transfer: &Transfer<'_>, outcome: &Outcome) {
        let mut end = offer.call;
        if let Some(observer) = &self.observer {
            end = observer.now(offer.call);
            observer.answered(&self.sight(offer, end, transfer), outcome);
        }
        let Some(Some(slot)) = self.slots.get_mut(offer.endpoint.index() as usize) else { return };
        let ended = slot.statistics.count(offer.pid, offer.asked, outcome);
        if ended {
            let began = slot.began.take().unwrap_or(offer.time);
            slot.statistics.latency.record(end.nanos_since(began));
        } else if outcome.status == Status::Pending {
            slot.began.get_or_insert(offer.time);
        }
    }

    /// The host gave up what was pending at `endpoint`.
    pub(super) fn cancelled(&mut self, address: u8, endpoint: EndpointAddress) {
        if let Some(Some(slot)) = self.slots.get_mut(endpoint.index() as usize) {
            slot.began = None;
        }
        if let Some(observer) = &self.observer {
            observer.cancelled(address, endpoint);
        }
    }

    /// What was counted, the control endpoint first.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &EndpointStatistics> {
        self.slots.iter().flatten().map(|slot| &slot.statistics)
    }

    fn sight<'a>(&self, offer: &Offer, time: Time, transfer: &'a Transfer<'_>) -> Sight<'a> {
        let slot = self.slots.get(offer.endpoint.index() as usize).and_then(Option::as_ref);
        Sight {
            time,
            address: offer.address,
            speed: offer.speed,
            pid: offer.pid,
            endpoint: offer.endpoint,
            transfer_type: slot.map(|slot| slot.statistics.transfer_type),
            buffer: &*transfer.buffer,
        }
    }
}
