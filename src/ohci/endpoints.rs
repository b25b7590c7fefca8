//! What the controller remembers of the endpoints of the devices behind one port.
//!
//! It is little, and keyed by the device's endpoint, not by a descriptor's address: an ED that a
//! driver unlinks and links again a moment later finds its endpoint as it left it, and one that is
//! rebuilt for another endpoint inherits nothing. It ends with the device's address, its port's
//! enabling, or its place on the bus.

use super::ListKind;
use super::descriptors::{Ed, Td};
use super::spec::{EdControl, TdControl};
use crate::usb::EndpointAddress;

/// An endpoint of one of the devices: the device's address, and which endpoint.
pub(super) type Pipe = (u8, EndpointAddress);

/// What a device was asked to do: the words of the descriptors that said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) list: ListKind,
    pub(super) ed: u32,
    pub(super) td: u32,
    ed_control: EdControl,
    td_control: TdControl,
    cbp: u32,
    be: u32,
}

impl Offer {
    pub(super) fn new(list: ListKind, ed: &Ed, td: &Td) -> Self {
        Self {
            list,
            ed: ed.address,
            td: td.address,
            ed_control: ed.control,
            td_control: td.control,
            cbp: td.cbp,
            be: td.be,
        }
    }

    /// Address of the device.
    pub(super) fn address(&self) -> u8 {
        self.ed_control.fa()
    }
}

/// A transfer that a device has begun and not finished.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) endpoint: EndpointAddress,
    pub(super) offer: Offer,
    /// The device has the outcome.
    ready: bool,
    /// When its list last led to it: the list's own count of passes, or of frames.
    pub(super) seen: u32,
}

impl Flight {
    fn pipe(&self) -> Pipe {
        (self.offer.address(), self.endpoint)
    }
}

/// Whether a device is to be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    /// Ask.
    Open,
    /// It will announce when there is a point in asking.
    Shut,
    /// Ask, but first take back what the endpoint was asked before: the driver has replaced it.
    Replaced,
}

/// Endpoint state of one port.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    /// Endpoints that had nothing to say and will announce when they have: a bit for each endpoint of
    /// each address, of which there are at most 128.
    parked: Vec<(u8, u32)>,
    /// At most one for each endpoint.
    flights: Vec<Flight>,
}

const fn bit(endpoint: EndpointAddress) -> u32 {
    1 << endpoint.index()
}

impl Endpoints {
    /// Whether `endpoint` is to be asked for what `offer` says.
    pub(super) fn gate(&mut self, endpoint: EndpointAddress, offer: &Offer, seen: u32) -> Gate {
        let pipe = (offer.address(), endpoint);
        let parked = self.is_parked(pipe);
        match self.flights.iter_mut().find(|flight| flight.pipe() == pipe) {
            Some(flight) if flight.offer == *offer => {
                flight.seen = seen;
                if flight.ready { Gate::Open } else { Gate::Shut }
            }
            Some(flight) if flight.offer.ed == offer.ed => Gate::Replaced,
            // Another ED for the same endpoint: one at a time.
            Some(_) => Gate::Shut,
            None if parked => Gate::Shut,
            None => Gate::Open,
        }
    }

    /// The endpoint answered: nothing of it is in flight.
    pub(super) fn answered(&mut self, pipe: Pipe) {
        if !self.flights.is_empty() {
            self.flights.retain(|flight| flight.pipe() != pipe);
        }
    }

    /// The endpoint will announce when it has something to say.
    pub(super) fn park(&mut self, pipe: Pipe) {
        self.answered(pipe);
        let (address, endpoint) = pipe;
        match self.parked.iter_mut().find(|(at, _)| *at == address) {
            Some((_, endpoints)) => *endpoints |= bit(endpoint),
            None => self.parked.push((address, bit(endpoint))),
        }
    }

    fn is_parked(&self, (address, endpoint): Pipe) -> bool {
        let found = self.parked.iter().find(|(at, _)| *at == address);
        found.is_some_and(|(_, endpoints)| endpoints & bit(endpoint) != 0)
    }

    /// The endpoint has begun with `offer`.
    pub(super) fn take_off(&mut self, endpoint: EndpointAddress, offer: Offer, seen: u32) {
        self.answered((offer.address(), endpoint));
        self.flights.push(Flight { endpoint, offer, ready: false, seen });
    }

    /// The endpoint of some device behind the port has something to say; which device, only asking
    /// tells.
    pub(super) fn ready(&mut self, endpoint: EndpointAddress) {
        for (_, endpoints) in &mut self.parked {
            *endpoints &= !bit(endpoint);
        }
        for flight in &mut self.flights {
            flight.ready |= flight.endpoint == endpoint;
        }
    }

    /// A request may have changed what every endpoint has to say: ask again.
    pub(super) fn unpark(&mut self) {
        self.parked.clear();
    }

    pub(super) fn has_flights(&self) -> bool {
        !self.flights.is_empty()
    }

    /// Removes the transfers for which `keep` is false; `cancel` learns of each.
    pub(super) fn retain(
        &mut self,
        mut keep: impl FnMut(&Flight) -> bool,
        mut cancel: impl FnMut(Pipe),
    ) {
        self.flights.retain(|flight| {
            let keep = keep(flight);
            if !keep {
                cancel(flight.pipe());
            }
            keep
        });
    }
}
