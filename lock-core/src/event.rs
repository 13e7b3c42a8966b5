//! [`Event`] and [`EventHandler`]: what happened, told on a thread of its own.

use crate::backend::no_thread;
use crate::error::Error;
use crate::loss::Loss;
use crate::name::LockName;
use crate::panics::contain;
use crate::replication::InsufficientReplicas;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::channel::{Receiver, Sender, unbounded};
use crate::sync::thread;
use crate::token::FencingToken;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Something that happened to a lock of this client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A lock was taken: from the store, or from the thread of this client that had it before.
    /// Nested locking is local and makes no event.
    #[non_exhaustive]
    Acquired {
        /// The lock.
        lock: LockName,
        /// Its token.
        token: Option<FencingToken>,
        /// How long it took, from the call to the grant.
        waited: Duration,
    },
    /// An attempt found the lock held by another owner. Told once for each wait.
    #[non_exhaustive]
    Contended {
        /// The lock.
        lock: LockName,
    },
    /// An attempt found the lock held without an end: no lease frees it, only its holder's release
    /// or
    /// [`force_unlock`](crate::DistLock::force_unlock). Told once for each wait.
    #[non_exhaustive]
    BusyWithoutExpiry {
        /// The lock.
        lock: LockName,
    },
    /// The store grants nothing until a time that is known, and the wait goes on until then. Told
    /// once for each wait.
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
    /// A renewal failed. It is tried again until the local deadline; the lock is still valid until
    /// then. Told once for each cause, not at each try, until a renewal succeeds.
    #[non_exhaustive]
    RenewalFailed {
        /// The lock.
        lock: LockName,
        /// Why.
        error: Error,
        /// What is left of the validity.
        left: Duration,
    },
    /// The renewals that the caller allowed are used up. The lock is still held for what is left of
    /// the lease, and then it is lost.
    #[non_exhaustive]
    RenewalsUsedUp {
        /// The lock.
        lock: LockName,
        /// What is left of the validity.
        left: Duration,
    },
    /// Too few replicas confirmed a grant in time, and it was taken back. It is tried again, if the
    /// policy and the wait allow it.
    #[non_exhaustive]
    InsufficientReplicasTakenBack {
        /// The lock.
        lock: LockName,
        /// How many did.
        insufficient: InsufficientReplicas,
    },
    /// Too few replicas confirmed a grant or a renewal in time, and by the
    /// [policy](crate::OnInsufficientReplicas::Accept) it counts all the same: if the master is
    /// lost now, the lock may be granted again.
    #[non_exhaustive]
    InsufficientReplicasAccepted {
        /// The lock.
        lock: LockName,
        /// Its token.
        token: Option<FencingToken>,
        /// How many did.
        insufficient: InsufficientReplicas,
    },
    /// A renewal counts that too few replicas confirmed: the server has none now that could take
    /// over without it, or the [policy](crate::Replication::keep_unconfirmed_renewals) says so. The
    /// lock is held like one without replicas. Told once, until [`Restored`](Self::Restored).
    #[non_exhaustive]
    Degraded {
        /// The lock.
        lock: LockName,
        /// How many confirmed.
        insufficient: InsufficientReplicas,
    },
    /// As many replicas as were asked for have confirmed a renewal again.
    #[non_exhaustive]
    Restored {
        /// The lock.
        lock: LockName,
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
    /// The store says that a lock is gone which was handed from thread to thread inside this client
    /// since it was granted: those that gave it on were told that all was well, and may have lost
    /// it before. Their successor is told by
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
    /// A release was repeated after a lost answer, and then the lock was not ours any more: almost
    /// certainly the first request freed it, but it may also have been deleted just before.
    #[non_exhaustive]
    ReleaseUnconfirmed {
        /// The lock.
        lock: LockName,
    },
    /// A release failed, also one in a guard's `Drop`, which returns nothing. Where the outcome is
    /// unknown it goes on being tried in the background; at the latest the lease ends it.
    #[non_exhaustive]
    ReleaseFailed {
        /// The lock.
        lock: LockName,
        /// Why.
        error: Error,
    },
    /// Locks work, and something about the store or the settings should be mended all the same.
    /// Told once for each server and cause, and again where that is said of the
    /// [kind](WarningKind).
    #[non_exhaustive]
    Warning {
        /// What kind.
        kind: WarningKind,
        /// What is wrong, what follows from it, and how to mend it. No secret stands in it.
        message: String,
    },
    /// Another server answers at an address than before, and the client uses it from now on: the
    /// old one was started again, or replaced. What the client holds on one Redis server is
    /// verified at once; another deployment of Sentinels, or another cluster, is used only when
    /// what the client held in the one before is over.
    #[non_exhaustive]
    ServerChanged {
        /// The address, or what the servers are together.
        server: String,
        /// The identity until now: a server's `run_id`, a Sentinel's or a cluster node's ID.
        was: String,
        /// The identity from now on.
        is: String,
    },
    /// Another server answers at an address than the one that belongs there, and the client does
    /// not use it. Told once for each identity that is found there.
    #[non_exhaustive]
    ServerRefused {
        /// The address.
        server: String,
        /// The identity that belongs there.
        expected: String,
        /// The identity that was found.
        found: String,
    },
    /// The handler was too slow: this many events were dropped before the next one.
    #[non_exhaustive]
    Missed {
        /// How many.
        count: u64,
    },
}

/// What an [`Event::Warning`] is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum WarningKind {
    /// The store does not publish our releases (`PUBLISH` is not allowed, or is gone): those who
    /// wait ask again and again.
    NotPublished,
    /// The store does not tell us of releases (`SUBSCRIBE` is not allowed, or is gone): those who
    /// wait here ask again and again.
    NotSubscribed,
    /// The store may evict a lock that is held when its memory is full. Told every few minutes
    /// while that is so.
    Eviction,
    /// A file of TLS certificates cannot be read any more: connections are made with what it said
    /// before.
    TlsFile,
    /// An environment variable looks like one of ours, and none is called that.
    UnknownVariable,
}

/// The callback for events.
///
/// Called on one thread of the client's own, one event after the other, never on a thread that
/// renews or waits. A slow handler delays only later events: beyond 4,096 waiting ones they are
/// dropped and counted, all but [`Event::Lost`] and
/// [`Event::HandedOnLost`]. A panic in it is caught, and the next event is delivered.
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

/// Where events are put; cheap to clone. The thread ends when the last clone is gone and the queue
/// is empty.
#[derive(Clone, Default)]
pub(crate) struct Events(Option<Arc<Outlet>>);

struct Outlet {
    queue: Sender<Event>,
    backlog: Arc<Backlog>,
}

#[derive(Default)]
struct Backlog {
    /// How many events are in the queue. Counted up before they are put in, and down when they are
    /// taken out.
    waiting: AtomicUsize,
    /// Events that were dropped. Written by the threads that emit, taken by the one that delivers.
    missed: AtomicU64,
}

impl Events {
    /// Starts the thread that tells `handler`.
    pub(crate) fn to(handler: Arc<dyn EventHandler>) -> Result<Self, Error> {
        let (queue, events) = unbounded();
        let backlog = Arc::new(Backlog::default());
        let counted = Arc::clone(&backlog);
        thread::Builder::new()
            .name("distlock-events".to_owned())
            .spawn(move || deliver(&events, &counted, handler.as_ref()))
            .map_err(|failure| no_thread("could not start the thread for events", failure))?;
        Ok(Self(Some(Arc::new(Outlet { queue, backlog }))))
    }

    /// Puts an event into the queue; never blocks. The event is only made if there is a handler.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        let Some(outlet) = &self.0 else { return };
        let (event, backlog) = (event(), &outlet.backlog);
        // There are no more losses than locks that were held.
        let must_come = matches!(event, Event::Lost { .. } | Event::HandedOnLost { .. });
        if !must_come && backlog.waiting.load(Ordering::Relaxed) >= QUEUE {
            backlog.missed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        backlog.waiting.fetch_add(1, Ordering::Relaxed);
        // It fails only where the thread is gone.
        let _gone = outlet.queue.try_send(event);
    }
}

fn deliver(events: &Receiver<Event>, backlog: &Backlog, handler: &dyn EventHandler) {
    let tell = |event: &Event| {
        // A panic was reported by the panic hook already; the other events must still come.
        contain(|| handler.on_event(event));
    };
    for event in events.iter() {
        backlog.waiting.fetch_sub(1, Ordering::Relaxed);
        match backlog.missed.swap(0, Ordering::Relaxed) {
            0 => {}
            count => tell(&Event::Missed { count }),
        }
        tell(&event);
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Events(..)" } else { "Events(none)" })
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
    fn a_slow_handler_is_told_how_many_it_missed_and_of_each_loss() {
        const LOSS: u64 = u64::MAX;
        let (go, gate) = mpsc::channel::<()>();
        let (told, seen) = mpsc::channel();
        let ends = parking_lot::Mutex::new((gate, told));
        let events = Events::to(Arc::new(move |event: &Event| {
            let ends = ends.lock();
            let told = match event {
                Event::Missed { count } => *count,
                Event::Lost { .. } => LOSS,
                _ => 0,
            };
            ends.1.send(told).unwrap();
            let _opened_or_gone = ends.0.recv();
        }))
        .unwrap();
        events.emit(|| contended("x"));
        let first = seen.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(first, 0, "it is busy with the first one from here on");
        for _ in 0..QUEUE + 50 {
            events.emit(|| contended("x"));
        }
        let lock = LockName::new("x").unwrap();
        let loss = Loss::new(crate::LossCause::Gone, None);
        events.emit(|| Event::Lost { lock, token: None, loss });
        drop((go, events));
        let told: Vec<_> = seen.iter().collect();
        assert_eq!(told.iter().filter(|is_loss| **is_loss == LOSS).count(), 1, "never dropped");
        assert_eq!(told.iter().filter(|missed| **missed == 50).count(), 1);
    }
}
