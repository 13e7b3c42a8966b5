//! Semaphores on a real server: what is stored, and that no more permits than the limit are held.

mod contention;
mod fair;
mod large;
mod operators;
mod stored;

use distlock_tests::probe::Probe;

const NAME: &str = "downloads";
/// The key of the permits that are taken.
const TAKEN: &str = "{downloads}:timeout";

/// How many permits are free and how many are taken.
fn stored(probe: &mut Probe) -> (String, i64) {
    (
        probe.get(NAME).unwrap_or_default(),
        probe.command(&["ZCARD", TAKEN]).int(),
    )
}
