//! Libraries whose lock is a plain string with a token of their own (our `format=token`): all but
//! Redisson. They do not notify clients of other libraries of a release, so waiters poll, except
//! where `wakes=` makes our release send a library's own signal.

// Cases for ShedLock alone, or for redis-py alone.
mod specific;

// Redlock, in the libraries that implement it.
mod quorums;

// Libraries that notify only their own clients.
mod signals;

use crate::libraries::{Has, Learns, Library, Refusal, mount_cases};
use crate::pins;
use crate::suite::Suite;
use std::time::Duration;

/// The settings that most of these libraries share.
const FOREIGN_CLIENT: Library = Library {
    name: "",
    id: "",
    program: "",
    language: "",
    pin: pins::REDIS_PY,
    arguments: &[],
    options: "format=token",
    prefix: "",
    theirs: Learns::Asks(Duration::ZERO),
    ours: Learns::Asks(Duration::from_millis(125)),
    never_held: Refusal::Silent,
    too_late: Refusal::Silent,
    // A polling client finds the lock free less often than a notified one.
    share: 1,
    crossings: 3,
    eager: &["retry=5"],
    has_watchdog: false,
};

const PYTHON: Library = Library {
    language: "python",
    program: "python",
    ..FOREIGN_CLIENT
};
const NODE: Library = Library {
    language: "node",
    program: "node",
    ..FOREIGN_CLIENT
};
const RUST: Library = Library {
    language: "rust",
    program: "rust",
    ..FOREIGN_CLIENT
};
const SPRING: Library = Library {
    language: "java",
    program: "spring",
    ..FOREIGN_CLIENT
};

const REDIS_PY: Library = Library {
    name: "redis-py",
    id: "redis_py",
    pin: pins::REDIS_PY,
    arguments: &["kind=redis-py", "lease=10000"],
    theirs: Learns::Asks(Duration::from_millis(100)),
    never_held: Refusal::Says("LockNotOwnedError"),
    too_late: Refusal::Says("LockNotOwnedError"),
    ..PYTHON
};

const PYTHON_REDIS_LOCK: Library = Library {
    name: "python-redis-lock",
    id: "python_redis_lock",
    has_watchdog: true,
    pin: pins::PYTHON_REDIS_LOCK,
    options: "format=token,poll=5ms",
    arguments: &["kind=python-redis-lock", "lease=1000"],
    prefix: "lock:",
    share: 0,
    // It is notified of its own releases only, so it may keep the lock until it has finished.
    crossings: 2,
    // Its waiters sleep for as long as the lease, on a list to which only this library pushes.
    theirs: Learns::Asks(Duration::from_secs(1)),
    never_held: Refusal::Says("NotAcquired"),
    too_late: Refusal::Says("NotAcquired"),
    ..PYTHON
};

const REDLOCK_4: Library = Library {
    name: "redlock-4",
    id: "redlock_4",
    pin: pins::REDLOCK_4,
    arguments: &["kind=redlock4", "lease=10000"],
    theirs: Learns::Asks(Duration::from_millis(300)),
    never_held: Refusal::Says("LockError"),
    too_late: Refusal::Says("LockError"),
    ..NODE
};

const REDLOCK_5: Library = Library {
    name: "redlock-5",
    id: "redlock_5",
    pin: pins::REDLOCK_5,
    arguments: &["kind=redlock", "lease=10000"],
    theirs: Learns::Asks(Duration::from_millis(300)),
    never_held: Refusal::Says("ExecutionError"),
    too_late: Refusal::Says("ExecutionError"),
    ..NODE
};

const REDSYNC: Library = Library {
    name: "redsync",
    id: "redsync",
    program: "go",
    language: "go",
    pin: pins::REDSYNC,
    theirs: Learns::Asks(Duration::from_millis(250)),
    never_held: Refusal::Says("redsync.ErrTaken"),
    too_late: Refusal::Says("redsync.ErrTaken"),
    ..FOREIGN_CLIENT
};

const RSLOCK: Library = Library {
    name: "rslock",
    id: "rslock",
    pin: pins::RSLOCK,
    arguments: &["kind=rslock", "lease=10000"],
    theirs: Learns::Asks(Duration::from_millis(200)),
    ..RUST
};

const RLOCK: Library = Library {
    name: "rlock",
    id: "rlock",
    has_watchdog: true,
    pin: pins::RLOCK,
    arguments: &["kind=rlock"],
    never_held: Refusal::CannotBeAsked,
    theirs: Learns::Asks(Duration::from_millis(100)),
    ..RUST
};

const SHEDLOCK: Library = Library {
    name: "shedlock-safe",
    id: "shedlock",
    pin: pins::SHEDLOCK,
    arguments: &["kind=shedlock-safe"],
    never_held: Refusal::CannotBeAsked,
    prefix: "job-lock:default:",
    // The library never waits: the peer tries again.
    theirs: Learns::Asks(Duration::from_millis(50)),
    ..SPRING
};

const REGISTRY: Library = Library {
    name: "spring-registry",
    id: "spring_registry",
    has_watchdog: true,
    pin: pins::SPRING,
    arguments: &["kind=registry", "lease=10000"],
    prefix: "registry:",
    theirs: Learns::Asks(Duration::from_millis(100)),
    never_held: Refusal::Says("You do not own lock"),
    too_late: Refusal::Says("Lock was released in the store"),
    ..SPRING
};

const REGISTRY_TOLD: Library = Library {
    name: "spring-registry-told",
    id: "spring_registry_told",
    has_watchdog: true,
    options: "format=token,poll=5ms",
    pin: pins::SPRING,
    arguments: &["kind=registry-pubsub", "lease=1000"],
    prefix: "registry:",
    share: 0,
    // It is notified of its own releases only, so it may keep the lock until it has finished.
    crossings: 2,
    // Its waiters sleep for as long as the registry's lease, on a channel on which only this
    // library publishes.
    theirs: Learns::Asks(Duration::from_secs(1)),
    never_held: Refusal::Says("You do not own lock"),
    too_late: Refusal::Says("Lock was released in the store"),
    ..SPRING
};

/// python-redis-lock with `wakes=`, so that our release pushes to its list. Its own release does
/// not notify us, and passes the lock to its own waiters by that list. So we poll often: otherwise
/// we would hardly ever find the lock free.
const PYTHON_REDIS_LOCK_WOKEN: Library = Library {
    name: "python-redis-lock-woken",
    id: "python_redis_lock_woken",
    arguments: &["kind=python-redis-lock", "lease=10000"],
    options: "format=token,wakes=python-redis-lock,poll=5ms",
    crossings: 30,
    theirs: Learns::Told,
    ours: Learns::Asks(Duration::from_micros(6_250)),
    ..PYTHON_REDIS_LOCK
};

/// Spring's registry with `wakes=`, so that both sides notify each other on its channel. We poll
/// too seldom to get the lock without a notification.
const REGISTRY_WOKEN: Library = Library {
    name: "spring-registry-woken",
    id: "spring_registry_woken",
    arguments: &["kind=registry-pubsub", "lease=10000"],
    options: "format=token,wakes=spring-integration,poll=10s",
    share: 5,
    crossings: 100,
    theirs: Learns::Told,
    ours: Learns::Told,
    eager: &[],
    ..REGISTRY_TOLD
};

/// The libraries for which all cases run.
static ALL: [Library; 9] = [
    REDIS_PY,
    PYTHON_REDIS_LOCK,
    REDLOCK_4,
    REDLOCK_5,
    REDSYNC,
    RSLOCK,
    RLOCK,
    SHEDLOCK,
    REGISTRY,
];

/// The libraries without the cases about leases: the end of a lease wakes none of their waiters, or
/// a variant of the library is in `ALL`.
static IN_SHORT: [Library; 3] = [REGISTRY_TOLD, PYTHON_REDIS_LOCK_WOKEN, REGISTRY_WOKEN];

impl Library {
    fn has_force(&self) -> bool {
        self.pin.library == pins::PYTHON_REDIS_LOCK.library
    }

    fn has_extension(&self) -> bool {
        self.pin.library != pins::RLOCK.library
    }
}

pub(crate) fn mount(suite: &mut Suite) {
    let leases = ALL.iter().map(|library| (library, true));
    for (library, has_leases) in leases.chain(IN_SHORT.iter().map(|library| (library, false))) {
        let force = library.has_force().then_some(Has::Force);
        let extension = library.has_extension().then_some(Has::Extension);
        let leases = has_leases.then_some(Has::Leases);
        let has: Vec<_> = [leases, force, extension].into_iter().flatten().collect();
        mount_cases(suite, "foreign_clients", library, &has);
    }
    specific::mount(suite);
    quorums::mount(suite);
    signals::mount(suite);
}
