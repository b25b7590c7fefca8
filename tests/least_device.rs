//! What a device or an observer gets that says no more than it must, and the small words of their traits.

mod driver;

use driver::scripted::Scripted;
use vm_usb::time::Time;
use vm_usb::usb::{
    Buffer, Control, Description, EndpointAddress, LinkAnswer, LinkSleep, Observer, Outcome, Pid,
    SetupPacket, Speed, Status, Toggle, Transfer, UsbDevice,
};

/// Takes whatever it is sent.
struct Least(Description);

impl UsbDevice for Least {
    fn description(&self) -> &Description {
        &self.0
    }

    fn configured(&mut self, _value: u8) {}

    fn transfer(&mut self, _endpoint: EndpointAddress, transfer: &mut Transfer<'_>) -> Outcome {
        Outcome::complete(transfer.buffer.len())
    }
}

fn least() -> Least {
    Least(Scripted::new(Speed::Full).0.description().clone())
}

#[test]
fn a_request_it_does_not_know_is_refused() {
    let setup = SetupPacket::from([0xc0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(least().control(&setup, &mut Vec::new()), Control::Stall);
}

#[test]
fn isochronous_packets_find_nobody() {
    let endpoint = EndpointAddress::r#in(1);
    let mut buffer = vec![0; 8];
    let mut transfer = Transfer {
        pid: Pid::In,
        endpoint: 1,
        max_packet: 8,
        toggle: Toggle::Data0,
        now: Time::ZERO,
        buffer: &mut buffer,
    };
    assert!(matches!(least().isochronous(endpoint, &mut transfer).status, Status::Error(_)));
    assert_eq!(least().transfer(endpoint, &mut transfer), Outcome::complete(8));
}

#[test]
fn it_knows_nothing_of_link_power_management() {
    let sleep = LinkSleep { resume: 15, remote_wakeup: true };
    assert_eq!(least().sleep(sleep), LinkAnswer::Silence);
}

#[test]
fn it_is_no_part_of_a_snapshot_and_says_so() {
    let error = least().save(Time::ZERO).unwrap_err().to_string();
    assert!(error.contains("Scripted"), "{error}");
}

/// Looks at nothing and has no clock.
struct Blind;

impl Observer for Blind {}

#[test]
fn an_observer_without_a_clock_goes_by_the_time_of_the_calls() {
    let call = Time::from_nanos(125_000);
    assert_eq!(Blind.now(call), call);
    // Whatever it is told.
    Blind.cancelled(1, EndpointAddress::r#in(1));
    assert_eq!(Blind.now(call), call);
}

#[test]
fn a_setup_packet_keeps_its_bytes() {
    let bytes = [0x21, 0xff, 0x34, 0x12, 0x01, 0, 0x40, 0];
    let setup = SetupPacket::from(bytes);
    assert_eq!((setup.w_value.get(), setup.w_index.get(), setup.w_length.get()), (0x1234, 1, 64));
    assert_eq!(<[u8; 8]>::from(setup), bytes);
}

#[test]
fn an_endpoint_is_called_what_people_call_it() {
    let named = |byte: u8| EndpointAddress::from(byte).to_string();
    assert_eq!(
        [0x00, 0x80, 0x81, 0x0f].map(named),
        ["endpoint 0", "endpoint 0", "endpoint 1 IN", "endpoint 15 OUT"]
    );
    assert_eq!(u8::from(EndpointAddress::r#in(3)), 0x83);
}

#[test]
fn the_pieces_of_bytes_in_a_row_are_one_within_bounds() {
    let mut bytes: Vec<u8> = (0..10).collect();
    let start = bytes.as_ptr();
    let mut pieces = |offset, len| {
        let mut seen = Vec::new();
        let visit = &mut |at: *mut u8, len| seen.push((at as usize - start as usize, len));
        Buffer::pieces(&mut bytes, offset, len, visit);
        Buffer::written(&mut bytes, offset, len);
        seen
    };
    assert_eq!(pieces(2, 5), [(2, 5)]);
    assert_eq!(pieces(8, 5), [(8, 2)], "no more than there is");
    assert_eq!(pieces(10, 1), []);
    assert!(!Buffer::is_empty(&bytes));
}
