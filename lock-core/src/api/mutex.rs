//! [`Mutex`] and [`OwnedMutex`]: a lock on one name, held by threads or by guards.

use crate::api::lock::DistLock;
use crate::api::parts::SingleLock;
use crate::engine::EngineHandle;
use crate::error::Error;
use crate::name::LockName;
use std::sync::Arc;

/// A reentrant lock on one name, held by threads. All handles of one client for one name, clones
/// included, are the same lock, if they are all fair or all plain.
///
/// The documentation of [`DistLock`] maps the methods to those of Java, and lists the errors of
/// acquiring a lock.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// let client = distlock::builder().url("memory://")?.connect()?;
/// let lock = client.mutex("orders:42")?;
/// let guard = lock.lock()?;
/// let again = lock.lock()?;
/// assert_eq!(lock.hold_count(), 2);
/// assert_eq!(guard.fencing_token(), again.fencing_token());
/// drop(again);
/// guard.unlock()?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct Mutex(pub(crate) SingleLock);

/// A lock on one name that is held by a guard and not by a thread, so that the guard can be sent to
/// another thread. Not reentrant: a thread that locks it twice deadlocks, as with
/// [`std::sync::Mutex`].
///
/// It has the methods of [`Mutex`] that do not concern the calling thread. It does not implement
/// [`DistLock`], because the guards of a `DistLock` stay with their thread. But it can be converted
/// into an `Arc<dyn DistLock>`, for example as a member of a [`MultiLock`](crate::MultiLock). The
/// result is the [`Mutex`] of the same name: the same lock, held by threads.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// let client = distlock::builder().url("memory://")?.connect()?;
/// let lock = client.owned_mutex("orders:42")?;
/// let guard = lock.lock()?;
/// assert!(lock.try_lock()?.is_none());
/// std::thread::spawn(move || guard.unlock()).join().expect("no panic")?;
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Clone)]
pub struct OwnedMutex(pub(crate) SingleLock);

impl Mutex {
    pub(crate) fn new(engine: Arc<EngineHandle>, name: &LockName) -> Result<Self, Error> {
        Ok(Self(SingleLock::new(engine, name)?))
    }
}

impl From<&OwnedMutex> for Arc<dyn DistLock> {
    fn from(mutex: &OwnedMutex) -> Self {
        Arc::new(Mutex(mutex.0.clone()))
    }
}

impl OwnedMutex {
    pub(crate) fn new(engine: Arc<EngineHandle>, name: &LockName) -> Result<Self, Error> {
        Ok(Self(SingleLock::new(engine, name)?))
    }
}
