//! Backends and locks by name: the effective settings, and the errors of invalid files.

use super::*;
use std::time::Duration;

const FILE: &str = "\
default = 'main'
[backends.main]
url = 'memory://m?pool=2&watchdog=2s&prefix=m:&tokens=keep'
watchdog = '3s'
pool = 3
[backends.ledger]
url = 'memory://l?watchdog=20s'
[locks.nightly]
backend = 'ledger'
watchdog = '60s'
[locks.'orders:*']
replicas = 1
[locks.'orders:eu:*']
watchdog = '5s'
[locks.'orders:eu:1']
format = 'token'
";

fn set() -> ConfigSet {
    ConfigSet::from_toml(FILE).unwrap()
}

fn with(set: ConfigSet, variables: &[(&str, &str)]) -> Result<ConfigSet, Error> {
    set.with_variables(
        variables
            .iter()
            .map(|(name, value)| (name.into(), value.into())),
    )
}

/// Returns the value of a setting of a lock, and its source.
fn setting(set: &ConfigSet, lock: &str, name: &str) -> (String, String) {
    let settings = set.config(lock).unwrap().settings();
    let found = settings
        .into_iter()
        .find(|setting| setting.name == name)
        .unwrap();
    (found.value.unwrap_or_default(), found.source)
}

#[track_caller]
fn told(error: Error) -> String {
    assert!(error.is_configuration(), "{error:?}");
    error.to_string()
}

#[test]
fn empty_variable_is_not_set() {
    let empty = ["DISTLOCK_POOL", "DISTLOCK_WACHDOG", "DISTLOCK_URL"].map(|name| (name, ""));
    let set = with(set(), &empty).unwrap();
    assert_eq!(
        setting(&set, "nightly", "pool"),
        setting(&self::set(), "nightly", "pool")
    );
    let without_default = ConfigSet::from_toml("[backends.a]\nurl = 'memory://'\n").unwrap();
    with(without_default, &empty).unwrap();
}

#[test]
fn lock_has_its_own_section_or_the_longest_pattern() {
    let set = set();
    for (lock, section) in [
        ("nightly", Some("nightly")),
        ("nightly2", None),
        ("orders:", Some("orders:*")),
        ("orders:7", Some("orders:*")),
        ("orders:eu:7", Some("orders:eu:*")),
        ("orders:eu:1", Some("orders:eu:1")),
        ("orders:eu:*", Some("orders:eu:*")),
        ("order", None),
    ] {
        let backend = if lock == "nightly" { "ledger" } else { "main" };
        assert_eq!(
            set.choice(lock).unwrap(),
            (Some(backend), section),
            "{lock}"
        );
    }
    // Sections are not merged: the pattern's `replicas` and `watchdog` do not apply to the name.
    let config = set.config("orders:eu:1").unwrap();
    assert_eq!(
        (
            config.option("replicas").unwrap(),
            config.watchdog().as_secs()
        ),
        ("off".into(), 3)
    );
    assert_eq!(config.scheme_option("format"), Some("token"));
    let all = ConfigSet::from_toml("url = 'memory://'\n[locks.'*']\nhand_off = '0s'").unwrap();
    assert_eq!(all.choice("any").unwrap(), (None, Some("*")));
}

#[test]
fn later_source_wins_and_is_named() {
    let set = set();
    let seen = |set: &ConfigSet, lock, name| {
        let (value, source) = setting(set, lock, name);
        format!("{value} {source}")
    };
    for (lock, name, expected) in [
        ("a", "hand_off", "5ms default"),
        ("a", "tokens", "keep line 3"),
        ("a", "pool", "3 line 5"),
        ("a", "watchdog", "3s line 4"),
        ("a", "outage_limit", "3s watchdog"),
        ("orders:eu:2", "watchdog", "5s line 14"),
        ("nightly", "watchdog", "1m line 10"),
        ("nightly", "url", "memory://l line 7"),
        ("orders:eu:1", "format", "token line 16"),
    ] {
        assert_eq!(seen(&set, lock, name), expected, "{lock} {name}");
    }
    let url = ("DISTLOCK_URL", "memory://env?pool=4&prefix=e:");
    let set = with(set, &[url, ("DISTLOCK_WATCHDOG", "7s"), ("PATH", "/x")]).unwrap();
    for (lock, name, expected) in [
        ("orders:eu:2", "watchdog", "7s DISTLOCK_WATCHDOG"),
        ("nightly", "watchdog", "7s DISTLOCK_WATCHDOG"),
        ("a", "url", "memory://env DISTLOCK_URL"),
        ("a", "pool", "4 DISTLOCK_URL"),
        ("a", "tokens", "keep line 3"),
        ("nightly", "url", "memory://l line 7"),
        ("nightly", "pool", "8 default"),
    ] {
        assert_eq!(seen(&set, lock, name), expected, "{lock} {name}");
    }
    let set = set.configure(|backend, config| match backend {
        Some("ledger") => config
            .with_watchdog(Duration::from_secs(9))
            .with_option("pool", "6"),
        _ => config,
    });
    assert_eq!(seen(&set, "nightly", "watchdog"), "9s code");
    assert_eq!(seen(&set, "nightly", "pool"), "6 code");
    assert_eq!(seen(&set, "a", "watchdog"), "7s DISTLOCK_WATCHDOG");
}

#[test]
fn backend_above_the_sections_is_the_default() {
    let set = ConfigSet::from_toml(
        "url = 'memory://above'\npool = 5\n[backends.other]\nurl = 'memory://other'\n\
         [locks.a]\nbackend = 'other'\n[locks.b]\nlease = '1s'",
    );
    let set = set.unwrap();
    assert_eq!(set.backends().collect::<Vec<_>>(), [None, Some("other")]);
    assert_eq!(set.locks().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(set.choice("a").unwrap(), (Some("other"), Some("a")));
    assert_eq!(set.choice("b").unwrap(), (None, Some("b")));
    assert_eq!(
        (
            set.config("c").unwrap().pool(),
            set.config("a").unwrap().pool()
        ),
        (5, 8)
    );
    assert_eq!(set.backend_config(None).unwrap().pool(), 5);
}

#[test]
fn lock_without_section_or_default_is_refused() {
    const TEXT: &str = "[backends.a]\nurl = 'memory://'\n[locks.x]\nbackend = 'a'";
    let set = ConfigSet::from_toml(TEXT).unwrap();
    set.config("x").unwrap();
    assert_eq!(
        told(set.config("y").unwrap_err()),
        "lock \"y\" is in none of the sections, and there is no default: add `default`, as in \
         default = \"a\""
    );
    let unnamed = told(set.backend_config(None).unwrap_err());
    assert!(
        unnamed.starts_with("no backend is named, and there is no default"),
        "{unnamed}"
    );
    let unknown = told(set.backend_config(Some("b")).unwrap_err());
    assert_eq!(unknown, "there is no backend `b`; there are `a`");
    for url in ["redlock:/u:s3cret@h", "u:s3cret", "s3cret@h"] {
        let mistaken = told(set.backend_config(Some(url)).unwrap_err());
        assert!(
            mistaken.contains("looks like a URL") && !mistaken.contains("s3cret"),
            "{url}"
        );
    }
    let url = told(with(set, &[("DISTLOCK_URL", "memory://u:s3cret@x")]).unwrap_err());
    assert_eq!(
        url,
        "DISTLOCK_URL replaces the URL of the default backend, and there is none: add `default`, \
         or unset DISTLOCK_URL"
    );
}

/// Compares the whole message of each error.
#[test]
fn invalid_set_is_refused_with_line_and_accepted_values() {
    const BACKENDS: &str = "[backends.main]\nurl = 'memory://u:s3cret@h'\n";
    const OF_A_LOCK: &str = "it has `backend`, `format`, `hand_off`, `lease`, \
        `on_insufficient_replicas`, `outage_limit`, `prefix`, `replicas`, `replication_timeout`, \
        `tokens`, `unconfirmed_renewals`, `watchdog`, and all others are of its backend";
    for (lines, says) in [
        (
            "[backends.b]\npool = 1",
            "line 3: there is no `url`, as in url = \"redis://127.0.0.1:6379\"",
        ),
        (
            "[backends.b]\nurl = 's3cret'",
            "line 4: the URL has no `scheme://`, as in `memory://` or `redis://127.0.0.1:6379`",
        ),
        (
            "[backends.b]\nurl = 'memory://'\npool = 0",
            "line 5: pool 0 is not between 1 and 10000",
        ),
        (
            "[locks.x]\nbackend = 'mian'",
            "line 4: there is no backend `mian` (did you mean `main`?); there are `main`",
        ),
        (
            "[locks.x]\npool = 1",
            "line 3: the lock has no `backend`, and the file no `default` one: add either",
        ),
        (
            "[locks.x]\nbackend = 'main'\npool = 1",
            "line 5: a lock has no option `pool`; OPTIONS",
        ),
        (
            "[locks.x]\nbackend = 'main'\nreplcas = 's3cret'",
            "line 5: a lock has no option `replcas` (did you mean `replicas`?); OPTIONS",
        ),
        (
            "[locks.x]\nbackend = 'main'\nreplicas = 'many'",
            "line 5: `replicas=many` is not a number of replicas, or one of `off` and `all`",
        ),
        (
            "[locks.x]\nbackend = 'main'\nwatchdog = '1ms'",
            "line 5: watchdog 1ms: a watched lease of 1ms is too short: the watchdog needs at \
             least 100ms",
        ),
        (
            "[locks.'a*b']\nbackend = 'main'",
            "line 3: the lock `a*b` has a `*` before its end: a pattern is the beginning of names \
             and one `*`",
        ),
        (
            "[locks.'{}x']\nbackend = 'main'",
            "line 3: the lock name \"{}x\" has braces that are not a hash tag: write `{tag}` with \
             something inside, once, or no braces",
        ),
        (
            "[locks]\nx = 'main'",
            "line 4: `x` is no table, as in [locks.NAME]",
        ),
        (
            "[backend.b]\nurl = 'memory://'",
            "line 3: `backend` is a table, and there are [backends.NAME] and [locks.NAME] only: a \
             setting is a text, a whole number, or true or false",
        ),
        (
            "[locks.x]\nbackend = 'main'\n[locks.x]\nlease = '1s'",
            "line 5: not TOML: duplicate key",
        ),
    ] {
        let said = told(ConfigSet::from_toml(&format!("{BACKENDS}{lines}")).unwrap_err());
        assert_eq!(said, says.replace("OPTIONS", OF_A_LOCK), "{lines}");
        assert!(!said.contains("s3cret"));
    }
    for (above, says) in [
        (
            "default = 'mian'",
            "line 1: there is no backend `mian` (did you mean `main`?); there are `main`",
        ),
        (
            "watchdog = '1s'",
            "line 1: `watchdog` stands above the sections, where without a `url` only `default` \
             may stand: move it below [backends.NAME]",
        ),
        (
            "default = 'main'\nurl = 'memory://'",
            "line 1: there are `default` and, above the sections, `url`: the default backend is \
             one of the two, so leave the other out",
        ),
        (
            "default = 7",
            "line 1: there is no backend `7`; there are `main`",
        ),
        (
            "default = 'redis://u:s3cret@h'",
            "line 1: there is no backend of this name, which looks like a URL; there are `main`",
        ),
    ] {
        let said = told(ConfigSet::from_toml(&format!("{above}\n{BACKENDS}")).unwrap_err());
        assert_eq!(said, says, "{above}");
    }
    let none = told(ConfigSet::from_toml("default = 'main'").unwrap_err());
    assert!(none.starts_with("there is no `url`"), "{none}");
    let misspelt = told(with(set(), &[("DISTLOCK_POOL", "many")]).unwrap_err());
    assert!(
        misspelt.starts_with("DISTLOCK_POOL: `pool=many`"),
        "{misspelt}"
    );
}

#[test]
fn file_with_names_is_no_config_and_says_what_reads_it() {
    for (text, line) in [(FILE, 3), ("url = 'memory://'\n[locks.x]\nlease = '1s'", 2)] {
        let said = told(Config::from_toml(text).unwrap_err());
        let says = format!("line {line}: this file has backends or locks by name");
        assert!(
            said.starts_with(&says) && said.contains("`ConfigSet::from_file`"),
            "{said}"
        );
    }
}

#[test]
fn settings_show_no_secret() {
    let text = "url = 'redis://s3cret-user:s3cret@h:1,[::1]:2/3'\nsentinel_password = 's3cret'\n\
                sentinel_user = 's3cret'\nsentinel_password_file = '/run/x'\ntls_ca = 'ca.pem'";
    let set = ConfigSet::from_toml(text).unwrap();
    let settings = set.config("a").unwrap().settings();
    let shown = format!("{set:?} {settings:?}");
    assert!(!shown.contains("s3cret"), "{shown}");
    for (name, value) in [
        ("url", "redis://<redacted>@h:1,[::1]:2/3"),
        ("sentinel_password", "<redacted>"),
        ("sentinel_password_file", "/run/x"),
        ("tls_ca", "ca.pem"),
    ] {
        assert_eq!(setting(&set, "a", name).0, value);
    }
}
