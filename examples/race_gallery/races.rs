//! The races. Each is run twice by the same steps: with a format in which it happens, and with a
//! format that prevents it.

use super::stage::{Begun, Client, Server, until};
use distlock::Config;
use distlock::backend::{ClientId, Context};
use distlock::config::Replication;
use distlock::time::{Clock, SystemClock};
use lock_cluster::QuorumBackend;
use std::sync::Arc;
use std::time::Duration;

/// A race between clients of a lock.
pub(crate) struct Race {
    /// The title of the race.
    pub(crate) title: &'static str,
    /// The steps of the race, as they are printed.
    pub(crate) story: &'static [&'static str],
    /// Runs the race, and returns whether it happened.
    pub(crate) play: fn(&Cast) -> bool,
    pub(crate) happens: Cast,
    pub(crate) cured: Cast,
}

/// The format of a race, and its settings.
pub(crate) struct Cast {
    /// The value of `format=` in the URL.
    pub(crate) format: &'static str,
    /// Another difference between the two runs, if there is one.
    pub(crate) with: &'static str,
}

impl Cast {
    const fn of(format: &'static str) -> Self {
        Self { format, with: "" }
    }

    /// Returns the text for the output.
    pub(crate) fn told(&self) -> String {
        match self.with {
            "" => format!("format={}", self.format),
            with => format!("format={} with {with}", self.format),
        }
    }
}

/// Returns all races.
pub(crate) fn all() -> Vec<Race> {
    vec![
        Race {
            title: "The lease ends between the look at it and the DEL",
            story: &[
                "A holds the lock, sees that its lease is not over, and is held up before its DEL",
                "the lease ends; B takes the lock",
                "A's DEL arrives, and deletes B's lock",
            ],
            play: expiry_before_delete,
            happens: Cast::of("plain"),
            cured: Cast::of("token"),
        },
        Race {
            title: "The DEL of a successor's lock",
            story: &[
                "A's lease ends while it works; B takes the lock",
                "A is done, and gives back B's lock",
            ],
            play: late_delete,
            happens: Cast::of("timestamp,float"),
            cured: Cast::of("timestamp,float,release=compare"),
        },
        Race {
            title: "Two clients delete an expired lock",
            story: &[
                "A finds a time that is past, and is held up before its DEL",
                "B finds it, too: DEL, SETNX: B has the lock",
                "A's DEL deletes B's lock, and A's SETNX takes it",
            ],
            play: both_take_over,
            happens: Cast::of("timestamp,takeover=delete"),
            cured: Cast::of("timestamp"),
        },
        Race {
            title: "Two clients see the same time that is past",
            story: &[
                "A and B both find a time that is past, and are held up there",
                "A goes on, and has the lock",
                "B goes on, as if nothing had happened since",
            ],
            play: both_see_the_expired_lock,
            happens: Cast::of("timestamp,takeover=delete"),
            cured: Cast::of("timestamp"),
        },
        Race {
            title: "GETSET overwrites the winner's time, so that its release is refused",
            story: &[
                "A finds a time that is past, and is held up before its GETSET",
                "B's GETSET wins; A's GETSET finds B's time, which is not past: A has lost, and \
                 has written its own",
                "B gives back its lock, whose time is A's: refused",
            ],
            play: overwritten,
            happens: Cast::of("timestamp,release=compare"),
            cured: Cast::of("token"),
        },
        Race {
            title: "Clocks that differ",
            story: &[
                "A holds the lock for a minute",
                "B's clock is two minutes ahead: to B the lock is over",
            ],
            play: clocks_that_differ,
            happens: Cast::of("timestamp"),
            cured: Cast::of("token"),
        },
        Race {
            title: "Two clients with the same time in one second",
            story: &[
                "A's lock is deleted by an operator; in the same second B takes it, with the same \
                 time as its value",
                "A gives back what it takes for its own: the value is the same",
            ],
            play: same_second,
            happens: Cast::of("timestamp,release=compare"),
            cured: Cast::of("token"),
        },
        Race {
            title: "A crash between SETNX and EXPIRE",
            story: &[
                "A's SETNX takes the lock",
                "A dies before its EXPIRE: no client ever gets the lock again",
            ],
            play: crash_before_expire,
            happens: Cast::of("plain,commands"),
            cured: Cast::of("plain"),
        },
        Race {
            title: "A crash between INCR and EXPIRE",
            story: &[
                "A's INCR takes the lock",
                "A dies before its EXPIRE: no client ever gets the lock again",
            ],
            play: crash_before_expire,
            happens: Cast::of("counter,commands"),
            cured: Cast::of("counter,lua"),
        },
        Race {
            title: "An EXPIRE that fails in a script does not undo what was written before it",
            story: &[
                "A may not EXPIRE: its script counts up, and fails then",
                "the lock is there, and has no end",
            ],
            play: failed_expire,
            happens: Cast::of("counter,lua"),
            cured: Cast::of("redisson"),
        },
        Race {
            title: "A failed attempt extends the winner's lease",
            story: &[
                "A takes the lock, and dies",
                "B asks in vain, again and again: each time the lease begins anew",
            ],
            play: prolonged,
            happens: Cast::of("counter,multi"),
            cured: Cast::of("counter,lua"),
        },
        Race {
            title: "A failed attempt with a shorter lease ends the winner's",
            story: &[
                "A takes the lock for a minute",
                "B wants it for a second, and asks in vain: now that is all that is left",
                "C comes in beside A, whose guard says that it is valid",
            ],
            play: cut_short,
            happens: Cast::of("counter,multi"),
            cured: Cast::of("counter,lua"),
        },
        Race {
            title: "A lock freed by force under its holder",
            story: &[
                "A holds the lock; an operator frees it by force; B takes it",
                "A, which was not told, is done, and deletes B's lock",
            ],
            play: freed_by_force,
            happens: Cast::of("plain"),
            cured: Cast::of("timestamp,release=compare"),
        },
        Race {
            title: "The pause that outlives the lease",
            story: &[
                "A takes the lock, and is paused (by a garbage collection, a page fault, a \
                 suspended machine)",
                "the lease ends; B takes the lock, and writes",
                "A wakes up and writes, too: only a resource that looks at fencing tokens refuses",
            ],
            play: pause,
            happens: Cast {
                format: "token",
                with: "tokens=off",
            },
            cured: Cast::of("token"),
        },
        Race {
            title: "Replication loses the lock",
            story: &[
                "A takes the lock on the master, which dies before its replica has heard of it",
                "the replica takes over; B takes the lock there",
            ],
            play: replication,
            happens: Cast::of("redisson"),
            cured: Cast {
                format: "redisson",
                with: REPLICAS,
            },
        },
        Race {
            title: "RedLock, and a node that was started again empty",
            story: &[
                "A has the lock on nodes 1 and 2 of three",
                "node 2 is started again, and has forgotten everything",
                "B takes the lock on nodes 2 and 3",
            ],
            play: amnesia,
            happens: Cast {
                format: "redisson",
                with: "no marker",
            },
            cured: Cast {
                format: "redisson",
                with: MARKER,
            },
        },
    ]
}

const REPLICAS: &str = "replicas=1";
const MARKER: &str = "the marker of a quorum";

/// A lease whose end a race waits for, and therefore short.
const SHORT: Duration = Duration::from_secs(1);

/// The next commands of a client that has read an expired time.
const TAKEOVER: &[&str] = &["DEL", "GETSET"];

fn expiry_before_delete(cast: &Cast) -> bool {
    let server = Server::start();
    let [a, b] = [(); 2].map(|()| Client::new(&server, cast.format));
    let a = a.lease(SHORT);
    assert!(a.take());
    let release = a.until(&["DEL"], Client::give_back);
    if !release.is_held_up() {
        // Nothing can come between the check and the DEL, so the release itself is delayed.
        assert!(release.go_on());
        assert!(a.take());
        until("the lease is over", || !server.has_the_lock());
        assert!(b.take() && !a.give_back());
        return !server.has_the_lock();
    }
    until("the lease is over", || !server.has_the_lock());
    assert!(b.take());
    release.go_on();
    !server.has_the_lock()
}

fn late_delete(cast: &Cast) -> bool {
    let server = Server::start();
    let a = Client::ahead(&server, cast.format, -120);
    let b = Client::ahead(&server, cast.format, 0);
    assert!(a.take(), "until a minute ago");
    assert!(b.take());
    a.give_back();
    !server.has_the_lock()
}

/// Creates a lock whose lease has ended.
fn leave_expired_lock(server: &Server, format: &str) {
    assert!(Client::ahead(server, format, -120).lease(SHORT).take());
    if !format.starts_with("timestamp") {
        until("the lease is over", || !server.has_the_lock());
    }
}

fn both_take_over(cast: &Cast) -> bool {
    let server = Server::start();
    leave_expired_lock(&server, cast.format);
    let [a, b] = [(); 2].map(|()| Client::new(&server, cast.format));
    let attempt = a.until(TAKEOVER, Client::take);
    assert!(attempt.is_held_up() && b.take());
    attempt.go_on()
}

fn both_see_the_expired_lock(cast: &Cast) -> bool {
    let server = Server::start();
    leave_expired_lock(&server, cast.format);
    let attempts = [(); 2]
        .map(|()| Client::new(&server, cast.format))
        .map(|client| client.until(TAKEOVER, Client::take));
    assert!(attempts.iter().all(Begun::is_held_up));
    let [a, b] = attempts.map(Begun::go_on);
    assert!(a, "the first to go on has it");
    b
}

fn overwritten(cast: &Cast) -> bool {
    let server = Server::start();
    leave_expired_lock(&server, cast.format);
    let (a, b) = (
        Client::ahead(&server, cast.format, 5),
        Client::new(&server, cast.format),
    );
    let attempt = a.until(TAKEOVER, Client::take);
    if !attempt.is_held_up() {
        // The attempt was one step, and has won: its client releases.
        assert!(attempt.go_on() && !b.take());
        return !a.give_back();
    }
    assert!(b.take());
    assert!(!attempt.go_on());
    !b.give_back()
}

fn clocks_that_differ(cast: &Cast) -> bool {
    let server = Server::start();
    assert!(Client::new(&server, cast.format).take());
    Client::ahead(&server, cast.format, 120).take()
}

fn same_second(cast: &Cast) -> bool {
    let server = Server::start();
    let time = Duration::from_secs(1_800_000_000);
    let [a, b] = [(); 2].map(|()| Client::still(&server, cast.format, time));
    assert!(a.take());
    server.ask("DEL x");
    assert!(b.take());
    a.give_back();
    !server.has_the_lock()
}

fn crash_before_expire(cast: &Cast) -> bool {
    let server = Server::start();
    let a = Client::new(&server, cast.format);
    let attempt = a.until(&["EXPIRE"], Client::take);
    // A dead client is one that is paused for ever.
    let is_endless = server.has_the_lock() && server.left() == -1;
    let others = Client::new(&server, cast.format).take();
    attempt.go_on();
    is_endless && !others
}

fn failed_expire(cast: &Cast) -> bool {
    let server = Server::start();
    assert!(!Client::without_expire(&server, cast.format).take());
    server.has_the_lock() && server.left() == -1
}

fn prolonged(cast: &Cast) -> bool {
    let server = Server::start();
    let lease = Duration::from_secs(10);
    let [a, b] = [(); 2].map(|()| Client::new(&server, cast.format).lease(lease));
    assert!(a.take());
    until("some of it is over", || server.left() < 9_500);
    let before = server.left();
    assert!(!b.take());
    server.left() > before
}

fn cut_short(cast: &Cast) -> bool {
    let server = Server::start();
    let [a, b, c] = ["60s", "1s", "60s"].map(|lease| {
        let options = format!("format={}&lease={lease}", cast.format);
        let url = format!("redis://127.0.0.1:{}?{options}", server.port);
        distlock::connect(&url)
            .expect("a good URL")
            .mutex("x")
            .expect("a good name")
    });
    let held = a.lock().expect("the server is up");
    assert!(b.try_lock().expect("the server is up").is_none());
    let over = SystemClock.now() + SHORT + Duration::from_millis(200);
    until("what B asked for is over", || SystemClock.now() > over);
    let other = c.try_lock().expect("the server is up");
    held.is_valid() && other.is_some()
}

fn freed_by_force(cast: &Cast) -> bool {
    let server = Server::start();
    let [a, b, operator] = [(); 3].map(|()| Client::new(&server, cast.format));
    // A different lease: with equal leases this would be the race of equal times.
    let b = b.lease(Duration::from_secs(90));
    assert!(a.take() && operator.free_by_force() && b.take());
    a.give_back();
    !server.has_the_lock()
}

fn pause(cast: &Cast) -> bool {
    let server = Server::start();
    let format = if cast.with.is_empty() {
        cast.format.to_owned()
    } else {
        format!("{}&{}", cast.format, cast.with)
    };
    let [a, b] = [(); 2].map(|()| Client::new(&server, &format));
    let a = a.lease(SHORT);
    assert!(a.take());
    until("the lease is over", || !server.has_the_lock());
    assert!(b.take());
    // The resource to which both clients write.
    let mut largest = None;
    let mut writes = |client: &Client| {
        let token = client.token();
        let is_late = token.is_some() && token < largest;
        largest = largest.max(token);
        !is_late
    };
    assert!(writes(&b));
    writes(&a)
}

fn replication(cast: &Cast) -> bool {
    let (mut master, replica) = (Server::start(), Server::start());
    master.ask("SET before 1");
    replica.ask(&format!("REPLICAOF 127.0.0.1 {}", master.port));
    until("it has heard of it", || {
        replica.ask("EXISTS before") == ":1"
    });
    // From here on the replica receives nothing from the master.
    replica.ask("REPLICAOF NO ONE");
    let policy = if cast.with == REPLICAS {
        Replication::replicas(1).timeout(Duration::from_millis(300))
    } else {
        Replication::off()
    };
    let has_it = Client::new(&master, cast.format).replication(policy).take();
    master.stop();
    Client::new(&replica, cast.format).take() && has_it
}

fn amnesia(cast: &Cast) -> bool {
    let mut servers = [(); 3].map(|()| Server::start());
    let place = |server: &Server| format!("127.0.0.1:{}", server.port);
    let places = servers.each_ref().map(place);
    let options = "node_timeout=300ms&max_lease=2m";
    if cast.with == MARKER {
        let url = format!("redlock://{}?{options}", places.join(","));
        let config = Config::from_url(&url).expect("a good URL");
        distlock::admin::set_up_quorum(&config).expect("they are new");
    }
    // Returns a client that cannot reach one of the nodes: port 1 has no listener.
    let without = |gone: usize| {
        let mut places = places.clone();
        places[gone] = "127.0.0.1:1".to_owned();
        if cast.with == MARKER {
            let url = format!("redlock://{}?{options}", places.join(","));
            distlock::connect(&url).expect("a good URL")
        } else {
            unmarked(&places)
        }
    };
    let (a, b) = (without(2), without(0));
    let [a, b] = [a, b].map(|client| client.mutex("x").expect("a good name"));
    let held = a.lock().expect("nodes 1 and 2 are up");
    servers[1].start_again();
    let other = b.try_lock();
    held.is_valid() && other.is_ok_and(|other| other.is_some())
}

/// Returns a client of a quorum of servers without a marker.
fn unmarked(places: &[String]) -> distlock::Client {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let store = |place: &String| {
        let config = Config::from_url(&format!("redis://{place}")).expect("a good URL");
        distlock::schemes()
            .open(&config, &context)
            .expect("a good URL")
    };
    let stores: Vec<_> = places.iter().map(store).collect();
    let quorum = QuorumBackend::new(stores, Duration::from_millis(300), &context);
    let quorum = quorum.expect("three of them");
    distlock::builder()
        .backend(Arc::new(quorum))
        .connect()
        .expect("a good backend")
}
