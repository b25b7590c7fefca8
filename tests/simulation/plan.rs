//! What a seed decides before anything happens.

use vm_usb::devices::faulty::Odds;
use vm_usb::devices::hub::Translators;
use vm_usb::ohci::Pacing;

use crate::driver::dice::Dice;
use crate::driver::ohci::Idle;

/// A kind of controller, and how it and its driver are set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Controller {
    Ohci(Pacing, Idle),
    Ehci { prompt: bool },
}

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Disk,
    Echo,
    Keyboard,
    Printer,
    Hub,
}

/// A socket, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    Root(usize),
    /// A port of the hub.
    Hub(usize),
}

/// A socket and what belongs into it.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub at: At,
    pub what: What,
}

/// How often what happens: once in so many calls of the controller, on average; 0 for never.
#[derive(Clone, Copy, Debug)]
pub struct Rates {
    /// The machine is saved, thrown away, built anew and restored.
    pub restart: u64,
    /// A plug is pulled.
    pub pull: u64,
    /// The host stands still for a while.
    pub pause: u64,
    /// The guest's driver is gone from one moment to the next.
    pub crash: u64,
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub controller: Controller,
    /// Whether the guest hears of messages only, not of the interrupt's level.
    pub messages: bool,
    pub translators: Translators,
    /// The hub, if there is one, comes before what is behind it.
    pub places: Vec<Place>,
    pub odds: Odds,
    pub rates: Rates,
    /// What the driver does before the end.
    pub steps: u64,
}

/// Root ports of every controller.
pub const ROOT_PORTS: usize = 3;
/// Ports of the hub.
pub const HUB_PORTS: usize = 3;

impl Plan {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0x5eed);
        let controller = match seed % 2 {
            0 => {
                let pacings = [Pacing::RealTime, Pacing::Eager, Pacing::Wire];
                let idle = if dice.below(2) == 0 { Idle::Unlink } else { Idle::Keep };
                Controller::Ohci(pacings[dice.below(3) as usize], idle)
            }
            _ => Controller::Ehci { prompt: dice.below(4) != 0 },
        };
        let device = |dice: &mut Dice| {
            let all = [What::Disk, What::Disk, What::Echo, What::Keyboard, What::Printer];
            all[dice.below(5) as usize]
        };
        let mut places = Vec::new();
        if dice.below(3) == 0 {
            places.push(Place { at: At::Root(dice.below(2) as usize), what: What::Hub });
            for n in 0..1 + dice.below(2) as usize {
                let port = (n + dice.below(2) as usize) % HUB_PORTS;
                if !places.iter().any(|place| place.at == At::Hub(port)) {
                    places.push(Place { at: At::Hub(port), what: device(&mut dice) });
                }
            }
        } else {
            for n in 0..1 + dice.below(2) as usize {
                places.push(Place { at: At::Root(n), what: device(&mut dice) });
            }
        }
        // One in eight is never on a bad day, so that no fault hides what the rest does.
        let bad = dice.below(8) != 0;
        let stalls = dice.below(2) == 0;
        let mut odds = |most: u64| if bad { dice.below(most + 1) as u16 } else { 0 };
        let odds = Odds {
            nak: odds(150),
            stall: if stalls { odds(15) } else { 0 },
            error: odds(120),
            babble: odds(6),
            wait: odds(150),
            short: odds(60),
            hang: odds(4),
        };
        let mut rate = |every: u64| match dice.below(3) {
            0 => 0,
            n => every * n,
        };
        let rates = Rates {
            restart: rate(1_000),
            pull: rate(2_500),
            pause: rate(1_500),
            crash: rate(5_000),
        };
        Self {
            seed,
            controller,
            messages: dice.below(3) == 0,
            translators: if dice.below(2) == 0 {
                Translators::Single
            } else {
                Translators::Multiple
            },
            places,
            odds,
            rates,
            steps: 3 + dice.below(9),
        }
    }
}
