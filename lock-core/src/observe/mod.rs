//! Events, counters, metrics and traces: the state of locks as a program observes it.
//!
//! From the top down: spans and records (`trace`), reports of a backend to its client (`notices`),
//! the queue and the thread that deliver events (`event_queue`), `metrics` and `counters`, events
//! (`event`), and the loss of a lock (`loss`).

pub(crate) mod counters;
pub(crate) mod event;
pub(crate) mod event_queue;
pub(crate) mod loss;
#[cfg(feature = "metrics")]
pub mod metrics;
#[cfg(not(feature = "metrics"))]
#[path = "no_metrics.rs"]
pub(crate) mod metrics;
pub(crate) mod notices;
#[cfg(feature = "tracing")]
pub mod trace;
