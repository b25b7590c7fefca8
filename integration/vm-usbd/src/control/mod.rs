//! The control socket: a running program is asked and told things, a line of JSON each way.
//!
//! [`verbs`] is the table of what can be said, [`client`] the other end, for `vm-usbd ctl`.

pub mod client;
pub mod verbs;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use self::verbs::{Reply, Verb};
use crate::checkpoint::Loop;
use crate::clock;
use crate::gauge::Gauge;
use crate::lines::Answer;
use crate::pcap::Capture;
use crate::plugboard::Plugboard;
use crate::sandbox::files::Reach;
use crate::statistics::{CaptureCounts, Statistics};

/// What verbs act upon. Its locks are held for one verb at most; no controller's loop takes any.
#[derive(Debug)]
pub struct Machine {
    board: Mutex<Plugboard>,
    gauges: Vec<Arc<Gauge>>,
    loops: Vec<Loop>,
    capture: Option<Capture>,
    reach: Reach,
}

impl Machine {
    /// A machine whose devices are on `board`, with a gauge and a loop for each controller. Requests may
    /// name the paths in `reach`.
    pub fn new(
        board: Plugboard,
        gauges: Vec<Arc<Gauge>>,
        loops: Vec<Loop>,
        capture: Option<Capture>,
        reach: Reach,
    ) -> Self {
        Self { board: Mutex::new(board), gauges, loops, capture, reach }
    }

    /// Which files may be used.
    pub fn reach(&self) -> &Reach {
        &self.reach
    }

    /// The controllers' loops.
    pub fn loops(&self) -> &[Loop] {
        &self.loops
    }

    /// The ports and the devices.
    pub fn board(&self) -> MutexGuard<'_, Plugboard> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine {
    /// Everything that is counted.
    pub fn statistics(&self) -> Statistics {
        Statistics {
            time_ns: clock::now().as_nanos(),
            controllers: self.gauges.iter().map(|gauge| gauge.read()).collect(),
            devices: self.board().statistics(),
            capture: self.capture.as_ref().map(|capture| {
                let progress = capture.progress();
                CaptureCounts {
                    events: progress.events,
                    lost: progress.lost,
                    bytes: progress.bytes,
                }
            }),
        }
    }
}

/// What comes back for a line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was done.
    Ok(Reply),
    /// It was not; why, in one line.
    Error(String),
}

impl Outcome {
    /// As a line. It has text for keys, so it can be written.
    fn line(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl Answer for Machine {
    const WHAT: &'static str = "control";
    /// Room for a few paths of the greatest length, each byte of them escaped.
    const LONGEST: u64 = 64 << 10;

    fn answer(&self, line: &str) -> String {
        let outcome = match serde_json::from_str::<Verb>(line) {
            Ok(verb) => match verb.carry_out(self) {
                Ok(reply) => Outcome::Ok(reply),
                Err(error) => Outcome::Error(error.to_string()),
            },
            Err(error) => Outcome::Error(format!("not understood: {error}")),
        };
        outcome.line()
    }

    fn too_long(&self) -> String {
        Outcome::Error("the line is too long".to_owned()).line()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vm_usb::topology::Port;
    use vm_usb::usb::Speed;

    use crate::cli::ControllerKind;
    use crate::disks::Disks;
    use crate::lines::tests::conversation;
    use crate::plugboard::Bus;

    /// Two ports at each of two controllers.
    fn machine() -> Machine {
        let bus = |id: &str, port: fn() -> Port, speed| {
            let observer = Arc::new(clock::Stopwatch);
            Bus::new(id.to_owned(), vec![port(), port()], speed, observer, Disks::default())
        };
        let board = Plugboard::new(vec![
            bus("e0", Port::high_speed_only, Speed::High),
            bus("o0", Port::classic, Speed::Full),
        ]);
        let gauge = Gauge::new("e0".to_owned(), ControllerKind::Ehci);
        Machine::new(board, vec![Arc::new(gauge)], Vec::new(), None, Reach::anywhere())
    }

    fn ask(machine: &Machine, line: &str) -> String {
        conversation(machine, format!("{line}\n").as_bytes()).trim_end().to_owned()
    }

    #[test]
    fn a_device_is_attached_listed_and_detached() {
        let machine = machine();
        assert_eq!(
            ask(&machine, r#"{"verb":"attach","device":"keyboard,bus=o0,port=2,id=kbd"}"#),
            r#"{"ok":{"attached":{"id":"kbd","kind":"keyboard","bus":"o0","port":2}}}"#
        );
        assert_eq!(
            ask(&machine, r#"{"verb":"list"}"#),
            concat!(
                r#"{"ok":{"ports":[{"bus":"e0","port":1,"device":null},"#,
                r#"{"bus":"e0","port":2,"device":null},{"bus":"o0","port":1,"device":null},"#,
                r#"{"bus":"o0","port":2,"#,
                r#""device":{"id":"kbd","kind":"keyboard","bus":"o0","port":2}}]}}"#
            )
        );
        assert_eq!(
            ask(&machine, r#"{"verb":"detach","device":"o0:2"}"#),
            r#"{"ok":{"detached":[{"id":"kbd","kind":"keyboard","bus":"o0","port":2}]}}"#
        );
        assert_eq!(
            ask(&machine, r#"{"verb":"detach","device":"o0:2"}"#),
            r#"{"error":"o0:2 is empty"}"#
        );
    }

    #[test]
    fn a_line_that_is_no_verb_is_answered_and_costs_nothing_else() {
        let machine = machine();
        for (line, wanted) in [
            ("", "not understood: "),
            ("list", "not understood: "),
            (r#"{"verb":"explode"}"#, "not understood: unknown variant `explode`"),
            (r#"{"verb":"detach"}"#, "not understood: missing field `device`"),
            (r#"{"verb":"detach","device":"x","now":1}"#, "not understood: unknown field `now`"),
            (
                r#"{"verb":"attach","device":"mouse,bus=o0"}"#,
                "\"mouse\" is not one of storage, keyboard",
            ),
        ] {
            let outcome: Outcome = serde_json::from_str(&ask(&machine, line)).unwrap();
            let Outcome::Error(error) = outcome else { panic!("{line}: {outcome:?}") };
            assert!(error.starts_with(wanted), "{line}: {error}");
            assert_eq!(error.lines().count(), 1);
        }
        let long = vec![b' '; 64 << 10];
        assert_eq!(conversation(&machine, &long), "{\"error\":\"the line is too long\"}\n");
    }
}
