//! What the library sends for one lock and unlock, read from the server's MONITOR, and the same for other names.

use crate::raw::{Raw, Reply, request};
use distlock::DistLock;
use std::time::Duration;

/// The words of an acquire and of its release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    acquire: Vec<String>,
    release: Vec<String>,
    name: String,
    owner: String,
}

/// A requests's bytes for one lock and one owner.
#[derive(Clone, Debug)]
pub(crate) struct Requests {
    pub(crate) acquire: Vec<u8>,
    pub(crate) release: Vec<u8>,
}

impl Pair {
    /// Locks and unlocks with the library, and looks on. Afterwards the server knows the scripts.
    pub(crate) fn learn(port: u16, lease: Duration) -> Self {
        let name = format!("learn:{:08x}", fastrand::u32(..));
        let client = distlock::builder().url(&url(port)).expect("a URL of ours");
        let client = client.configure(|config| config.with_watchdog(lease));
        let client = client.connect().expect("settings of ours");
        let lock = client.mutex(name.as_str()).expect("a name");
        let cycle = || lock.lock().and_then(|guard| guard.unlock()).expect("the server is there");
        // The scripts are sent by their text where the server does not know them yet.
        cycle();
        Self::of(&name, &watched(port, cycle))
    }

    /// From what was sent for one lock and unlock of `name`.
    fn of(name: &str, sent: &[Vec<String>]) -> Self {
        let [acquire, release] = sent else { panic!("not two requests: {sent:?}") };
        let owner = release.iter().find(|word| is_owner(word)).expect("a release has an owner");
        Self {
            acquire: acquire.clone(),
            release: release.clone(),
            name: name.to_owned(),
            owner: owner.clone(),
        }
    }

    /// The words for another lock and owner.
    fn words(&self, name: &str, owner: &str) -> [Vec<String>; 2] {
        [&self.acquire, &self.release].map(|words| {
            let other = |word: &String| word.replace(&self.owner, owner).replace(&self.name, name);
            words.iter().map(other).collect()
        })
    }

    /// The requests for a lock of this name and an owner of this number.
    pub(crate) fn requests(&self, name: &str, number: usize) -> Requests {
        let [acquire, release] = self.words(name, &self.owner(number));
        Requests { acquire: request(&acquire), release: request(&release) }
    }

    /// The same with other scripts, which the server knows by these hashes.
    pub(crate) fn with_scripts(mut self, [acquire, release]: [String; 2]) -> Self {
        self.acquire[1] = acquire;
        self.release[1] = release;
        self
    }

    /// An owner of this number.
    pub(crate) fn owner(&self, number: usize) -> String {
        let (client, _) = self.owner.split_once(':').expect("an owner has a number");
        format!("{client}:{number}")
    }
}

/// Lets the library and the raw socket lock and unlock the same name, and compares what the server saw. Returns it.
///
/// # Panics
///
/// If they differ in anything but the owner.
pub(crate) fn check(port: u16) -> String {
    let pair = Pair::learn(port, Duration::from_secs(30));
    let client = distlock::connect(&url(port)).expect("a URL of ours");
    let lock = client.mutex("check").expect("a name");
    let ours = watched(port, || lock.lock().and_then(|guard| guard.unlock()).expect("free"));
    let mut raw = Raw::connect(port);
    let requests = pair.requests("check", 7);
    let theirs = watched(port, || {
        assert!(is_granted(&raw.call(&requests.acquire)), "the lock was free");
        assert!(matches!(raw.call(&requests.release), Reply::Int(1..)), "and is freed");
    });
    let (ours, theirs) = (Pair::of("check", &ours), Pair::of("check", &theirs));
    let [ours, theirs] = [ours, theirs].map(|pair| pair.words("NAME", "OWNER"));
    assert_eq!(ours, theirs, "the raw socket does not send what the library sends");
    ours.map(|words| words.join(" ")).join("\n")
}

/// Whether an acquire was answered with a grant: a number, the token.
pub(crate) fn is_granted(reply: &Reply) -> bool {
    matches!(reply, Reply::Int(_))
}

pub(crate) fn url(port: u16) -> String {
    format!("redis://127.0.0.1:{port}")
}

/// The requests, other than those inside scripts, that the server carried out during `work`.
fn watched(port: u16, work: impl FnOnce()) -> Vec<Vec<String>> {
    let mut monitor = Raw::connect(port);
    monitor.call(&request(&["MONITOR"]));
    work();
    // A last line that is known, so that nothing has to be waited for.
    Raw::connect(port).call(&request(&["ECHO", "the end"]));
    let mut seen = Vec::new();
    while let Some(Reply::Text(line)) = monitor.next_within(Duration::from_secs(5)) {
        let line = String::from_utf8(line).expect("MONITOR escapes what is not text");
        let (head, words) = line.split_once("] ").expect("a line has a head");
        let words: Vec<_> = words.trim_matches('"').split("\" \"").map(str::to_owned).collect();
        match words[0].to_ascii_uppercase().as_str() {
            "ECHO" => return seen,
            "EVALSHA" | "EVAL" if !head.ends_with("lua") => seen.push(words),
            _ => {}
        }
    }
    panic!("MONITOR did not tell of everything: {seen:?}")
}

/// `UUID:number`.
fn is_owner(word: &str) -> bool {
    word.split_once(':').is_some_and(|(client, number)| {
        client.len() == 36 && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;

    #[test]
    fn the_raw_socket_sends_what_the_library_sends() {
        let words = check(Server::start().port);
        assert!(words.lines().all(|line| line.starts_with("EVALSHA ")), "{words}");
    }

    #[test]
    fn the_reference_is_small_enough_to_be_read() {
        assert!(include_str!("raw.rs").lines().count() <= 80);
    }
}
