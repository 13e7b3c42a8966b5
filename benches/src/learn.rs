//! Reads from the server's MONITOR which requests the library sends, and builds such requests for
//! other locks. [`check_all`] compares the built requests with those of the library.

use crate::raw::{Raw, Reply, request};
use distlock::OwnedGuard;
use distlock::backend::RENEW_BATCH;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The words of the requests that acquire and release one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    acquire: Vec<String>,
    release: Vec<String>,
    name: String,
    owner: String,
}

/// The bytes of an acquire and of its release, for one lock or for several.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    pub(crate) acquire: Vec<u8>,
    pub(crate) release: Vec<u8>,
}

impl Pair {
    /// Locks and unlocks with the library, and reads what it sends. Afterwards the server has the
    /// scripts in its cache.
    pub(crate) fn learn(port: u16, lease: Duration) -> Self {
        let name = format!("learn:{:08x}", fastrand::u32(..));
        let client = distlock::builder().url(&url(port)).expect("a URL of ours");
        let client = client.configure(|config| config.with_watchdog(lease));
        let client = client.connect().expect("settings of ours");
        let lock = client.mutex(name.as_str()).expect("a name");
        let cycle = || {
            lock.lock()
                .and_then(|guard| guard.unlock())
                .expect("the server is there");
        };
        // Without this first cycle, the library would send the text of the scripts, which the
        // server does not have yet.
        cycle();
        Self::of(&name, &watched(port, cycle))
    }

    /// Returns the pair of requests that were sent for one lock and unlock of `name`.
    fn of(name: &str, sent: &[Vec<String>]) -> Self {
        let [acquire, release] = sent else {
            panic!("not two requests: {sent:?}")
        };
        let owner = release
            .iter()
            .find(|word| is_owner(word))
            .expect("a release has an owner");
        Self {
            acquire: acquire.clone(),
            release: release.clone(),
            name: name.to_owned(),
            owner: owner.clone(),
        }
    }

    /// Returns the words of both requests for another lock and owner.
    fn words(&self, name: &str, owner: &str) -> [Vec<String>; 2] {
        [&self.acquire, &self.release].map(|words| {
            let other = |word: &String| word.replace(&self.owner, owner).replace(&self.name, name);
            words.iter().map(other).collect()
        })
    }

    /// Returns the requests for the lock of this name and the owner with this number.
    pub(crate) fn requests(&self, name: &str, number: usize) -> Requests {
        let [acquire, release] = self.words(name, &self.owner(number));
        Requests {
            acquire: request(&acquire),
            release: request(&release),
        }
    }

    /// Replaces the scripts by those with these hashes, which the server must have in its cache.
    pub(crate) fn with_scripts(mut self, [acquire, release]: [String; 2]) -> Self {
        self.acquire[1] = acquire;
        self.release[1] = release;
        self
    }

    /// Returns one acquire and one release for several locks and owners, joined as the library
    /// joins requests. `hashes` are those that [`load_joined`] has returned.
    pub(crate) fn joined(&self, hashes: &[String; 2], locks: &[(String, usize)]) -> Requests {
        let each: Vec<_> = locks
            .iter()
            .map(|(name, number)| self.words(name, &self.owner(*number)))
            .collect();
        let join = |script: usize, keys: &[usize], common: &[usize], rest: &[usize]| {
            let word = |lock: &[Vec<String>; 2], place: usize| lock[script][3 + place].clone();
            let mut words = vec!["EVALSHA".to_owned(), hashes[script].clone()];
            words.push((each.len() * keys.len()).to_string());
            keys.iter()
                .for_each(|place| words.extend(each.iter().map(|it| word(it, *place))));
            words.extend(common.iter().map(|place| word(&each[0], *place)));
            rest.iter()
                .for_each(|place| words.extend(each.iter().map(|it| word(it, *place))));
            request(&words)
        };
        Requests {
            acquire: join(0, &[0, 2, 3, 1], &[4, 6], &[5]),
            release: join(1, &[0], &[3], &[1, 2]),
        }
    }

    /// Returns the owner with this number of the client that [`learn`](Self::learn) has watched.
    pub(crate) fn owner(&self, number: usize) -> String {
        let (client, _) = self.owner.split_once(':').expect("an owner has a number");
        format!("{client}:{number}")
    }
}

/// Loads the scripts for several locks into the server, and returns their hashes: first that of the
/// script that acquires, then that of the one that releases.
pub(crate) fn load_joined(raw: &mut Raw) -> [String; 2] {
    let acquire = concat!(
        include_str!("../../lock-redis/src/lua/redisson/take.lua"),
        include_str!("../../lock-redis/src/lua/timestamp.lua"),
        include_str!("../../lock-redis/src/lua/grant.lua"),
        include_str!("../../lock-redis/src/lua/acquire_many.lua"),
        include_str!("../../lock-redis/src/lua/redisson/look.lua"),
        include_str!("../../lock-redis/src/lua/redisson/tells.lua"),
        include_str!("../../lock-redis/src/lua/queue.lua"),
        include_str!("../../lock-redis/src/lua/leave.lua"),
        include_str!("../../lock-redis/src/lua/enter.lua"),
        include_str!("../../lock-redis/src/lua/attempt.lua"),
        include_str!("../../lock-redis/src/lua/endings/busy_many.lua"),
    );
    let release = concat!(
        include_str!("../../lock-redis/src/lua/redisson/look.lua"),
        include_str!("../../lock-redis/src/lua/redisson/drop.lua"),
        include_str!("../../lock-redis/src/lua/tell.lua"),
        include_str!("../../lock-redis/src/lua/queue_of.lua"),
        include_str!("../../lock-redis/src/lua/release_many.lua"),
        include_str!("../../lock-redis/src/lua/redisson/take.lua"),
        include_str!("../../lock-redis/src/lua/timestamp.lua"),
        include_str!("../../lock-redis/src/lua/grant.lua"),
        include_str!("../../lock-redis/src/lua/queue.lua"),
        include_str!("../../lock-redis/src/lua/let_next_in.lua"),
        include_str!("../../lock-redis/src/lua/leave.lua"),
        include_str!("../../lock-redis/src/lua/give_up.lua"),
        include_str!("../../lock-redis/src/lua/endings/waiting_many.lua"),
    );
    [acquire, release].map(|script| load(raw, script))
}

/// Builds requests that renew many locks at a time, for the raw socket.
pub(crate) struct Renewals {
    hash: String,
    lease: String,
}

impl Renewals {
    /// Loads the script that renews locks into the server.
    pub(crate) fn load(raw: &mut Raw, lease: Duration) -> Self {
        let script = concat!(
            include_str!("../../lock-redis/src/lua/redisson/look.lua"),
            include_str!("../../lock-redis/src/lua/redisson/gone.lua"),
            include_str!("../../lock-redis/src/lua/renew.lua"),
        );
        Self {
            hash: load(raw, script),
            lease: lease.as_millis().to_string(),
        }
    }

    /// Returns the words of the request that renews the locks with these names and owners.
    pub(crate) fn words(&self, held: &[(String, String)]) -> Vec<String> {
        let head = [
            "EVALSHA".to_owned(),
            self.hash.clone(),
            held.len().to_string(),
        ];
        let keys = held.iter().map(|(name, _)| name.clone());
        let arguments = held
            .iter()
            .flat_map(|(_, owner)| [self.lease.clone(), owner.clone()]);
        head.into_iter().chain(keys).chain(arguments).collect()
    }
}

/// Compares the library's requests with those that this module builds: for one lock, for joined
/// locks, and for renewals. Returns the words for one lock, and the largest number of locks in one
/// renewal.
///
/// # Panics
///
/// If a request differs, or if the library has joined no acquires, no releases or no renewals.
pub(crate) fn check_all(port: u16) -> (String, usize) {
    check_joined(port);
    (check(port), check_renewals(port))
}

/// Holds some locks with the library until each was renewed, and compares each renewal with the one
/// that the raw socket would send for the same locks. Returns the largest number of locks in one
/// renewal.
///
/// # Panics
///
/// If a renewal differs, or if the largest number of locks in one is below two or above
/// `RENEW_BATCH`, the number that the raw socket sends.
fn check_renewals(port: u16) -> usize {
    const LOCKS: usize = 300;
    let lease = Duration::from_secs(3);
    let script = Renewals::load(&mut Raw::connect(port), lease);
    let client = distlock::builder().url(&url(port)).expect("a URL of ours");
    let client = client
        .configure(|config| config.with_watchdog(lease))
        .connect();
    let client = client.expect("settings of ours");
    let name = |index: usize| format!("renewed:{index:06}");
    let lock = |index| client.owned_mutex(name(index)).and_then(|lock| lock.lock());
    let mut monitor = Monitor::start(port);
    let held: Vec<OwnedGuard> = (0..LOCKS)
        .map(|index| lock(index).expect("it is free"))
        .collect();
    let (mut owners, mut renewed, mut most) = (HashMap::new(), HashSet::new(), 0);
    while renewed.len() < LOCKS {
        let sent = monitor.next();
        let count: usize = sent[2].parse().expect("the number of keys");
        let keys = &sent[3..3 + count];
        if sent[1] != script.hash {
            // An acquire: the lock is its first key.
            let owner = sent
                .iter()
                .find(|word| is_owner(word))
                .expect("an acquire has an owner");
            owners.insert(keys[0].clone(), owner.clone());
            continue;
        }
        let same: Vec<_> = keys
            .iter()
            .map(|key| (key.clone(), owners[key].clone()))
            .collect();
        assert_eq!(
            sent,
            script.words(&same),
            "the raw socket does not renew as the library does"
        );
        renewed.extend(keys.iter().cloned());
        most = most.max(count);
    }
    drop(held);
    assert!((2..=RENEW_BATCH).contains(&most), "{most} at a time");
    most
}

/// Locks and unlocks with many threads of the library until it has sent a joined acquire and a
/// joined release, and compares both with what [`Pair::joined`] builds for the same locks.
///
/// # Panics
///
/// If a request differs, or if the library has joined no acquires or no releases after many
/// requests.
fn check_joined(port: u16) {
    const THREADS: usize = 32;
    const MOST_REQUESTS: usize = 50_000;
    let pair = Pair::learn(port, Duration::from_secs(30));
    let hashes = load_joined(&mut Raw::connect(port));
    let client = distlock::connect(&url(port)).expect("a URL of ours");
    let mut monitor = Monitor::start(port);
    let is_over = AtomicBool::new(false);
    let mut seen: [Option<Vec<String>>; 2] = [None, None];
    thread::scope(|scope| {
        for index in 0..THREADS {
            let lock = client.mutex(format!("joined:{index:06}")).expect("a name");
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    drop(lock.lock().expect("it is free"));
                }
            });
        }
        for _ in 0..MOST_REQUESTS {
            let sent = monitor.next();
            if let Some(script) = hashes.iter().position(|hash| *hash == sent[1]) {
                seen[script] = Some(sent);
            }
            if seen.iter().all(Option::is_some) {
                break;
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let [acquire, release] = seen.map(|sent| sent.expect("some are joined"));
    let keys = |sent: &[String]| sent[2].parse::<usize>().expect("the number of keys");
    let (acquires, releases) = (keys(&acquire) / 4, keys(&release));
    let same = |sent: &[String], count: usize, first_owner: usize| {
        let owners = &sent[3 + first_owner..][..count];
        let (client, _) = owners[0].split_once(':').expect("an owner has a number");
        let number = |owner: &String| owner[client.len() + 1..].parse().expect("a number");
        let locks: Vec<_> = sent[3..3 + count]
            .iter()
            .cloned()
            .zip(owners.iter().map(number))
            .collect();
        let (ours, _) = pair.owner.split_once(':').expect("an owner has a number");
        let sent: Vec<_> = sent.iter().map(|word| word.replace(client, ours)).collect();
        (request(&sent), pair.joined(&hashes, &locks))
    };
    // Between the keys and the owners an acquire has its lease and the retention, a release the
    // command that publishes.
    let (sent, ours) = same(&acquire, acquires, 4 * acquires + 2);
    assert_eq!(
        sent, ours.acquire,
        "acquires are not joined as the library joins them"
    );
    let (sent, ours) = same(&release, releases, releases + 1);
    assert_eq!(
        sent, ours.release,
        "releases are not joined as the library joins them"
    );
}

/// Locks and unlocks the same name with the library and with the raw socket, compares the requests
/// that the server received, and returns their words.
///
/// # Panics
///
/// If they differ in anything but the owner.
fn check(port: u16) -> String {
    let pair = Pair::learn(port, Duration::from_secs(30));
    let client = distlock::connect(&url(port)).expect("a URL of ours");
    let lock = client.mutex("check").expect("a name");
    let ours = watched(port, || {
        lock.lock().and_then(|guard| guard.unlock()).expect("free");
    });
    let mut raw = Raw::connect(port);
    let requests = pair.requests("check", 7);
    let theirs = watched(port, || {
        assert!(
            is_granted(&raw.call(&requests.acquire)),
            "the lock was free"
        );
        assert!(
            matches!(raw.call(&requests.release), Reply::Int(1..)),
            "and is freed"
        );
    });
    let (ours, theirs) = (Pair::of("check", &ours), Pair::of("check", &theirs));
    let [ours, theirs] = [ours, theirs].map(|pair| pair.words("NAME", "OWNER"));
    assert_eq!(
        ours, theirs,
        "the raw socket does not send what the library sends"
    );
    ours.map(|words| words.join(" ")).join("\n")
}

/// Returns whether the reply to an acquire grants the lock: it is the fencing token, as text.
pub(crate) fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Text(_))
}

pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// Returns the result of `work`, and how many commands clients send meanwhile. Commands that
/// scripts call do not count.
pub(crate) fn count_sent<T>(port: u16, work: impl FnOnce() -> T) -> (T, u64) {
    const END: &str = "the end of the count";
    let mut monitor = Monitor::start(port);
    thread::scope(|scope| {
        let count = scope.spawn(move || {
            let mut count = 0;
            loop {
                match monitor.0.read() {
                    Ok(Reply::Text(line)) if line.ends_with(format!("{END}\"").as_bytes()) => break,
                    Ok(Reply::Text(line)) => {
                        let head = line.split(|byte| *byte == b']').next();
                        count += u64::from(head.is_some_and(|head| !head.ends_with(b" lua")));
                    }
                    other => panic!("MONITOR says {other:?}"),
                }
            }
            count
        });
        let done = work();
        Raw::connect(port).call(&request(&["ECHO", END]));
        (done, count.join().expect("no panic"))
    })
}

/// Returns the script calls that clients send during `work`.
fn watched(port: u16, work: impl FnOnce()) -> Vec<Vec<String>> {
    let mut monitor = Monitor::start(port);
    work();
    // This command marks the end of the requests: otherwise only a time-out could show it.
    Raw::connect(port).call(&request(&["ECHO", "the end"]));
    let next = || Some(monitor.next()).filter(|words| words[0] != "ECHO");
    std::iter::from_fn(next).collect()
}

/// A connection that receives every command that the server executes from now on.
struct Monitor(Raw);

impl Monitor {
    fn start(port: u16) -> Self {
        let mut raw = Raw::connect(port);
        raw.call(&request(&["MONITOR"]));
        Self(raw)
    }

    /// Returns the words of the next script call or ECHO that a client sends. Commands that scripts
    /// call are skipped, and so are the probes that each connection begins with.
    fn next(&mut self) -> Vec<String> {
        while let Some(Reply::Text(line)) = self.0.next_within(Duration::from_secs(10)) {
            let line = String::from_utf8(line).expect("MONITOR escapes what is not text");
            let (head, words) = line.split_once("] ").expect("a line has a head");
            let words: Vec<_> = words
                .trim_matches('"')
                .split("\" \"")
                .map(str::to_owned)
                .collect();
            let is_probe = words.get(3).is_some_and(|key| key.ends_with("}:probe"));
            if ["ECHO", "EVALSHA", "EVAL"].contains(&words[0].as_str())
                && !head.ends_with("lua")
                && !is_probe
            {
                return words;
            }
        }
        panic!("MONITOR says nothing any more")
    }
}

/// Returns whether a word is an owner, `UUID:number`.
fn is_owner(word: &str) -> bool {
    word.split_once(':').is_some_and(|(client, number)| {
        client.len() == 36 && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Loads a script into the server, and returns its hash.
pub(crate) fn load(raw: &mut Raw, script: &str) -> String {
    match raw.call(&request(&["SCRIPT", "LOAD", script])) {
        Reply::Text(hash) => String::from_utf8(hash).expect("a hash is text"),
        other => panic!("the script is not taken: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;

    #[test]
    fn raw_socket_sends_what_the_library_sends() {
        let words = check(Server::start().port);
        assert!(
            words.lines().all(|line| line.starts_with("EVALSHA ")),
            "{words}"
        );
    }

    #[test]
    fn raw_socket_renews_as_the_library_does() {
        check_renewals(Server::start().port);
    }

    #[test]
    fn joined_requests_are_those_of_the_library() {
        check_joined(Server::start().port);
    }

    #[test]
    fn raw_reference_is_short() {
        assert!(include_str!("raw.rs").lines().count() <= 100);
    }
}
