//! A server that an operator makes a replica: its connections stay open, and its new master may
//! have locks that it lacks.

use crate::bench::{Bench, LONG, granted, name, soon};
use distlock_tests::process::RedisServer;
use distlock_tests::time::eventually;
use lock_core::backend::{Failure, LockInfo, Release, ReleaseOptions, Renewal, RenewalRequest};

/// Starts a server that sends a new replica its data at once.
fn server() -> RedisServer {
    RedisServer::start_with(&["--repl-diskless-sync-delay", "0"])
}

/// Makes `server` a replica of `master`, and waits until it has the master's data and nothing else.
fn demote(server: &RedisServer, master: &RedisServer) {
    server
        .probe()
        .command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("it follows", LONG, || {
        server
            .probe()
            .info_field("replication", "master_link_status")
            .as_deref()
            == Some("up")
    });
}

fn connections(server: &RedisServer) -> Vec<String> {
    let mut clients = server.probe().clients();
    clients.retain(|client| client.contains("name=distlock"));
    let id = |client: &String| client.split(' ').next().unwrap_or_default().to_owned();
    clients.iter().map(id).collect()
}

/// Checks that the client reports the replica: the server has refused the request, or the client
/// has not sent it because a new connection showed a replica.
fn is_told<T: std::fmt::Debug>(outcome: Result<T, Failure>) {
    let failure = outcome.unwrap_err();
    let (Failure::Refused(error) | Failure::NotSent(error)) = &failure else {
        panic!("{failure:?}")
    };
    assert!(
        error.is_unavailable() && error.to_string().contains("is a replica"),
        "{error:?}"
    );
}

#[test]
fn demoted_server_reports_no_lock_as_gone() {
    let [server, master] = [(); 2].map(|()| server());
    let bench = Bench::on(&server);
    let (held, _) = bench.take("a");
    let renewing = [RenewalRequest::new(held.clone())];
    assert!(matches!(
        bench.renew(&renewing)[..],
        [Ok(Renewal::Extended)]
    ));
    demote(&server, &master);
    assert!(!server.probe().exists("a"));
    assert!(
        !connections(&server).is_empty(),
        "by hand, its connections stay"
    );
    is_told(bench.renew(&renewing).remove(0));
    for closing in [
        ReleaseOptions::WITHOUT_TOMBSTONE,
        ReleaseOptions::WITH_TOMBSTONE,
    ] {
        is_told(bench.backend.release(&held, closing, soon()));
    }
    is_told(
        bench
            .backend
            .admin()
            .unwrap()
            .force_release(&name("a"), soon()),
    );
    is_told(bench.backend.inspect(&name("a"), soon()));
    // As a master, the server is believed again at once.
    server.probe().command(&["REPLICAOF", "NO", "ONE"]);
    assert!(matches!(bench.renew(&renewing)[..], [Ok(Renewal::Gone)]));
    assert_eq!(bench.release(&held), Release::Gone);
    assert!(
        !bench
            .backend
            .admin()
            .unwrap()
            .force_release(&name("a"), soon())
            .unwrap()
    );
    assert_eq!(
        bench.backend.inspect(&name("a"), soon()).unwrap(),
        LockInfo::FREE
    );
}

/// The client must connect again, because the server's address may lead to another server by now.
#[test]
fn connection_to_a_demoted_server_is_left() {
    let [server, master] = [(); 2].map(|()| server());
    let bench = Bench::new(&format!("{}?tracking=off", server.url()));
    let (held, _) = bench.take("a");
    bench.renew(&[RenewalRequest::new(held.clone())]);
    let before = connections(&server);
    assert_eq!(before.len(), 2, "{before:?}");
    demote(&server, &master);
    is_told(bench.renew(&[RenewalRequest::new(held.clone())]).remove(0));
    is_told(
        bench
            .backend
            .release(&held, ReleaseOptions::WITHOUT_TOMBSTONE, soon()),
    );
    eventually("the old connections are gone", LONG, || {
        connections(&server)
            .iter()
            .all(|connection| !before.contains(connection))
    });
    server.probe().command(&["REPLICAOF", "NO", "ONE"]);
    granted(bench.acquire("b", bench.owner()));
}
