//! Every order in which devices' threads and a loop can meet at a mailbox.

use loom::sync::Notify;
use loom::thread;

use super::*;

/// A loop's bell, as an eventfd: one who waits sleeps until somebody has rung since the last time.
struct Bell(Notify);

impl Wake for Bell {
    fn wake(&self) {
        self.0.notify();
    }
}

/// A mailbox and the bell of the loop that empties it.
fn loop_side() -> (Arc<Mailbox>, Arc<Bell>) {
    let mailbox = Arc::new(Mailbox::default());
    let bell = Arc::new(Bell(Notify::new()));
    mailbox.subscribe(bell.clone());
    (mailbox, bell)
}

/// Sleeps until it is rung for, and takes what there is, until `enough`. A wake-up that got lost leaves it
/// asleep for ever, which the model reports.
fn serve(mailbox: &Mailbox, bell: &Bell, mut enough: impl FnMut(EndpointAddress) -> bool) {
    loop {
        bell.0.wait();
        if !mailbox.is_empty() && mailbox.take_ready().any(&mut enough) {
            return;
        }
    }
}

#[test]
fn a_loop_that_sleeps_hears_of_an_endpoint_that_became_ready() {
    loom::model(|| {
        let (mailbox, bell) = loop_side();
        let notifier = Notifier::new(mailbox.clone());
        let device = thread::spawn(move || notifier.ready(EndpointAddress::r#in(1)));
        serve(&mailbox, &bell, |endpoint| endpoint == EndpointAddress::r#in(1));
        device.join().unwrap();
        assert!(mailbox.is_empty(), "told once");
    });
}

#[test]
fn two_devices_at_once_are_both_heard() {
    loom::model(|| {
        let (mailbox, bell) = loop_side();
        let endpoints = [EndpointAddress::out(2), EndpointAddress::r#in(15)];
        let devices = endpoints.map(|endpoint| {
            let notifier = Notifier::new(mailbox.clone());
            thread::spawn(move || notifier.ready(endpoint))
        });
        let mut missing = endpoints.to_vec();
        serve(&mailbox, &bell, |endpoint| {
            missing.retain(|missed| *missed != endpoint);
            missing.is_empty()
        });
        for device in devices {
            device.join().unwrap();
        }
    });
}

#[test]
fn what_a_device_did_before_it_said_so_is_seen() {
    loom::model(|| {
        let (mailbox, bell) = loop_side();
        let notifier = Notifier::new(mailbox.clone());
        let outcome = Arc::new(AtomicU32::new(0));
        let theirs = outcome.clone();
        let device = thread::spawn(move || {
            // No order of its own: the notification has to give it one.
            theirs.store(7, Ordering::Relaxed);
            notifier.ready(EndpointAddress::r#in(1));
        });
        serve(&mailbox, &bell, |_| true);
        assert_eq!(outcome.load(Ordering::Relaxed), 7);
        device.join().unwrap();
    });
}

#[test]
fn a_request_for_resume_beside_a_ready_endpoint_is_taken_once() {
    loom::model(|| {
        let (mailbox, bell) = loop_side();
        let notifier = Notifier::new(mailbox.clone());
        let device = {
            let notifier = notifier.clone();
            thread::spawn(move || notifier.remote_wakeup())
        };
        let other = thread::spawn(move || notifier.ready(EndpointAddress::r#in(1)));
        let (mut resumes, mut ready) = (0, 0);
        while (resumes, ready) != (1, 1) {
            bell.0.wait();
            resumes += usize::from(mailbox.take_remote_wakeup());
            ready += mailbox.take_ready().count();
        }
        device.join().unwrap();
        other.join().unwrap();
        assert!(mailbox.is_empty());
    });
}
