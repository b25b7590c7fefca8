//! `VFIO_USER_DEVICE_SET_IRQS`: the same rules as the kernel's `VFIO_DEVICE_SET_IRQS`.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_MASK, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_TYPE_MASK,
    VFIO_IRQ_SET_ACTION_UNMASK, VFIO_IRQ_SET_DATA_BOOL, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE, VFIO_IRQ_SET_DATA_TYPE_MASK, VFIO_PCI_INTX_IRQ_INDEX,
    VFIO_PCI_MSI_IRQ_INDEX, VFIO_PCI_NUM_IRQS,
};

use crate::interrupts::{Event, Interrupts};
use crate::wire::IrqSet;

/// What comes with the action for the one interrupt that an index has.
enum Data {
    /// No interrupt is addressed: the action concerns the whole index.
    Index,
    /// The action is carried out, or not.
    Do(bool),
    /// The action is carried out whenever the event is signalled; `None` disconnects.
    On(Option<Event>),
}

/// Carries out a request.
///
/// # Errors
/// `EINVAL` for an interrupt that does not exist, contradictory flags or missing data; `ENOTSUP` for
/// what this index does not offer.
pub fn apply(
    interrupts: &mut Interrupts,
    set: &IrqSet,
    data: &[u8],
    fds: Vec<OwnedFd>,
) -> Result<(), Errno> {
    let data = parse(set, data, fds)?;
    let action = set.flags & VFIO_IRQ_SET_ACTION_TYPE_MASK;
    match (set.index, action) {
        (VFIO_PCI_INTX_IRQ_INDEX, VFIO_IRQ_SET_ACTION_TRIGGER) => match data {
            Data::Index => interrupts.set_intx(None),
            Data::On(event) => interrupts.set_intx(event),
            Data::Do(true) => interrupts.trigger_intx(),
            Data::Do(false) => {}
        },
        (VFIO_PCI_INTX_IRQ_INDEX, VFIO_IRQ_SET_ACTION_MASK) => match data {
            Data::Do(true) => interrupts.mask_intx(),
            Data::Do(false) => {}
            Data::Index => return Err(Errno::INVAL),
            Data::On(_) => return Err(Errno::NOTSUP),
        },
        (VFIO_PCI_INTX_IRQ_INDEX, VFIO_IRQ_SET_ACTION_UNMASK) => match data {
            Data::Do(true) => interrupts.unmask_intx(),
            Data::Do(false) => {}
            Data::Index => return Err(Errno::INVAL),
            Data::On(event) => interrupts.set_unmask(event),
        },
        (VFIO_PCI_MSI_IRQ_INDEX, VFIO_IRQ_SET_ACTION_TRIGGER) => match data {
            Data::Index => interrupts.set_msi(None),
            Data::On(event) => interrupts.set_msi(event),
            Data::Do(true) => interrupts.trigger_msi(),
            Data::Do(false) => {}
        },
        // The vector cannot be masked, and the other indices have no interrupt: taking down what
        // is not there is no error.
        (_, VFIO_IRQ_SET_ACTION_TRIGGER) if matches!(data, Data::Index) => {}
        (VFIO_PCI_MSI_IRQ_INDEX, VFIO_IRQ_SET_ACTION_MASK | VFIO_IRQ_SET_ACTION_UNMASK) => {
            return Err(Errno::NOTSUP);
        }
        _ => return Err(Errno::INVAL),
    }
    Ok(())
}

fn parse(set: &IrqSet, data: &[u8], mut fds: Vec<OwnedFd>) -> Result<Data, Errno> {
    let available = match set.index {
        VFIO_PCI_INTX_IRQ_INDEX | VFIO_PCI_MSI_IRQ_INDEX => 1,
        other if other < VFIO_PCI_NUM_IRQS => 0,
        _ => return Err(Errno::INVAL),
    };
    let end = set.start.checked_add(set.count).ok_or(Errno::INVAL)?;
    if end > available {
        return Err(Errno::INVAL);
    }
    let kind = set.flags & VFIO_IRQ_SET_DATA_TYPE_MASK;
    match (kind, set.count) {
        (VFIO_IRQ_SET_DATA_NONE, 0) => Ok(Data::Index),
        (VFIO_IRQ_SET_DATA_NONE, _) => Ok(Data::Do(true)),
        (VFIO_IRQ_SET_DATA_BOOL, 1) => {
            let value = data.first().ok_or(Errno::INVAL)?;
            Ok(Data::Do(*value != 0))
        }
        (VFIO_IRQ_SET_DATA_EVENTFD, 1) => {
            let event = fds.pop().map(Event::new).transpose()?;
            if fds.is_empty() { Ok(Data::On(event)) } else { Err(Errno::INVAL) }
        }
        _ => Err(Errno::INVAL),
    }
}
