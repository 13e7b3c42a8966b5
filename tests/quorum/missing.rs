//! Members that clients miss: one client continues a replacement that another has begun, and a
//! member that other clients reach is not replaced.

use distlock::admin::{QuorumVote, WarningKind};
use distlock::{Client, Config, GuardState};
use distlock_tests::guards::await_renewals;
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::Proxy;
use distlock_tests::quorum::{Servers, Warnings, admit, place, set_up, start, url};
use distlock_tests::time::{always, eventually};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);
/// The longest lease, for which a member must be missing before it is replaced.
const LONGEST: Duration = Duration::from_secs(2);
const QUICK: &str =
    "max_lease=2s&node_timeout=500ms&watchdog=1500ms&command_timeout=1s&outage_limit=1s";

fn run_id(server: &RedisServer) -> String {
    server.probe().info_field("server", "run_id").unwrap()
}

/// Returns the value of a field of a server's marker.
fn field(server: &RedisServer, name: &str) -> Option<String> {
    server.probe().hgetall("distlock_quorum").get(name).cloned()
}

fn is_member(of: &RedisServer, run_id: &str) -> bool {
    field(of, "members").is_some_and(|members| members.contains(run_id))
}

/// Takes a lock and releases it, if that is possible now.
fn work(client: &Client) {
    if let Ok(Some(guard)) = client.mutex("work").unwrap().try_lock() {
        let _outcome = guard.unlock();
    }
}

/// Restarts a server without its data.
fn empty(quorum: &mut Servers, at: usize) {
    quorum.servers[at].restart();
    admit(&quorum.servers[at]);
}

/// Checks that the vote of this server counts: with one of the others killed, it is needed.
fn votes(quorum: &mut Servers, at: usize) {
    let other = (at + 1) % 3;
    quorum.servers[other].kill();
    let lock = quorum.client().mutex("needed").unwrap();
    let guard = eventually("its vote counts", SOON, || lock.try_lock().ok().flatten());
    guard.unlock().unwrap();
}

#[test]
fn clients_that_live_for_one_lock_get_an_emptied_server_back() {
    let mut quorum = Servers::with(3, 0, QUICK);
    empty(&mut quorum, 0);
    eventually("it is a member again", SOON, || {
        // Each client lives for much less than the longest lease.
        work(&quorum.client());
        field(&quorum.servers[0], "members").is_some()
    });
    votes(&mut quorum, 0);
}

#[test]
fn client_that_only_renews_gets_an_emptied_server_back() {
    let mut quorum = Servers::with(3, 0, QUICK);
    let client = quorum.client();
    let guard = client.mutex("held").unwrap().lock().unwrap();
    await_renewals(&guard);
    empty(&mut quorum, 0);
    eventually("it is a member again", SOON, || {
        field(&quorum.servers[0], "members").is_some()
    });
    assert_eq!(guard.state(), GuardState::Held);
    guard.unlock().unwrap();
    votes(&mut quorum, 0);
}

/// Returns a quorum, a server outside of it, and a URL that names this server instead of the first
/// member.
fn mistaken(options: &str) -> (Servers, RedisServer, String) {
    let (quorum, stranger) = (Servers::with(3, 0, options), start());
    let ports = [&quorum.servers[1], &quorum.servers[2], &stranger].map(RedisServer::port);
    let wrong = url(&ports.map(place), options);
    (quorum, stranger, wrong)
}

#[test]
fn member_that_other_clients_reach_is_not_replaced() {
    let (quorum, stranger, wrong) = mistaken(QUICK);
    let (holder, first) = (quorum.client(), run_id(&quorum.servers[0]));
    let guard = holder.mutex("held").unwrap().lock().unwrap();
    let (one, warnings) = Warnings::of(&wrong);
    let mistaken = [one, distlock::connect(&wrong).unwrap()];
    always("it stays a member", LONGEST * 5, || {
        mistaken.iter().for_each(work);
        is_member(&quorum.servers[1], &first) && field(&stranger, "members").is_none()
    });
    let address = place(quorum.servers[0].port());
    let told = [&*address, &*first, "the URL names it not"];
    assert_eq!(warnings.count(WarningKind::QuorumMembers, &told), 1);
    let status = distlock::admin::quorum_status(&Config::from_url(&wrong).unwrap()).unwrap();
    let is_unlisted = matches!(status[3].vote, QuorumVote::Unlisted);
    assert!(is_unlisted && status[3].address == address, "{status:?}");
    // With another member paused, the holder needs the vote of the first one.
    quorum.servers[1].pause();
    await_renewals(&guard);
    assert_eq!(guard.state(), GuardState::Held);
    guard.unlock().unwrap();
    quorum.servers[1].resume();
}

/// The URL of a single client may be a mistake, so one client alone replaces nothing. Two clients
/// that agree replace the member.
#[test]
fn two_clients_replace_a_member_that_their_urls_do_not_name() {
    let (quorum, stranger, wrong) = mistaken(QUICK);
    let first = run_id(&quorum.servers[0]);
    let (one, warnings) = Warnings::of(&wrong);
    always("one client alone replaces nothing", LONGEST * 3, || {
        work(&one);
        is_member(&quorum.servers[1], &first)
    });
    let other = distlock::connect(&wrong).unwrap();
    eventually("both agree", SOON, || {
        work(&one);
        work(&other);
        field(&stranger, "members").is_some()
    });
    assert!(!is_member(&quorum.servers[1], &first));
    let newcomer = place(stranger.port());
    eventually("other members are warned of", SOON, || {
        work(&one);
        warnings.have(WarningKind::QuorumMembers, &["other members", &newcomer])
    });
    // A client with the former URL finds a member that the URL does not name.
    let (old, warnings) = Warnings::of(&quorum.url);
    eventually("the former URL is warned of", SOON, || {
        work(&old);
        warnings.have(WarningKind::QuorumMembers, &["names it not", &newcomer])
    });
}

/// A replica promoted at a node's address, and a server restarted from the dump of a node that had
/// a replica, may lack grants that the node has made. Only a restart from an append-only file may
/// vote at once.
#[test]
fn server_with_a_replicated_past_counts_as_emptied_although_durable() {
    for is_promoted in [true, false] {
        let options = format!("{QUICK}&durable=yes");
        let mut quorum = Servers::with(3, 0, &options);
        let client = quorum.client();
        work(&client);
        let replica = start();
        let port = quorum.servers[0].port().to_string();
        replica.probe().command(&["REPLICAOF", "127.0.0.1", &port]);
        let has_marker = || field(&replica, "quorum").is_some();
        eventually("the replica has its data", SOON, has_marker);
        let (before, proxy) = (
            run_id(&quorum.servers[0]),
            Proxy::plain(quorum.servers[0].port()),
        );
        let places = [
            proxy.port(),
            quorum.servers[1].port(),
            quorum.servers[2].port(),
        ]
        .map(place);
        if is_promoted {
            replica.probe().command(&["REPLICAOF", "NO", "ONE"]);
            proxy.switch_to(replica.port());
        } else {
            quorum.servers[0].probe().command(&["SAVE"]);
            empty(&mut quorum, 0);
        }
        // With one member paused, this server's vote is needed. It must not vote: it may have lost
        // grants.
        quorum.servers[1].pause();
        let lock = distlock::connect(&url(&places, &options))
            .unwrap()
            .mutex("b")
            .unwrap();
        let error = lock.try_lock().unwrap_err();
        let its = error.members()[0]
            .error()
            .expect("it does not vote")
            .to_string();
        assert!(
            its.contains("no marker that counts"),
            "promoted {is_promoted}: {its}"
        );
        quorum.servers[1].resume();
        if !is_promoted {
            eventually("it is a member again, and another one", SOON, || {
                work(&client);
                field(&quorum.servers[0], "node").is_some_and(|node| node != before)
            });
        }
    }
}

/// The file has all that the server granted, even if it was rewritten and there is a replica for
/// backups.
#[test]
fn restart_from_an_append_only_file_votes_at_once_if_durable() {
    let options = format!("{QUICK}&durable=yes");
    let durable = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    admit(&durable);
    let servers = vec![durable, start(), start()];
    let places: Vec<_> = servers.iter().map(|server| place(server.port())).collect();
    set_up(&places, &options);
    let mut quorum = Servers {
        url: url(&places, &options),
        servers,
    };
    work(&quorum.client());
    let replica = start();
    let mut probe = quorum.servers[0].probe();
    replica.probe().command(&[
        "REPLICAOF",
        "127.0.0.1",
        &quorum.servers[0].port().to_string(),
    ]);
    eventually("the replica has its data", SOON, || {
        field(&replica, "quorum").is_some()
    });
    probe.command(&["BGREWRITEAOF"]);
    let is_over = |probe: &mut Probe, field: &str| {
        probe.info_field("persistence", field).as_deref() == Some("0")
    };
    eventually("the file is written", SOON, || {
        is_over(&mut probe, "aof_rewrite_in_progress")
            && is_over(&mut probe, "aof_rewrite_scheduled")
    });
    let before = run_id(&quorum.servers[0]);
    quorum.servers[0].restart();
    admit(&quorum.servers[0]);
    assert_eq!(field(&quorum.servers[0], "node"), Some(before));
    quorum.servers[1].kill();
    quorum
        .client()
        .mutex("b")
        .unwrap()
        .lock()
        .unwrap()
        .unlock()
        .unwrap();
}
