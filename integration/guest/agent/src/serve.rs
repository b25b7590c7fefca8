//! One request after another.

use std::fs::File;
use std::io::{BufRead, BufReader};

use anyhow::{Result, anyhow};
use guest_protocol::{Answer, Hello, Reply, Request, parse, send};

use crate::input::InputDevices;
use crate::{disks, filesystem, inventory, measure, printer, reload, usbtest};

/// Serves until the host asks for the end or hangs up.
pub(crate) fn serve(channel: File) -> Result<()> {
    let mut writer = channel.try_clone()?;
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    send(&mut writer, &Hello { kernel })?;
    let mut input = InputDevices::default();
    for line in BufReader::new(channel).lines() {
        let request = parse::<Request>(&line?).map_err(|error| anyhow!(error))?;
        if request == Request::PowerOff {
            return Ok(send::<Answer>(&mut writer, &Ok(Reply::Done))?);
        }
        let answer: Answer = carry_out(request, &mut input).map_err(|error| format!("{error:#}"));
        send(&mut writer, &answer)?;
    }
    Ok(())
}

fn carry_out(request: Request, input: &mut InputDevices) -> Result<Reply> {
    match request {
        Request::Inventory { disks, input_devices } => {
            inventory::when_complete(disks, input_devices).map(Reply::Inventory)
        }
        Request::Sha256 { controller } => disks::sha256(&controller).map(Reply::Sha256),
        Request::Write { controller, plan } => {
            disks::write(&controller, plan).map(Reply::Throughput)
        }
        Request::SequentialRead { controller, mebibytes } => {
            measure::sequential(&controller, mebibytes).map(Reply::Throughput)
        }
        Request::RandomRead { controller, count, seed } => {
            measure::random(&controller, count, seed).map(Reply::Latencies)
        }
        Request::Filesystem { controller } => filesystem::exercise(&controller).map(Reply::Traffic),
        Request::OpenInput => input.open().map(|()| Reply::Done),
        Request::ReadInput { at_least, milliseconds } => {
            input.read(at_least, milliseconds).map(Reply::Input)
        }
        Request::Reload { times } => reload::cycle(times).map(Reply::Reloaded),
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
        Request::PowerOff => Ok(Reply::Done),
    }
}
