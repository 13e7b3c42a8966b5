//! Faults of the program itself, which misuses, loses, leaks or abandons its locks: what is
//! reported, and how soon.

use super::scene::{Row, Scene, builder_of, client_of, command, lease};
use super::table::Case;
use distlock::time::{Clock, ManualClock, SystemClock};
use distlock::{Client, Event, GuardState, LockOptions, LossCause};
use distlock_tests::guards::{await_renewals, deadline};
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Proxy, Sometimes, Turn};
use distlock_tests::resp::Kind;
use distlock_tests::time::{Stopwatch, eventually, let_pass, scaled};
use parking_lot::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);
/// The bound of a call that sends no request.
const AT_ONCE: Duration = Duration::ZERO;

pub(super) const CASES: &[Case] = &[
    (
        "unlock by a thread that holds nothing",
        unlock_by_another_thread,
    ),
    (
        "unlock by a client that holds nothing",
        unlock_by_another_client,
    ),
    (
        "unlock of a guard that is not detached",
        unlock_without_detaching,
    ),
    ("unlock once too often", unlock_too_often),
    (
        "unlock after a loss, and a successor is inside",
        unlock_after_loss,
    ),
    (
        "unlock of a detached hold after a loss",
        unlock_detached_after_loss,
    ),
    ("guard dropped during a panic", panic_with_a_guard),
    ("panic inside `run`", panic_in_run),
    (
        "guard dropped while the server is frozen",
        drop_while_frozen,
    ),
    ("guard leaked, its thread lives", leaked),
    (
        "guard leaked, its thread ends",
        leaked_by_a_thread_that_ends,
    ),
    ("thread that holds ends", thread_that_holds_ends),
    (
        "thread that holds nested ends",
        thread_that_holds_nested_ends,
    ),
    (
        "client dropped while a guard lives",
        client_dropped_before_guard,
    ),
    (
        "client dropped with a detached hold",
        client_dropped_with_detached,
    ),
    (
        "client dropped with a detached hold, server frozen",
        client_dropped_while_frozen,
    ),
    ("event handler that never returns", handler_that_hangs),
    ("event handler that panics", handler_that_panics),
    ("the clock jumps past the lease", clock_jumps_past_the_lease),
    (
        "the clock jumps by half a lease",
        clock_jumps_by_half_a_lease,
    ),
    (
        "the time of day is set back by ten years",
        time_of_day_is_set_back,
    ),
    #[cfg(target_os = "linux")]
    ("boot time against monotonic time", boot_time),
    (
        "a lease that is over before its answer comes",
        lease_over_before_the_answer,
    ),
    (
        "a watched lease that is over before its answer comes",
        watched_lease_over_before_the_answer,
    ),
];

/// Waits until the key is gone from the server.
fn freed(scene: &Scene, watch: &Stopwatch, said: &str, bound: Duration) -> Row {
    let mut probe = scene.server.probe();
    eventually("it is free", LONG, || !probe.exists("a"));
    let row = Row::new(said, watch.elapsed(), bound);
    scene.works("a");
    row
}

fn unlock_by_another_thread() -> Row {
    let scene = Scene::new();
    let lock = scene.client.mutex("a").unwrap();
    let guard = lock.lock().unwrap();
    let row = thread::scope(|scope| {
        let stranger = scope.spawn(|| {
            let watch = Stopwatch::start();
            let error = lock.unlock().unwrap_err();
            assert!(error.is_not_held() && error.is_misuse(), "{error:?}");
            Row::new(error, watch.elapsed(), AT_ONCE)
        });
        stranger.join().unwrap()
    });
    guard.verify().unwrap();
    row
}

fn unlock_by_another_client() -> Row {
    let scene = Scene::new();
    let guard = scene.client.mutex("a").unwrap().lock().unwrap();
    let stranger = client_of(&scene.server.url());
    let watch = Stopwatch::start();
    let error = stranger.mutex("a").unwrap().unlock().unwrap_err();
    let row = Row::new(&error, watch.elapsed(), AT_ONCE);
    assert!(error.is_not_held(), "{error:?}");
    guard.verify().unwrap();
    row
}

fn unlock_without_detaching() -> Row {
    let scene = Scene::new();
    let lock = scene.client.mutex("a").unwrap();
    let guard = lock.lock().unwrap();
    let watch = Stopwatch::start();
    let error = lock.unlock().unwrap_err();
    let row = Row::new(&error, watch.elapsed(), AT_ONCE);
    assert!(error.is_not_held(), "{error:?}");
    guard.unlock().unwrap();
    row
}

fn unlock_too_often() -> Row {
    let scene = Scene::new();
    let lock = scene.client.mutex("a").unwrap();
    lock.lock().unwrap().detach();
    lock.unlock().unwrap();
    let watch = Stopwatch::start();
    let error = lock.unlock().unwrap_err();
    assert!(error.is_not_held(), "{error:?}");
    Row::new(error, watch.elapsed(), AT_ONCE)
}

/// Deletes the lock without its holder's knowledge, and makes another client acquire it.
fn overtake(scene: &Scene) -> distlock::LockGuard {
    scene.tell(&["DEL", "a"]);
    client_of(&scene.server.url())
        .mutex("a")
        .unwrap()
        .try_lock()
        .unwrap()
        .unwrap()
}

fn unlock_after_loss() -> Row {
    let scene = Scene::new();
    let guard = scene.client.mutex("a").unwrap().lock().unwrap();
    let successor = overtake(&scene);
    let watch = Stopwatch::start();
    let error = guard.unlock().unwrap_err();
    let row = Row::new(&error, watch.elapsed(), command());
    assert!(error.is_lost(), "{error:?}");
    successor.verify().unwrap();
    row
}

fn unlock_detached_after_loss() -> Row {
    let scene = Scene::new();
    let lock = scene.client.mutex("a").unwrap();
    lock.lock().unwrap().detach();
    let successor = overtake(&scene);
    let watch = Stopwatch::start();
    let error = lock.unlock().unwrap_err();
    let row = Row::new(&error, watch.elapsed(), command());
    assert!(
        error.is_lost() && lock.unlock().unwrap_err().is_not_held(),
        "{error:?}"
    );
    successor.verify().unwrap();
    row
}

fn panic_with_a_guard() -> Row {
    let scene = Scene::new();
    let lock = scene.client.mutex("a").unwrap();
    let watch = Stopwatch::start();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let (_guard, _nested) = (lock.lock().unwrap(), lock.lock().unwrap());
        resume_unwind(Box::new("on purpose"));
    }));
    assert!(panicked.is_err() && lock.hold_count() == 0);
    freed(
        &scene,
        &watch,
        "nothing: it is free, and not poisoned",
        command(),
    )
}

fn panic_in_run() -> Row {
    let scene = Scene::new();
    let lock = scene.client.mutex("a").unwrap();
    let watch = Stopwatch::start();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        lock.run(|_| resume_unwind(Box::new("on purpose"))).unwrap();
    }));
    assert!(panicked.is_err() && lock.hold_count() == 0);
    freed(
        &scene,
        &watch,
        "nothing: it is free, and not poisoned",
        command(),
    )
}

fn drop_while_frozen() -> Row {
    let scene = Scene::new();
    let guard = scene.client.mutex("a").unwrap().lock().unwrap();
    scene.server.pause();
    let watch = Stopwatch::start();
    drop(guard);
    let row = Row::new("nothing: it is freed later", watch.elapsed(), command());
    scene.server.resume();
    freed(&scene, &Stopwatch::start(), "", LONG);
    row
}

fn leaked() -> Row {
    let scene = Scene::new();
    let lock = scene.client.mutex("a").unwrap();
    let guard = lock.lock().unwrap();
    let first = deadline(&guard);
    std::mem::forget(guard);
    let mut probe = scene.server.probe();
    eventually("it is held for longer than a lease", LONG, || {
        assert!(probe.exists("a"));
        SystemClock.now() > first
    });
    let watch = Stopwatch::start();
    let again = lock.try_lock().unwrap().expect("it is this thread's");
    assert_eq!(lock.hold_count(), 2);
    again.unlock().unwrap();
    Row::new("nothing: held and renewed", watch.elapsed(), AT_ONCE)
}

fn leaked_by_a_thread_that_ends() -> Row {
    let scene = Scene::new();
    let lock = scene.client.mutex("a").unwrap();
    thread::spawn(move || std::mem::forget(lock.lock().unwrap()))
        .join()
        .unwrap();
    freed(
        &scene,
        &Stopwatch::start(),
        "given back at the next renewal",
        lease() / 3 + command(),
    )
}

/// Returns a client with the usual settings, and the causes of the losses that its events report.
fn with_losses(server: &RedisServer) -> (Client, Arc<Mutex<Vec<LossCause>>>) {
    let losses: Arc<Mutex<Vec<LossCause>>> = Arc::default();
    let told = Arc::clone(&losses);
    let client = builder_of(&server.url())
        .events(Arc::new(move |event: &Event| {
            if let Event::Lost { loss, .. } = event {
                told.lock().push(loss.cause());
            }
        }))
        .connect()
        .unwrap();
    (client, losses)
}

fn thread_ends_with_holds(holds: usize) -> Row {
    let scene = Scene::new();
    let (client, losses) = with_losses(&scene.server);
    let lock = client.mutex("a").unwrap();
    thread::spawn(move || (0..holds).for_each(|_| lock.lock().unwrap().detach()))
        .join()
        .unwrap();
    let row = freed(
        &scene,
        &Stopwatch::start(),
        "an event: its holder has ended",
        lease() / 3 + command(),
    );
    eventually("it is told", LONG, || {
        *losses.lock() == [LossCause::HolderEnded]
    });
    row
}

fn thread_that_holds_ends() -> Row {
    thread_ends_with_holds(1)
}

fn thread_that_holds_nested_ends() -> Row {
    thread_ends_with_holds(3)
}

fn client_dropped_before_guard() -> Row {
    let Scene { server, client } = Scene::new();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    drop(client);
    await_renewals(&guard);
    assert!(server.probe().exists("a"));
    let watch = Stopwatch::start();
    guard.unlock().unwrap();
    Row::new("nothing: renewed, and unlocked", watch.elapsed(), command())
}

fn client_dropped_with_detached() -> Row {
    let Scene { server, client } = Scene::new();
    client.mutex("a").unwrap().lock().unwrap().detach();
    let watch = Stopwatch::start();
    drop(client);
    let mut probe = server.probe();
    eventually("it is free", LONG, || !probe.exists("a"));
    Row::new("nothing: it is given back", watch.elapsed(), command())
}

fn client_dropped_while_frozen() -> Row {
    let Scene { server, client } = Scene::new();
    client.mutex("a").unwrap().lock().unwrap().detach();
    server.pause();
    let watch = Stopwatch::start();
    drop(client);
    let row = Row::new(
        "nothing: it ends, at the latest with the lease",
        watch.elapsed(),
        command(),
    );
    server.resume();
    let mut probe = server.probe();
    eventually("it is free", LONG, || !probe.exists("a"));
    row
}

fn kept_in_spite_of(handler: impl Fn(&Event) + Send + Sync + 'static) -> Row {
    let scene = Scene::new();
    let client = builder_of(&scene.server.url())
        .events(Arc::new(handler))
        .connect()
        .unwrap();
    let guard = client.mutex("a").unwrap().lock().unwrap();
    await_renewals(&guard);
    assert!(scene.server.probe().exists("a") && guard.state() == GuardState::Held);
    let watch = Stopwatch::start();
    guard.unlock().unwrap();
    Row::new("nothing: renewed, and unlocked", watch.elapsed(), command())
}

fn handler_that_hangs() -> Row {
    let (end, ended) = mpsc::channel::<()>();
    let ended = Mutex::new(ended);
    let row = kept_in_spite_of(move |_| {
        let _never = ended.lock().recv();
    });
    drop(end);
    row
}

fn handler_that_panics() -> Row {
    kept_in_spite_of(|_| resume_unwind(Box::new("on purpose")))
}

/// Returns a client, and its clock, which the test moves.
fn with_a_clock(server: &RedisServer) -> (Client, ManualClock) {
    let clock = ManualClock::new();
    let client = builder_of(&server.url())
        .clock(Arc::new(clock.clone()))
        .connect()
        .unwrap();
    (client, clock)
}

fn clock_jumps_past_the_lease() -> Row {
    let scene = Scene::new();
    let (client, clock) = with_a_clock(&scene.server);
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let losses = guard.losses();
    let watch = Stopwatch::start();
    clock.jump(lease() * 2);
    assert!(
        !guard.is_valid() && guard.remaining().is_zero(),
        "the first look knows"
    );
    let loss = losses.recv_timeout(scaled(LONG)).unwrap();
    let row = Row::new(format!("lost: {}", loss.cause()), watch.elapsed(), AT_ONCE);
    assert_eq!(loss.cause(), LossCause::Expired);
    assert!(guard.unlock().unwrap_err().is_lost());
    freed(&scene, &watch, "", lease());
    row
}

fn clock_jumps_by_half_a_lease() -> Row {
    let scene = Scene::new();
    let (client, clock) = with_a_clock(&scene.server);
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let watch = Stopwatch::start();
    clock.jump(lease() / 2);
    eventually("it is renewed at once", LONG, || {
        guard.remaining() > lease() * 9 / 10
    });
    let row = Row::new("nothing: renewed at once", watch.elapsed(), command());
    guard.unlock().unwrap();
    row
}

fn time_of_day_is_set_back() -> Row {
    let scene = Scene::new();
    let (client, clock) = with_a_clock(&scene.server);
    let guard = client.mutex("a").unwrap().lock().unwrap();
    let (before, token) = (guard.remaining(), guard.fencing_token());
    clock.set_unix_time(Duration::from_secs(1_500_000_000));
    assert_eq!(
        (guard.remaining(), guard.state()),
        (before, GuardState::Held)
    );
    guard.unlock().unwrap();
    let watch = Stopwatch::start();
    let next = client.mutex("a").unwrap().lock().unwrap();
    assert!(next.fencing_token() > token);
    Row::new(
        "nothing: leases and tokens do not count on it",
        watch.elapsed(),
        command(),
    )
}

fn over_before_the_answer(options: &LockOptions) -> Row {
    let server = RedisServer::start();
    client_of(&server.url())
        .mutex("b")
        .unwrap()
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
    let late = Fault::DelayReply(command() * 2 / 3);
    let plan = Sometimes::new(Some(Kind::Acquire), Turn::Only(1), late);
    let proxy = Proxy::new(server.port(), Arc::new(plan));
    let lock = client_of(&proxy.url()).mutex("a").unwrap();
    let watch = Stopwatch::start();
    let error = lock.try_lock_with(options).unwrap_err();
    let row = Row::new(&error, watch.elapsed(), command());
    assert!(error.is_unavailable(), "{error:?}");
    assert!(
        row.said.contains("its answer took") && row.said.contains("lease of 150ms"),
        "{error}"
    );
    assert_eq!(lock.hold_count(), 0);
    let mut probe = server.probe();
    eventually("it is given back", LONG, || !probe.exists("a"));
    row
}

fn lease_over_before_the_answer() -> Row {
    over_before_the_answer(&LockOptions::new().lease(Duration::from_millis(150)))
}

fn watched_lease_over_before_the_answer() -> Row {
    over_before_the_answer(&LockOptions::new().watched(Duration::from_millis(150)))
}

/// Checks that the clock is the time since the machine was started, which continues while the
/// machine sleeps; the monotonic clock stops then.
#[cfg(target_os = "linux")]
fn boot_time() -> Row {
    use distlock::time::{Clock, SystemClock};
    use rustix::time::{ClockId, clock_gettime};
    let boot = || {
        let time = clock_gettime(ClockId::Boottime);
        u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
    };
    let mut longest = Duration::ZERO;
    for _ in 0..100 {
        let watch = Stopwatch::start();
        let (before, now, after) = (boot(), SystemClock.now().as_nanos(), boot());
        longest = longest.max(watch.elapsed());
        assert!(before <= now && now <= after);
        let_pass(Duration::from_micros(100));
    }
    Row::new(
        "nothing: leases count on the time since the machine was started",
        longest,
        AT_ONCE,
    )
}
