//! Spans and records for `tracing`, with the feature of that name.
//!
//! Spans, target `distlock`, level debug, each with the field `lock`: `acquire` (from the call to
//! its end, with `busy` or `error` if it ends without the lock) and `release` (with `error` if a
//! caller waits for the answer and the release fails). Both spans are entered on the caller's
//! thread. [`LockGuard::span`](crate::LockGuard::span) makes a span for the work under a lock.
//!
//! Records, target `distlock`, made from the client's [events](crate::Event) on the events' thread:
//!
//! | level | what |
//! |---|---|
//! | error | a lock was lost, also for holders that had handed it on |
//! | warn | a store grants nothing until a known time; a renewal, a release or a campaign failed; a release is unconfirmed; the renewals are used up; too few replicas confirmed |
//! | warn | the store or a setting should be corrected; a lock has no expiry; a semaphore has another limit; another server answers at an address; events were missed |
//! | info | a failure that occurred more than once, or a lack of replicas, is over |
//! | debug | a lock was acquired, released, found contended; enough replicas confirm it again |
//! | trace | a lease was renewed |
//!
//! Failures that affect all locks of a client at once (failed renewals, releases and campaigns, a
//! store that grants nothing for a time, too few replicas) make one record for each cause. While
//! they continue, they make another record at most every ten seconds, with the number of
//! repetitions. If there was more than one failure, or a lack of replicas, a last record reports
//! the end.
//!
//! Records contain lock names, but never owners or secrets.

use crate::error::Error;
use crate::error::chain;
use crate::name::LockName;
use crate::observe::event::{Event, EventHandler};
use crate::panics::contain;
use crate::time::{Clock, Moment, SystemClock};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;
use tracing::field::Empty;
use tracing::{Span, debug, error, info, trace, warn};

/// The shortest time between two records of a continuing failure, because an outage affects all
/// locks of a client at once.
const INTERVAL: Duration = Duration::from_secs(10);

/// The time without an occurrence after which a failure is over if no event of a lock ends it,
/// because a lock with a failed release may emit no further event.
const QUIET: Duration = Duration::from_secs(30);

/// The largest number of causes that are recorded separately.
const MOST_CAUSES: usize = 64;
const OTHER_CAUSES: &str = "other causes";

/// The event handler that records every event with `tracing`, and passes it to the next handler.
pub(crate) struct Traced {
    next: Option<Arc<dyn EventHandler>>,
    failures: Mutex<Failures>,
}

impl Traced {
    pub(crate) fn before(next: Option<Arc<dyn EventHandler>>) -> Self {
        Self {
            next,
            failures: Mutex::default(),
        }
    }
}

impl EventHandler for Traced {
    fn on_event(&self, event: &Event) {
        // The handler gets the event even if the subscriber panics.
        contain(|| self.failures.lock().record(event, SystemClock.now()));
        contain(|| record(event));
        if let Some(next) = &self.next {
            next.on_event(event);
        }
    }
}

/// The messages of failures that affect many locks at once and are recorded together.
const RENEWAL: &str = "a renewal failed";
const RELEASE: &str = "a release failed";
const PAUSE: &str = "the store grants nothing yet: waiting";
const ACCEPTED: &str = "too few replicas confirmed it: accepted";
const TAKEN_BACK: &str = "too few replicas confirmed it: taken back";
const CAMPAIGN: &str = "a campaign for a leadership failed";
const DEGRADED: &str = "held without the replicas that were asked for";

/// Failures that continue, by message and cause.
#[derive(Default)]
struct Failures(HashMap<(&'static str, String), Failure>);

/// A failure with one cause.
struct Failure {
    since: Moment,
    last: Moment,
    recorded: Moment,
    /// The number of occurrences since the last record; `times` is the total.
    unrecorded: u64,
    times: u64,
    /// The affected locks for which no event has ended the failure.
    locks: HashSet<LockName>,
}

impl Failures {
    fn record(&mut self, event: &Event, now: Moment) {
        match event {
            Event::RenewalFailed { lock, error, .. } => {
                self.failed(RENEWAL, lock, (cause(error), chain(error)), now, true);
            }
            Event::ReleaseFailed { lock, error } => {
                self.failed(RELEASE, lock, (cause(error), chain(error)), now, false);
            }
            Event::CampaignFailed { lock, error } => {
                self.failed(CAMPAIGN, lock, (cause(error), chain(error)), now, true);
            }
            // The text contains the remaining time, which differs each time, so it cannot identify
            // the cause.
            Event::Paused { lock, why, .. } => {
                self.failed(PAUSE, lock, (String::new(), chain(why)), now, true);
            }
            Event::InsufficientReplicasAccepted {
                lock, insufficient, ..
            } => {
                let why = insufficient.to_string();
                self.failed(ACCEPTED, lock, (why.clone(), why), now, false);
            }
            Event::InsufficientReplicasTakenBack { lock, insufficient } => {
                let why = insufficient.to_string();
                self.failed(TAKEN_BACK, lock, (why.clone(), why), now, true);
            }
            Event::Degraded { lock, insufficient } => {
                let why = insufficient.to_string();
                self.failed(DEGRADED, lock, (why.clone(), why), now, true);
            }
            Event::Renewed { lock, .. } => self.ended(Some(lock), &[RENEWAL], now),
            Event::Acquired { lock, .. } => {
                self.ended(Some(lock), &[RENEWAL, PAUSE, TAKEN_BACK, CAMPAIGN], now);
            }
            Event::Restored { lock } => self.ended(Some(lock), &[DEGRADED], now),
            Event::Released { lock, .. } | Event::Lost { lock, .. } => {
                self.ended(Some(lock), &[RENEWAL, PAUSE, DEGRADED], now);
            }
            _ => self.ended(None, &[], now),
        }
    }

    /// Records a failure. `cause` distinguishes failures, `text` is recorded. `ends_with_lock`: an
    /// event of the lock ends the failure.
    fn failed(
        &mut self,
        what: &'static str,
        lock: &LockName,
        (cause, text): (String, String),
        now: Moment,
        ends_with_lock: bool,
    ) {
        self.ended(None, &[], now);
        let mut key = (what, cause);
        if self.0.len() >= MOST_CAUSES && !self.0.contains_key(&key) {
            key.1 = OTHER_CAUSES.to_owned();
        }
        if let Some(failure) = self.0.get_mut(&key) {
            if ends_with_lock {
                failure.locks.insert(lock.clone());
            }
            failure.last = now;
            failure.times += 1;
            failure.unrecorded += 1;
            if now >= failure.recorded + INTERVAL {
                let times = failure.unrecorded;
                warn!(target: "distlock", times, why = %text, "{what}, and that goes on");
                failure.recorded = now;
                failure.unrecorded = 0;
            }
            return;
        }
        warn!(target: "distlock", %lock, why = %text, "{what}");
        let locks = ends_with_lock.then(|| lock.clone()).into_iter().collect();
        let (since, last, recorded) = (now, now, now);
        let failure = Failure {
            since,
            last,
            recorded,
            unrecorded: 0,
            times: 1,
            locks,
        };
        self.0.insert(key, failure);
    }

    /// Ends these failures for this lock, and all failures that did not occur for [`QUIET`]. A lack
    /// of replicas that still affects a lock continues.
    fn ended(&mut self, lock: Option<&LockName>, whats: &[&'static str], now: Moment) {
        self.0.retain(|(what, why), failure| {
            let was_there =
                whats.contains(what) && lock.is_some_and(|lock| failure.locks.remove(lock));
            let is_quiet =
                now >= failure.last + QUIET && (failure.locks.is_empty() || *what != DEGRADED);
            let is_over = was_there && failure.locks.is_empty() || is_quiet;
            if is_over && (failure.times > 1 || *what == DEGRADED) {
                let (times, lasted) = (failure.times, failure.last.since(failure.since));
                info!(target: "distlock", times, ?lasted, %why, "{what}: over");
            }
            !is_over
        });
    }
}

/// Returns the text of an error's innermost cause: the outer texts may contain the remaining time,
/// which differs each time.
fn cause(error: &Error) -> String {
    let sources = std::iter::successors(std::error::Error::source(error), |it| it.source());
    let own = sources
        .filter_map(|source| source.downcast_ref::<Error>())
        .last();
    own.unwrap_or(error).message().to_owned()
}

fn record(event: &Event) {
    match event {
        Event::Acquired {
            lock,
            token,
            waited,
        } => {
            debug!(target: "distlock", %lock, token = token.map(crate::FencingToken::get), ?waited, "acquired");
        }
        Event::BusyWithoutExpiry { lock } => {
            warn!(target: "distlock", %lock, "held without an end");
        }
        Event::LimitDiffers {
            lock,
            asked,
            stored,
        } => {
            warn!(target: "distlock", %lock, asked, stored, "the semaphore has another limit");
        }
        Event::Contended { lock } => debug!(target: "distlock", %lock, "contended"),
        Event::Renewed { lock, left } => trace!(target: "distlock", %lock, ?left, "renewed"),
        Event::RenewalsUsedUp { lock, left } => {
            warn!(target: "distlock", %lock, ?left, "the renewals are used up");
        }
        Event::Restored { lock } => {
            debug!(target: "distlock", %lock, "held with the replicas that were asked for");
        }
        Event::Lost { lock, token, loss } => {
            error!(target: "distlock", %lock, token = token.map(crate::FencingToken::get), %loss, "lost");
        }
        Event::HandedOnLost {
            lock,
            holds,
            first,
            last,
        } => {
            error!(target: "distlock", %lock, holds, ?first, ?last, "lost, also for holds that were handed on");
        }
        Event::Released { lock, held } => debug!(target: "distlock", %lock, ?held, "released"),
        Event::ReleaseUnconfirmed { lock } => {
            warn!(target: "distlock", %lock, "released, most likely by a request that went unanswered");
        }
        // These events share one record for all affected locks: see `Failures`.
        Event::RenewalFailed { .. }
        | Event::ReleaseFailed { .. }
        | Event::CampaignFailed { .. }
        | Event::Paused { .. }
        | Event::InsufficientReplicasAccepted { .. }
        | Event::InsufficientReplicasTakenBack { .. }
        | Event::Degraded { .. } => {}
        Event::Warning { kind, message } => {
            warn!(target: "distlock", ?kind, "{message}");
        }
        Event::ServerChanged {
            server,
            was,
            is,
            data,
        } => {
            warn!(target: "distlock", %server, %was, %is, ?data, "another server is used at this address");
        }
        Event::ServerRefused {
            server,
            expected,
            found,
        } => {
            warn!(target: "distlock", %server, %expected, %found, "another server answers, and is not used");
        }
        Event::Missed { count } => warn!(target: "distlock", count, "events were missed"),
    }
}

/// The span of a call, entered until it is dropped. Contains panics of the subscriber, which would
/// interrupt a change of state.
pub(crate) struct CallSpan(Span);

impl CallSpan {
    /// Enters the span of a wait for a lock.
    pub(crate) fn acquire(lock: &LockName) -> Self {
        Self::enter(
            || tracing::debug_span!(target: "distlock", "acquire", %lock, busy = Empty, error = Empty),
        )
    }

    /// Enters the span of a release.
    pub(crate) fn release(lock: &LockName) -> Self {
        Self::enter(|| tracing::debug_span!(target: "distlock", "release", %lock, error = Empty))
    }

    fn enter(new: impl FnOnce() -> Span) -> Self {
        let span = contain(new).unwrap_or_else(Span::none);
        contain(|| span.with_subscriber(|(id, subscriber)| subscriber.enter(id)));
        Self(span)
    }

    /// Records the result of the call.
    pub(crate) fn ended<T, E: Display>(&self, result: &Result<Option<T>, E>) {
        contain(|| match result {
            Ok(Some(_)) => {}
            Ok(None) => {
                self.0.record("busy", true);
            }
            Err(error) => {
                self.0.record("error", tracing::field::display(error));
            }
        });
    }
}

impl Drop for CallSpan {
    fn drop(&mut self) {
        let span = std::mem::replace(&mut self.0, Span::none());
        contain(|| span.with_subscriber(|(id, subscriber)| subscriber.exit(id)));
        contain(|| drop(span));
    }
}

/// Returns the span for the work under a lock.
pub(crate) fn held(lock: &LockName, token: Option<crate::FencingToken>) -> Span {
    let token = token.map(crate::FencingToken::get);
    contain(|| tracing::debug_span!(target: "distlock", "held", %lock, token))
        .unwrap_or_else(Span::none)
}

#[cfg(test)]
mod tests {
    use super::Failures;
    use crate::InsufficientReplicas;
    use crate::observe::event::Event;
    use crate::{Clock, Error, LockName, LockOptions, Moment};
    use parking_lot::Mutex;
    use std::io::Write;
    use std::sync::Arc;
    use std::time::Duration;

    /// A writer that stores its output.
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn failure_of_many_locks_is_recorded_once_until_it_is_over() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt().with_ansi(false);
        let subscriber = subscriber.with_writer(move || writer.clone()).finish();
        let name = |n: u64| LockName::new(&format!("x{n}")).unwrap();
        let insufficient = InsufficientReplicas::new(0, 1);
        let events: [fn(LockName, InsufficientReplicas, u64) -> Event; 4] = [
            |lock, insufficient, _| Event::InsufficientReplicasTakenBack { lock, insufficient },
            |lock, insufficient, _| Event::Degraded { lock, insufficient },
            |lock, insufficient, _| Event::InsufficientReplicasAccepted {
                lock,
                token: None,
                insufficient,
            },
            |lock, _, n| {
                let left = Duration::from_secs(n);
                Event::Paused {
                    lock,
                    left,
                    why: Error::unavailable(format!("{n} s to go")),
                }
            },
        ];
        tracing::subscriber::with_default(subscriber, || {
            let mut failures = Failures::default();
            let at = |n: u64| Moment::from_nanos(1_000_000_000 + n);
            for event in events {
                for n in 0..1_000 {
                    failures.record(&event(name(n), insufficient, n), at(n));
                    // A renewal that is accepted with too few replicas also emits this event.
                    let renewed = Event::Renewed {
                        lock: name(n),
                        left: Duration::ZERO,
                    };
                    failures.record(&renewed, at(n));
                }
            }
            for n in 0..1_000 {
                failures.record(&Event::Restored { lock: name(n) }, at(2_000));
            }
        });
        let text = String::from_utf8(log.0.lock().clone()).unwrap();
        let count = |level: &str| text.lines().filter(|line| line.contains(level)).count();
        assert_eq!((count("WARN"), count("INFO")), (4, 1), "{text}");
        assert!(
            text.contains("times=1000") && text.contains("asked for: over"),
            "{text}"
        );
    }

    #[test]
    fn spans_and_records_have_their_text_and_level() {
        let log = Log::default();
        let writer = log.clone();
        // The events arrive on a thread of the client, so the subscriber must be global.
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_span_events(tracing_subscriber::fmt::format::FmtSpan::CLOSE)
            .with_writer(move || writer.clone())
            .init();
        let (one, two) = {
            let client = || {
                crate::builder()
                    .url("memory://traced")
                    .unwrap()
                    .connect()
                    .unwrap()
            };
            (client(), client())
        };
        let lock = one.mutex("traced:x").unwrap();
        let guard = lock
            .lock_with(&LockOptions::new().lease(Duration::from_millis(50)))
            .unwrap();
        assert!(two.mutex("traced:x").unwrap().try_lock().unwrap().is_none());
        let losses = guard.losses();
        losses.recv_timeout(Duration::from_secs(10)).unwrap();
        assert!(guard.unlock().is_err());
        let guard = lock.lock().unwrap();
        guard
            .span()
            .in_scope(|| tracing::info!(target: "distlock", "at work"));
        guard.unlock().unwrap();
        drop((lock, one, two));
        let expected = [
            "DEBUG acquire{lock=traced:x}: distlock: close",
            "DEBUG acquire{lock=traced:x busy=true}: distlock: close",
            "DEBUG distlock: acquired lock=traced:x token=1",
            "DEBUG distlock: contended lock=traced:x",
            "ERROR distlock: lost lock=traced:x",
            "DEBUG distlock: released lock=traced:x",
            "DEBUG release{lock=traced:x",
            "}: distlock: at work",
        ];
        let clock = crate::SystemClock;
        let until = clock.now() + Duration::from_secs(10);
        loop {
            let text = String::from_utf8(log.0.lock().clone()).unwrap();
            let missing: Vec<_> = expected
                .iter()
                .filter(|line| !text.contains(**line))
                .collect();
            if missing.is_empty() {
                break;
            }
            assert!(clock.now() < until, "missing {missing:#?} in:\n{text}");
            std::thread::yield_now();
        }
    }
}
