//! Faults of a whole process: it is forked, or gets no more file descriptors or threads. Each case
//! runs this binary again as a process of its own.

#![allow(
    unsafe_code,
    reason = "there is no safe way to fork, and that is the subject"
)]

use super::scene::{Row, Scene, builder_of, client_of, command, lease};
use super::table::Case;
use distlock::time::{Clock, Moment, Signal, SystemClock, Woken};
use distlock::{Client, Error, GuardState, LockOptions};
use distlock_tests::child::Example;
use distlock_tests::guards::await_renewals;
use distlock_tests::own_process::own_threads;
use distlock_tests::process::RedisServer;
use distlock_tests::time::{Stopwatch, always, eventually};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use std::error::Error as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// The environment variable that names the fault for the other process.
const FAULT: &str = "LOCK_TEST_FAULT";
/// The size of a thread's stack in the other process, in bytes: so large that the C library does
/// not keep a stack for the next thread.
const STACK: u64 = 256 << 20;
/// So many forks that at least one of them happens while another thread holds a certain mutex of
/// the library.
const FORKS: usize = 50;
/// The bound of a refusal, which comes before any request.
const AT_ONCE: Duration = Duration::ZERO;

pub(super) const CASES: &[Case] = &[
    ("process forked while holding", forked),
    (
        "guard and client dropped in a forked child",
        dropped_in_a_fork,
    ),
    #[cfg(target_os = "linux")]
    (
        "forked past the C library while holding",
        forked_past_the_c_library,
    ),
    ("no file descriptor is left: try_lock", no_file_descriptor),
    (
        "no file descriptor is left to look up a name",
        no_file_descriptor_by_name,
    ),
    (
        "no file descriptor is left for a socket",
        no_file_descriptor_by_socket,
    ),
    (
        "no file descriptor is left for waiting",
        no_file_descriptor_to_wait,
    ),
    (
        "no file descriptor is left while holding",
        no_file_descriptor_while_holding,
    ),
    ("no thread is left for the watchdog", no_thread),
];

/// Runs a case in another process, and returns its row.
pub(super) fn run(name: &str) -> Row {
    let binary = std::env::current_exe().expect("a test knows its binary");
    let only = [
        "--exact",
        "faults::process_limits::fault_of_a_child_process",
    ];
    let run = Example::program(binary)
        .args(&only)
        .args(&["--nocapture", "--test-threads=1"]);
    // A limit on memory can then be so high that only the stack of a new thread exceeds it.
    let run = run
        .env("RUST_MIN_STACK", &STACK.to_string())
        .env("MALLOC_ARENA_MAX", "1");
    let mut process = run.env(FAULT, name).spawn();
    let row = process.expect("its row", LONG * 2, |row| {
        let micros = |field: &str| row[field].as_u64().map(Duration::from_micros);
        let said = row["said"].as_str()?.to_owned();
        Some(Row {
            said,
            took: micros("took")?,
            bound: micros("bound")?,
        })
    });
    assert_eq!(process.wait_exit(LONG), 0, "{}", process.errors());
    row
}

/// Runs the case in the other process. In a usual run of the tests the variable is not set, and
/// this test does nothing.
#[test]
fn fault_of_a_child_process() {
    let Ok(wanted) = std::env::var(FAULT) else {
        return;
    };
    let (_, case) = CASES
        .iter()
        .find(|(name, _)| *name == wanted)
        .expect("it has a case");
    let Row { said, took, bound } = case();
    let micros = |time: Duration| u64::try_from(time.as_micros()).expect("short");
    // The test harness has begun a line, and not ended it.
    println!(
        "\n{}",
        json!({ "said": said, "took": micros(took), "bound": micros(bound) })
    );
}

/// Runs `checks` in a forked child, and returns the number of the first that does not hold there; 0
/// if all do.
fn in_a_child(checks: impl FnOnce() -> Vec<bool>) -> i32 {
    // SAFETY: the child runs our checks and leaves by `_exit`, without unwinding into the test or
    // running its destructors. What it touches (memory, clocks, locks that no other thread held)
    // works after a fork with this C library.
    checked(unsafe { libc::fork() }, checks)
}

/// Runs `checks` as [`in_a_child`] does, in a child that was made without the C library's
/// knowledge.
#[cfg(target_os = "linux")]
fn in_a_clone(checks: impl FnOnce() -> Vec<bool>) -> i32 {
    // SAFETY: as in `in_a_child`. All other arguments are zero, in whatever order: the processes
    // share nothing, and the child continues on a copy of this stack.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    checked(
        libc::pid_t::try_from(child).expect("a process number"),
        checks,
    )
}

/// Continues in both processes: the child runs the checks and exits; the parent waits for it, and
/// returns the number of the first check that does not hold.
fn checked(child: libc::pid_t, checks: impl FnOnce() -> Vec<bool>) -> i32 {
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let failed = checks()
            .iter()
            .position(|holds| !holds)
            .map_or(0, |at| at + 1);
        let code = i32::try_from(failed).unwrap_or(99);
        // SAFETY: ends this process, and nothing else.
        unsafe { libc::_exit(code) };
    }
    let mut status = 0;
    let ended = catch_unwind(AssertUnwindSafe(|| {
        eventually("the child has ended: nothing in it may hang", LONG, || {
            // SAFETY: `child` is our own, and `status` lives for as long as the call.
            let ended = unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) };
            ended == child
        });
    }));
    if let Err(panic) = ended {
        // SAFETY: the child has not been waited for, so the process ID still belongs to it.
        unsafe { libc::kill(child, libc::SIGKILL) };
        resume_unwind(panic);
    }
    assert!(libc::WIFEXITED(status), "the child died: {status}");
    libc::WEXITSTATUS(status)
}

fn is_refused<T>(result: Result<T, Error>) -> bool {
    result.is_err_and(|error| error.is_misuse() && error.to_string().contains("forked"))
}

/// A forked child holds no lock, and sends nothing on the parent's connections.
fn forked() -> Row {
    let Scene { server, client } = Scene::new();
    let lock = client.mutex("forked").unwrap();
    let other = client.owned_mutex("free").unwrap();
    let guard = lock.lock().unwrap();
    let mut probe = server.probe();
    let connections = probe.connections();
    let mut longest = Duration::ZERO;
    for _ in 0..5 {
        let (inner, here) = (lock.clone(), client.clone());
        let watch = Stopwatch::start();
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
        longest = longest.max(watch.elapsed());
        assert_eq!(failed, 0, "this check does not hold in the child");
    }
    assert_eq!(
        probe.connections(),
        connections,
        "the child made none, and closed none of ours"
    );
    let token = guard.fencing_token();
    eventually("the parent goes on renewing", LONG, || {
        probe.command_calls("evalsha") > 3 && guard.verify().is_ok()
    });
    guard.unlock().unwrap();
    for _ in 0..50 {
        let next = lock.lock().unwrap();
        assert!(
            next.fencing_token() > token,
            "answers and questions still belong together"
        );
        next.unlock().unwrap();
    }
    Row::new(
        "misuse, in the child; the parent holds on",
        longest,
        AT_ONCE,
    )
}

fn dropped_in_a_fork() -> Row {
    let Scene { server, client } = Scene::new();
    let lock = client.mutex("forked").unwrap();
    // Dropping the last handle releases a detached hold, but in a child it must not.
    let left = client.mutex("left").unwrap();
    left.lock().unwrap().detach();
    let mut held = Some((lock.lock().unwrap(), lock, left, client));
    let watch = Stopwatch::start();
    let failed = in_a_child(|| {
        let (guard, lock, left, client) = held.take().unwrap();
        let refused = is_refused(guard.unlock());
        drop((lock, left, client));
        vec![refused]
    });
    let row = Row::new("nothing: the parent holds on", watch.elapsed(), AT_ONCE);
    assert_eq!(failed, 0);
    let mut probe = server.probe();
    always("both are held", command(), || {
        probe.exists("forked") && probe.exists("left")
    });
    let (guard, _lock, left, _client) = held.unwrap();
    guard.unlock().unwrap();
    left.unlock().unwrap();
    assert!(!probe.exists("forked") && !probe.exists("left"));
    row
}

/// In a child that was made without the C library's knowledge, no call reaches the store.
#[cfg(target_os = "linux")]
fn forked_past_the_c_library() -> Row {
    let Scene { server, client } = Scene::new();
    let lock = client.mutex("forked").unwrap();
    let [other, anothers] = ["free", "anothers"].map(|name| client.owned_mutex(name).unwrap());
    // Held by a thread that does not exist in the child.
    let kept = thread::scope(|scope| scope.spawn(|| anothers.lock().unwrap()).join().unwrap());
    let mut held = Some(lock.lock().unwrap());
    let watch = Stopwatch::start();
    let failed = in_a_clone(|| {
        let guard = held.take().unwrap();
        // A nested attempt may succeed in the child, but its guard is invalid.
        let nested_is_invalid = lock.try_lock().map_or(true, |nested| {
            nested.is_none_or(|nested| !nested.is_valid() && nested.remaining().is_zero())
        });
        vec![
            nested_is_invalid,
            !lock.is_held_by_current_thread(),
            is_refused(other.lock()),
            is_refused(anothers.lock()),
            is_refused(guard.verify()),
            is_refused(guard.unlock()),
        ]
    });
    let row = Row::new(
        "misuse, in the child; the parent holds on",
        watch.elapsed(),
        AT_ONCE,
    );
    assert_eq!(failed, 0, "this check does not hold in the child");
    assert!(server.probe().exists("forked"));
    held.take().unwrap().unlock().unwrap();
    kept.unlock().unwrap();
    assert!(!server.probe().exists("forked"));
    row
}

/// Runs `work` with a soft limit on `resource`, and restores the old limit afterwards.
fn limited<T>(resource: Resource, to: u64, work: impl FnOnce() -> T) -> T {
    let before = getrlimit(resource);
    let limit = |current| Rlimit {
        current,
        maximum: before.maximum,
    };
    setrlimit(resource, limit(Some(to))).unwrap();
    let result = work();
    setrlimit(resource, limit(before.current)).unwrap();
    result
}

fn no_file_descriptor() -> Row {
    let Scene {
        server: _server,
        client,
    } = Scene::new();
    without_descriptors(&client)
}

/// Connects by a name, so that the client must look up an address first.
fn no_file_descriptor_by_name() -> Row {
    let server = RedisServer::start();
    let client = client_of(&server.url().replace("127.0.0.1", "localhost"));
    without_descriptors(&client)
}

fn no_file_descriptor_by_socket() -> Row {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock");
    let _server = RedisServer::start_with(&["--unixsocket", socket.to_str().unwrap()]);
    let client = client_of(&format!("redis+unix://{}", socket.display()));
    without_descriptors(&client)
}

/// Without a descriptor for a connection, the error says how to raise the limit, and not that the
/// server may be down.
fn without_descriptors(client: &Client) -> Row {
    let free = client.mutex("free").unwrap();
    let row = limited(Resource::Nofile, 3, || {
        let watch = Stopwatch::start();
        let error = free.try_lock().unwrap_err();
        let row = Row::new(&error, watch.elapsed(), command());
        assert!(error.is_unavailable(), "{error:?}");
        assert!(
            row.said
                .contains("raise its limit (`ulimit -n`, or `LimitNOFILE="),
            "{error:?}"
        );
        let source = error.source().unwrap().to_string();
        assert!(source.contains("Too many open files"), "{source}");
        row
    });
    free.try_lock().unwrap().unwrap().unlock().unwrap();
    row
}

/// A subscription needs a connection of its own, which cannot be opened, so the waiter polls.
fn no_file_descriptor_to_wait() -> Row {
    let Scene { server, client } = Scene::new();
    let holder = client_of(&server.url()).mutex("held").unwrap();
    let guard = holder.lock().unwrap();
    client
        .mutex("other")
        .unwrap()
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    let waiter = client.mutex("held").unwrap();
    limited(Resource::Nofile, 3, || {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| waiter.try_lock_for(LONG).unwrap().unwrap().unlock());
            eventually("it waits", LONG, || {
                client.queue_length("held").unwrap() == 1
            });
            let watch = Stopwatch::start();
            eventually("it waits on", LONG, || watch.elapsed() > command());
            assert!(!waiting.is_finished());
            let watch = Stopwatch::start();
            guard.unlock().unwrap();
            waiting.join().unwrap().unwrap();
            Row::new(
                "nothing: it is got by asking again",
                watch.elapsed(),
                lease(),
            )
        })
    })
}

fn no_file_descriptor_while_holding() -> Row {
    let Scene { server, client } = Scene::new();
    let guard = client.mutex("held").unwrap().lock().unwrap();
    let mut probe = server.probe();
    probe.reset_stats();
    eventually("it has been renewed", LONG, || {
        own_threads().iter().any(|name| name.contains("renew"))
            && probe.command_calls("evalsha") > 0
    });
    limited(Resource::Nofile, 3, || {
        await_renewals(&guard);
        assert_eq!(guard.state(), GuardState::Held);
    });
    let watch = Stopwatch::start();
    guard.verify().unwrap();
    guard.unlock().unwrap();
    Row::new(
        "nothing: it is renewed, and unlocked",
        watch.elapsed(),
        command() * 2,
    )
}

fn no_thread() -> Row {
    let lock = client_of("memory://").mutex("x").unwrap();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').next().unwrap().parse().unwrap();
    let row = limited(Resource::As, pages * 4096 + STACK / 2, || {
        let watch = Stopwatch::start();
        let error = lock.lock().unwrap_err();
        let row = Row::new(&error, watch.elapsed(), AT_ONCE);
        assert!(
            error.is_unavailable() && row.said.contains("`ulimit -u`"),
            "{error:?}"
        );
        assert!(row.said.contains("`TasksMax="), "{error:?}");
        row
    });
    assert_eq!(lock.hold_count(), 0);
    let guard = lock.lock().unwrap();
    await_renewals(&guard);
    guard.unlock().unwrap();
    row
}

/// A clock that stops the watchdog's thread once `stop` is set: while the thread checks a lock, and
/// so holds that lock's mutexes.
#[derive(Debug, Default)]
struct Stopping {
    stop: AtomicBool,
    stopped: AtomicBool,
    go_on: AtomicBool,
    /// The number of times that the watchdog's thread has read the clock since it last slept.
    looks: AtomicUsize,
}

fn is_watchdog() -> bool {
    thread::current().name() == Some("distlock-timer")
}

impl Clock for Stopping {
    fn now(&self) -> Moment {
        // The watchdog reads the clock once to find the locks that are due, and again to check the
        // first of them: it stops at the second read.
        if is_watchdog()
            && self.looks.fetch_add(1, Ordering::Relaxed) == 1
            && self.stop.load(Ordering::Relaxed)
        {
            self.stopped.store(true, Ordering::Relaxed);
            eventually("it may go on", LONG * 2, || {
                self.go_on.load(Ordering::Relaxed)
            });
        }
        SystemClock.now()
    }

    fn wait(&self, signal: &Arc<Signal>, until: Moment) -> Woken {
        if is_watchdog() {
            self.looks.store(0, Ordering::Relaxed);
        }
        SystemClock.wait(signal, until)
    }
}

/// The process forks while the watchdog checks a detached hold. When the child drops its last
/// handle, it releases nothing, and waits for no mutex of the watchdog: no thread of the child
/// would ever unlock that.
#[test]
fn client_dropped_in_a_forked_child_does_not_wait() {
    let clock = Arc::new(Stopping::default());
    let client = builder_of("memory://")
        .clock(Arc::<Stopping>::clone(&clock))
        .connect()
        .unwrap();
    let lock = client.mutex("left").unwrap();
    clock.stop.store(true, Ordering::Relaxed);
    lock.lock().unwrap().detach();
    eventually("the watchdog looks at it", LONG, || {
        clock.stopped.load(Ordering::Relaxed)
    });
    let mut last = Some((client, lock));
    let in_the_child = catch_unwind(AssertUnwindSafe(|| {
        in_a_child(|| {
            drop(last.take());
            vec![]
        })
    }));
    clock.go_on.store(true, Ordering::Relaxed);
    assert_eq!(in_the_child.unwrap(), 0);
    let (_client, lock) = last.unwrap();
    lock.unlock().unwrap();
}

/// The process forks while it holds the lock and other threads open clients. A mutex that such a
/// thread holds stays locked in the child for ever.
#[test]
fn client_of_a_forked_child_waits_for_nothing_of_the_parent() {
    let client = builder_of("memory://forks").connect().unwrap();
    let _held = client.mutex("x").unwrap().lock().unwrap();
    let stop = AtomicBool::new(false);
    let busy: [&(dyn Fn() + Sync); 2] = [
        &|| drop(client.with_option("hand_off", "1ms").unwrap()),
        &|| {
            drop(builder_of("memory://forks").connect().unwrap());
        },
    ];
    let check = || {
        let is_refused = is_refused(client.with_option("hand_off", "1ms"));
        let own = builder_of("memory://forks").connect().unwrap();
        let guard = own.mutex("x").unwrap().try_lock().unwrap();
        let is_taken = guard.is_some();
        std::mem::forget((guard, own)); // the child ends here and now
        vec![is_refused, is_taken]
    };
    thread::scope(|scope| {
        for work in busy {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        let all = catch_unwind(AssertUnwindSafe(|| {
            for round in 1..=FORKS {
                assert_eq!(
                    in_a_child(check),
                    0,
                    "this check does not hold in child {round}"
                );
            }
        }));
        stop.store(true, Ordering::Relaxed);
        all.unwrap();
    });
}

/// The process forks while other threads use the client. These threads do not exist in the child,
/// so the child must not wait for their mutexes.
#[test]
fn guard_dropped_in_a_forked_child_does_not_wait() {
    let clock = Arc::new(Stopping::default());
    let client = builder_of("memory://")
        .clock(Arc::<Stopping>::clone(&clock))
        .connect()
        .unwrap();
    let left = client
        .mutex("left")
        .unwrap()
        .lock_with(&LockOptions::new().lease(LONG))
        .unwrap();
    let only_handle = client.mutex("handle").unwrap();
    clock.stop.store(true, Ordering::Relaxed);
    let lock = client.mutex("forked").unwrap();
    let mut held = Some((lock.lock().unwrap(), left, only_handle));
    eventually("the watchdog looks at it", LONG, || {
        clock.stopped.load(Ordering::Relaxed)
    });
    let stop = AtomicBool::new(false);
    // Work that the clock cannot stop is repeated, so that some forks happen in the middle of it.
    let busy: [&(dyn Fn() + Sync); 2] = [&|| drop(client.mutex("others").unwrap()), &|| {
        let own = client.mutex("own").unwrap();
        own.lock_with(&LockOptions::new().lease(LONG))
            .unwrap()
            .detach();
        own.unlock().unwrap();
    }];
    let check = || {
        let (guard, left, only_handle) = held.take().unwrap();
        left.detach();
        drop(only_handle);
        vec![
            lock.hold_count() == 0,
            !lock.is_held_by_current_thread(),
            guard.loss().is_none(),
            guard.losses().recv().is_err(),
            is_refused(client.mutex("new")),
            is_refused(lock.unlock()),
            client.names_in_use() == 0,
            client.queue_length("forked").unwrap() == 0,
            is_refused(guard.unlock()),
        ]
    };
    thread::scope(|scope| {
        for work in busy {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    work();
                }
            });
        }
        let mut check = Some(check);
        let all = catch_unwind(AssertUnwindSafe(|| {
            for round in 1..=FORKS {
                let failed = in_a_child(|| check.take().expect("the parent has it still")());
                assert_eq!(failed, 0, "this check does not hold in child {round}");
            }
        }));
        stop.store(true, Ordering::Relaxed);
        clock.go_on.store(true, Ordering::Relaxed);
        all.unwrap();
    });
}
