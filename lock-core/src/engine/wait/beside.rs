//! Locks of one name and several kinds in one thread. A writer may acquire the read lock, which is
//! a downgrade. In any other combination of kinds that exclude each other, the thread would wait
//! for itself.

use crate::engine::Engine;
use crate::engine::acquisition::Acquisition;
use crate::engine::minimum_hold;
use crate::error::Error;
use crate::name::LockName;
use std::sync::Arc;

/// Returns the write lock that `thread` holds, if `name` is the read lock of the same name. `None`
/// if the thread already holds `name` itself, because the acquisition is then a nested hold.
///
/// # Errors
///
/// [`Error::is_misuse`] if the thread holds a lock of the same name whose kind excludes this kind,
/// or a write lock with a minimum hold.
pub(super) fn writer_of(
    engine: &Engine,
    name: &LockName,
    thread: u64,
) -> Result<Option<Arc<Acquisition>>, Error> {
    let held = |kind| engine.held_by(&name.of_kind(kind), thread);
    let (kind, profile) = (name.kind(), name.profile());
    let is_alone = !profile.excludes_kinds || !engine.registry.uses_kinds();
    if is_alone || held(kind).is_some() {
        return Ok(None);
    }
    if let Some(writer) = profile.writer.and_then(held) {
        // A store in which readers and the writer share a lease would extend the minimum hold for
        // as long as the reads last.
        let has_minimum_hold = writer.lock().minimum_hold().is_some();
        return match has_minimum_hold {
            true => Err(minimum_hold::beside_reads()),
            false => Ok(Some(writer)),
        };
    }
    if profile.readers.and_then(held).is_some() {
        return Err(Error::misuse(
            "this thread reads, so it would wait for itself to write: end its read lock first, or \
             take the write lock before it",
        ));
    }
    let is_held = |name: &LockName| engine.held_by(name, thread).is_some();
    let other = name
        .excluding()
        .find(|other| other.kind() != kind && is_held(other));
    other.map_or(Ok(None), |other| {
        Err(Error::misuse(format!(
            "this thread holds the lock of the same name and of the kind {:?}, so it would wait \
             for itself: use one kind of lock for each name",
            other.kind()
        )))
    })
}
