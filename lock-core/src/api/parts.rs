//! [`Parts`]: the single locks that a lock consists of.

use crate::api::guard::{Hold, LockGuard, OwnedGuard};
use crate::backend::{
    Backend, Failure, LockInfo, NO_FORCED_RELEASE, NO_SEMAPHORES, PermitChange, PermitOutcome,
    call_backend,
};
use crate::call::options::LockOptions;
use crate::engine::acquisition::Acquisition;
use crate::engine::holder::thread_id;
use crate::engine::queue::{LocalLock, Scope};
use crate::engine::{Engine, EngineHandle, acquire};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::time::Clock;
use std::borrow::Cow;
use std::fmt;
use std::iter;
use std::sync::Arc;
use std::time::Duration;

/// The single locks that a lock consists of, as a tree.
#[derive(Clone)]
pub enum Parts {
    /// A single lock.
    Single(SingleLock),
    /// Several locks.
    Composite(Arc<Composite>),
}

/// One lock of one client: the client's engine and the lock's name.
#[derive(Clone)]
pub struct SingleLock {
    pub(crate) engine: Arc<EngineHandle>,
    name: LockName,
    /// The local lock that all threads of the client share; `None` for a kind of lock with a local
    /// lock for each thread and guard.
    local: Option<Arc<LocalLock>>,
}

/// Several locks as one: the composite is held while at least `required` of its parts are held.
pub struct Composite {
    pub(crate) name: LockName,
    pub(crate) required: usize,
    pub(crate) parts: Vec<Parts>,
    /// The set of locks and the required number, as a text. It is equal for all composites of the
    /// same locks and the same number, whatever the order of the locks.
    pub(crate) key: Arc<str>,
}

impl fmt::Debug for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name().fmt(f)
    }
}

impl fmt::Debug for SingleLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl fmt::Debug for Composite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl SingleLock {
    /// Returns whether the waiters for this lock are queued in the store.
    pub(crate) fn is_queued(&self) -> bool {
        self.engine.queues(&self.name)
    }

    pub(crate) fn new(engine: Arc<EngineHandle>, name: &LockName) -> Result<Self, Error> {
        engine.refuse_if_forked().map_err(|error| error.on(name))?;
        let local = match name.profile().hands_off {
            true => Some(engine.local_lock(name, Scope::CLIENT)?),
            false => None,
        };
        Ok(Self {
            engine,
            name: name.clone(),
            local,
        })
    }

    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the client's engine and the name.
    pub(crate) fn place(&self) -> (&Engine, &LockName) {
        (&self.engine, &self.name)
    }

    /// Returns the local lock of `thread`, or a new one for a single guard if `thread` is `None`.
    /// For a kind of lock with a local lock for each thread and guard.
    fn apart(&self, thread: Option<u64>) -> Result<Arc<LocalLock>, Error> {
        let scope = thread.map_or_else(|| self.engine.new_scope(), Scope::thread);
        self.engine.local_lock(&self.name, scope)
    }

    /// Returns the local lock that the client's threads share or, if each thread has its own, that
    /// of the calling thread. `None` if the calling thread has none.
    pub(crate) fn used_here(&self) -> Option<Cow<'_, Arc<LocalLock>>> {
        match &self.local {
            Some(local) => Some(Cow::Borrowed(local)),
            None => {
                let scope = Scope::thread(thread_id());
                self.engine
                    .find_local_lock(&self.name, scope)
                    .map(Cow::Owned)
            }
        }
    }

    /// Acquires the lock for `thread`, which must be the calling thread, or for a single guard if
    /// `thread` is `None`. Returns `None` if the lock was busy until the deadline.
    pub(crate) fn acquire(
        &self,
        thread: Option<u64>,
        wait: Option<Duration>,
        options: &LockOptions,
    ) -> Result<Option<Hold>, Error> {
        let Self { engine, name, .. } = self;
        if thread == Some(0) {
            return Err(Error::misuse("a thread that is ending cannot hold a lock").on(name));
        }
        #[cfg(feature = "tracing")]
        let span = crate::observe::trace::CallSpan::acquire(name);
        let apart;
        let local = match &self.local {
            Some(local) => local,
            None => {
                apart = self.apart(thread)?;
                &apart
            }
        };
        let minimum_hold = options.minimum_hold(iter::once(self.place()));
        let result = minimum_hold.and_then(|minimum_hold| {
            let taken = acquire(engine, local, thread, wait, options)?;
            // From here on the drop of `hold` releases the lock, even if the code below panics.
            let hold = taken.map(|taken| Hold::new(Arc::clone(engine), Arc::clone(local), taken));
            if let (Some(hold), Some(time)) = (&hold, minimum_hold) {
                hold.keep(time);
            }
            Ok(hold)
        });
        let result = result.map_err(|error| error.on(name));
        engine.metrics().acquire_ended(name, &result);
        if let Err(error) = &result {
            engine.report_refusal(error);
        }
        #[cfg(feature = "tracing")]
        span.ended(&result);
        result
    }

    /// Acquires the lock for a guard that belongs to no thread.
    pub(crate) fn acquire_owned(
        &self,
        wait: Option<Duration>,
        options: &LockOptions,
    ) -> Result<Option<OwnedGuard>, Error> {
        Ok(self.acquire(None, wait, options)?.map(OwnedGuard::new))
    }

    /// Acquires the lock for the calling thread.
    pub(crate) fn acquire_here(
        &self,
        wait: Option<Duration>,
        options: &LockOptions,
    ) -> Result<Option<LockGuard>, Error> {
        let hold = self.acquire(Some(thread_id()), wait, options)?;
        Ok(hold.map(LockGuard::new))
    }

    pub(crate) fn parts(&self) -> Parts {
        Parts::Single(self.clone())
    }

    /// Ends this thread's newest detached hold that is not a part of a detached hold on several
    /// locks.
    pub(crate) fn unlock_detached(&self) -> Result<(), Error> {
        self.engine
            .refuse_if_forked()
            .map_err(|error| error.on(&self.name))?;
        let local = self.used_here();
        let detached = local.and_then(|local| {
            let acquisition = self.engine.take_detached(thread_id(), &local, None)?;
            Some((local, acquisition))
        });
        let (local, acquisition) = detached.ok_or_else(|| {
            Error::new(
                ErrorKind::NotHeld,
                "this thread has no detached hold to unlock: a guard unlocks its own, and only the \
                thread that locked can unlock",
            )
            .on(&self.name)
        })?;
        self.engine.end_hold(&local, &acquisition)
    }

    /// Returns the hold count of the calling thread.
    pub(crate) fn hold_count(&self) -> u32 {
        self.holds().map_or(0, |(holds, _)| holds)
    }

    /// Returns whether the calling thread holds the lock with a valid lease.
    pub(crate) fn is_held_here(&self) -> bool {
        self.holds()
            .is_some_and(|(holds, it)| holds > 0 && self.engine.is_valid(&it))
    }

    fn request<T>(
        &self,
        call: impl FnOnce(&dyn Backend) -> Result<T, Failure>,
    ) -> Result<T, Error> {
        let answer = call_backend(|| call(self.engine.store()?));
        answer.map_err(|failure| failure.into_error().on(&self.name))
    }

    pub(crate) fn inspect(&self) -> Result<LockInfo, Error> {
        self.request(|backend| backend.inspect(&self.name, self.engine.command_deadline()))
    }

    /// Removes this thread's detached hold on this lock that is a part of the composite hold
    /// `number`, and returns its guard. `None` if there is no such hold.
    pub(crate) fn take_detached(&self, number: u64) -> Option<LockGuard> {
        let (engine, local) = (&self.engine, self.used_here()?);
        let acquisition = engine.take_detached(thread_id(), &local, Some(number))?;
        Some(LockGuard::new(Hold::new(
            Arc::clone(engine),
            Arc::clone(&local),
            acquisition,
        )))
    }

    /// Returns the number of this thread's newest detached composite hold on the set of locks `of`,
    /// if this lock is a part of it.
    pub(crate) fn newest_composite(&self, of: &str) -> Option<u64> {
        self.engine
            .newest_composite(thread_id(), &*self.used_here()?, of)
    }

    /// Changes a semaphore, or one of its permits.
    pub(crate) fn change_permits(&self, change: PermitChange) -> Result<PermitOutcome, Error> {
        self.request(|backend| {
            let by = self.engine.command_deadline();
            backend
                .require_admin(NO_SEMAPHORES)?
                .change_permits(&self.name, change, by)
        })
    }

    /// Returns this thread's hold count and its acquisition. `None` if this thread has no hold, and
    /// in a forked child.
    pub(crate) fn holds(&self) -> Option<(u32, Arc<Acquisition>)> {
        if self.engine.is_forked() {
            return None;
        }
        self.used_here()?.holds_of(thread_id())
    }

    pub(crate) fn force_unlock(&self) -> Result<bool, Error> {
        self.request(|backend| {
            let by = self.engine.command_deadline();
            backend
                .require_admin(NO_FORCED_RELEASE)?
                .force_release(&self.name, by)
        })
    }
}

impl Parts {
    pub(crate) fn name(&self) -> &LockName {
        match self {
            Self::Single(lock) => &lock.name,
            Self::Composite(composite) => &composite.name,
        }
    }

    fn key(&self) -> String {
        match self {
            // The name is quoted: otherwise one name with a comma could equal the key of two locks.
            Self::Single(lock) => {
                let (client, kind) = (lock.engine.client, lock.name.kind());
                format!("{client}/{kind:?}/{:?}", lock.name)
            }
            Self::Composite(composite) => composite.key.to_string(),
        }
    }

    /// Returns all single locks, in the order in which they were given.
    pub(crate) fn single_locks(&self) -> Vec<&SingleLock> {
        match self {
            Self::Single(lock) => vec![lock],
            Self::Composite(composite) => composite.single_locks(),
        }
    }
}

impl Composite {
    pub(crate) fn new(required: usize, parts: Vec<Parts>) -> Self {
        let mut keys: Vec<_> = parts.iter().map(Parts::key).collect();
        keys.sort_unstable();
        let key = format!("{required} of ({})", keys.join(", ")).into();
        Self {
            name: name_of(required, &parts),
            required,
            parts,
            key,
        }
    }

    pub(crate) fn single_locks(&self) -> Vec<&SingleLock> {
        self.parts.iter().flat_map(Parts::single_locks).collect()
    }

    /// Returns the clock of the first lock's client.
    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        let locks = self.single_locks();
        Arc::clone(&locks.first().expect("a composite has locks").engine.clock)
    }
}

/// Returns the name of a composite: the names of as many of its parts as fit.
fn name_of(required: usize, parts: &[Parts]) -> LockName {
    /// The number of bytes reserved for the text around the names.
    const ROOM: usize = 64;
    let mut text = String::new();
    let mut named = 0;
    for part in parts {
        let name = match part {
            Parts::Composite(composite) if composite.required == composite.parts.len() => {
                format!("({})", composite.name.as_str())
            }
            _ => part.name().as_str().to_owned(),
        };
        if text.len() + name.len() + ROOM > LockName::MAX_BYTES {
            break;
        }
        if named > 0 {
            text.push_str(if required == parts.len() { " + " } else { ", " });
        }
        text.push_str(&name);
        named += 1;
    }
    let left_out = match parts.len() - named {
        0 => String::new(),
        left if named > 0 => format!(" and {left} more"),
        left => format!("{left} locks"),
    };
    let text = if required == parts.len() {
        format!("{text}{left_out}")
    } else {
        format!("{required} of {} ({text}{left_out})", parts.len())
    };
    // The text is valid although it joins several names: the rule about braces concerns only the
    // first brace, and in a valid name this brace opens a hash tag that the same name closes.
    LockName::new(&text).expect("valid names joined within the limit are a valid name")
}
