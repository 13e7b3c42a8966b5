//! [`Pings`]: another client, which measures how long the server takes to answer a PING.

use super::{Sample, sample_of};
use crate::raw::{Raw, request};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub(super) struct Pings {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Duration>>,
}

impl Pings {
    /// The pause between two pings, so that they hardly load the server.
    const GAP: Duration = Duration::from_millis(1);

    pub(super) fn start(port: u16) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut raw, ping) = (Raw::connect(port), request(&["PING"]));
            let mut times = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let start = Instant::now();
                raw.call(&ping);
                times.push(start.elapsed());
                std::thread::sleep(Self::GAP);
            }
            times
        });
        Self { stop, thread }
    }

    pub(super) fn stop(self) -> Sample {
        self.stop.store(true, Ordering::Relaxed);
        let mut times = self.thread.join().expect("no panic");
        times.sort_unstable();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        sample_of(json!({
            "ping_p50_us": at(0.5), "ping_p99_us": at(0.99), "ping_max_us": at(1.0),
        }))
    }
}
