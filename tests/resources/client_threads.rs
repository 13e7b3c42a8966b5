//! The threads and connections of a client end with the client.

use distlock_tests::hanging_file::{HangingFile, password_file};
use distlock_tests::own_process::{alone, own_threads};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::client;
use distlock_tests::time::eventually;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

#[test]
fn dropped_redis_client_leaves_no_thread_and_no_connection() {
    alone(
        "client_threads::dropped_redis_client_leaves_no_thread_and_no_connection",
        || {
            let server = RedisServer::start();
            let mut probe = server.probe();
            for _ in 0..3 {
                let (one, two) = (client(&server, "watchdog=1500ms"), client(&server, ""));
                let lock = one.mutex("shared").unwrap();
                let guard = lock.lock().unwrap();
                let waiter =
                    thread::spawn(move || drop(two.mutex("shared").unwrap().lock().unwrap()));
                eventually("the second client has subscribed", LONG, || {
                    let channels = probe.command(&["PUBSUB", "CHANNELS"]).texts();
                    matches!(&channels[..], [it] if it.starts_with("distlock_queue:2:{shared}:"))
                });
                eventually("the watchdog has renewed", LONG, || {
                    own_threads().iter().any(|name| name.contains("renew"))
                });
                guard.unlock().unwrap();
                waiter.join().unwrap();
                assert!(!own_threads().is_empty());
                drop((lock, one));
                eventually("all threads of ours are gone", LONG, || {
                    own_threads().is_empty()
                });
                eventually("all connections are closed", LONG, || {
                    !probe
                        .clients()
                        .iter()
                        .any(|line| line.contains("name=distlock"))
                });
            }
            assert_eq!(
                probe.command(&["PUBSUB", "CHANNELS"]).texts(),
                Vec::<String>::new()
            );
        },
    );
}

/// Everything that opens a connection waits for the file: calls, renewals, the subscriber. Only the
/// thread that the system blocks in the read may outlive the client.
#[test]
fn client_with_a_hanging_password_file_leaves_the_hanging_thread_alone() {
    alone(
        "client_threads::client_with_a_hanging_password_file_leaves_the_hanging_thread_alone",
        || {
            let server = RedisServer::start();
            let mut probe = server.probe();
            let (_folder, file) = password_file(&mut probe);
            let limits = "watchdog=1500ms&command_timeout=300ms&connect_timeout=1h";
            let url = format!(
                "{}?password_file={}&{limits}",
                server.url_as(""),
                file.display()
            );
            let client = distlock::connect(&url).unwrap();
            let held = client.mutex("held").unwrap().lock().unwrap();
            let hangs = HangingFile::at(&file);
            eventually("the watchdog renews", LONG, || {
                own_threads().iter().any(|name| name.contains("renew"))
            });
            probe.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
            thread::scope(|scope| {
                for name in ["held", "a", "b", "c"] {
                    let lock = client.mutex(name).unwrap();
                    scope.spawn(move || lock.try_lock_for(Duration::from_millis(700)).is_err());
                }
            });
            eventually("the held lock is lost", LONG, || !held.is_valid());
            drop((held, client));
            eventually("only the one that reads is left", LONG, || {
                own_threads() == ["distlock-task"]
            });
            drop(hangs);
            eventually("it is gone, too", LONG, || own_threads().is_empty());
        },
    );
}
