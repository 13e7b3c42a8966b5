//! What is held, and how that ends.
//!
//! From the top down: releases (`release`), holds without a guard (`detached`), the verification of
//! everything that is held (`recheck`), and whether a hold is valid, or lost (`validity`).

pub(super) mod detached;
pub(super) mod recheck;
mod release;
mod validity;
