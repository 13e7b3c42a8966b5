//! Those that have their lock in a plain string, under their own token (our `format=token`): all but Redisson. None of
//! them tells anybody of a release but others of its own kind, so whoever waits asks again.

// What only one of them does.
mod alone;

// Those that tell their own kind.
mod signals;

use crate::cases;
use crate::libraries::{Learns, Library, sits, sits_in_short};
use std::time::Duration;

/// What they have in common.
const NEIGHBOUR: Library = Library {
    name: "",
    program: "",
    language: "",
    says: "",
    arguments: &[],
    options: "format=token",
    prefix: "",
    theirs: Learns::Asks(Duration::ZERO),
    ours: Learns::Asks(Duration::from_millis(125)),
    refusals: &[],
    // Who asks now and then finds it free less often than who is told.
    share: 2,
    crossings: 3,
    eager: &["retry=5"],
    has_watchdog: false,
};

const PYTHON: Library = Library { language: "python", program: "python", ..NEIGHBOUR };
const NODE: Library = Library { language: "node", program: "node", says: "redlock", ..NEIGHBOUR };
const RUST: Library = Library { language: "rust", program: "rust", ..NEIGHBOUR };
const SPRING: Library = Library { language: "java", program: "spring", ..NEIGHBOUR };

const REDIS_PY: Library = Library {
    name: "redis-py",
    says: "redis-py",
    arguments: &["kind=redis-py", "lease=10000"],
    theirs: Learns::Asks(Duration::from_millis(100)),
    refusals: &["LockNotOwnedError"],
    ..PYTHON
};

const PYTHON_REDIS_LOCK: Library = Library {
    name: "python-redis-lock",
    has_watchdog: true,
    says: "python-redis-lock",
    arguments: &["kind=python-redis-lock", "lease=1000"],
    prefix: "lock:",
    share: 0,
    // It hears of its own releases only, and then it is its own turn for as long as it goes on.
    crossings: 1,
    // It sleeps on a list that only its own kind pushes to, for as long as its lease.
    theirs: Learns::Asks(Duration::from_secs(1)),
    refusals: &["NotAcquired"],
    ..PYTHON
};

const REDLOCK_4: Library = Library {
    name: "redlock-4",
    arguments: &["kind=redlock4", "lease=10000"],
    theirs: Learns::Asks(Duration::from_millis(300)),
    refusals: &["LockError"],
    ..NODE
};

const REDLOCK_5: Library = Library {
    name: "redlock-5",
    arguments: &["kind=redlock", "lease=10000"],
    theirs: Learns::Asks(Duration::from_millis(300)),
    refusals: &["ExecutionError"],
    ..NODE
};

const REDSYNC: Library = Library {
    name: "redsync",
    program: "go",
    language: "go",
    says: "redsync",
    theirs: Learns::Asks(Duration::from_millis(250)),
    refusals: &["redsync"],
    ..NEIGHBOUR
};

const RSLOCK: Library = Library {
    name: "rslock",
    says: "rslock",
    arguments: &["kind=rslock", "lease=10000"],
    theirs: Learns::Asks(Duration::from_millis(200)),
    ..RUST
};

const RLOCK: Library = Library {
    name: "rlock",
    has_watchdog: true,
    says: "rlock",
    arguments: &["kind=rlock"],
    theirs: Learns::Asks(Duration::from_millis(100)),
    ..RUST
};

const SHEDLOCK: Library = Library {
    name: "shedlock-safe",
    says: "shedlock",
    arguments: &["kind=shedlock-safe"],
    prefix: "job-lock:default:",
    // It never waits: the program asks again.
    theirs: Learns::Asks(Duration::from_millis(50)),
    ..SPRING
};

const REGISTRY: Library = Library {
    name: "spring-registry",
    has_watchdog: true,
    says: "spring-integration",
    arguments: &["kind=registry", "lease=10000"],
    prefix: "registry:",
    theirs: Learns::Asks(Duration::from_millis(100)),
    refusals: &["You do not own lock", "Lock was released in the store"],
    ..SPRING
};

const REGISTRY_TOLD: Library = Library {
    name: "spring-registry-told",
    has_watchdog: true,
    says: "spring-integration",
    arguments: &["kind=registry-pubsub", "lease=1000"],
    prefix: "registry:",
    share: 0,
    // It hears of its own releases only, and then it is its own turn for as long as it goes on.
    crossings: 1,
    // It sleeps on a channel that only its own kind publishes on, for as long as the registry's lease.
    theirs: Learns::Asks(Duration::from_secs(1)),
    refusals: &["You do not own lock", "Lock was released in the store"],
    ..SPRING
};

sits!(redis_py, REDIS_PY, extend);
sits!(python_redis_lock, PYTHON_REDIS_LOCK, extend, force);
sits_in_short!(redlock_4, REDLOCK_4, extend);
sits!(redlock_5, REDLOCK_5, extend);
sits!(redsync, REDSYNC, extend);
sits!(rslock, RSLOCK, extend);
sits!(rlock, RLOCK);
sits!(shedlock, SHEDLOCK, extend);
sits!(spring_registry, REGISTRY, extend);
sits_in_short!(spring_registry_told, REGISTRY_TOLD, extend);
