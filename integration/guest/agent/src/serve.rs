//! One request after another.

use std::fs::File;
use std::io::{BufRead, BufReader};

use anyhow::{Context, Result, anyhow};
use guest_protocol::{Answer, Hello, Reply, Request, parse, send};

use crate::hotplug::Worker;
use crate::input::InputDevices;
use crate::{disks, filesystem, inventory, measure, printer, reload, stream, suspend, usbtest};

/// Serves until the host asks for the end or hangs up.
pub(crate) fn serve(channel: File) -> Result<()> {
    let mut writer = channel.try_clone()?;
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    send(&mut writer, &Hello { kernel })?;
    let mut state = State::default();
    for line in BufReader::new(channel).lines() {
        let request = parse::<Request>(&line?).map_err(|error| anyhow!(error))?;
        if request == Request::PowerOff {
            return Ok(send::<Answer>(&mut writer, &Ok(Reply::Done))?);
        }
        let answer: Answer = carry_out(request, &mut state).map_err(|error| format!("{error:#}"));
        send(&mut writer, &answer)?;
    }
    Ok(())
}

/// What is kept from one request to another.
#[derive(Default)]
struct State {
    input: InputDevices,
    worker: Option<Worker>,
}

fn carry_out(request: Request, state: &mut State) -> Result<Reply> {
    match request {
        Request::Inventory { disks, input_devices } => {
            inventory::when_complete(disks, input_devices).map(Reply::Inventory)
        }
        Request::Sha256 { controller } => disks::sha256(&controller).map(Reply::Sha256),
        Request::Write { controller, plan } => {
            disks::write(&controller, plan).map(Reply::Throughput)
        }
        Request::Sequential { controller, direction, mebibytes, at_once } => {
            measure::sequential(&controller, direction, mebibytes, at_once).map(Reply::Throughput)
        }
        Request::RandomRead { controller, count, seed } => {
            measure::random(&controller, count, seed).map(Reply::Latencies)
        }
        Request::Filesystem { controller } => filesystem::exercise(&controller).map(Reply::Traffic),
        Request::OpenInput => state.input.open().map(|()| Reply::Done),
        Request::SuspendInput { controller } => {
            state.input = InputDevices::default();
            suspend::all_behind(&controller).map(|()| Reply::Done)
        }
        Request::ReadInput { at_least, milliseconds } => {
            state.input.read(at_least, milliseconds).map(Reply::Input)
        }
        Request::Reload { times } => reload::cycle(times).map(Reply::Reloaded),
        Request::Modules { unload, load } => reload::modules(&unload, &load).map(|()| Reply::Done),
        Request::Unbind { controller } => reload::unbind(&controller).map(|()| Reply::Done),
        Request::Bind { controller } => reload::bind(&controller).map(|()| Reply::Done),
        Request::PollPrinter { controller, rounds } => {
            printer::poll(&controller, rounds).map(Reply::Latencies)
        }
        Request::Print { controller, page } => {
            printer::page(&controller, page).map(Reply::Latencies)
        }
        Request::SelectUsbTest { controller, alternate, pattern } => {
            usbtest::select(&controller, alternate, pattern).map(|()| Reply::Done)
        }
        Request::UsbTest { controller, test } => {
            usbtest::run(&controller, test).map(Reply::UsbTest)
        }
        Request::AwaitPlugged { controller, device } => {
            state.worker = Some(Worker::new(&controller, device)?);
            Ok(Reply::Done)
        }
        Request::WorkUntilSeen { event, times } => {
            let worker = state.worker.as_mut().context("no device was waited for")?;
            worker.work_until(&event, times).map(|()| Reply::Done)
        }
        Request::WorkUntilPulled => {
            let worker = state.worker.take().context("no device was waited for")?;
            worker.work().map(Reply::Pulled)
        }
        Request::Stream { controller, stream } => {
            stream::run(&controller, &stream).map(Reply::Streamed)
        }
        Request::Placement { controller, plan } => {
            disks::placement(&controller, plan).map(Reply::Placement)
        }
        Request::PowerOff => Ok(Reply::Done),
    }
}
