//! `list`: which keys it shows as locks and which it does not, on every kind of store.

use crate::{SOON, only_error};
use distlock::{Client, OwnedGuard};
use distlock_tests::child::Example;
use distlock_tests::cluster::Cluster;
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{LONGEST, Servers};
use distlock_tests::redis::client;
use distlock_tests::sentinel::Group;
use serde_json::Value as Json;

/// An owner as Redisson writes it.
const REDISSON: &str = "01234567-89ab-cdef-0123-456789abcdef:77";

/// Runs `list` to its end, and returns its status and its output.
fn list(url: &str, words: &[&str]) -> (i32, String) {
    let mut child = Example::distlock(&[&["list", "--url", url], words].concat()).spawn();
    let status = child.wait_exit(SOON);
    (status, child.output() + &child.errors())
}

/// Returns the JSON object of each listed lock.
#[track_caller]
fn listed(url: &str, words: &[&str]) -> Vec<Json> {
    let (status, lines) = list(url, &[&["--json"], words].concat());
    assert_eq!(status, 0, "{lines}");
    let json = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{lines}"));
    lines.lines().map(json).collect()
}

/// Returns the names of the listed locks.
#[track_caller]
fn names(url: &str, words: &[&str]) -> Vec<String> {
    let name = |lock: &Json| lock["name"].as_str().unwrap().to_owned();
    listed(url, words).iter().map(name).collect()
}

fn hold<const N: usize>(client: &Client, names: [&str; N]) -> [OwnedGuard; N] {
    names.map(|name| client.owned_mutex(name).unwrap().lock().unwrap())
}

/// Writes a hash that is no lock.
fn put_hash(probe: &mut Probe, key: &str) {
    probe.command(&["HSET", key, "field", "1"]);
}

#[test]
fn held_locks_that_match_are_listed_and_no_other_key() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let ours = client(&server, "prefix=app[1]:");
    let url = format!("{}?prefix=app[1]:", server.url());
    assert_eq!(
        list(&url, &[]),
        (
            0,
            "NAME  STATE  HOLDER  HELD  REMAINING  WAITERS".to_owned()
        )
    );
    assert_eq!(list(&url, &["--json"]), (0, String::new()));

    let _guards = hold(&ours, ["orders:1", "orders:2", "stock\n1"]);
    drop(hold(&ours, ["orders:free"]));
    let _unprefixed = hold(&client(&server, ""), ["orders:3"]);
    // Keys of other programs, some of which match the pattern.
    put_hash(&mut probe, "app[1]:orders:hash");
    probe.command(&["HSET", "app[1]:orders:two", REDISSON, "1", "other", "1"]);
    probe.command(&["HSET", "app[1]:orders:value", REDISSON, "many"]);
    probe.command(&["SET", "app[1]:orders:text", REDISSON]);
    probe.command(&["RPUSH", "app[1]:orders:list", REDISSON]);
    probe.command(&["HSET", "app[1]:", REDISSON, "1"]);
    probe.command(&["HSET", "app1:orders:9", REDISSON, "1"]);
    // Redisson's read-write lock with two readers, of which one is dead.
    let other = REDISSON.replace(":77", ":78");
    probe.command(&[
        "HSET",
        "app[1]:orders:rw",
        "mode",
        "read",
        REDISSON,
        "1",
        &other,
        "1",
    ]);
    let hold = format!("{{app[1]:orders:rw}}:{REDISSON}:rwlock_timeout:1");
    probe.command(&["SET", &hold, "1"]);

    assert_eq!(
        names(&url, &[]),
        ["orders:1", "orders:2", "orders:rw", "stock\n1"]
    );
    assert_eq!(
        names(&url, &["orders:*"]),
        ["orders:1", "orders:2", "orders:rw"]
    );
    assert_eq!(names(&url, &["orders:[13]"]), ["orders:1"]);
    assert_eq!(names(&url, &["orders"]), [""; 0]);
    let locks = listed(&url, &["orders:?"]);
    assert_eq!(
        locks[0]["holder"],
        format!("{}..", &ours.id().to_string()[..8])
    );
    assert!(
        (1..=30_000).contains(&locks[0]["remaining_ms"].as_u64().unwrap()),
        "{locks:?}"
    );
    assert_eq!(locks[0]["waiters"], 0);
    assert!(locks[0]["largest_token"].as_u64().is_some(), "{locks:?}");
    let read_write = &listed(&url, &["orders:rw"])[0];
    assert_eq!(read_write["holders"], 1, "{read_write}");
    assert_eq!(
        read_write["readers"][0]["holder"], "01234567..",
        "{read_write}"
    );
    let (_, table) = list(&url, &["stock*"]);
    assert!(
        table.contains("stock\\n1") && table.lines().count() == 2,
        "{table}"
    );
    assert_eq!(probe.command_calls("keys"), 0);
    assert!(probe.command_calls("scan") > 0);
}

#[test]
fn ten_thousand_other_keys_are_gone_through_in_pages() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let fill = "for i = 1, 5000 do redis.call('SET', 'text' .. i, i) \
         redis.call('HSET', 'hash' .. i, 'f', 'v') end";
    probe.command(&["EVAL", fill, "0"]);
    let _guards = hold(&client(&server, ""), ["a", "b"]);
    probe.reset_stats();
    assert_eq!(names(&server.url(), &[]), ["a", "b"]);
    assert!(
        probe.command_calls("scan") >= 5,
        "a page has a bounded number of keys"
    );
    assert_eq!(
        probe.command_calls("hlen"),
        5_002,
        "of texts nothing is asked"
    );
    // A page of the library's own listing has only locks, even if most keys are no locks.
    let client = client(&server, "");
    let (mut locks, mut pages) = (client.locks("*"), 0);
    while let Some(page) = locks.next_page().unwrap() {
        assert!(page.len() <= 2);
        pages += 1;
    }
    assert!(pages >= 5, "{pages}");
}

#[test]
fn limit_is_kept_and_said() {
    let server = RedisServer::start();
    let _guards = hold(&client(&server, ""), ["a", "b", "c"]);
    let (status, said) = list(&server.url(), &["--limit", "2"]);
    assert_eq!((status, said.lines().count()), (0, 3), "{said}");
    assert!(
        said.ends_with("there are more than 2: give a pattern, or --limit\n"),
        "{said}"
    );
    assert_eq!(names(&server.url(), &["--limit", "3"]), ["a", "b", "c"]);
}

#[test]
fn texts_that_look_like_owners_are_listed_as_tokens() {
    let server = RedisServer::start();
    let mut probe = server.probe();
    let url = format!("{}?format=token", server.url());
    let _guards = hold(&client(&server, "format=token"), ["ours"]);
    // Locks as redis-py and redsync write them.
    probe.command(&[
        "SET",
        "python",
        "5ab1cc98e2a311ef8b7d0242ac120002",
        "PX",
        "60000",
    ]);
    probe.command(&["SET", "go", "3q2+7wAAq83vEjRWeJq83g==", "PX", "60000"]);
    // No locks: a text without an expiry, a number, an HTML page, a long text, and another type.
    probe.command(&["SET", "endless", "5ab1cc98e2a311ef8b7d0242ac120002"]);
    probe.command(&["SET", "counter", "1795492573889651", "PX", "60000"]);
    probe.command(&["SET", "page", "<html>hello</html>", "PX", "60000"]);
    probe.command(&["SET", "long", &"a1".repeat(3_000), "PX", "60000"]);
    put_hash(&mut probe, "hash");
    assert_eq!(names(&url, &[]), ["go", "ours", "python"]);
}

#[test]
fn formats_without_owners_cannot_be_listed() {
    let server = RedisServer::start();
    for format in ["plain", "timestamp", "counter"] {
        let (status, said) = list(&format!("{}?format={format}", server.url()), &[]);
        assert_eq!(status, 78, "{said}");
        assert!(
            said.contains(&format!("`{format}` does not say who holds a lock")),
            "{said}"
        );
    }
}

#[test]
fn locks_of_all_masters_of_a_cluster_are_listed() {
    let cluster = Cluster::shared();
    let client = distlock::connect(&cluster.url()).unwrap();
    let masters = (0..cluster.len()).filter(|node| !cluster.slots_of(*node).is_empty());
    let held: Vec<_> = masters.map(|node| cluster.name_on(node, "list")).collect();
    assert!(held.len() >= 3, "{held:?}");
    let guards = held
        .iter()
        .map(|name| client.owned_mutex(name).unwrap().lock().unwrap());
    let _guards: Vec<_> = guards.collect();
    put_hash(&mut cluster.probe("list-foreign"), "list-foreign");
    let mut expected = held.clone();
    expected.sort_unstable();
    assert_eq!(names(&cluster.url(), &["list*"]), expected);
    let locks = listed(&cluster.url(), &["list*"]);
    assert!(locks.iter().all(|lock| lock["waiters"] == 0), "{locks:?}");
}

/// The two locks are on different masters, and the new master does not own the slot yet.
#[test]
fn locks_of_a_moving_slot_are_listed_once() {
    let cluster = Cluster::start();
    let client = distlock::connect(&cluster.url()).unwrap();
    let mut masters = (0..cluster.len()).filter(|node| !cluster.slots_of(*node).is_empty());
    let (from, to) = (masters.next().unwrap(), masters.next().unwrap());
    let tag = cluster.name_on(from, "moving");
    let [a, b, hash] = ["a", "b", "hash"].map(|name| format!("{{{tag}}}:{name}"));
    let _guards = hold(&client, [&*a, &*b]);
    put_hash(&mut cluster.probe(&tag), &hash);
    let slot = cluster.slot(&tag);
    cluster.begin_to_move(slot, from, to);
    let port = cluster.node(to).port_for_nodes().to_string();
    for key in [&b, &hash] {
        let words = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        assert_eq!(cluster.node(from).probe().command(&words).text(), "OK");
    }
    assert_eq!(names(&cluster.url(), &[]), [&*a, &*b]);
    cluster.move_keys(slot, from, to);
    cluster.end_to_move(slot, from, to);
    assert_eq!(names(&cluster.url(), &[]), [&*a, &*b]);
}

#[test]
fn locks_of_the_present_master_of_a_sentinel_group_are_listed() {
    let group = Group::start();
    let client = distlock::connect(&group.url()).unwrap();
    let _guards = hold(&client, ["a", "b"]);
    assert_eq!(names(&group.url(), &[]), ["a", "b"]);
}

#[test]
fn locks_of_a_quorum_are_those_of_a_majority() {
    let mut quorum = Servers::with(5, 0, LONGEST);
    let client = quorum.client();
    let _guards = hold(&client, ["a", "b"]);
    // Votes on a minority are no lock.
    for server in &quorum.servers[..2] {
        server.probe().command(&["HSET", "minority", REDISSON, "1"]);
    }
    assert_eq!(names(&quorum.url, &[]), ["a", "b"]);
    let locks = listed(&quorum.url, &[]);
    assert!(locks.iter().all(|lock| lock["waiters"] == 0), "{locks:?}");
    assert!(
        locks
            .iter()
            .all(|lock| lock["largest_token"].as_u64().is_some()),
        "{locks:?}"
    );

    quorum.servers[0].kill();
    quorum.servers[1].kill();
    assert_eq!(names(&quorum.url, &[]), ["a", "b"], "the others know all");
    quorum.servers[2].kill();
    let (status, said) = list(&quorum.url, &[]);
    assert_eq!(status, 69, "{said}");
}

/// An empty list would claim that no lock is held, which a minority of the servers cannot know.
#[test]
fn quorum_without_a_majority_has_no_empty_list() {
    let mut quorum = Servers::with(3, 0, LONGEST);
    assert_eq!(names(&quorum.url, &[]), [""; 0]);
    quorum.servers[0].kill();
    quorum.servers[2].kill();
    assert_eq!(list(&quorum.url, &["--json"]).0, 69);
}

#[test]
fn locks_of_all_backends_of_a_file_are_listed() {
    let (one, other) = (RedisServer::start(), RedisServer::start());
    let _guards = (
        hold(&client(&one, ""), ["b"]),
        hold(&client(&other, ""), ["a", "c"]),
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    let urls = (one.url(), other.url());
    let text = format!(
        "default = \"one\"\n[backends.one]\nurl = {:?}\n[backends.other]\nurl = {:?}\n",
        urls.0, urls.1
    );
    std::fs::write(file.path(), text).unwrap();
    let words = ["list", "--json", "--config", file.path().to_str().unwrap()];
    let mut child = Example::distlock(&words).spawn();
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    let names = child.output();
    let names = names
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap());
    let names: Vec<_> = names
        .map(|lock| lock["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["a", "b", "c"]);
}

/// A terminal obeys these characters, and `serde_json` does not escape them.
#[test]
fn control_characters_are_escaped_in_json() {
    let server = RedisServer::start();
    let name = "a\u{7f}\u{9b}2Jb";
    let _guards = hold(&client(&server, ""), [name]);
    let (status, line) = list(&server.url(), &["--json"]);
    assert!(
        status == 0 && !line.contains(['\u{7f}', '\u{9b}']),
        "{line:?}"
    );
    assert!(line.contains(r"a\u007f\u009b2Jb"), "{line:?}");
    assert_eq!(names(&server.url(), &[]), [name]);
}

/// A section of the file may have another format or another prefix than its backend.
#[test]
fn locks_of_sections_are_listed_in_their_own_format() {
    let server = RedisServer::start();
    let of_format = |query: &str| client(&server, query);
    let _guards = (
        hold(&of_format(""), ["a", "text:hash"]),
        hold(&of_format("format=token"), ["text:1", "other"]),
        hold(&of_format("prefix=app:"), ["ours:1"]),
    );
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!(
        "url = {:?}\n[locks.'text:*']\nformat = 'token'\n[locks.'ours:*']\nprefix = 'app:'\n\
         [locks.'plain:*']\nformat = 'plain'\n",
        server.url()
    );
    std::fs::write(file.path(), text).unwrap();
    let path = file.path().to_str().unwrap();
    let listed = |words: &[&str]| {
        let words = [&["list", "--json", "--config", path], words].concat();
        let mut child = Example::distlock(&words).spawn();
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
        let name = |line: &str| serde_json::from_str::<Json>(line).unwrap()["name"].clone();
        child.output().lines().map(name).collect::<Vec<_>>()
    };
    assert_eq!(
        listed(&[]),
        ["a", "app:ours:1", "ours:1", "text:1", "text:hash"]
    );
    assert_eq!(listed(&["ours*"]), ["ours:1"]);
    assert_eq!(listed(&["--limit", "4"]).len(), 4);
}

#[test]
fn missing_right_to_list_is_named() {
    let server = RedisServer::start();
    let rule = [
        "ACL", "SETUSER", "blind", "on", ">SECRET", "~*", "&*", "+@all", "-scan",
    ];
    assert_eq!(server.probe().command(&rule).text(), "OK");
    let url = server.url_as("blind:SECRET");
    let mut child = Example::distlock(&["list", "--url", &url]).spawn();
    assert_eq!(child.wait_exit(SOON), 78);
    assert!(only_error(&child).contains("+scan"), "{}", child.errors());
}
