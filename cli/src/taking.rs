//! The lock that `run` and `hold` acquire.

use crate::arguments::TakeArguments;
use crate::exit::Failure;
use crate::output::report;
use crate::store::Clients;
use distlock::config::LockOrder;
use distlock::{Error, LockOptions, OwnedGuard, OwnedMutex, ReadLock, Semaphore, WriteLock};
use std::time::Duration;

/// A lock of the kind that the arguments name.
pub(crate) enum Lock {
    Mutex(OwnedMutex),
    Read(ReadLock),
    Write(WriteLock),
    /// One of several slots.
    Slot(Semaphore),
}

impl Lock {
    /// Returns the lock that the arguments name.
    pub(crate) fn of(
        clients: &Clients,
        name: &str,
        arguments: &TakeArguments,
    ) -> Result<Self, Failure> {
        let TakeArguments {
            slots,
            shared,
            exclusive,
        } = *arguments;
        let client = clients.of_lock(name)?;
        if let Some(slots) = slots {
            return Ok(Self::Slot(client.semaphore(name, slots)?));
        }
        if !shared && !exclusive {
            return Ok(Self::Mutex(client.owned_mutex(name)?));
        }
        let lock = match clients.config_of(name)?.order() {
            LockOrder::Fair => client.fair_rw_lock(name)?,
            _ => client.rw_lock(name)?,
        };
        Ok(match shared {
            true => Self::Read(lock.read().clone()),
            false => Self::Write(lock.write().clone()),
        })
    }

    /// Acquires the lock; `None` if it was busy until the end of the wait. Without `wait`, the wait
    /// has no limit.
    pub(crate) fn take(
        &self,
        options: &LockOptions,
        wait: Option<Duration>,
    ) -> Result<Option<OwnedGuard>, Error> {
        let guard = match self {
            Self::Mutex(lock) => lock.acquire(wait, options),
            Self::Read(lock) => lock.acquire_owned(wait, options),
            Self::Write(lock) => lock.acquire_owned(wait, options),
            Self::Slot(slots) => {
                let guard = match wait {
                    Some(wait) => slots.try_acquire_for_with(1, wait, options),
                    None => slots.acquire_with(1, options).map(Some),
                };
                if let Ok(Some(_)) = &guard {
                    tell_of_limit(slots);
                }
                guard
            }
        };
        if let Ok(Some(guard)) = &guard {
            // Renews to the whole lease: a lock that the release of another client has granted to
            // this client has a short lease at first. That lease is too short for a command, and
            // for a script that reads the remaining time.
            let _left = guard.ensure(Duration::MAX);
        }
        guard
    }
}

/// Reports a number of slots in the store that differs from the requested one. The number in the
/// store limits the holders.
fn tell_of_limit(slots: &Semaphore) {
    let stored = slots.inspect().ok().and_then(|info| info.permits);
    if let Some(stored) = stored.filter(|stored| stored.limit != slots.limit()) {
        report(format_args!(
            "\"{}\" has {} slots in the store, and not {}: so many may be taken",
            slots.name(),
            stored.limit,
            slots.limit()
        ));
    }
}
