//! Locks of one name and several kinds in one thread: reading beside writing is a downgrade; any
//! other would wait for itself.

use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::error::Error;
use crate::name::{LockKind, LockName};
use std::sync::Arc;

/// The write lock of `thread`, if this is the read lock of the same name.
///
/// # Errors
///
/// [`Error::is_misuse`] if the thread holds a lock of this name that keeps it out of this one.
pub(super) fn writer_of(
    engine: &Engine,
    name: &LockName,
    thread: u64,
) -> Result<Option<Arc<Acquisition>>, Error> {
    let held = |kind| engine.held_by(&name.of_kind(kind), thread);
    let kind = name.kind();
    if kind.permits().is_some() || held(kind).is_some() {
        return Ok(None);
    }
    let [reading, writing] = LockKind::of_read_write(kind.is_queued());
    if kind == reading
        && let Some(writer) = held(writing)
    {
        // Its lease would be that of the reads, which go on.
        return if writer.is_kept() {
            Err(kept_beside_reads())
        } else {
            Ok(Some(writer))
        };
    }
    if kind == writing && held(reading).is_some() {
        return Err(Error::misuse(
            "this thread reads, so it would wait for itself to write: end its read lock first, or \
             take the write lock before it",
        ));
    }
    let others = [
        LockKind::Mutex,
        LockKind::Fair,
        LockKind::Read,
        LockKind::Write,
        LockKind::FairRead,
        LockKind::FairWrite,
    ];
    let other = others
        .into_iter()
        .find(|other| *other != kind && held(*other).is_some());
    other.map_or(Ok(None), |other| {
        Err(Error::misuse(format!(
            "this thread holds the lock of the same name and of the kind {other:?}, so it would \
             wait for itself: use one kind of lock for each name"
        )))
    })
}

/// The error of a write lock with a shortest time whose thread reads as well.
pub(in crate::engine) fn kept_beside_reads() -> Error {
    Error::misuse(
        "a write lock with a shortest time cannot be read beside: the store would keep it for as \
         long as the reads go on; leave `at_least` out, or read after it",
    )
}
