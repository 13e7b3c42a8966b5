//! `doctor`: each danger is found on a server that has it, and none on good servers.

use crate::{SOON, only_error};
use distlock_tests::child::Example;
use distlock_tests::cluster::Cluster;
use distlock_tests::distance::Distance;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::quorum::{self, Servers};
use distlock_tests::replicas::Replicated;
use distlock_tests::resp::Request;
use distlock_tests::rights::LOGIN;
use distlock_tests::sentinel::Group;
use distlock_tests::time::eventually;
use distlock_tests::time_of_day::TimeOfDay;
use serde_json::Value as Json;
use std::sync::Arc;
use std::time::Duration;

/// The options of a good server: its locks survive a restart.
const GOOD: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// The exit status and the findings of `doctor` for a store.
struct Examined {
    status: i32,
    findings: Vec<Json>,
}

impl Examined {
    #[track_caller]
    fn at(url: &str) -> Self {
        let mut child = Example::distlock(&["doctor", "--json", "--url", url]).spawn();
        let status = child.wait_exit(SOON);
        let json: Json = serde_json::from_str(&child.output())
            .unwrap_or_else(|_| panic!("{status}: {} {}", child.output(), child.errors()));
        let findings = json["findings"].as_array().expect("a list").clone();
        let dangers = findings
            .iter()
            .filter(|finding| finding["level"] == "danger")
            .count();
        assert_eq!(json["dangers"], dangers);
        assert_eq!(status, i32::from(dangers > 0), "{findings:#?}");
        Self { status, findings }
    }

    /// Returns the findings of this kind and level, as `seen; why; remedy`.
    fn all(&self, id: &str, level: &str) -> Vec<String> {
        let those = self
            .findings
            .iter()
            .filter(|it| it["id"] == id && it["level"] == level);
        let text = |finding: &Json| {
            ["seen", "why", "remedy"]
                .map(|part| finding[part].as_str().unwrap_or("-"))
                .join("; ")
        };
        those.map(text).collect()
    }

    /// Checks that one finding of this kind and level contains each of these texts.
    #[track_caller]
    fn must_say(&self, id: &str, level: &str, parts: &[&str]) {
        let said = self.all(id, level);
        let says = |said: &String| parts.iter().all(|part| said.contains(part));
        assert!(
            said.iter().any(says),
            "no {level} {id} {parts:?}: {:#?}",
            self.findings
        );
    }

    /// Checks that these, in alphabetical order, are the kinds of all findings that are not ok.
    #[track_caller]
    fn must_only_find(&self, expected: &[&str]) {
        let bad = self
            .findings
            .iter()
            .filter(|finding| finding["level"] != "ok");
        let mut ids: Vec<_> = bad.filter_map(|finding| finding["id"].as_str()).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids, expected, "{:#?}", self.findings);
    }
}

/// Returns the server's URL for the user with all rights.
fn url(server: &RedisServer, options: &str) -> String {
    format!("{}?{options}", server.url_as(""))
}

#[test]
fn good_server_passes_and_is_not_changed() {
    let server = RedisServer::start_with(&GOOD);
    let examined = Examined::at(&url(&server, ""));
    examined.must_only_find(&[]);
    assert_eq!(examined.status, 0);
    let looked_at = [
        "role",
        "version",
        "eviction",
        "memory",
        "persistence",
        "replicas",
        "rights",
    ];
    for id in looked_at
        .into_iter()
        .chain(["commands", "tracking", "latency", "clock"])
        .chain(KINDS)
    {
        assert_eq!(examined.all(id, "ok").len(), 1, "{id}");
    }
    // The semaphore's number of permits never expires; all other keys of the trial do.
    let mut probe = server.probe();
    for key in probe.keys("*") {
        assert!(key.contains("distlock:doctor"), "{key}");
        let is_number = key == "distlock:doctor:slots";
        assert_eq!(probe.pttl(&key).is_none(), is_number, "{key}");
    }
    assert!(!probe.exists("distlock:doctor"), "it is released");
}

/// The findings of the trial, in which `doctor` takes a lock of each kind.
const KINDS: [&str; 6] = [
    "mutex",
    "fair_mutex",
    "read_lock",
    "write_lock",
    "semaphore",
    "fair_semaphore",
];

/// Some services refuse `TIME` in scripts, which a renamed command imitates here.
#[test]
fn kinds_that_the_server_refuses_are_dangers() {
    let good = [&GOOD[..], &["--rename-command", "TIME", ""]].concat();
    let server = RedisServer::start_with(&good);
    for (options, mutex) in [("", "danger"), ("tokens=off", "ok")] {
        let examined = Examined::at(&url(&server, options));
        // A reader needs no token, and so no `TIME`.
        examined.must_say("read_lock", "ok", &["released"]);
        examined.must_say("mutex", mutex, &[]);
        examined.must_say("write_lock", mutex, &[]);
        for id in ["semaphore", "fair_semaphore"] {
            examined.must_say(id, "danger", &["TIME", "`tokens=off`", "cannot be used"]);
        }
    }
}

#[test]
fn lock_of_another_trial_is_no_danger() {
    let server = RedisServer::start_with(&GOOD);
    let client = distlock::connect(&url(&server, "")).unwrap();
    let _guard = client.mutex("distlock:doctor").unwrap().lock().unwrap();
    let examined = Examined::at(&url(&server, ""));
    assert_eq!(examined.status, 0);
    examined.must_only_find(&["fair_mutex", "mutex", "read_lock", "write_lock"]);
    examined.must_say("mutex", "unknown", &["another client holds it"]);
}

/// Answers `INFO` as ElastiCache does, and refuses `CONFIG`.
struct LikeElastiCache;

impl Plan for LikeElastiCache {
    fn fate(&self, request: &mut Request) -> Fault {
        if request.is("INFO") {
            request.be_script(
                "return (redis.call('INFO'):gsub('os:[^\\r]*', 'os:Amazon ElastiCache'))",
            );
        } else if request.is("CONFIG") {
            request.be_refused("ERR unknown command 'CONFIG'");
        }
        Fault::Pass
    }
}

/// On a service an operator cannot run `CONFIG SET`, so no remedy may name it.
#[test]
fn findings_name_what_can_be_changed_on_a_service() {
    let server =
        RedisServer::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"]);
    let proxy = Proxy::new(server.port(), Arc::new(LikeElastiCache));
    let examined = Examined::at(&format!("redis://127.0.0.1:{}", proxy.port()));
    examined.must_say("service", "ok", &["Amazon ElastiCache"]);
    examined.must_say("eviction", "danger", &["parameter group"]);
    let accept = ["Multi-AZ", "--accept persistence", "restart_grace"];
    examined.must_say("persistence", "danger", &accept);
    let remedies = examined
        .findings
        .iter()
        .filter_map(|it| it["remedy"].as_str());
    for remedy in remedies {
        assert!(!remedy.contains("CONFIG SET"), "{remedy}");
    }
}

#[test]
fn server_that_evicts_locks_is_a_danger() {
    let server = RedisServer::start_with(&["--maxmemory", "50mb"]);
    server.configure([["appendonly", "yes"], ["appendfsync", "always"]]);
    Examined::at(&url(&server, "")).must_only_find(&[]);
    server.configure([["maxmemory-policy", "volatile-lru"]]);
    let examined = Examined::at(&url(&server, ""));
    let mend = "`CONFIG SET maxmemory-policy noeviction`";
    examined.must_say(
        "eviction",
        "danger",
        &["volatile-lru", "grant it again", mend],
    );
    examined.must_only_find(&["eviction"]);
}

#[test]
fn server_that_forgets_locks_is_a_danger() {
    let server = RedisServer::start();
    let said = Examined::at(&url(&server, ""));
    let remedies = [
        "no snapshots",
        "`CONFIG SET appendonly yes`",
        "`restart_grace=30s`",
    ];
    said.must_say("persistence", "danger", &remedies);
    let said = Examined::at(&url(&server, "restart_grace=30s"));
    said.must_say(
        "persistence",
        "warning",
        &["restart_grace is 30s", "held locks are lost"],
    );
    server.configure([["save", "60 1000"]]);
    Examined::at(&url(&server, "")).must_say("persistence", "danger", &["snapshots only"]);
    server.configure([["appendonly", "yes"]]);
    let said = Examined::at(&url(&server, ""));
    said.must_say(
        "persistence",
        "warning",
        &["everysec", "last second", "appendfsync always"],
    );
    assert_eq!(said.status, 0);
}

#[test]
fn replica_in_the_url_is_a_danger_and_its_master_named() {
    let replicated = Replicated::start(1);
    let said = Examined::at(&url(&replicated.replicas[0], ""));
    let master = format!("127.0.0.1:{}", replicated.master.port());
    said.must_say("role", "danger", &["replica", "no writes", &master]);
}

#[test]
fn cluster_node_in_a_plain_url_is_a_danger() {
    let server = RedisServer::start_cluster_node(&["--cluster-enabled", "yes"]);
    let said = Examined::at(&url(&server, ""));
    said.must_say(
        "role",
        "danger",
        &["node of a Redis Cluster", "`redis+cluster://127.0.0.1:"],
    );
}

#[test]
fn full_memory_is_a_danger_nearly_full_a_warning() {
    let server = RedisServer::start_with(&GOOD);
    let mut probe = server.probe();
    let fill = "redis.call('SET', 'data', string.rep('x', 30000000))";
    probe.command(&["EVAL", fill, "0"]);
    let used: u64 = probe
        .info_field("memory", "used_memory")
        .unwrap()
        .parse()
        .unwrap();
    let mut limit = |bytes: u64| probe.command(&["CONFIG", "SET", "maxmemory", &bytes.to_string()]);
    limit(used * 100 / 95);
    let said = Examined::at(&url(&server, ""));
    said.must_say(
        "memory",
        "warning",
        &["% of the", "no lock can be taken", "raise `maxmemory`"],
    );
    limit(used / 2);
    let said = Examined::at(&url(&server, ""));
    said.must_say("memory", "danger", &["20", "no lock can be taken"]);
    said.must_only_find(&["memory"]);
}

#[test]
fn fewer_replicas_than_the_url_asks_for_are_a_danger() {
    let replicated = Replicated::start(1);
    let asking_for = |count: u32| url(&replicated.master, &format!("replicas={count}"));
    assert_eq!(
        Examined::at(&asking_for(1)).all("replicas", "ok"),
        ["1 connected; -; -"]
    );
    let said = Examined::at(&asking_for(2));
    said.must_say(
        "replicas",
        "danger",
        &["1 connected", "replicas=2", "grants are taken back"],
    );
}

#[test]
fn replica_that_lags_is_a_warning() {
    let replicated = Replicated::start(1);
    replicated.replicas[0].pause();
    let lagging = format!("127.0.0.1:{}", replicated.replicas[0].port());
    eventually("the master notices", SOON, || {
        let line = replicated
            .master
            .probe()
            .info_field("replication", "slave0")
            .unwrap();
        !line.ends_with("lag=0") && !line.ends_with("lag=1")
    });
    let said = Examined::at(&url(&replicated.master, ""));
    said.must_say("replicas", "warning", &[&lagging, "s behind"]);
    replicated.replicas[0].resume();
}

#[test]
fn missing_replicas_that_stop_writes_are_a_danger() {
    let server = RedisServer::start_with(&["--min-replicas-to-write", "1"]);
    let said = Examined::at(&url(&server, ""));
    let mend = "`CONFIG SET min-replicas-to-write 0`";
    said.must_say(
        "min_replicas",
        "danger",
        &["is 1, and 0", "takes no writes", mend],
    );
}

/// Changes the rights of the library's user, and examines the server as that user.
fn examined_with(server: &RedisServer, rules: &[&str], options: &str) -> Examined {
    let words = [&["ACL", "SETUSER", "locker"], rules].concat();
    assert_eq!(server.probe().command(&words).text(), "OK");
    let said = Examined::at(&format!("{}?{options}", server.url_as(LOGIN)));
    // Refusals are intended here: without the reset the server's fixture would report them.
    server.probe().command(&["ACL", "LOG", "RESET"]);
    said
}

#[test]
fn least_privileges_pass_and_the_hidden_is_unknown() {
    let server = RedisServer::start_with(&GOOD);
    let rule = distlock_tests::rights::documented();
    let said = examined_with(&server, &rule[1..], "prefix=app:");
    said.must_say("persistence", "unknown", &["CONFIG is refused"]);
    said.must_say("rights", "ok", &["`locker`"]);
    said.must_only_find(&["persistence"]);
}

/// The variants of the classic formats, each with a right that it does not need.
const CLASSIC: [(&str, &str); 7] = [
    ("plain", "+setnx"),
    ("plain,commands", "+set "),
    ("timestamp", "+incr"),
    ("timestamp,takeover=delete", "+getset"),
    ("timestamp,release=not-older", "+incr"),
    ("counter", "+multi"),
    ("counter,multi", "+setnx"),
];

/// Starts with a user without rights and follows each remedy. Otherwise a remedy could lack a
/// right, or name one that the format does not need.
#[test]
fn rights_that_are_asked_for_suffice_and_are_needed() {
    for (format, other) in CLASSIC {
        let server = RedisServer::start_with(&GOOD);
        let none = [
            "resetkeys",
            "resetchannels",
            "-@all",
            "+eval",
            "+select",
            "+ping",
            "+info",
        ];
        let options = format!("format={format}&prefix=app:&lease=10s");
        let mut said = examined_with(&server, &none, &options);
        let mut lines = Vec::new();
        for id in ["rights", "rights", "rights_optional"] {
            let remedy = said.findings.iter().find(|it| it["id"] == id);
            let remedy = remedy
                .and_then(|it| it["remedy"].as_str())
                .map(str::to_owned);
            if let Some(remedy) = remedy {
                let rules = remedy.split('`').nth(1).expect("a line");
                let rules = rules.strip_prefix("ACL SETUSER locker ").expect(rules);
                lines.push(format!("{rules} "));
                let rules: Vec<_> = rules.split(' ').collect();
                said = examined_with(&server, &rules, &options);
            }
        }
        assert!(!lines.concat().contains(other), "{format}: {lines:?}");
        said.must_say("rights", "ok", &[]);
        said.must_say("mutex", "ok", &[]);
        let url = format!("{}?{options}", server.url_as(LOGIN));
        let [one, two] = [(); 2].map(|()| distlock::connect(&url).unwrap());
        let [one, two] = [one, two].map(|client| client.mutex("it").unwrap());
        let guard = one.try_lock().unwrap().expect(format);
        assert!(two.try_lock().unwrap().is_none(), "{format}");
        assert!(two.inspect().unwrap().holder.is_some(), "{format}");
        guard.unlock().unwrap();
        let _lost = one.try_lock().unwrap().expect(format);
        assert!(two.force_unlock().unwrap(), "{format}");
    }
}

#[test]
fn missing_rights_are_a_danger_with_the_exact_line() {
    let server = RedisServer::start_with(&GOOD);
    let rule = distlock_tests::rights::documented();
    examined_with(&server, &rule[1..], "prefix=app:");
    let lacking = ["-hset", "-pexpire", "-evalsha"];
    let said = examined_with(&server, &lacking, "prefix=app:");
    said.must_say(
        "rights",
        "danger",
        &["`ACL SETUSER locker +hset +pexpire +evalsha`"],
    );
    assert_eq!(said.all("rights_optional", "warning"), [] as [&str; 0]);
    // The rights in the remedy are sufficient.
    let said = examined_with(&server, &["+hset", "+pexpire", "+evalsha"], "prefix=app:");
    said.must_say("rights", "ok", &[]);

    let keys = ["resetkeys", "~other:*", "~distlock_closed:*"];
    let said = examined_with(&server, &keys, "prefix=app:");
    let line = "`ACL SETUSER locker ~app:* ~redisson_lock_token:*`";
    said.must_say("rights", "danger", &[line]);
    said.must_say(
        "rights_optional",
        "warning",
        &["~distlock_queue:*", "~{app:*"],
    );
    let said = examined_with(&server, &["~redisson_lock_token:*"], "");
    said.must_say(
        "rights",
        "unknown",
        &["\"distlock:ping\"", "without a prefix"],
    );
    let said = examined_with(&server, &["-eval"], "prefix=app:");
    said.must_say("rights", "danger", &["`ACL SETUSER locker +eval`"]);
}

/// The user has rights for mutexes alone, without the queue of waiters.
#[test]
fn missing_rights_to_other_kinds_of_locks_are_warnings() {
    let server = RedisServer::start_with(&GOOD);
    let rule = distlock_tests::rights::documented();
    let of_kinds = ["~distlock_queue:*", "~{app:*", "+zadd", "+hrandfield"];
    let of_mutexes: Vec<_> = rule[1..]
        .iter()
        .copied()
        .filter(|word| !of_kinds.contains(word))
        .collect();
    let said = examined_with(&server, &of_mutexes, "prefix=app:");
    said.must_say("rights_optional", "warning", &of_kinds);
    said.must_say("rights_optional", "warning", &["may overtake"]);
    said.must_only_find(&[
        "fair_semaphore",
        "persistence",
        "read_lock",
        "rights_optional",
        "semaphore",
    ]);
    // Only the format `redisson` has other kinds of locks than mutexes.
    let of_token = ["&distlock_lock__channel:*", "+getex"];
    let said = examined_with(&server, &of_token, "prefix=app:&format=token");
    said.must_say(
        "rights_optional",
        "warning",
        &["lacks ~distlock_queue:* +zadd;"],
    );
    said.must_only_find(&["persistence", "rights_optional"]);
}

#[test]
fn missing_rights_to_be_woken_are_warnings() {
    let server = RedisServer::start_with(&GOOD);
    let rule = distlock_tests::rights::documented();
    examined_with(&server, &rule[1..], "prefix=app:");
    let lacking = ["resetchannels", "-client|tracking", "-client|setname"];
    let said = examined_with(&server, &lacking, "prefix=app:");
    said.must_say(
        "rights_optional",
        "warning",
        &["&redisson_lock__channel:*", "+client|setname"],
    );
    said.must_say(
        "tracking",
        "warning",
        &["client|tracking", "`tracking=off`"],
    );
    said.must_only_find(&["persistence", "rights_optional", "tracking"]);
    let said = examined_with(&server, &[], "prefix=app:&tracking=off");
    said.must_only_find(&["persistence", "rights_optional"]);
}

#[test]
fn missing_right_to_labels_is_a_warning() {
    let server = RedisServer::start_with(&GOOD);
    let rule: Vec<_> = distlock_tests::rights::documented();
    let rule: Vec<_> = rule
        .into_iter()
        .filter(|word| *word != "~distlock_owner:*")
        .collect();
    let said = examined_with(&server, &rule[1..], "prefix=app:");
    let mend = "`ACL SETUSER locker ~distlock_owner:*`";
    said.must_say(
        "rights_optional",
        "warning",
        &["lacks ~distlock_owner:*", "no label", mend],
    );
    said.must_only_find(&["persistence", "rights_optional"]);
}

#[test]
fn renamed_commands_are_found_as_behind_a_proxy() {
    let renamed = |command| {
        RedisServer::start_with(&[&GOOD[..], &["--rename-command", command, ""]].concat())
    };
    let server = renamed("EVALSHA");
    let said = Examined::at(&url(&server, ""));
    said.must_say("commands", "danger", &["EVALSHA", "proxy"]);
    let server = renamed("EVAL");
    Examined::at(&url(&server, "")).must_say("commands", "danger", &["no script", "EVAL"]);
    let server = renamed("CLIENT");
    let said = Examined::at(&url(&server, ""));
    said.must_say(
        "commands",
        "warning",
        &["CLIENT SETNAME", "CLIENT TRACKING"],
    );
    said.must_say("tracking", "warning", &["unknown command"]);
    let server = renamed("TIME");
    Examined::at(&url(&server, "")).must_say("commands", "danger", &["TIME"]);
    let said = Examined::at(&url(&server, "tokens=off"));
    said.must_say("commands", "warning", &["TIME"]);
    said.must_say("mutex", "ok", &[]);
    said.must_say("semaphore", "danger", &["TIME"]);
    let server = renamed("CONFIG");
    let said = Examined::at(&url(&server, ""));
    said.must_say("persistence", "unknown", &["CONFIG is refused"]);
    said.must_only_find(&["persistence"]);
}

#[test]
fn clock_of_a_server_that_is_wrong_is_found() {
    let clock = TimeOfDay::new();
    let server = RedisServer::start_on(&clock);
    Examined::at(&url(&server, "")).must_say("clock", "ok", &[]);
    clock.set(90_000);
    let said = Examined::at(&url(&server, ""));
    said.must_say(
        "clock",
        "warning",
        &["90.", "s ahead of this machine's", "chrony"],
    );
    // In this format locks depend on the clocks of the clients.
    let said = Examined::at(&url(&server, "format=timestamp"));
    said.must_say("clock", "danger", &["takes a held lock"]);
}

#[test]
fn slow_network_is_a_danger_beside_short_limits() {
    let server = RedisServer::start_with(&GOOD);
    let far = Distance::new(server.port(), Duration::from_millis(60));
    let url = |options: &str| format!("redis://127.0.0.1:{}?{options}", far.port());
    Examined::at(&url("command_timeout=10s&outage_limit=10s")).must_say("latency", "ok", &["p99"]);
    let said = Examined::at(&url("command_timeout=300ms"));
    said.must_say("latency", "warning", &["p50", "command_timeout=300ms"]);
    let said = Examined::at(&url("watchdog=500ms&command_timeout=150ms"));
    said.must_say(
        "latency",
        "danger",
        &["lease of 500ms", "raise `command_timeout`"],
    );
}

#[test]
fn doctor_without_a_store_says_why() {
    let server = RedisServer::start();
    for (url, status, says) in [
        (
            "redis://127.0.0.1:1".to_owned(),
            69,
            "check that the store is up",
        ),
        (
            server.url_as("locker:wrong-pass"),
            78,
            "does not accept the password",
        ),
        ("memory://".to_owned(), 78, "refused"),
    ] {
        let mut child = Example::distlock(&["doctor", "--url", &url]).spawn();
        assert_eq!(child.wait_exit(SOON), status, "{}", child.errors());
        let errors = child.errors();
        assert!(
            errors.contains(says) && !errors.contains("wrong-pass"),
            "{errors}"
        );
        assert_eq!(child.output(), "");
    }
    server.probe().command(&["ACL", "LOG", "RESET"]);
}

#[test]
fn report_fits_eighty_columns_without_colours_in_a_pipe() {
    let server =
        RedisServer::start_with(&["--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru"]);
    let mut child = Example::distlock(&["doctor", "--url", &url(&server, "prefix=app:")]).spawn();
    assert_eq!(child.wait_exit(SOON), 1);
    let report = child.output();
    assert!(
        report.starts_with("danger   eviction (127.0.0.1:"),
        "{report}"
    );
    assert!(report.contains("\n         fix: `CONFIG SET maxmemory-policy noeviction` on 127"));
    assert!(
        report.lines().all(|line| line.chars().count() <= 80),
        "{report}"
    );
    assert!(!report.contains('\x1b'), "{report}");
    assert!(
        report
            .trim_end()
            .ends_with("2 dangers, 0 warnings, 0 unknown, 15 ok"),
        "{report}"
    );
}

/// Returns a deployment's URL for the user with all rights.
fn for_all_rights(url: &str) -> String {
    url.replace(&format!("{LOGIN}@"), "")
}

#[test]
fn sentinel_deployment_passes_if_good_and_each_fault_is_found() {
    let group = Group::start_with(1, 3);
    let url = for_all_rights(&group.url());
    for server in &group.servers {
        server.configure([["appendonly", "yes"], ["appendfsync", "always"]]);
    }
    let said = Examined::at(&url);
    let mend = "`CONFIG SET min-replicas-to-write 1`";
    said.must_say("min_replicas", "danger", &["cut off", mend, "`replicas=1`"]);
    said.must_only_find(&["min_replicas"]);
    Examined::at(&format!("{url}?replicas=1")).must_only_find(&[]);
    for server in &group.servers {
        server.configure([["min-replicas-to-write", "1"]]);
    }
    let said = Examined::at(&url);
    said.must_say(
        "min_replicas",
        "warning",
        &["min-replicas-max-lag is 10", "for 10 s"],
    );
    for server in &group.servers {
        server.configure([["min-replicas-max-lag", "1"]]);
    }
    let good = Examined::at(&url);
    good.must_only_find(&[]);
    for id in [
        "sentinels",
        "sentinel_agreement",
        "sentinel_quorum",
        "sentinel_down_after",
    ] {
        assert_eq!(good.all(id, "ok").len(), 1, "{id}");
    }
    let short = Examined::at(&format!("{url}?watchdog=5s"));
    short.must_say(
        "sentinel_down_after",
        "warning",
        &["lease of 5s", "`watchdog="],
    );
    for sentinel in &group.sentinels {
        let set = ["SENTINEL", "SET", group.name(), "quorum", "7"];
        assert_eq!(sentinel.probe().command(&set).text(), "OK");
    }
    let said = Examined::at(&url);
    said.must_say(
        "sentinel_quorum",
        "warning",
        &["quorum 7 of 3", "ever replaced"],
    );
}

#[test]
fn sentinels_and_replicas_that_are_gone_are_warnings() {
    let mut group = Group::steady();
    let url = for_all_rights(&group.url());
    group.sentinels[1].kill();
    let gone = format!("127.0.0.1:{}", group.sentinels[1].port());
    let said = Examined::at(&url);
    said.must_say(
        "sentinel_reachable",
        "warning",
        &["Connection refused", "correct the URL"],
    );
    assert!(
        said.findings.iter().any(|it| it["subject"] == gone),
        "{:#?}",
        said.findings
    );
    let one = Group::start_with(0, 1);
    let said = Examined::at(&for_all_rights(&one.url()));
    said.must_say("sentinels", "warning", &["1 know", "three or five"]);
    said.must_say(
        "replicas",
        "warning",
        &["0 connected", "no server can take the master's"],
    );
}

#[test]
fn replica_that_sentinels_hold_for_down_is_a_warning() {
    let mut group = Group::start_with(2, 3);
    let url = for_all_rights(&group.url());
    group.servers[2].kill();
    let gone = format!("127.0.0.1:{}", group.servers[2].port());
    let said = eventually("the sentinels notice", SOON, || {
        let said = Examined::at(&url);
        (!said.all("sentinel_replicas", "warning").is_empty()).then_some(said)
    });
    said.must_say("sentinel_replicas", "warning", &[&gone, "`SENTINEL RESET"]);
}

#[test]
fn cluster_passes_if_good_and_each_fault_is_found() {
    let mut cluster = Cluster::start_with(&GOOD);
    let url = for_all_rights(&cluster.url());
    let said = Examined::at(&url);
    said.must_say("min_replicas", "danger", &["cut off"]);
    assert_eq!(said.all("min_replicas", "danger").len(), 3);
    for node in 0..cluster.len() {
        let node = cluster.node(node);
        node.configure([
            ["min-replicas-max-lag", "1"],
            ["min-replicas-to-write", "1"],
        ]);
    }
    let good = Examined::at(&url);
    good.must_only_find(&[]);
    assert_eq!(good.all("persistence", "ok").len(), 3);
    assert_eq!(good.all("clocks", "ok").len(), 1);
    // This right is needed only on a cluster.
    let lacking = cluster.url_as(
        "limited:SECRET",
        &["on", ">SECRET", "~*", "&*", "+@all", "-asking"],
    );
    Examined::at(&lacking).must_say("rights", "danger", &["`ACL SETUSER limited +asking`"]);

    let replica = cluster.replica_of(0);
    cluster.node_mut(replica).kill();
    eventually("the master notices", SOON, || {
        let mut probe = cluster.node(0).probe();
        probe
            .info_field("replication", "connected_slaves")
            .as_deref()
            == Some("0")
    });
    let said = Examined::at(&url);
    said.must_say("replicas", "warning", &["0 connected"]);
    said.must_say("min_replicas", "danger", &["takes no writes"]);

    for node in (0..cluster.len()).filter(|node| *node != replica) {
        let mut probe = cluster.node(node).probe();
        assert_eq!(probe.command(&["CLUSTER", "DELSLOTS", "0"]).text(), "OK");
    }
    eventually("the cluster is down", SOON, || {
        let mut probe = cluster.node(1).probe();
        probe
            .command(&["CLUSTER", "INFO"])
            .text()
            .contains("cluster_state:fail")
    });
    let said = Examined::at(&url);
    said.must_say(
        "cluster_slots",
        "danger",
        &["1 slots have no master", "--cluster fix"],
    );
    said.must_say("cluster_state", "danger", &["is fail", "no writes"]);
}

#[test]
fn cluster_replicas_that_are_down_are_a_warning() {
    let mut cluster = Cluster::start();
    let url = for_all_rights(&cluster.url());
    let replica = cluster.replica_of(0);
    let gone = format!("127.0.0.1:{}", cluster.node(replica).port());
    cluster.node_mut(replica).kill();
    let said = eventually("the masters notice", SOON, || {
        let said = Examined::at(&url);
        (!said.all("cluster_nodes", "warning").is_empty()).then_some(said)
    });
    said.must_say(
        "cluster_nodes",
        "warning",
        &[&gone, "the place of their masters"],
    );
}

#[test]
fn cluster_node_that_is_gone_is_a_danger() {
    let mut cluster = Cluster::steady();
    let url = for_all_rights(&cluster.url_of(&[1, 2]));
    let gone = format!("127.0.0.1:{}", cluster.node(0).port());
    cluster.node_mut(0).kill();
    let said = Examined::at(&url);
    said.must_say(
        "cluster_node",
        "danger",
        &["Connection refused", "cannot be taken"],
    );
    let subjects = said
        .findings
        .iter()
        .filter(|finding| finding["id"] == "cluster_node");
    assert_eq!(
        subjects.map(|it| it["subject"].clone()).collect::<Vec<_>>(),
        [gone]
    );
}

#[test]
fn quorum_passes_if_good_and_each_fault_is_found() {
    let mut quorum = Servers::with(3, 0, quorum::LONGEST);
    let url = for_all_rights(&quorum.url);
    let good = Examined::at(&url);
    good.must_only_find(&[]);
    assert_eq!(
        good.all("quorum", "ok"),
        ["3 of 3 servers vote, and 2 are needed; -; -"]
    );
    assert_eq!(good.all("eviction", "ok").len(), 3);
    // The URL differs from the terms with which the quorum was set up.
    let other = url.replace("max_lease=10m", "max_lease=9m");
    Examined::at(&other).must_say("quorum", "danger", &["0 of 3 servers vote"]);
    let durable = Examined::at(&format!("{url}&durable=yes"));
    durable.must_say("persistence", "danger", &["durable=yes", "appendonly yes"]);
    quorum.servers[0].configure([["maxmemory-policy", "allkeys-lru"]]);
    let said = Examined::at(&url);
    said.must_say("eviction", "danger", &["allkeys-lru"]);
    said.must_say("quorum_node", "warning", &["noeviction", "does not count"]);
    quorum.servers[0].configure([["maxmemory-policy", "noeviction"]]);
    quorum.restart(0);
    let said = Examined::at(&url);
    said.must_say("quorum_node", "warning", &["has no marker"]);
    assert_eq!(said.status, 0);
    quorum.servers[1].kill();
    let said = Examined::at(&url);
    said.must_say("quorum", "danger", &["1 of 3", "no lock can be taken"]);
    said.must_say(
        "quorum_node",
        "warning",
        &["Connection refused", "fewer servers may fail"],
    );
}

#[test]
fn quorum_that_is_not_set_up_is_a_danger() {
    let servers: Vec<_> = (0..4).map(|_| quorum::start()).collect();
    let places: Vec<_> = servers
        .iter()
        .map(|server| quorum::place(server.port()))
        .collect();
    let said = Examined::at(&for_all_rights(&quorum::url(&places, "")));
    said.must_say(
        "quorum",
        "danger",
        &["not set up", "`distlock quorum init`"],
    );
    said.must_say("quorum_size", "warning", &["4 servers", "than 3"]);
    said.must_only_find(&["quorum", "quorum_size"]);
}

#[test]
fn clocks_of_a_quorum_that_differ_are_a_danger() {
    let clock = TimeOfDay::new();
    let servers = [
        RedisServer::start_on(&clock),
        RedisServer::start(),
        RedisServer::start(),
    ];
    servers.iter().for_each(quorum::admit);
    let places: Vec<_> = servers
        .iter()
        .map(|server| quorum::place(server.port()))
        .collect();
    quorum::set_up(&places, "max_lease=1m");
    let url = for_all_rights(&quorum::url(&places, "max_lease=1m"));
    Examined::at(&url).must_only_find(&[]);
    clock.set(70_000);
    let said = Examined::at(&url);
    said.must_say("clocks", "danger", &["max_lease", "chrony"]);
    said.must_say("clock", "danger", &["ahead of this machine's"]);
    clock.set(5_000);
    Examined::at(&url).must_say("clocks", "warning", &["fencing tokens"]);
}

#[test]
fn backend_that_fails_does_not_hide_findings_of_others() {
    let server = RedisServer::start_with(&GOOD);
    let (dead, good) = ("redis://127.0.0.1:1?command_timeout=1s", url(&server, ""));
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!("[backends.a]\nurl = '{dead}'\n[backends.b]\nurl = '{good}'\n");
    std::fs::write(file.path(), text).unwrap();
    let words = [
        "doctor",
        "--json",
        "--config",
        file.path().to_str().unwrap(),
    ];
    let mut child = Example::distlock(&words).spawn();
    assert_eq!(child.wait_exit(SOON), 69, "{}", child.output());
    let json: Json = serde_json::from_str(&child.output()).expect("the findings");
    assert!(!json["findings"].as_array().expect("a list").is_empty());
    assert!(
        only_error(&child).contains("check that the store is up"),
        "{}",
        child.errors()
    );
}

#[test]
fn clock_of_a_replica_that_is_ahead_is_a_danger() {
    let clock = TimeOfDay::new();
    let servers = Replicated::start_on(&[Some(&clock)]);
    let url = url(&servers.master, "replicas=1&watchdog=30s");
    Examined::at(&url).must_say("replica_clock", "ok", &["of its master's"]);
    let place = format!("127.0.0.1:{}", servers.replicas[0].port());
    for (ahead, level, seen) in [
        (40_000, "danger", "40.0s ahead of its master's"),
        (5_000, "danger", "5.0s ahead of its master's"),
        (2_000, "warning", "2.0s ahead of its master's"),
        (-40_000, "ok", "40.0s behind its master's"),
    ] {
        clock.set(ahead);
        let said = Examined::at(&url);
        said.must_say("replica_clock", level, &[seen]);
        let found = said
            .findings
            .iter()
            .find(|it| it["id"] == "replica_clock")
            .expect("one");
        assert_eq!(found["subject"], place);
    }
    clock.set(40_000);
    let said = Examined::at(&url);
    said.must_say(
        "replica_clock",
        "danger",
        &["another client", "10.0s", "chrony"],
    );
    servers.replicas[0]
        .probe()
        .command(&["ACL", "SETUSER", "default", "-time"]);
    let said = Examined::at(&url);
    said.must_say(
        "replica_clock",
        "unknown",
        &["TIME is refused", "synchronised"],
    );
    servers.replicas[0]
        .probe()
        .command(&["ACL", "LOG", "RESET"]);
}

#[test]
fn accepted_findings_are_shown_and_are_no_danger() {
    let server =
        RedisServer::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    let run = |options: &[&str]| {
        let words = [&["doctor"], options].concat();
        let child = Example::distlock(&words).env("DISTLOCK_URL", &url(&server, ""));
        let mut child = child.spawn();
        (child.wait_exit(SOON), child.output(), child.errors())
    };
    let (status, output, _) = run(&[]);
    assert!(
        status == 1 && output.contains("danger   eviction"),
        "{output}"
    );
    let (status, output, errors) = run(&["--accept", "eviction,persistence"]);
    assert!(
        status == 0 && output.contains("accepted eviction"),
        "{output}"
    );
    assert!(
        output.contains("0 dangers") && output.contains("2 accepted"),
        "{output}"
    );
    assert_eq!(errors, "");
    let (status, json, errors) = run(&["--accept", "evicton", "--json"]);
    assert_eq!(status, 1);
    assert!(errors.contains("--accept evicton: no finding"), "{errors}");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["findings"][0]["accepted"], false);
}

#[test]
fn clock_of_a_replica_out_of_reach_is_unknown() {
    let announced = [
        "--replica-announce-ip",
        "127.0.0.1",
        "--replica-announce-port",
        "1",
    ];
    let master = RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]);
    let of = ["--replicaof", "127.0.0.1", &master.port().to_string()];
    let replicas = vec![RedisServer::start_with(&[&of[..], &announced].concat())];
    let servers = Replicated { master, replicas };
    servers.must_be_in_sync();
    let said = Examined::at(&url(&servers.master, "replicas=1"));
    said.must_say(
        "replica_clock",
        "unknown",
        &["could not be asked", "127.0.0.1:1"],
    );
}

/// `ACL SETUSER` refuses a pattern beside `&*`.
#[test]
fn remedy_for_rights_can_be_carried_out_by_a_user_of_all_channels() {
    let server = RedisServer::start_with(&GOOD);
    let few = [
        "~*", "&*", "-@all", "+get", "+set", "+ping", "+eval", "+info",
    ];
    let mut said = examined_with(&server, &few, "");
    for _round in 0..4 {
        for id in ["rights", "rights_optional"] {
            let remedies = said
                .all(id, "danger")
                .into_iter()
                .chain(said.all(id, "warning"));
            for remedy in remedies.collect::<Vec<_>>() {
                let rules = remedy.split("ACL SETUSER locker ").nth(1).expect("a line");
                let rules = rules.split('`').next().expect("its end");
                let rules: Vec<_> = rules.split(' ').collect();
                said = examined_with(&server, &rules, "");
            }
        }
    }
    said.must_say("rights", "ok", &[]);
    assert_eq!(said.all("rights_optional", "warning"), [""; 0]);
}
