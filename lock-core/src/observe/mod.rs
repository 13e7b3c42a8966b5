//! What a program sees of its locks.
//!
//! From the top down: spans and records (`trace`), what a backend reports to its client
//! (`notices`), the queue and the thread that deliver events (`event_queue`), `metrics` and
//! `counters`, and the events themselves (`event`), of which a `loss` is the worst.

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
