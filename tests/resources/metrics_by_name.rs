//! Metrics with the names of locks, which are registered with the process's recorder when a lock is
//! used.

use distlock::Client;
use distlock_tests::metrics::Recorded;
use distlock_tests::own_process::alone;
use std::thread;

#[test]
fn each_lock_has_its_own_metrics_when_asked() {
    alone(
        "metrics_by_name::each_lock_has_its_own_metrics_when_asked",
        || {
            let recorded = Recorded::of_process();
            let client: Client = distlock::builder()
                .url("memory://")
                .unwrap()
                .metrics_by_name()
                .connect()
                .unwrap();
            let cycles = |name: &str, count: u32| {
                let lock = client.mutex(name).unwrap();
                for _ in 0..count {
                    lock.lock().unwrap().unlock().unwrap();
                }
            };
            thread::scope(|scope| {
                scope.spawn(|| cycles("one", 1));
                scope.spawn(|| cycles("two", 2));
            });
            let held = client.owned_mutex("one").unwrap().lock().unwrap();
            assert!(client.mutex("one").unwrap().try_lock().unwrap().is_none());
            let acquired = |label| recorded.value("distlock_acquired_total", label);
            assert_eq!(
                (acquired("lock=one"), acquired("lock=two"), acquired("")),
                (2.0, 2.0, 4.0)
            );
            assert_eq!(recorded.value("distlock_busy_total", "lock=one"), 1.0);
            assert_eq!(recorded.value("distlock_busy_total", "lock=two"), 0.0);
            assert_eq!(
                recorded.samples("distlock_hold_seconds", "lock=two").len(),
                2
            );
            assert_eq!(recorded.value("distlock_held", "lock=one"), 1.0);
            drop(held);
            assert_eq!(recorded.value("distlock_held", ""), 0.0);
            // The metrics of the client's requests and events have no label `lock`.
            let of_client = ["distlock_request_seconds", "distlock_events_total"];
            let series = recorded.all();
            let of_client = series
                .iter()
                .filter(|series| of_client.contains(&series.name.as_str()));
            assert!(
                of_client
                    .map(|series| assert!(!series.labels.contains_key("lock")))
                    .count()
                    > 0
            );
        },
    );
}
