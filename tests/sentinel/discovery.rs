//! The discovery of the master through the sentinels.

use crate::fake_sentinel::Liar;
use crate::scene::{SOON, await_usable, client, connect, take};
use distlock::backend::{Backend, ClientId, Context};
use distlock::config::{Credentials, CredentialsProvider};
use distlock::time::{Clock, SystemClock};
use distlock::{Config, Error, LockName};
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::sentinel::{Group, fresh_name, url};
use distlock_tests::time::{always, eventually, within};

use lock_redis::SentinelBackend;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const SECRET: &str = "pl4nted-s3cret";

/// Returns the error of the first attempt on this store.
#[track_caller]
fn refusal(url: &str) -> Error {
    connect(url).mutex("x").unwrap().try_lock().unwrap_err()
}

#[test]
fn hanging_sentinel_does_not_delay_discovery() {
    let group = Group::start();
    group.sentinels[0].pause();
    let client = client(&group, "command_timeout=10s&connect_timeout=10s");
    let find = || {
        thread::scope(|scope| {
            for number in 0..8 {
                let lock = client.mutex(format!("hangs{number}")).unwrap();
                scope.spawn(move || take(&lock).unlock().unwrap());
            }
        });
    };
    within(Duration::from_secs(1), find);
    group.sentinels[0].resume();
}

#[test]
fn hanging_sentinels_delay_no_call_past_its_deadline() {
    let group = Group::start_with(0, 1);
    group.sentinels[0].pause();
    let lock = client(&group, "command_timeout=300ms").mutex("x").unwrap();
    let error = within(Duration::from_secs(1), || lock.try_lock()).unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(
        error
            .to_string()
            .contains(&group.sentinels[0].port().to_string()),
        "{error:?}"
    );
    group.sentinels[0].resume();
}

#[test]
fn unknown_master_name_is_refused_with_the_known_names() {
    let group = Group::start_with(0, 1);
    let error = refusal(&group.url().replace(group.name(), "nomaster"));
    assert!(error.is_configuration(), "{error:?}");
    for said in [
        "`nomaster`",
        &format!("`{}`", group.name()),
        &group.sentinels[0].port().to_string(),
    ] {
        assert!(error.to_string().contains(said), "{error:?} lacks {said}");
    }
}

/// Starts a group whose only sentinel requires a password and has the user with the least rights
/// from OPERATIONS.
fn guarded() -> Group {
    let group = Group::start_with(0, 1);
    let operations = include_str!("../../docs/OPERATIONS.md");
    let rule = operations
        .lines()
        .find(|line| line.starts_with("ACL SETUSER watcher "));
    let rule: Vec<_> = rule
        .expect("the document has the rule")
        .split(' ')
        .collect();
    let mut probe = group.sentinels[0].probe();
    assert_eq!(probe.command(&rule).text(), "OK");
    assert_eq!(
        probe
            .command(&["ACL", "SETUSER", "default", ">another"])
            .text(),
        "OK"
    );
    group
}

#[test]
fn sentinels_have_users_and_passwords_of_their_own() {
    let group = guarded();
    let url = group.url();
    for options in [
        "sentinel_password=another",
        "sentinel_user=watcher&sentinel_password=SECRET",
    ] {
        let lock = connect(&format!("{url}?{options}")).mutex("x").unwrap();
        take(&lock).unlock().unwrap();
    }
    for options in [
        "",
        "?sentinel_password=wrong",
        "?sentinel_user=me&sentinel_password=wrong",
    ] {
        let error = refusal(&format!("{url}{options}"));
        assert!(error.is_configuration(), "{error:?}");
        assert!(error.to_string().contains("sentinel_password"), "{error:?}");
        assert!(error.to_string().contains("a sentinel"), "{error:?}");
    }
    // The sentinel refused the user no command. Its ACL log can be read only after `AUTH`.
    let mut probe = group.sentinels[0].probe();
    assert_eq!(probe.command(&["AUTH", "another"]).text(), "OK");
    let log = format!("{:?}", probe.command(&["ACL", "LOG"]));
    assert!(!log.contains("\"watcher\""), "{log}");
}

/// Provides the password of the servers and the password of the sentinels.
struct Vault;

impl CredentialsProvider for Vault {
    fn credentials(&self, _: &str) -> Result<Credentials, Error> {
        Ok(Credentials::new("SECRET").with_user("locker"))
    }

    fn sentinel_credentials(&self, _: &str) -> Result<Option<Credentials>, Error> {
        Ok(Some(Credentials::new("another")))
    }
}

#[test]
fn sentinel_password_is_read_from_a_file_or_a_provider() {
    let group = guarded();
    let file = std::env::temp_dir().join(fresh_name());
    std::fs::write(&file, "another\n").unwrap();
    let url = format!("{}?sentinel_password_file={}", group.url(), file.display());
    let lock = connect(&url).mutex("x").unwrap();
    take(&lock).unlock().unwrap();
    std::fs::remove_file(&file).unwrap();
    let missing = distlock::connect(&url).unwrap_err();
    assert!(missing.is_configuration(), "{missing:?}");
    assert!(
        missing.to_string().contains("`sentinel_password_file="),
        "{missing:?}"
    );

    let url = group.url().replace("locker:SECRET@", "");
    let config = Config::from_url(&url)
        .unwrap()
        .with_credentials(Arc::new(Vault));
    let client = distlock::builder().config(config).connect().unwrap();
    let lock = client.mutex("x").unwrap();
    take(&lock).unlock().unwrap();
}

#[test]
fn sentinel_password_is_never_shown() {
    let group = guarded();
    let client = connect(&format!("{}?sentinel_password={SECRET}", group.url()));
    let error = client.mutex("x").unwrap().try_lock().unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    let shown = format!("{client:?} {client:#?} {error} {error:?} {source:?}");
    assert!(
        !shown.contains(SECRET) && shown.contains("a sentinel"),
        "{shown}"
    );
}

#[test]
fn server_in_a_sentinel_url_is_reported_with_its_own_url() {
    let server = RedisServer::start();
    let error = refusal(&url("mymaster", &[server.port()]).replace("locker:SECRET@", ""));
    assert!(error.is_configuration(), "{error:?}");
    let right = format!("`redis://127.0.0.1:{}`", server.port());
    let said = error.to_string();
    assert!(
        said.contains("is no Sentinel") && said.contains(&right),
        "{error:?}"
    );
    let unused = free_port();
    let error = refusal(&url("mymaster", &[unused]));
    assert!(
        error.is_unavailable() && error.to_string().contains(&unused.to_string()),
        "{error:?}"
    );
}

#[test]
fn sentinel_in_a_server_url_is_reported_with_its_own_url() {
    let group = Group::start();
    let port = group.sentinel_ports()[0];
    let url = group.url();
    let master = url.split('?').next().unwrap().rsplit('/').next().unwrap();
    let right = format!("`redis+sentinel://127.0.0.1:{port}/{master}`");
    for url in [
        format!("redis://127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}/1"),
        format!("redis://127.0.0.1:{port}?format=token"),
        format!("redis://127.0.0.1:{port}?format=token&tokens=off"),
        format!("redis://127.0.0.1:{port}?format=plain&lease=10s"),
    ] {
        let error = refusal(&url);
        assert!(error.is_configuration(), "{url}: {error:?}");
        let said = error.to_string();
        assert!(
            said.contains("is a Sentinel") && said.contains(&right),
            "{url}: {error:?}"
        );
    }
}

#[test]
fn sentinels_listed_by_other_sentinels_are_asked() {
    let mut group = Group::start();
    let client = connect(&group.url_of(&group.sentinel_ports()[..1]));
    let lock = client.mutex("told-of").unwrap();
    take(&lock).unlock().unwrap();
    group.sentinels[0].kill();
    group.servers[0].kill();
    await_usable(&lock);
}

#[test]
fn sentinels_of_a_later_epoch_outvote_an_outdated_one() {
    let group = Group::start();
    let stranger = RedisServer::start();
    // The liar comes first in the URL, and its epoch is from before the first failover.
    let old = group.fail_over();
    let new = group.await_other_than(old);
    let liar = Liar::naming(stranger.port(), 0);
    let ports = [&[liar.port()], &group.sentinel_ports()[..]].concat();
    for _ in 0..5 {
        let lock = connect(&group.url_of(&ports)).mutex("liar").unwrap();
        let guard = take(&lock);
        assert!(!stranger.probe().exists("liar"));
        assert!(group.servers[new].probe().exists("liar"));
        guard.unlock().unwrap();
    }
}

#[test]
fn replica_named_as_master_by_a_sentinel_grants_no_lock() {
    let group = Group::start();
    let liar = Liar::naming(group.servers[1].port(), 9);
    let client = connect(&format!("{}?command_timeout=3s", liar.url()));
    let lock = client.mutex("replica").unwrap();
    let error = within(Duration::from_secs(4), || lock.try_lock()).unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    assert!(error.to_string().contains("is a replica of"), "{error:?}");
}

#[test]
fn client_does_not_follow_a_sentinel_with_an_older_epoch() {
    let group = Group::start();
    let old = group.fail_over();
    let new = group.await_other_than(old);
    group.await_quiet(2);
    let stranger = RedisServer::start();
    let liar = Liar::naming(stranger.port(), 0);
    let ports = [&[liar.port()], &group.sentinel_ports()[..]].concat();
    let client = connect(&format!("{}?watchdog=3s", group.url_of(&ports)));
    let lock = client.mutex("later").unwrap();
    let guard = take(&lock);
    // Only the liar answers from now on, and every failed request queries it.
    group.sentinels.iter().for_each(RedisServer::pause);
    group.servers[new]
        .probe()
        .command(&["CLIENT", "KILL", "TYPE", "normal"]);
    always(
        "the lock stays on its master",
        Duration::from_secs(2),
        || guard.is_valid() && !stranger.probe().exists("later"),
    );
    group.sentinels.iter().for_each(RedisServer::resume);
    guard.unlock().unwrap();
}

#[test]
fn master_announced_by_host_name_is_found() {
    let group = Group::start_with(0, 0);
    let (port, name) = (group.servers[0].port(), fresh_name());
    let settings = format!(
        "sentinel resolve-hostnames yes\nsentinel announce-hostnames yes\n\
         sentinel monitor {name} localhost {port} 1\n"
    );
    let sentinel = RedisServer::start_sentinel(&settings);
    let named = sentinel
        .probe()
        .command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &name])
        .texts();
    assert_eq!(named[0], "localhost");
    take(&connect(&url(&name, &[sentinel.port()])).mutex("x").unwrap())
        .unlock()
        .unwrap();
}

#[test]
fn database_of_a_sentinel_url_is_used() {
    let group = Group::start_with(0, 1);
    let lock = client(&group, "db=3").mutex("third").unwrap();
    let guard = take(&lock);
    let mut probe = group.probe();
    assert!(!probe.exists("third"));
    probe.command(&["SELECT", "3"]);
    assert!(probe.exists("third"));
    guard.unlock().unwrap();
}

#[test]
fn url_without_sentinels_or_a_master_is_refused() {
    for url in [
        "redis+sentinel://",
        "redis+sentinel://a",
        "redis+sentinel:///m",
    ] {
        let error = distlock::connect(url).unwrap_err();
        assert!(
            error.is_configuration() && error.to_string().contains("mymaster"),
            "{error:?}"
        );
    }
    let error = distlock::connect("redis+sentinel://a/m?db=x").unwrap_err();
    assert!(error.to_string().contains("`db=x`"), "{error:?}");
}

#[test]
fn connection_used_for_the_role_check_serves_requests() {
    let group = Group::start_with(0, 1);
    let lock = client(&group, "").mutex("x").unwrap();
    let mut probe = group.probe();
    let before = probe.stat("total_connections_received");
    take(&lock).unlock().unwrap();
    assert_eq!(probe.stat("total_connections_received"), before + 1);
    assert_eq!(probe.command_calls("role"), 0, "INFO tells the role, too");
}

#[test]
fn replicas_that_may_be_promoted_are_counted() {
    let mut group = Group::start();
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let config = Config::from_url(&group.url()).unwrap();
    let backend = SentinelBackend::new(&config, &context).unwrap();
    assert_eq!(backend.replicas(), None);
    let name = LockName::new("x").unwrap();
    backend
        .inspect(&name, SystemClock.now() + Duration::from_secs(10))
        .unwrap();
    assert_eq!(backend.replicas(), Some(2));
    group.servers[2].kill();
    eventually("one is down", SOON, || backend.replicas() == Some(1));
    group.servers[2].restart();
    eventually("it is back", SOON, || backend.replicas() == Some(2));
}

#[test]
fn servers_and_sentinels_on_tls_are_found() {
    use distlock_tests::authority::Authority;
    let authority = Authority::new();
    let (_server, port) = authority.server("127.0.0.1", 2090, "no", &[]);
    let (sentinel_port, name) = (free_port(), fresh_name());
    let [ca, cert, key] = ["ca.crt", "server.crt", "server.key"].map(|file| authority.file(file));
    let _sentinel = RedisServer::start_sentinel(&format!(
        "tls-port {sentinel_port}\ntls-ca-cert-file {ca}\ntls-cert-file {cert}\ntls-key-file {key}\n\
         tls-auth-clients no\ntls-replication yes\nsentinel monitor {name} 127.0.0.1 {port} 1\n"
    ));
    let url = url(&name, &[sentinel_port]).replace("redis+", "rediss+");
    let lock = connect(&format!("{url}?tls_ca={ca}")).mutex("x").unwrap();
    take(&lock).unlock().unwrap();
}
