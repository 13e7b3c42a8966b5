//! Options, interrupts and notifications: the values that a caller passes to a call or gets from
//! it.
//!
//! From the top down: the options of an acquisition (`options`), the interrupt that ends a wait
//! (`interrupt`), and the receiving end of the channels for an interrupt and for a loss
//! (`notification`).

pub(crate) mod interrupt;
pub(crate) mod notification;
pub(crate) mod options;
