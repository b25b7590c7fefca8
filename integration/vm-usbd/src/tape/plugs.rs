//! What is plugged in before the guest begins, as a tape says it.

use super::format::{Device, Place};
use crate::cli::{DeviceKind, DeviceOptions};
use crate::plugboard::Plugged;

/// The devices, each after the hub that it is behind.
#[derive(Debug, Default)]
pub(crate) struct Plugs(Vec<Plug>);

#[derive(Debug)]
struct Plug {
    id: String,
    /// The controller.
    root: String,
    /// The ports on the way from there.
    ports: Vec<u8>,
    device: Device,
    full_speed: bool,
}

impl Plugs {
    /// A device that `options` describe was plugged in.
    pub(crate) fn add(&mut self, plugged: &Plugged, options: &DeviceOptions) {
        let place = &plugged.place;
        let hub = self.0.iter().find(|plug| plug.id == place.bus);
        let (root, mut ports) =
            hub.map_or((&place.bus, vec![]), |hub| (&hub.root, hub.ports.clone()));
        ports.push(place.port);
        let (id, root) = (plugged.id.clone(), root.clone());
        let (device, full_speed) = (device(&options.kind), options.full_speed);
        self.0.push(Plug { id, root, ports, device, full_speed });
    }

    /// Those of a controller.
    pub(crate) fn of<'a>(
        &'a self,
        controller: &'a str,
    ) -> impl Iterator<Item = (Device, Place)> + 'a {
        let here = self.0.iter().filter(move |plug| plug.root == controller);
        here.filter_map(|plug| {
            let place = Place::new(&plug.ports)?;
            Some((plug.device, if plug.full_speed { place.at_full_speed() } else { place }))
        })
    }
}

fn device(kind: &DeviceKind) -> Device {
    match kind {
        DeviceKind::Storage { .. } => Device::Disk,
        DeviceKind::Keyboard => Device::Keyboard,
        DeviceKind::Tablet => Device::Tablet,
        DeviceKind::Printer { .. } => Device::Printer,
        DeviceKind::Debug { .. } => Device::Debug,
        DeviceKind::Loopback(_) => Device::Loopback,
        DeviceKind::Hub(_) => Device::Hub,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugboard::Place as Port;

    #[test]
    fn a_device_behind_a_hub_is_that_many_ports_away() {
        let mut plugs = Plugs::default();
        for (id, bus, port, options) in [
            ("h0", "e0", 2, "hub,bus=e0,id=h0"),
            ("k", "h0", 4, "keyboard,bus=h0,speed=full"),
            ("d", "o0", 1, "storage,bus=o0,file=f"),
        ] {
            let place = Port { bus: bus.into(), port };
            let plugged = Plugged { id: id.into(), kind: String::new(), place };
            plugs.add(&plugged, &options.parse().unwrap());
        }
        let place = |ports: &[u8]| Place::new(ports).unwrap();
        let behind = (Device::Keyboard, place(&[2, 4]).at_full_speed());
        assert_eq!(plugs.of("e0").collect::<Vec<_>>(), [(Device::Hub, place(&[2])), behind]);
        assert_eq!(plugs.of("o0").collect::<Vec<_>>(), [(Device::Disk, place(&[1]))]);
    }
}
