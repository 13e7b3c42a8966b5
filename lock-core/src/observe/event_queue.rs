//! [`Events`]: the queue of events for the handler, and the thread that delivers them.

use crate::error::Error;
use crate::observe::event::{Event, EventHandler};
use crate::observe::metrics::Metrics;
use crate::panics::contain;
use crate::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use crate::sync::channel::{Receiver, Sender, unbounded};
use crate::sync::thread;
use crate::threads::limits::no_thread;
use std::fmt;
use std::sync::Arc;

/// The largest number of events that are queued for a slow handler. Further events are dropped and
/// counted, except losses.
const QUEUE: usize = 4096;

/// The destination of emitted events: the metrics, and the sending end of the event queue. Cheap to
/// clone. The delivering thread ends when the last clone is dropped and the queue is empty.
#[derive(Clone, Default)]
pub(crate) struct Events {
    pub(crate) metrics: Metrics,
    queue: Option<Arc<EventQueue>>,
}

struct EventQueue {
    queue: Sender<Event>,
    backlog: Arc<Backlog>,
}

#[derive(Default)]
struct Backlog {
    /// The number of queued events. Incremented before an event is queued, decremented after it is
    /// dequeued.
    waiting: AtomicUsize,
    /// The number of dropped events. Incremented by the emitting threads, reset by the delivering
    /// thread.
    missed: AtomicU64,
}

impl Events {
    /// Creates a destination that records events in `metrics`, and starts the thread that delivers
    /// them to `handler`, if there is one.
    pub(crate) fn to(
        handler: Option<Arc<dyn EventHandler>>,
        metrics: Metrics,
    ) -> Result<Self, Error> {
        let Some(handler) = handler else {
            return Ok(Self {
                metrics,
                queue: None,
            });
        };
        let (queue, events) = unbounded();
        let backlog = Arc::new(Backlog::default());
        let counted = Arc::clone(&backlog);
        thread::Builder::new()
            .name("distlock-events".to_owned())
            .spawn(move || deliver(&events, &counted, handler.as_ref()))
            .map_err(|failure| no_thread("could not start the thread for events", failure))?;
        Ok(Self {
            metrics,
            queue: Some(Arc::new(EventQueue { queue, backlog })),
        })
    }

    /// Records an event and queues it; never blocks. Calls `event` only if there are metrics or a
    /// handler.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if self.queue.is_none() && !self.metrics.is_on() {
            return;
        }
        let event = event();
        // Recorded before the event is queued, because a full queue drops it.
        self.metrics.event(&event);
        let Some(outlet) = &self.queue else { return };
        let backlog = &outlet.backlog;
        // Losses are never dropped. They are few, because each ends an acquisition.
        let must_come = matches!(event, Event::Lost { .. } | Event::HandedOnLost { .. });
        if !must_come && backlog.waiting.load(Ordering::Relaxed) >= QUEUE {
            backlog.missed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        backlog.waiting.fetch_add(1, Ordering::Relaxed);
        // Fails only if the thread has ended.
        let _gone = outlet.queue.try_send(event);
    }
}

fn deliver(events: &Receiver<Event>, backlog: &Backlog, handler: &dyn EventHandler) {
    let tell = |event: &Event| {
        // The panic hook has reported a panic already; the next events must still be delivered.
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
        f.write_str(if self.queue.is_some() {
            "Events(..)"
        } else {
            "Events(none)"
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::LockName;
    use crate::observe::loss::Loss;
    use std::sync::mpsc;
    use std::time::Duration;

    fn contended(lock: &str) -> Event {
        Event::Contended {
            lock: LockName::new(lock).unwrap(),
        }
    }

    fn handled_by(handler: impl EventHandler + 'static) -> Events {
        Events::to(Some(Arc::new(handler)), Metrics::default()).unwrap()
    }

    #[test]
    fn panicking_handler_gets_the_next_event() {
        let (told, seen) = mpsc::channel();
        let told = parking_lot::Mutex::new(told);
        let events = handled_by(move |event: &Event| {
            let Event::Contended { lock } = event else {
                return;
            };
            told.lock().send(lock.to_string()).unwrap();
            assert_ne!(lock.as_str(), "bad", "on purpose");
        });
        events.emit(|| contended("bad"));
        events.emit(|| contended("good"));
        let got: Vec<String> = (0..2)
            .map(|_| seen.recv_timeout(Duration::from_secs(10)).unwrap())
            .collect();
        assert_eq!(got, ["bad", "good"]);
    }

    #[test]
    fn slow_handler_gets_number_of_missed_events_and_the_loss() {
        const LOSS: u64 = u64::MAX;
        let (go, gate) = mpsc::channel::<()>();
        let (told, seen) = mpsc::channel();
        let ends = parking_lot::Mutex::new((gate, told));
        let events = handled_by(move |event: &Event| {
            let ends = ends.lock();
            let told = match event {
                Event::Missed { count } => *count,
                Event::Lost { .. } | Event::HandedOnLost { .. } => LOSS,
                _ => 0,
            };
            ends.1.send(told).unwrap();
            let _opened_or_gone = ends.0.recv();
        });
        events.emit(|| contended("x"));
        let first = seen.recv_timeout(Duration::from_secs(10)).unwrap();
        assert_eq!(first, 0, "the handler blocks on the first event");
        for _ in 0..QUEUE + 50 {
            events.emit(|| contended("x"));
        }
        let lock = LockName::new("x").unwrap();
        let loss = Loss::new(crate::LossCause::Gone, None);
        events.emit(|| Event::Lost {
            lock: lock.clone(),
            token: None,
            loss,
        });
        events.emit(|| Event::HandedOnLost {
            lock,
            holds: 2,
            first: None,
            last: None,
        });
        drop((go, events));
        let told: Vec<_> = seen.iter().collect();
        assert_eq!(
            told.iter().filter(|is_loss| **is_loss == LOSS).count(),
            2,
            "not dropped"
        );
        assert_eq!(told.iter().filter(|missed| **missed == 50).count(), 1);
    }
}
