//! Metrics for the [`metrics`](https://docs.rs/metrics) facade, with the feature of that name.
//!
//! The names, types, units and meanings are in `docs/METRICS.md`, together with a dashboard for
//! Grafana and alert rules for Prometheus.
//!
//! - **Recorder.** A client registers its metrics when it is made, and the metrics with a label
//!   `lock` at the first use of the name, with the recorder of that moment: install the recorder
//!   first. Without a recorder the metrics are discarded.
//! - **Events.** An [event](crate::Event) is counted when it is emitted, on the emitting thread: a
//!   slow event handler does not affect the counts. A recorder must therefore not block. A panic of
//!   the recorder loses the value that it was to record, and nothing else.
//! - **Labels.** `backend` is the scheme of the URL (`custom` for a given [`Backend`]), `format`
//!   the option of that name if the URL has it. Clients with the same labels share their metrics.
//! - **Lock names** are no labels by default, because each name creates time series that the
//!   recorder and the metrics system store. A program whose locks have a few fixed names enables
//!   the label `lock` with
//!   [`ClientBuilder::metrics_by_name`](crate::ClientBuilder::metrics_by_name).
//! - **Buckets.** A recorder for Prometheus needs buckets for the histograms, whose names end in
//!   `_seconds`; otherwise it renders summaries, which cannot be aggregated over processes.

mod metered;

use crate::backend::{Backend, Failure};
use crate::error::{Error, ErrorKind};
use crate::name::LockName;
use crate::observe::counters::{NAMES, name_and_count};
use crate::observe::event::Event;
use crate::panics::contain;
use crate::time::{Clock, Moment, SystemClock};
use ::metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};
use metered::Metered;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A request to the store, as the label `request` names it.
#[derive(Clone, Copy)]
enum Request {
    Acquire,
    Renew,
    Release,
    Read,
    Watch,
    Force,
}

/// The values of the label `request`, in the order of [`Request`].
const REQUESTS: [&str; 6] = ["acquire", "renew", "release", "read", "watch", "force"];

/// The events that `distlock_events_total` does not count: they have metrics of their own, or are
/// not counted when they are emitted.
const NOT_IN_EVENTS: [&str; 6] = [
    "acquired",
    "released",
    "renewed",
    "renewal_failed",
    "lost",
    "missed",
];

/// The kinds of errors that last until a setting, a right or the program is changed, with their
/// labels.
const REFUSALS: [(ErrorKind, &str); 4] = [
    (ErrorKind::Configuration, "configuration"),
    (ErrorKind::Unsupported, "unsupported"),
    (ErrorKind::ForeignFormat, "foreign_format"),
    (ErrorKind::Misuse, "misuse"),
];

/// The metrics of a client. Cheap to clone; the default records nothing.
#[derive(Clone, Default)]
pub(crate) struct Metrics(Option<Arc<ClientMetrics>>);

struct ClientMetrics {
    locks: Locks,
    requests: [Histogram; REQUESTS.len()],
    unknown_acquires: Counter,
    unknown_releases: Counter,
    /// In the order of [`NAMES`].
    events: [Counter; NAMES.len()],
    connections: Gauge,
    connections_opened: Counter,
}

/// The metrics of locks, in total or by name.
enum Locks {
    Together(LockMetrics),
    ByName {
        labels: Vec<Label>,
        each: RwLock<HashMap<LockName, Arc<LockMetrics>>>,
    },
}

struct LockMetrics {
    acquired: Counter,
    handed_off: Counter,
    busy: Counter,
    unavailable: Counter,
    /// In the order of [`REFUSALS`].
    refused: [Counter; REFUSALS.len()],
    lost: Counter,
    renewed: Counter,
    renewal_failed: Counter,
    wait: Histogram,
    hold: Histogram,
    held: Gauge,
    waiting: Gauge,
}

/// The time at which a request began.
#[derive(Clone, Copy)]
pub(crate) struct RequestStart(Moment);

/// One unit of a gauge, counted until [`end`](Self::end) or the drop.
#[derive(Default)]
pub(crate) struct Counted(Option<Gauge>);

impl Metrics {
    /// Registers the metrics of a client with the current recorder.
    pub(crate) fn register(backend: &str, format: Option<&str>, by_name: bool) -> Self {
        contain(describe);
        let mut labels = vec![Label::new("backend", backend.to_owned())];
        if let Some(format) = format {
            labels.push(Label::new("format", format.to_owned()));
        }
        let with = |name, value| {
            labels
                .iter()
                .cloned()
                .chain([Label::new(name, value)])
                .collect()
        };
        let with = |name: &'static str, value: &'static str| -> Vec<Label> { with(name, value) };
        let unknown = |request: Request| {
            let request = REQUESTS[request as usize];
            new_counter("distlock_unknown_outcomes_total", with("request", request))
        };
        Self(Some(Arc::new(ClientMetrics {
            requests: REQUESTS
                .map(|it| new_histogram("distlock_request_seconds", with("request", it))),
            unknown_acquires: unknown(Request::Acquire),
            unknown_releases: unknown(Request::Release),
            events: NAMES.map(|event| match event {
                event if NOT_IN_EVENTS.contains(&event) => Counter::noop(),
                event => new_counter("distlock_events_total", with("event", event)),
            }),
            connections: new_gauge("distlock_connections", labels.clone()),
            connections_opened: new_counter("distlock_connections_opened_total", labels.clone()),
            locks: match by_name {
                true => Locks::ByName {
                    labels,
                    each: RwLock::default(),
                },
                false => Locks::Together(LockMetrics::register(&labels)),
            },
        })))
    }

    /// Returns whether metrics are recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Wraps a backend so that its requests are recorded, if metrics are on.
    pub(crate) fn around(&self, backend: Arc<dyn Backend>) -> Arc<dyn Backend> {
        if !self.is_on() {
            return backend;
        }
        Arc::new(Metered {
            backend,
            metrics: self.clone(),
        })
    }

    /// Records an event.
    pub(crate) fn event(&self, event: &Event) {
        let Some(client) = &self.0 else { return };
        contain(|| match event {
            Event::Acquired { lock, waited, .. } => client.locks.with(lock, |it| {
                it.acquired.increment(1);
                it.wait.record(*waited);
            }),
            Event::Released { lock, held } => client.locks.with(lock, |it| it.hold.record(*held)),
            Event::Renewed { lock, .. } => client.locks.with(lock, |it| it.renewed.increment(1)),
            Event::Lost { lock, .. } => client.locks.with(lock, |it| it.lost.increment(1)),
            other => {
                let (name, by) = name_and_count(other);
                if let Some(at) = NAMES.iter().position(|known| *known == name) {
                    client.events[at].increment(by);
                }
            }
        });
    }

    /// Records the end of a call that acquires a lock, if the call ended without the lock because
    /// the lock was busy, the store was unavailable, or the call was refused.
    pub(crate) fn acquire_ended<T>(&self, lock: &LockName, result: &Result<Option<T>, Error>) {
        let Some(client) = &self.0 else { return };
        match result {
            Ok(Some(_)) => {}
            Ok(None) => client.locks.with(lock, |it| it.busy.increment(1)),
            Err(error) if error.is_unavailable() => {
                client.locks.with(lock, |it| it.unavailable.increment(1));
            }
            Err(error) => {
                let place = REFUSALS.iter().position(|(kind, _)| *kind == error.kind());
                if let Some(place) = place {
                    client.locks.with(lock, |it| it.refused[place].increment(1));
                }
            }
        }
    }

    /// Records a hand-off.
    pub(crate) fn handed_off(&self, lock: &LockName) {
        let Some(client) = &self.0 else { return };
        client.locks.with(lock, |it| it.handed_off.increment(1));
    }

    /// Records a failed renewal. The event of that name is emitted only once for each cause.
    pub(crate) fn renewal_failed(&self, lock: &LockName) {
        let Some(client) = &self.0 else { return };
        client.locks.with(lock, |it| it.renewal_failed.increment(1));
    }

    /// Counts a waiting thread until the result is dropped.
    pub(crate) fn waiting(&self, lock: &LockName) -> Counted {
        let Some(client) = &self.0 else {
            return Counted::default();
        };
        client.locks.with(lock, |it| Counted::up(&it.waiting))
    }

    /// Counts an acquisition until the result is [ended](Counted::end) or dropped.
    pub(crate) fn held(&self, lock: &LockName) -> Counted {
        let Some(client) = &self.0 else {
            return Counted::default();
        };
        client.locks.with(lock, |it| Counted::up(&it.held))
    }

    /// Counts a connection until the result is dropped.
    pub(crate) fn connected(&self) -> Counted {
        let Some(client) = &self.0 else {
            return Counted::default();
        };
        contain(|| client.connections_opened.increment(1));
        Counted::up(&client.connections)
    }

    /// Returns the start time of a request that is sent now. Uses the system's clock: the engine's
    /// reads of its own clock must not depend on a feature.
    pub(crate) fn request_starts(&self) -> RequestStart {
        RequestStart(SystemClock.now())
    }

    /// Records a release for whose answer no caller waits.
    pub(crate) fn release_answered<T>(&self, start: RequestStart, answer: &Result<T, Failure>) {
        self.request(Request::Release, start, answer.as_ref().err());
    }

    /// Records the duration of a completed request, and an unknown outcome of an attempt or a
    /// release. Ignores a request that was not sent.
    fn request(
        &self,
        request: Request,
        RequestStart(start): RequestStart,
        failure: Option<&Failure>,
    ) {
        let Some(client) = &self.0 else { return };
        if matches!(failure, Some(Failure::NotSent(_))) {
            return;
        }
        let took = SystemClock.now().since(start);
        contain(|| client.requests[request as usize].record(took));
        if matches!(failure, Some(Failure::Unknown(_) | Failure::Final(_))) {
            contain(|| match request {
                Request::Acquire => client.unknown_acquires.increment(1),
                Request::Release => client.unknown_releases.increment(1),
                Request::Renew | Request::Read | Request::Watch | Request::Force => {}
            });
        }
    }
}

impl Locks {
    /// Calls `record` with the metrics of this lock, and contains its panics.
    fn with<T: Default>(&self, lock: &LockName, record: impl FnOnce(&LockMetrics) -> T) -> T {
        let contained = |metrics: &LockMetrics| contain(|| record(metrics)).unwrap_or_default();
        let (labels, each) = match self {
            Self::Together(all) => return contained(all),
            Self::ByName { labels, each } => (labels, each),
        };
        let known = each.read().get(lock).map(Arc::clone);
        let metrics = known.unwrap_or_else(|| {
            let mut labels = labels.clone();
            labels.push(Label::new("lock", lock.as_str().to_owned()));
            let new = || Arc::new(LockMetrics::register(&labels));
            Arc::clone(each.write().entry(lock.clone()).or_insert_with(new))
        });
        contained(&metrics)
    }
}

/// Returns a metric of the recorder, or one that records nothing if the recorder panics.
fn new_counter(name: &'static str, labels: Vec<Label>) -> Counter {
    contain(|| counter!(name, labels)).unwrap_or_else(Counter::noop)
}

fn new_gauge(name: &'static str, labels: Vec<Label>) -> Gauge {
    contain(|| gauge!(name, labels)).unwrap_or_else(Gauge::noop)
}

fn new_histogram(name: &'static str, labels: Vec<Label>) -> Histogram {
    contain(|| histogram!(name, labels)).unwrap_or_else(Histogram::noop)
}

impl LockMetrics {
    fn register(labels: &[Label]) -> Self {
        let labels = || labels.to_vec();
        let renewals = |result: &'static str| {
            let mut labels = labels();
            labels.push(Label::new("result", result));
            new_counter("distlock_renewals_total", labels)
        };
        let refused = |(_, kind): (_, &'static str)| {
            let mut labels = labels();
            labels.push(Label::new("kind", kind));
            new_counter("distlock_refused_total", labels)
        };
        Self {
            refused: REFUSALS.map(refused),
            acquired: new_counter("distlock_acquired_total", labels()),
            handed_off: new_counter("distlock_handed_off_total", labels()),
            busy: new_counter("distlock_busy_total", labels()),
            unavailable: new_counter("distlock_unavailable_total", labels()),
            lost: new_counter("distlock_lost_total", labels()),
            renewed: renewals("ok"),
            renewal_failed: renewals("failed"),
            wait: new_histogram("distlock_wait_seconds", labels()),
            hold: new_histogram("distlock_hold_seconds", labels()),
            held: new_gauge("distlock_held", labels()),
            waiting: new_gauge("distlock_waiting", labels()),
        }
    }
}

impl Counted {
    fn up(gauge: &Gauge) -> Self {
        // A gauge that panicked has not counted the unit.
        Self(contain(|| gauge.increment(1.0)).map(|()| gauge.clone()))
    }

    /// Counts one more unit of the same gauge.
    pub(crate) fn another(&self) -> Self {
        self.0.as_ref().map_or_else(Self::default, Self::up)
    }

    /// Ends the unit. Later calls have no effect.
    pub(crate) fn end(&mut self) {
        if let Some(gauge) = self.0.take() {
            contain(|| gauge.decrement(1.0));
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.end();
    }
}

impl fmt::Debug for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counted")
    }
}

/// Registers the unit and the meaning of each metric, in the words of `docs/METRICS.md`.
fn describe() {
    let counters = [
        (
            "distlock_acquired_total",
            "Locks acquired, from the store or by hand-off",
        ),
        (
            "distlock_handed_off_total",
            "Releases that passed the lock to a waiter of this client",
        ),
        (
            "distlock_busy_total",
            "Calls that ended without the lock because it was held",
        ),
        (
            "distlock_unavailable_total",
            "Calls that failed because the store could not be asked",
        ),
        (
            "distlock_refused_total",
            "Calls that failed until a setting, a right or the program is changed",
        ),
        ("distlock_lost_total", "Locks lost while they were held"),
        ("distlock_renewals_total", "Renewals, by result"),
        (
            "distlock_unknown_outcomes_total",
            "Requests to take or release a lock without a reply",
        ),
        ("distlock_events_total", "Other events, by name"),
        (
            "distlock_connections_opened_total",
            "Connections opened, the first ones included",
        ),
    ];
    for (name, meaning) in counters {
        describe_counter!(name, Unit::Count, meaning);
    }
    let histograms = [
        ("distlock_wait_seconds", "Time from the call to the grant"),
        (
            "distlock_hold_seconds",
            "Time from the grant to the release or hand-off",
        ),
        (
            "distlock_request_seconds",
            "Time of a request to the store, until its reply or timeout",
        ),
    ];
    for (name, meaning) in histograms {
        describe_histogram!(name, Unit::Seconds, meaning);
    }
    let gauges = [
        ("distlock_held", "Locks held"),
        (
            "distlock_waiting",
            "Threads in a call that takes a lock and does not have it yet",
        ),
        ("distlock_connections", "Connections open"),
    ];
    for (name, meaning) in gauges {
        describe_gauge!(name, Unit::Count, meaning);
    }
}
