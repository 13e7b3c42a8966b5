//! What a caller gives to a call, and what ends it or follows it.
//!
//! From the top down: the options of an acquisition (`options`), the interrupt that ends its wait
//! (`interrupt`), and the receiving end of both an interrupt and a loss (`notification`).

pub(crate) mod interrupt;
pub(crate) mod notification;
pub(crate) mod options;
