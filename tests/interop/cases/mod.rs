//! What is tested of every library together with ours: one promise in each function. Measured times
//! are printed.

pub(crate) mod exact;
pub(crate) mod holding;
pub(crate) mod leases;
pub(crate) mod waking;
