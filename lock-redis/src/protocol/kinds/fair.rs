//! The queue of waiters of read-write locks and semaphores that keep the order of arrival.

use crate::connection::Text;
use crate::keys;
use lock_core::backend::Attempt;

/// Returns the key of the queue of waiters.
pub(super) fn queue(key: &str) -> String {
    keys::channel("distlock_queue", key)
}

/// Returns the time for which the owner of this attempt stays in a queue, in milliseconds.
pub(super) fn presence(attempt: &Attempt<'_>) -> Text {
    let presence = attempt.waits.then_some(attempt.presence);
    Text::millis(presence.unwrap_or_default())
}
