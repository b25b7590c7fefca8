//! USB itself, independent of any host controller: speeds, tokens, descriptors, devices.

mod buffer;
mod control;
mod description;
mod device;
mod endpoint;
mod function;
mod histogram;
mod hub;
mod link_power;
mod notify;
mod observer;
mod setup;
mod speed;
mod split;
mod statistics;
#[cfg(test)]
mod tests;
mod transfer;

pub use buffer::Buffer;
pub use description::{Configuration, Description, Endpoint, Interface, Speeds, TransferType};
pub use device::{Control, Suspension, UsbDevice};
pub use endpoint::{EndpointAddress, Toggle};
pub use function::Function;
pub(crate) use function::routing::height;
pub(crate) use function::saved::FunctionState;
pub use histogram::Histogram;
pub use hub::{MOST_HUBS, Upstream, UsbHub};
pub use link_power::{LinkAnswer, LinkSleep};
pub(crate) use notify::{Mailbox, MailboxState};
pub use notify::{Notifier, Wake};
pub use observer::{Observer, Sight};
pub use setup::{Direction, Recipient, RequestType, SetupPacket, request};
pub use speed::Speed;
pub use split::{
    CompleteAnswer, CompleteSplit, SplitPosition, SplitToken, StartAnswer, StartSplit,
};
pub use statistics::{DeviceStatistics, EndpointStatistics};
pub use transfer::{BusError, Outcome, Pid, Readiness, Status, Transfer};
