//! A read lock and a write lock of the same thread: reading beside writing is a downgrade, writing
//! beside reading would wait for itself.

use crate::engine::Engine;
use crate::engine::local_queue::Scope;
use crate::error::Error;
use crate::name::{LockKind, LockName};
use crate::owner::OwnerId;

/// The owner of `thread`'s write lock, if this is the read lock of the same name.
///
/// # Errors
///
/// [`Error::is_misuse`] if this is the write lock, and the thread reads.
pub(super) fn writer_of(
    engine: &Engine,
    name: &LockName,
    thread: Option<u64>,
) -> Result<Option<OwnerId>, Error> {
    let Some(thread) = thread else { return Ok(None) };
    let writer = || engine.find_local_lock(&name.of_kind(LockKind::Write), Scope::Client);
    match name.kind() {
        LockKind::Read => {
            let writer = writer().and_then(|lock| lock.holds_of(thread));
            let held = writer.filter(|(holds, it)| *holds > 0 && engine.is_valid(it));
            Ok(held.map(|(_, acquisition)| acquisition.owner))
        }
        LockKind::Write => {
            let reads =
                engine.find_local_lock(&name.of_kind(LockKind::Read), Scope::Thread(thread));
            let is_held = |it: &_| holds(it, thread);
            if reads.as_ref().is_some_and(is_held) && !writer().as_ref().is_some_and(is_held) {
                return Err(Error::misuse(
                    "this thread reads, so it would wait for itself to write: end its read lock \
                     first, or take the write lock before it",
                ));
            }
            Ok(None)
        }
        _ => Ok(None),
    }
}

fn holds(lock: &std::sync::Arc<crate::engine::local_queue::LocalLock>, thread: u64) -> bool {
    lock.holds_of(thread).is_some_and(|(holds, _)| holds > 0)
}
