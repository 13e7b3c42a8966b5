//! [`Event`] and [`EventHandler`]: what happened, told on a thread of its own.

use crate::backend::no_thread;
use crate::error::Error;
use crate::loss::Loss;
use crate::name::LockName;
use crate::replication::Shortfall;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::channel::{Receiver, Sender, TrySendError, bounded};
use crate::sync::thread;
use crate::token::FencingToken;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

/// Something that happened to a lock of this client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A lock was taken: from the store, or from the thread of this client that had it before. Nested locking is local and
    /// makes no event.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        lock: LockName,
        /// Its token.
        token: Option<FencingToken>,
        /// How long it took, from the call to the grant.
        waited: Duration,
    },
    /// An attempt found the lock held by somebody else. Told once for each wait.
    #[non_exhaustive]
    Contended {
        /// The lock.
        lock: LockName,
    },
    /// An attempt found the lock held without an end: no lease frees it, only its holder's release or
    /// [`force_unlock`](crate::DistLock::force_unlock). Told once for each wait.
    #[non_exhaustive]
    Endless {
        /// The lock.
        lock: LockName,
    },
    /// The store grants nothing until a time that is known, and the wait goes on until then. Told once for each wait.
    #[non_exhaustive]
    Paused {
        /// The lock.
        lock: LockName,
        /// For how long yet.
        left: Duration,
        /// Why, and what ends it sooner.
        why: Error,
    },
    /// The lease was extended, by the watchdog or on demand.
    #[non_exhaustive]
    Renewed {
        /// The lock.
        lock: LockName,
        /// What was left of the validity when the renewal was sent.
        left: Duration,
    },
    /// A renewal failed. It is tried again until the local deadline; the lock is still valid until then.
    #[non_exhaustive]
    RenewalFailed {
        /// The lock.
        lock: LockName,
        /// Why.
        error: Error,
        /// What is left of the validity.
        left: Duration,
    },
    /// The renewals that the caller allowed are used up. The lock is still held for what is left of the lease, and then
    /// it is lost.
    #[non_exhaustive]
    RenewalsUsedUp {
        /// The lock.
        lock: LockName,
        /// What is left of the validity.
        left: Duration,
    },
    /// Too few replicas confirmed a grant in time, and it was taken back. It is tried again, if the policy and the wait
    /// allow it.
    #[non_exhaustive]
    ShortfallTakenBack {
        /// The lock.
        lock: LockName,
        /// How many did.
        shortfall: Shortfall,
    },
    /// Too few replicas confirmed a grant or a renewal in time, and by the [policy](crate::OnShortfall::Accept) it counts
    /// all the same: if the master is lost now, the lock may be granted again.
    #[non_exhaustive]
    ShortfallAccepted {
        /// The lock.
        lock: LockName,
        /// Its token.
        token: Option<FencingToken>,
        /// How many did.
        shortfall: Shortfall,
    },
    /// The lock was lost. Stop what it protects.
    #[non_exhaustive]
    Lost {
        /// The lock.
        lock: LockName,
        /// Its token.
        token: Option<FencingToken>,
        /// Why.
        loss: Loss,
    },
    /// The store says that a lock is gone which was handed from thread to thread inside this client since it was granted:
    /// those that gave it on were told that all was well, and may have lost it before. Their successor is told by
    /// [`Lost`](Self::Lost).
    #[non_exhaustive]
    HandedOnLost {
        /// The lock.
        lock: LockName,
        /// How many holds it was, before the last.
        holds: u32,
        /// The first one's token.
        first: Option<FencingToken>,
        /// The last one's token.
        last: Option<FencingToken>,
    },
    /// The lock was given back, to the store or to the next thread of this client.
    #[non_exhaustive]
    Released {
        /// The lock.
        lock: LockName,
        /// For how long it was held.
        held: Duration,
    },
    /// A release was repeated after a lost answer, and then the lock was not ours any more: almost certainly the first
    /// request freed it, but it may also have been deleted by somebody just before.
    #[non_exhaustive]
    ReleaseUnconfirmed {
        /// The lock.
        lock: LockName,
    },
    /// A release failed, also one in a guard's `Drop`, where nobody else is told. Where the outcome is unknown it goes
    /// on being tried in the background; at the latest the lease ends it.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock.
        lock: LockName,
        /// Why.
        error: Error,
    },
    /// The handler was too slow: this many events were dropped before the next one.
    #[non_exhaustive]
    Missed {
        /// How many.
        count: u64,
    },
}

/// Who is told of events.
///
/// Called on one thread of the client's own, one event after the other, never on a thread that renews or waits. A slow
/// handler delays only later events: beyond 4,096 waiting ones they are dropped and counted. A panic in it
/// is caught, and the next event is delivered.
pub trait EventHandler: Send + Sync {
    /// Something happened.
    fn on_event(&self, event: &Event);
}

/// A function is a handler.
impl<F: Fn(&Event) + Send + Sync> EventHandler for F {
    fn on_event(&self, event: &Event) {
        self(event);
    }
}

/// How many events may wait for a slow handler.
const QUEUE: usize = 4096;

/// Where events are put; cheap to clone. The thread ends when the last clone is gone and the queue is empty.
#[derive(Clone, Default)]
pub(crate) struct Events(Option<Arc<Outlet>>);

struct Outlet {
    queue: Sender<Event>,
    /// Events that found the queue full. Written by whoever emits, taken by the thread.
    missed: Arc<AtomicU64>,
}

impl Events {
    /// Starts the thread that tells `handler`.
    pub(crate) fn to(handler: Arc<dyn EventHandler>) -> Result<Self, Error> {
        let (queue, events) = bounded(QUEUE);
        let missed = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&missed);
        thread::Builder::new()
            .name("distlock-events".to_owned())
            .spawn(move || deliver(&events, &counted, handler.as_ref()))
            .map_err(|failure| no_thread("could not start the thread for events", failure))?;
        Ok(Self(Some(Arc::new(Outlet { queue, missed }))))
    }

    /// Puts an event into the queue; never blocks. The event is only made if somebody listens.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        let Some(outlet) = &self.0 else { return };
        if let Err(TrySendError::Full(_)) = outlet.queue.try_send(event()) {
            outlet.missed.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn deliver(events: &Receiver<Event>, missed: &AtomicU64, handler: &dyn EventHandler) {
    let tell = |event: &Event| {
        // A panic was reported by the panic hook already; the other events must still come.
        let _caught = catch_unwind(AssertUnwindSafe(|| handler.on_event(event)));
    };
    for event in events.iter() {
        match missed.swap(0, Ordering::Relaxed) {
            0 => {}
            count => tell(&Event::Missed { count }),
        }
        tell(&event);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Events(..)" } else { "Events(nobody)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn contended(lock: &str) -> Event {
        Event::Contended { lock: LockName::new(lock).unwrap() }
    }

    #[test]
    fn a_panicking_handler_still_gets_the_next_event() {
        let (told, seen) = mpsc::channel();
        let told = parking_lot::Mutex::new(told);
        let events = Events::to(Arc::new(move |event: &Event| {
            let Event::Contended { lock } = event else { return };
            told.lock().send(lock.to_string()).unwrap();
            assert_ne!(lock.as_str(), "bad", "on purpose");
        }))
        .unwrap();
        events.emit(|| contended("bad"));
        events.emit(|| contended("good"));
        let got: Vec<String> =
            (0..2).map(|_| seen.recv_timeout(Duration::from_secs(10)).unwrap()).collect();
        assert_eq!(got, ["bad", "good"]);
    }

    #[test]
    fn a_slow_handler_is_told_how_many_it_missed() {
        let (go, gate) = mpsc::channel::<()>();
        let (told, seen) = mpsc::channel();
        let ends = parking_lot::Mutex::new((gate, told));
        let events = Events::to(Arc::new(move |event: &Event| {
            let ends = ends.lock();
            let missed = if let Event::Missed { count } = event { *count } else { 0 };
            ends.1.send(missed).unwrap();
            let _opened_or_gone = ends.0.recv();
        }))
        .unwrap();
        events.emit(|| contended("x"));
        let told = || seen.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(told(), 0, "it is busy with the first one from here on");
        for _ in 0..QUEUE + 50 {
            events.emit(|| contended("x"));
        }
        drop(go);
        assert_eq!(told(), 50);
    }
}
