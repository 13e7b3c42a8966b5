//! [`Counters`]: the number of events of each kind, for a program's metrics.

use crate::observe::event::{Event, EventHandler};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of events, which can pass each event on to a further handler. Most events add one;
/// [`Event::HandedOnLost`] and [`Event::Missed`] add the number that they report. Counts only grow,
/// so a metrics system can read them at any time and compute rates.
///
/// # Examples
///
/// ```
/// # extern crate lock_core as distlock;
/// use distlock::admin::Counters;
/// use std::sync::Arc;
///
/// let counters = Arc::new(Counters::new());
/// let client = distlock::builder().url("memory://")?.events(counters.clone()).connect()?;
/// client.mutex("orders:42")?.lock()?.unlock()?;
/// drop(client); // events are delivered on a thread of their own
/// # while counters.count("released") == 0 { std::thread::yield_now(); }
/// assert_eq!(counters.count("acquired"), 1);
/// for (name, count) in counters.all() {
///     println!("distlock_{name}_total {count}");
/// }
/// # Ok::<(), distlock::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Counters {
    counts: [AtomicU64; NAMES.len()],
    next: Option<Next>,
}

/// The names of the counts: those of the events in snake case, as in metrics.
pub(crate) const NAMES: [&str; 22] = [
    "acquired",
    "contended",
    "busy_without_expiry",
    "limit_differs",
    "paused",
    "renewed",
    "renewal_failed",
    "renewals_used_up",
    "insufficient_replicas_taken_back",
    "insufficient_replicas_accepted",
    "degraded",
    "restored",
    "lost",
    "handed_on_lost",
    "released",
    "release_unconfirmed",
    "release_failed",
    "campaign_failed",
    "warning",
    "server_changed",
    "server_refused",
    "missed",
];

struct Next(Arc<dyn EventHandler>);

impl std::fmt::Debug for Next {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EventHandler")
    }
}

impl Counters {
    /// Creates counters without a further handler.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates counters that pass each event on to this handler.
    #[must_use]
    pub fn and(handler: Arc<dyn EventHandler>) -> Self {
        Self {
            next: Some(Next(handler)),
            ..Self::default()
        }
    }

    /// Returns the count of the event of this name; zero for an unknown name.
    #[must_use]
    pub fn count(&self, name: &str) -> u64 {
        self.all()
            .find_map(|(known, count)| (known == name).then_some(count))
            .unwrap_or(0)
    }

    /// Returns all names and counts, always in the same order. Reads the counts one after the
    /// other, so they need not belong to one moment.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.iter().copied().zip(
            self.counts
                .iter()
                .map(|count| count.load(Ordering::Relaxed)),
        )
    }
}

/// Returns the name of the count to which an event adds, and the amount.
pub(crate) fn name_and_count(event: &Event) -> (&'static str, u64) {
    match event {
        Event::Acquired { .. } => ("acquired", 1),
        Event::Contended { .. } => ("contended", 1),
        Event::BusyWithoutExpiry { .. } => ("busy_without_expiry", 1),
        Event::LimitDiffers { .. } => ("limit_differs", 1),
        Event::Paused { .. } => ("paused", 1),
        Event::Renewed { .. } => ("renewed", 1),
        Event::RenewalFailed { .. } => ("renewal_failed", 1),
        Event::RenewalsUsedUp { .. } => ("renewals_used_up", 1),
        Event::InsufficientReplicasTakenBack { .. } => ("insufficient_replicas_taken_back", 1),
        Event::InsufficientReplicasAccepted { .. } => ("insufficient_replicas_accepted", 1),
        Event::Degraded { .. } => ("degraded", 1),
        Event::Restored { .. } => ("restored", 1),
        Event::Lost { .. } => ("lost", 1),
        Event::HandedOnLost { holds, .. } => ("handed_on_lost", u64::from(*holds)),
        Event::Released { .. } => ("released", 1),
        Event::ReleaseUnconfirmed { .. } => ("release_unconfirmed", 1),
        Event::ReleaseFailed { .. } => ("release_failed", 1),
        Event::CampaignFailed { .. } => ("campaign_failed", 1),
        Event::Warning { .. } => ("warning", 1),
        Event::ServerChanged { .. } => ("server_changed", 1),
        Event::ServerRefused { .. } => ("server_refused", 1),
        Event::Missed { count } => ("missed", *count),
    }
}

impl EventHandler for Counters {
    fn on_event(&self, event: &Event) {
        let (name, by) = name_and_count(event);
        if let Some(at) = NAMES.iter().position(|known| *known == name) {
            self.counts[at].fetch_add(by, Ordering::Relaxed);
        }
        if let Some(Next(handler)) = &self.next {
            handler.on_event(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LockName, Loss, LossCause};

    #[test]
    fn event_is_counted_under_its_name_and_passed_on() {
        let told = Arc::new(AtomicU64::new(0));
        let next = Arc::clone(&told);
        let counters = Counters::and(Arc::new(move |_: &Event| {
            next.fetch_add(1, Ordering::Relaxed);
        }));
        let lock = LockName::new("x").unwrap();
        let loss = Loss::new(LossCause::Gone, None);
        counters.on_event(&Event::Contended { lock: lock.clone() });
        counters.on_event(&Event::Contended { lock: lock.clone() });
        counters.on_event(&Event::Lost {
            lock: lock.clone(),
            token: None,
            loss,
        });
        counters.on_event(&Event::HandedOnLost {
            lock,
            holds: 5,
            first: None,
            last: None,
        });
        counters.on_event(&Event::Missed { count: 7 });
        let seen: Vec<_> = counters.all().filter(|(_, count)| *count > 0).collect();
        assert_eq!(
            seen,
            [
                ("contended", 2),
                ("lost", 1),
                ("handed_on_lost", 5),
                ("missed", 7)
            ]
        );
        assert_eq!((counters.count("lost"), counters.count("found")), (1, 0));
        assert_eq!(told.load(Ordering::Relaxed), 5);
    }
}
