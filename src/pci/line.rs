//! Where a function's interrupts go.

/// The embedder's side of a function's interrupts.
pub trait InterruptLine: Send {
    /// The level of the INTx pin changed; it is deasserted at the start.
    fn set_level(&mut self, asserted: bool);

    /// The function writes its MSI message: `data` to `address`.
    fn message(&mut self, address: u64, data: u32);

    /// The level of the PME# pin changed; it is deasserted at the start.
    ///
    /// A VMM without a way to deliver it leaves this out: PME_Status shows the event to a guest that
    /// polls for it.
    fn set_power_management_event(&mut self, asserted: bool) {
        let _ = asserted;
    }
}
