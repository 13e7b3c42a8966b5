//! A process that is forked while it holds: the child has our memory, and must leave our lock and our connections alone.

#![allow(unsafe_code, reason = "there is no safe way to fork, and that is the subject")]

use crate::harness::alone::alone;
use crate::harness::process::RedisServer;
use crate::harness::redis::client;
use crate::harness::time::eventually;
use distlock::{DistLock, Error, GuardState};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

/// Runs `checks` in a forked child, and returns the number of the first that does not hold there; 0 if all do.
fn in_a_child(checks: impl FnOnce() -> Vec<bool>) -> i32 {
    // SAFETY: the child runs our checks and leaves by `_exit`, without unwinding into the test or running its destructors.
    // What it touches (memory, clocks, locks that no other thread held) works after a fork with this C library.
    checked(unsafe { libc::fork() }, checks)
}

/// The same in a child that the C library does not know of.
#[cfg(target_os = "linux")]
fn in_a_clone(checks: impl FnOnce() -> Vec<bool>) -> i32 {
    // SAFETY: as above. All other arguments are zero, in whatever order: nothing is shared, the stack goes on where it is.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    checked(libc::pid_t::try_from(child).expect("a process number"), checks)
}

/// What follows in both processes.
fn checked(child: libc::pid_t, checks: impl FnOnce() -> Vec<bool>) -> i32 {
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let failed = checks().iter().position(|holds| !holds).map_or(0, |at| at + 1);
        let code = i32::try_from(failed).unwrap_or(99);
        // SAFETY: ends this process, and nothing else.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    eventually("the child has ended: nothing in it may hang", LONG, || {
        // SAFETY: `child` is our own, and `status` lives for as long as the call.
        let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
        ended == child
    });
    assert!(libc::WIFEXITED(status), "the child died: {status}");
    libc::WEXITSTATUS(status)
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| error.is_misuse() && error.to_string().contains("forked"))
}

#[test]
fn a_forked_child_holds_nothing_and_touches_nothing() {
    alone("fork::a_forked_child_holds_nothing_and_touches_nothing", || {
        let server = RedisServer::start();
        let client = client(&server, "watchdog=600ms");
        let lock = client.mutex("forked").unwrap();
        let other = client.owned_mutex("free").unwrap();
        let guard = lock.lock().unwrap();
        let mut probe = server.probe();
        let connections = probe.connections();
        for _ in 0..5 {
            let (inner, here) = (lock.clone(), client.clone());
            let failed = in_a_child(|| {
                let checks = vec![
                    !guard.is_valid(),
                    guard.remaining().is_zero(),
                    guard.state() == GuardState::Lost,
                    !inner.is_held_by_current_thread(),
                    is_refused(guard.ensure(Duration::ZERO)),
                    is_refused(guard.verify()),
                    is_refused(guard.extend(Duration::from_secs(9))),
                    is_refused(inner.try_lock()),
                    is_refused(inner.lock()),
                    is_refused(other.lock()),
                    is_refused(inner.is_locked()),
                    is_refused(inner.force_unlock()),
                ];
                drop((inner, here));
                checks
            });
            assert_eq!(failed, 0, "this check does not hold in the child");
        }
        assert_eq!(
            probe.connections(),
            connections,
            "the child made none, and closed none of ours"
        );
        let token = guard.fencing_token();
        eventually("the parent goes on renewing", LONG, || {
            probe.command_calls("evalsha") > 5 && guard.verify().is_ok()
        });
        guard.unlock().unwrap();
        for _ in 0..50 {
            let next = lock.lock().unwrap();
            assert!(next.fencing_token() > token, "answers and questions still belong together");
            next.unlock().unwrap();
        }
    });
}

#[test]
fn a_guard_and_a_client_that_are_dropped_in_a_forked_child_release_nothing() {
    alone("fork::a_guard_and_a_client_that_are_dropped_in_a_forked_child_release_nothing", || {
        let server = RedisServer::start();
        let client = client(&server, "");
        let lock = client.mutex("forked").unwrap();
        let mut held = Some((lock.lock().unwrap(), lock, client));
        let failed = in_a_child(|| {
            let (guard, lock, client) = held.take().unwrap();
            let refused = is_refused(guard.unlock());
            drop((lock, client));
            vec![refused]
        });
        assert_eq!(failed, 0);
        assert!(server.probe().exists("forked"));
        let (guard, ..) = held.unwrap();
        guard.unlock().unwrap();
        assert!(!server.probe().exists("forked"));
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_child_that_the_c_library_does_not_know_of_reaches_no_store() {
    alone("fork::a_child_that_the_c_library_does_not_know_of_reaches_no_store", || {
        let server = RedisServer::start();
        let client = client(&server, "");
        let lock = client.mutex("forked").unwrap();
        let other = client.owned_mutex("free").unwrap();
        let mut held = Some(lock.lock().unwrap());
        let failed = in_a_clone(|| {
            let guard = held.take().unwrap();
            // It may nest here, and learns nothing good by it.
            let nested_is_invalid = lock.try_lock().map_or(true, |nested| {
                nested.is_none_or(|nested| !nested.is_valid() && nested.remaining().is_zero())
            });
            vec![
                nested_is_invalid,
                !lock.is_held_by_current_thread(),
                is_refused(other.lock()),
                is_refused(guard.verify()),
                is_refused(guard.unlock()),
            ]
        });
        assert_eq!(failed, 0, "this check does not hold in the child");
        assert!(server.probe().exists("forked"));
        held.take().unwrap().unlock().unwrap();
        assert!(!server.probe().exists("forked"));
    });
}
