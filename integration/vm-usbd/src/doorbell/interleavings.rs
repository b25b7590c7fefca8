//! Every order in which a loop that falls asleep and those who ring for it can meet.

use std::sync::Arc;

use loom::sync::Notify;
use loom::sync::atomic::AtomicUsize;
use loom::thread;

use super::*;

/// An eventfd as loom knows it; waiting for it takes it back.
struct Event(Notify);

impl Signal for Event {
    fn raise(&self) {
        self.0.notify();
    }

    fn take_back(&self) {}
}

/// A turn of the loop that sleeps for want of anything else. One whose bell was not heard sleeps for
/// ever, which the model reports.
fn sleep(bell: &Doorbell<Event>) {
    if bell.fall_asleep() {
        bell.event.0.wait();
        bell.wake_up(true);
    }
}

#[test]
fn a_loop_that_falls_asleep_hears_the_bell() {
    loom::model(|| {
        let bell = Arc::new(Doorbell::on(Event(Notify::new())));
        let theirs = bell.clone();
        let device = thread::spawn(move || theirs.wake());
        while !bell.take() {
            sleep(&bell);
        }
        device.join().unwrap();
    });
}

#[test]
fn what_was_done_before_a_ring_is_seen_after_it() {
    // Three threads have too many orders to try; those with few switches find what there is to find.
    let mut few_switches = loom::model::Builder::new();
    few_switches.preemption_bound = Some(3);
    few_switches.check(|| {
        let bell = Arc::new(Doorbell::on(Event(Notify::new())));
        let done = Arc::new(AtomicUsize::new(0));
        let others: Vec<_> = (0..2)
            .map(|_| {
                let (bell, done) = (bell.clone(), done.clone());
                thread::spawn(move || {
                    done.fetch_add(1, Ordering::Relaxed);
                    bell.wake();
                })
            })
            .collect();
        // Looks only when it is told to.
        let mut seen = 0;
        while seen < 2 {
            if bell.take() {
                seen = done.load(Ordering::Relaxed);
            } else {
                sleep(&bell);
            }
        }
        for other in others {
            other.join().unwrap();
        }
    });
}

#[test]
fn a_loop_that_is_to_end_ends() {
    loom::model(|| {
        let bell = Arc::new(Doorbell::on(Event(Notify::new())));
        let theirs = bell.clone();
        let main = thread::spawn(move || theirs.stop());
        while !bell.stopped() {
            if !bell.take() {
                sleep(&bell);
            }
        }
        main.join().unwrap();
    });
}
