//! [`Scene`]: one server, one peer and us.

use crate::harness::probe::Probe;
use crate::harness::process::RedisServer;
use crate::libraries::Library;
use crate::ours::Ours;
use crate::peer::Peer;
use parking_lot::{Mutex, MutexGuard};

/// One at a time: they measure, and a machine that runs two of them measures both.
static TURN: Mutex<()> = Mutex::new(());

pub(crate) struct Scene {
    pub(crate) library: &'static Library,
    pub(crate) peer: Peer,
    pub(crate) ours: Ours,
    pub(crate) server: RedisServer,
    _turn: MutexGuard<'static, ()>,
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
        if library.is_skipped() {
            return None;
        }
        let turn = TURN.lock();
        let server = RedisServer::start();
        let peer = Peer::start(library, &server.url_as(""), arguments);
        let ours = Ours::connect(library, &server.url(), settings, server.port());
        Some(Self { library, peer, ours, server, _turn: turn })
    }

    /// Other eyes on the server.
    pub(crate) fn probe(&self) -> Probe {
        self.server.probe()
    }
}
