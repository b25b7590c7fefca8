//! What the fuzz targets share: guests that are told by bytes what to do, and the rules that hold
//! whatever they do. The targets themselves are a line each; see `README.md`.

#[path = "../../tests/differential/buses.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod buses;
#[path = "../../tests/snapshot/courier.rs"]
mod courier;
#[path = "../../tests/driver/mod.rs"]
pub mod driver;
#[path = "../../tests/snapshot/drivers.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod drivers;
#[path = "../../tests/differential/play.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod play;
#[path = "../../tests/differential/witness.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod witness;
#[path = "../../tests/snapshot/world.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod world;

pub mod descriptors;
pub mod device;
pub mod devices;
pub mod differential;
pub mod ehci;
pub mod ehci_schedule;
pub mod guest;
pub mod ohci;
pub mod ohci_schedule;
pub mod pci;
pub mod snapshot;
mod step;
pub mod tape;
pub mod uas;
pub mod vfio_user;
pub mod word;
