//! What every library must do beside us, and we beside it: one promise in each function, and what
//! was measured is printed.

pub(crate) mod exact;
pub(crate) mod holding;
pub(crate) mod leases;
pub(crate) mod waking;
