//! [`Scene`]: one server, one peer and us; [`Independent`]: three servers.

use crate::libraries::Library;
use crate::ours::Ours;
use crate::peer::Peer;
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::Servers;
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;
use std::thread;

/// One test at a time: they measure, and a machine that runs two of them measures both. The one whose turn it is finds
/// here what the last one left standing.
static TURN: Mutex<Vec<Stand>> = Mutex::new(Vec::new());

/// How many are kept: tests of one library come one after the other, some with other settings or another library between.
const KEPT: usize = 4;

/// A server with a peer on it, kept for the next test of that library: a JVM takes longer to start than most tests do.
#[derive(Clone)]
struct Stand {
    library: &'static str,
    arguments: Vec<String>,
    peer: Arc<Peer>,
    server: Arc<RedisServer>,
}

pub(crate) struct Scene {
    pub(crate) peer: Arc<Peer>,
    pub(crate) ours: Ours,
    pub(crate) server: Arc<RedisServer>,
    turn: Turn,
}

/// The turn of a test.
pub(crate) struct Turn(MutexGuard<'static, Vec<Stand>>);

impl Turn {
    /// Waits for it, for a test that brings servers and peers of its own. `None` if this library's language is left out, which
    /// is said.
    pub(crate) fn of(library: &Library) -> Option<Self> {
        (!library.is_skipped()).then(|| Self(TURN.lock()))
    }
}

impl Scene {
    /// `None` if this library's language is left out, which is said.
    pub(crate) fn of(library: &'static Library) -> Option<Self> {
        Self::with(library, "", &[])
    }

    /// The same with more settings for us, and for the peer.
    pub(crate) fn with(
        library: &'static Library,
        settings: &str,
        arguments: &[&str],
    ) -> Option<Self> {
        let mut turn = Turn::of(library)?;
        let Stand { peer, server, .. } = turn.stand(library, arguments);
        let ours = Ours::connect(library, &server.url(), settings, server.port());
        Some(Self { peer, ours, server, turn })
    }

    /// Other eyes on the server.
    pub(crate) fn probe(&self) -> Probe {
        self.server.probe()
    }
}

/// Three independent servers that are our quorum, and a peer on all of them. What the lock protects is on the first.
pub(crate) struct Independent {
    pub(crate) servers: Servers,
    pub(crate) peer: Peer,
    _turn: Turn,
}

impl Independent {
    /// `None` if this library's language is left out, which is said.
    pub(crate) fn start(
        library: &'static Library,
        settings: &str,
        arguments: &[&str],
    ) -> Option<Self> {
        let turn = Turn::of(library)?;
        let servers = Servers::with(3, 0, settings);
        let urls: Vec<_> = servers.servers.iter().map(|server| server.url_as("")).collect();
        let data = format!("data={}", urls[0]);
        let peer = Peer::start(library, &urls.join(","), &[arguments, &[&data]].concat());
        Some(Self { servers, peer, _turn: turn })
    }

    pub(crate) fn data(&self) -> &RedisServer {
        &self.servers.servers[0]
    }
}

impl Turn {
    fn stand(&mut self, library: &'static Library, arguments: &[&str]) -> Stand {
        let all: Vec<_> =
            library.arguments.iter().chain(arguments).map(|it| it.to_string()).collect();
        let is_same = |stand: &&Stand| stand.library == library.name && stand.arguments == all;
        if let Some(stand) = self.0.iter().find(is_same) {
            stand.server.probe().command(&["FLUSHALL"]);
            stand.server.probe().reset_stats();
            return stand.clone();
        }
        let server = Arc::new(RedisServer::start());
        let peer = Arc::new(Peer::start(library, &server.url_as(""), arguments));
        let stand = Stand { library: library.name, arguments: all, peer, server };
        self.0.insert(0, stand.clone());
        self.0.truncate(KEPT);
        stand
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        // What a failure left behind is no scene for another test, and what is dead neither.
        let is_over = thread::panicking() || !self.peer.is_fresh();
        self.turn.0.retain(|stand| !(is_over && Arc::ptr_eq(&stand.peer, &self.peer)));
    }
}
