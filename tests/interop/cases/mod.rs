//! What every library must do beside us, and we beside it: one promise in each function, and what was measured is printed.

pub(crate) mod exact;
pub(crate) mod holding;
pub(crate) mod leases;
pub(crate) mod waking;

/// Leases here are a second, renewed after a third: what is not so although the machine was not this late is a failure.
pub(crate) fn steadily(test: impl FnMut()) {
    lock_core::conformance::retry_if_late_beyond(std::time::Duration::from_millis(300), test);
}
