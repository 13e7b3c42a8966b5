//! `config check`, and files that name backends and locks.

use crate::{SOON, only_error};
use distlock_tests::child::{Child, Example};
use distlock_tests::process::RedisServer;
use distlock_tests::quorum::{self, Servers};
use distlock_tests::time::eventually;
use serde_json::{Value as Json, json};
use std::io::Write;
use tempfile::NamedTempFile;

/// Creates a file with this text.
fn file(text: &str) -> NamedTempFile {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

/// Prepares a run of `distlock` with this file in the environment.
fn start(file: &NamedTempFile, words: &[&str]) -> Example {
    Example::distlock(words).env("DISTLOCK_CONFIG", file.path().to_str().unwrap())
}

/// Runs `distlock` to its end, and returns its status and all that it wrote, with `FILE` in place
/// of the file's path.
fn ask(file: &NamedTempFile, words: &[&str], variables: &[(&str, &str)]) -> (i32, String) {
    let child = start(file, words);
    let child = variables
        .iter()
        .fold(child, |child, (name, value)| child.env(name, value));
    let mut child = child.spawn();
    let status = child.wait_exit(SOON);
    // A failure writes a line to standard error, which may arrive after the end of the process.
    let errors = if status >= 64 {
        only_error(&child)
    } else {
        child.errors()
    };
    let said = child.output() + &errors;
    (status, said.replace(file.path().to_str().unwrap(), "FILE"))
}

const FILE: &str = "\
default = 'main'
[backends.main]
url = 'redis://me:s3cret@127.0.0.1:6379/3?pool=3&client_name=us&owner=off'
watchdog = '10s'
[backends.ledger]
url = 'redis+sentinel://s1,s2/mymaster?sentinel_password=s3cret'
[locks.nightly]
backend = 'ledger'
watchdog = '60s'
replicas = 'all'
[locks.'orders:*']
format = 'token'
";

#[test]
fn config_check_shows_each_value_and_its_source() {
    const LOCK: &str = "\
FILE
lock \"orders:7\": [locks.\"orders:*\"], on [backends.main]
  url                       redis://<redacted>@127.0.0.1:6379/3  line 3
  password_file             -                                    default
  watchdog                  7s                                   DISTLOCK_WATCHDOG
  lease                     -                                    default
  outage_limit              7s                                   watchdog
  hand_off                  5ms                                  default
  order                     any                                  default
  fair_presence             3s                                   default
  connect_timeout           2s                                   default
  command_timeout           2s                                   default
  pool                      3                                    line 3
  client_name               us                                   line 3
  owner                     off                                  line 3
  prefix                    \"\"                                   default
  writers                   first                                default
  tokens                    expire                               default
  token_retention           1h                                   default
  replicas                  off                                  default
  replication_timeout       1s                                   default
  on_insufficient_replicas  retry                                default
  unconfirmed_renewals      refuse                               default
  restart_grace             0s                                   default
  format                    token                                line 12";
    let file = file(FILE);
    let seven = [("DISTLOCK_WATCHDOG", "7s")];
    let (status, said) = ask(&file, &["config", "check", "--lock", "orders:7"], &seven);
    assert_eq!((status, said.as_str()), (0, LOCK));

    let (status, said) = ask(&file, &["config", "check"], &[]);
    assert_eq!(status, 0, "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    let sections = said
        .split("\n[")
        .map(|part| part.split('\n').next().unwrap());
    assert_eq!(
        sections.collect::<Vec<_>>(),
        [
            "FILE",
            "backends.main]",
            "backends.ledger]",
            "locks.nightly], on [backends.ledger]",
            "locks.\"orders:*\"], on [backends.main]",
        ]
    );
    // A section of locks shows only the settings that it changes.
    let nightly = said
        .split("[locks.nightly]")
        .nth(1)
        .unwrap()
        .split("\n[")
        .next()
        .unwrap();
    let names: Vec<_> = nightly
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(names, ["watchdog", "outage_limit", "replicas"], "{said}");

    let (_, lines) = ask(
        &file,
        &["config", "check", "--json", "--lock", "nightly"],
        &[],
    );
    assert!(!lines.contains("s3cret"), "{lines}");
    let rows: Vec<Json> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let row = |name: &str| {
        rows.iter()
            .find(|row| row["setting"] == name)
            .unwrap()
            .clone()
    };
    assert_eq!(
        row("watchdog"),
        json!({"backend": "ledger", "lock": "nightly", "setting": "watchdog", "value": "1m",
               "source": "FILE, line 9"})
    );
    assert_eq!(row("sentinel_password")["value"], "<redacted>");
    assert_eq!(row("lease")["value"], Json::Null);
}

#[test]
fn config_check_shows_what_the_environment_alone_says() {
    let mut child = Example::distlock(&["config", "check", "--lock", "it"])
        .env("DISTLOCK_URL", "redis://u:s3cret@h?pool=2")
        .env("DISTLOCK_POOL", "5")
        .spawn();
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    let said = child.output();
    let row = |name: &str| {
        let line = said
            .lines()
            .find(|line| line.trim_start().starts_with(name))
            .unwrap();
        line.split_whitespace()
            .skip(1)
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(row("url"), "redis://<redacted>@h DISTLOCK_URL");
    assert_eq!(row("pool"), "5 DISTLOCK_POOL");
    assert!(said.starts_with("lock \"it\": no section of its own, on the default backend\n"));
    for words in [&["config", "check"][..], &["check", "it"]] {
        let mut misspelt = Example::distlock(words)
            .env("DISTLOCK_URL", "redis://h")
            .env("DISTLOCK_WACHDOG", "7s")
            .spawn();
        assert_eq!(misspelt.wait_exit(SOON), 78);
        assert!(only_error(&misspelt).contains("did you mean DISTLOCK_WATCHDOG?"));
    }
}

#[test]
fn config_check_refuses_by_file_line_and_key() {
    for (from, to, says) in [
        (
            "replicas =",
            "replcas =",
            "FILE, line 10: a lock has no option `replcas` (did you mean",
        ),
        (
            "= 'ledger'",
            "= 'legder'",
            "FILE, line 8: there is no backend `legder` (did you mean",
        ),
        (
            "'10s'",
            "'soon'",
            "FILE, line 4: `watchdog=soon` is not a duration",
        ),
        (
            "'token'",
            "'tokn'",
            "FILE, line 12: there is no format `tokn`; there are `redisson`",
        ),
        (
            "redis://",
            "reds://",
            "FILE, line 3: there is no scheme `reds://` (did you mean",
        ),
        (
            "pool=3",
            "pol=3",
            "FILE, line 3: there is no option `pol` for `redis://` (did you",
        ),
        ("default =", "default ", "FILE, line 1: not TOML: "),
        (
            "127.0.0.1",
            "a,b",
            "FILE, line 3: `redis://` means one server",
        ),
    ] {
        let wrong = file(&FILE.replace(from, to));
        let words = [
            &["config", "check"][..],
            &["run", "nightly", "--", "true"],
            &["doctor"],
        ];
        for words in words {
            let (status, said) = ask(&wrong, words, &[]);
            assert_eq!(status, 78, "{said}");
            assert!(
                said.starts_with(&format!("distlock: {says}")),
                "{words:?}: {said}"
            );
            assert!(
                !said.contains("s3cret") && said.lines().count() == 1,
                "{said}"
            );
        }
    }
    let file = file(FILE);
    let (status, said) = ask(&file, &["quorum", "init", "redlock:/u:s3cret@h"], &[]);
    assert!(status == 78 && said.contains("looks like a URL"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    let (status, said) = ask(&file, &["config", "check"], &[("DISTLOCK_WACHDOG", "7s")]);
    assert!(
        status == 78 && said.contains("did you mean DISTLOCK_WATCHDOG?"),
        "{said}"
    );
    let mut odd = Example::distlock(&["config", "check", "/nosuch/\u{1b}[2J"]).spawn();
    assert_eq!(odd.wait_exit(SOON), 78);
    assert!(
        only_error(&odd).contains(r"/nosuch/\u001b[2J"),
        "{:?}",
        odd.errors()
    );
    let mut missing = Example::distlock(&["config", "check", "/nosuch/file"]).spawn();
    assert_eq!(missing.wait_exit(SOON), 78);
    assert!(only_error(&missing).contains("cannot read the settings in /nosuch/file"));
}

/// Starts a command that holds the lock of this name until its input ends.
fn holder(file: &NamedTempFile, name: &str) -> Child {
    let script = "echo '{\"pid\": 0}'; read -r _; exit 0";
    let mut child = start(file, &["run", name, "-c", script])
        .env("SHELL", "/bin/sh")
        .spawn();
    child.expect("it holds", SOON, |json| json["pid"].as_i64());
    child
}

/// Creates a file with these servers as the backends `main`, which is the default, and `ledger`.
fn of_two(servers: &[RedisServer; 2]) -> NamedTempFile {
    let [main, ledger] = servers.each_ref().map(RedisServer::url);
    file(&format!(
        "default = 'main'\n[backends.main]\nurl = '{main}'\n[backends.ledger]\nurl = '{ledger}'\n\
         [locks.nightly]\nbackend = 'ledger'\nwatchdog = '1000s'\n"
    ))
}

#[test]
fn commands_use_the_backends_that_the_file_names() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let file = of_two(&servers);
    let on = |name: &str| servers.each_ref().map(|server| server.probe().exists(name));
    let holders = ["nightly", "other"].map(|name| holder(&file, name));
    assert_eq!((on("nightly"), on("other")), ([false, true], [true, false]));
    assert!(
        servers[1].probe().command(&["PTTL", "nightly"]).int() > 900_000,
        "its own watchdog"
    );
    assert!(servers[0].probe().command(&["PTTL", "other"]).int() <= 30_000);
    for name in ["nightly", "other"] {
        assert_eq!(ask(&file, &["check", name], &[]), (1, "held".to_owned()));
        assert_eq!(ask(&file, &["wait", "-w", "0", name], &[]).0, 1);
        let conflict = ask(&file, &["run", "-n", "-E", "7", name, "--", "true"], &[]);
        assert_eq!(conflict.0, 7, "{conflict:?}");
        assert_eq!(ask(&file, &["hold", "-n", name], &[]).0, 1);
    }
    let (_, lines) = ask(
        &file,
        &["status", "--json", "nightly", "other", "third"],
        &[],
    );
    let held = lines
        .lines()
        .map(|line| serde_json::from_str::<Json>(line).unwrap()["held"].clone());
    assert_eq!(held.collect::<Vec<_>>(), [true, true, false]);
    assert_eq!(ask(&file, &["break", "--yes", "nightly"], &[]).0, 0);
    assert!(!servers[1].probe().exists("nightly"));
    drop(holders);
}

#[test]
fn url_given_by_hand_wins_over_the_file() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let file = of_two(&servers);
    let _holders = ["nightly", "other"].map(|name| holder(&file, name));
    // The variable replaces only the URL of the default backend.
    let elsewhere = [("DISTLOCK_URL", &*servers[1].url())];
    assert_eq!(
        ask(&file, &["check", "other"], &elsewhere),
        (0, "free".to_owned())
    );
    assert_eq!(
        ask(&file, &["check", "nightly"], &elsewhere),
        (1, "held".to_owned())
    );
    let url = servers[0].url();
    assert_eq!(
        ask(&file, &["check", "--url", &url, "nightly"], &[]),
        (0, "free".to_owned())
    );
    let both = ["check", "--url", &url, "--config", "x", "nightly"];
    let (status, said) = ask(&file, &both, &[]);
    assert!(
        status == 64 && said.contains("cannot be used with"),
        "{status}: {said}"
    );
}

#[test]
fn doctor_looks_at_each_backend_of_the_file() {
    let servers = [RedisServer::start(), RedisServer::start()];
    // With the user who has all rights, so that `doctor` can read everything.
    let [main, ledger] = servers.each_ref().map(|server| server.url_as(""));
    let file = file(&format!(
        "url = '{main}'\n[backends.ledger]\nurl = '{ledger}'\n"
    ));
    let (_, said) = ask(&file, &["doctor", "--json"], &[]);
    let json: Json = serde_json::from_str(&said).unwrap_or_else(|_| panic!("{said}"));
    for server in &servers {
        let address = format!("127.0.0.1:{}", server.port());
        let findings = json["findings"].as_array().unwrap();
        let roles = findings
            .iter()
            .filter(|it| it["id"] == "role" && it["subject"] == *address);
        assert_eq!(roles.count(), 1, "{said}");
    }
}

#[test]
fn quorum_is_named_by_its_backend() {
    let quorum = Servers::with(3, 0, quorum::LONGEST);
    let server = RedisServer::start();
    let file = file(&format!(
        "[backends.main]\nurl = '{}'\n[backends.ledger]\nurl = '{}'\n",
        server.url(),
        quorum.url
    ));
    let (status, said) = ask(&file, &["quorum", "status", "ledger"], &[]);
    assert!(
        status == 0 && said.starts_with("SERVER "),
        "{status}: {said}"
    );
    let (status, said) = ask(&file, &["quorum", "status", "main"], &[]);
    assert!(status == 78 && said.contains("is no quorum"), "{said}");
    let (status, said) = ask(&file, &["quorum", "status", "legder"], &[]);
    assert!(
        status == 78 && said.contains("did you mean `ledger`?"),
        "{said}"
    );
    let (status, said) = ask(&file, &["quorum", "status"], &[]);
    assert!(
        status == 78 && said.contains("there is no default"),
        "{said}"
    );
}

#[test]
fn file_in_the_folder_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("distlock.toml"), FILE).unwrap();
    let script = "cd \"$1\" && shift && exec \"$@\"";
    let program = distlock_tests::child::distlock();
    let words = [
        "-c",
        script,
        "sh",
        folder.path().to_str().unwrap(),
        program.to_str().unwrap(),
    ];
    let mut child = Example::program("sh")
        .args(&words)
        .args(&["config", "check"])
        .spawn();
    assert_eq!(child.wait_exit(SOON), 78);
    let said = eventually("it says why", SOON, || {
        Some(child.errors()).filter(|it| !it.is_empty())
    });
    assert!(said.contains("no store is named"), "{said}");
}
