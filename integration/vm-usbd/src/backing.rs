//! From a device's options to the device.

use std::path::PathBuf;

use thiserror::Error;
use vm_usb::devices::debug::DebugDevice;
use vm_usb::devices::full_speed::FullSpeed;
use vm_usb::devices::hid::{Keyboard, Tablet};
use vm_usb::devices::hub::{Hub, HubError};
use vm_usb::devices::loopback::Loopback;
use vm_usb::devices::printer::{Discard, Printer};
use vm_usb::devices::storage::{Serial, Storage};
use vm_usb::topology::Port;
use vm_usb::usb::{Speed, UsbDevice};
use vm_usb_image::{Access, OpenError, RawImage};

use crate::cli::{DeviceKind, DeviceOptions};
use crate::disks::Disks;
use crate::input::InputDevice;
use crate::printout::Printout;
use crate::transcript::Transcript;

/// Why there is no such device.
#[derive(Debug, Error)]
pub enum BackingError {
    /// There is no such hub.
    #[error(transparent)]
    Hub(#[from] HubError),
    /// The image cannot be used.
    #[error(transparent)]
    Image(#[from] OpenError),
    /// The file for print data or console text cannot be made.
    #[error("cannot create {path}: {1}", path = .0.display())]
    Create(PathBuf, #[source] std::io::Error),
}

/// A device that is not plugged in yet.
pub(crate) struct Backing {
    pub(crate) device: Box<dyn UsbDevice>,
    /// Its handle, if it takes input.
    pub(crate) input: Option<InputDevice>,
    /// If it is a hub, its ports and the speed of the bus behind it.
    pub(crate) behind: Option<(Vec<Port>, Speed)>,
}

impl Backing {
    /// The device that `options` describe, called `name`, for a bus of the given speed. An image joins
    /// `disks`.
    pub(crate) fn new(
        options: &DeviceOptions,
        name: &str,
        speed: Speed,
        disks: &Disks,
    ) -> Result<Self, BackingError> {
        let (mut input, mut behind) = (None, None);
        let device: Box<dyn UsbDevice> = match &options.kind {
            DeviceKind::Storage { file, readonly, transports } => {
                let access = if *readonly { Access::ReadOnly } else { Access::ReadWrite };
                let image = RawImage::open(file, access)?;
                disks.add(&image);
                Box::new(Storage::with_transports(image, Serial::from_name(name), *transports))
            }
            DeviceKind::Printer { file: None } => Box::new(Printer::new(Discard)),
            DeviceKind::Printer { file: Some(file) } => {
                let printout = Printout::create(file)
                    .map_err(|error| BackingError::Create(file.clone(), error))?;
                Box::new(Printer::new(printout))
            }
            DeviceKind::Debug { file: None } => Box::new(DebugDevice::new(Transcript::stdout())),
            DeviceKind::Debug { file: Some(file) } => {
                let transcript = Transcript::create(file)
                    .map_err(|error| BackingError::Create(file.clone(), error))?;
                Box::new(DebugDevice::new(transcript))
            }
            DeviceKind::Loopback(pattern) => Box::new(Loopback::new(*pattern)),
            DeviceKind::Keyboard => {
                let keyboard = Keyboard::new(speed);
                input = Some(InputDevice::Keyboard(keyboard.handle()));
                Box::new(keyboard)
            }
            DeviceKind::Tablet => {
                let tablet = Tablet::new(speed);
                input = Some(InputDevice::Tablet(tablet.handle()));
                Box::new(tablet)
            }
            DeviceKind::Hub(hub) => {
                let device = Hub::new(hub.clone())?;
                behind = Some((device.ports().to_vec(), speed.min(hub.speed)));
                Box::new(device)
            }
        };
        let device = if options.full_speed { Box::new(FullSpeed::new(device)) } else { device };
        Ok(Self { device, input, behind })
    }
}
