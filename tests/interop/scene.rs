//! [`Scene`]: one server, one peer and our client; [`Independent`]: three servers.

use crate::libraries::Library;
use crate::ours::Ours;
use crate::pool::Lent;
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::Servers;

/// One server, one peer and our client.
pub(crate) struct Scene {
    // Before its server: it would go on trying to reach it.
    pub(crate) peer: Lent,
    pub(crate) ours: Ours,
    pub(crate) server: RedisServer,
}

impl Scene {
    pub(crate) fn of(library: &'static Library) -> Self {
        Self::with(library, "", &[])
    }

    /// The same with more settings for us, and for the peer.
    pub(crate) fn with(library: &'static Library, settings: &str, arguments: &[&str]) -> Self {
        let server = RedisServer::start();
        let peer = Lent::start(library, &server.url_as(""), arguments);
        let ours = Ours::connect(library, &server.url(), settings, server.port());
        // What a program does when it connects is no business of a test.
        server.probe().reset_stats();
        Self { peer, ours, server }
    }

    /// A connection to the server that is not the library's.
    pub(crate) fn probe(&self) -> Probe {
        self.server.probe()
    }
}

/// Three independent servers that are our quorum, and a peer on all of them. What the lock protects
/// is on the first.
pub(crate) struct Independent {
    pub(crate) peer: Lent,
    pub(crate) servers: Servers,
}

impl Independent {
    pub(crate) fn start(library: &'static Library, settings: &str, arguments: &[&str]) -> Self {
        let servers = Servers::with(3, 0, settings);
        let urls: Vec<_> = servers
            .servers
            .iter()
            .map(|server| server.url_as(""))
            .collect();
        let data = format!("data={}", urls[0]);
        let peer = Lent::start(library, &urls.join(","), &[arguments, &[&data]].concat());
        Self { peer, servers }
    }

    pub(crate) fn data(&self) -> &RedisServer {
        &self.servers.servers[0]
    }
}
