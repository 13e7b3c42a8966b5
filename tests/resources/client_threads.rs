//! The threads and connections of a client end with it.

use distlock::DistLock;
use distlock_tests::own_process::{alone, own_threads};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::eventually;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

#[test]
fn dropped_redis_client_leaves_no_thread_and_no_connection() {
    alone("client_threads::dropped_redis_client_leaves_no_thread_and_no_connection", || {
        let server = RedisServer::start();
        let mut probe = server.probe();
        for _ in 0..3 {
            let (one, two) = (client(&server, "watchdog=1500ms"), client(&server, ""));
            let lock = one.mutex("shared").unwrap();
            let guard = lock.lock().unwrap();
            let waiter = thread::spawn(move || drop(two.mutex("shared").unwrap().lock().unwrap()));
            eventually("the second client has subscribed", LONG, || {
                probe.command(&["PUBSUB", "CHANNELS"]).texts()
                    == ["redisson_lock__channel:{shared}"]
            });
            eventually("the watchdog has renewed", LONG, || {
                own_threads().iter().any(|name| name.contains("renew"))
            });
            guard.unlock().unwrap();
            waiter.join().unwrap();
            assert!(!own_threads().is_empty());
            drop((lock, one));
            eventually("all threads of ours are gone", LONG, || own_threads().is_empty());
            eventually("all connections are closed", LONG, || {
                !probe.clients().iter().any(|line| line.contains("name=distlock"))
            });
        }
        assert_eq!(probe.command(&["PUBSUB", "CHANNELS"]).texts(), Vec::<String>::new());
    });
}
