//! Held locks: their validity, verification, loss and release.
//!
//! From the top down: releases (`release`), holds without a guard (`detached`), the verification of
//! all held locks (`recheck`), and the validity and loss of a held lock (`validity`).

pub(super) mod detached;
pub(super) mod recheck;
mod release;
mod validity;
