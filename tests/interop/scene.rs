//! [`Scene`]: one server, one peer and our client; [`Independent`]: three servers.

use crate::libraries::Library;
use crate::ours::Ours;
use crate::pool::Lent;
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::Servers;

/// One server, one peer and our client.
pub(crate) struct Scene {
    // Dropped before its server: otherwise the peer would try to reconnect to it.
    pub(crate) peer: Lent,
    pub(crate) ours: Ours,
    pub(crate) server: RedisServer,
}

impl Scene {
    pub(crate) fn of(library: &'static Library) -> Self {
        Self::with(library, "", &[])
    }

    /// Starts the server, the peer and our client, with more settings for our client and for the
    /// peer.
    pub(crate) fn with(library: &'static Library, settings: &str, arguments: &[&str]) -> Self {
        let server = RedisServer::start();
        let peer = Lent::start(library, &server.url_as(""), arguments);
        let ours = Ours::connect(library, &server.url(), settings, server.port());
        // What the peer does while it connects must not count in a test.
        server.probe().reset_stats();
        Self { peer, ours, server }
    }

    /// Returns a raw connection to the server.
    pub(crate) fn probe(&self) -> Probe {
        self.server.probe()
    }
}

/// Three independent servers that are our quorum, and a peer on all of them. The first server also
/// has the data that the lock protects.
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
