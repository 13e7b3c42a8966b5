//! Compares `docs/DEFAULTS.md` with the code.

use super::{read, sources, tables};
use distlock::config::ConfigSet;
use distlock::{Client, Config, LockName};
use lock_redis::servers::Format;
use std::time::Duration;

/// Returns the default of a setting, as the page writes it.
fn default_of(setting: &str) -> String {
    let config = Config::default();
    let value = config.option(setting);
    let label = config.owner().unwrap_or_default().into_owned();
    match (setting, value.as_deref()) {
        // The defaults of these three depend on another setting, or on the process.
        ("outage_limit", _) => {
            let longer = config.with_watchdog(Duration::from_secs(77));
            assert_eq!(longer.outage_limit(), longer.watchdog());
            "watchdog".to_owned()
        }
        ("client_name", Some(name)) => {
            assert_eq!(name, format!("distlock:{label}"));
            "distlock:` and `owner".to_owned()
        }
        ("owner", Some(owner)) => {
            let process = format!(":{}:", std::process::id());
            assert!(owner.contains(&process), "{owner}");
            "host, process, program".to_owned()
        }
        (_, None) => "none".to_owned(),
        (_, Some("")) => "empty".to_owned(),
        (_, Some(value)) => value.to_owned(),
    }
}

/// Returns the error with which `memory://` refuses this value of a setting.
fn refusal(setting: &str, value: &str) -> Option<String> {
    let url = format!("memory://defaults?{setting}={}", value.replace(' ', "%20"));
    let config = Config::from_url(&url).and_then(|config| config.check().map(|()| config));
    config.err().map(|error| error.to_string())
}

/// The values of a setting or an option, as the page writes them.
enum Values {
    /// From the first to the second, or without an upper limit. Each is a number or a duration.
    Range(String, Option<String>),
    Words(Vec<String>),
    Text,
}

fn values(cell: &str) -> Values {
    const LONGEST_LEASE: &str = "9007199254740991ms";
    let limit = |text: &str| match text {
        "2^53 - 1 ms" => LONGEST_LEASE.to_owned(),
        other => other.to_owned(),
    };
    let is_limit = |text: &String| text.starts_with(|c: char| c.is_ascii_digit());
    if let Some(least) = cell.strip_prefix("from ") {
        return Values::Range(limit(least), None);
    }
    if let Some((least, most)) = cell.split_once(" to ") {
        let [least, most] = [least, most].map(limit);
        if is_limit(&least) && !most.contains("bytes") {
            return Values::Range(least, Some(most));
        }
    }
    let words: Vec<_> = cell
        .split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    if words.len() > 1 {
        return Values::Words(words);
    }
    Values::Text
}

/// Returns the nearest value beyond a limit, as an option is written; `None` below zero.
fn beyond(limit: &str, larger: bool) -> Option<String> {
    if let Ok(time) = Config::parse_duration(limit) {
        // Some settings take whole milliseconds only.
        let step = Duration::from_millis(1);
        let beyond = if larger {
            time + step
        } else {
            time.checked_sub(step)?
        };
        return Some(format!("{}ms", beyond.as_millis()));
    }
    let number: u32 = limit
        .parse()
        .unwrap_or_else(|_| panic!("{limit} is no limit"));
    let beyond = if larger {
        number.checked_add(1)
    } else {
        number.checked_sub(1)
    };
    beyond.map(|it| it.to_string())
}

/// Returns the words that a refusal lists as accepted: "is not one of `a`, `b` and `c`".
fn words_in(refusal: &str) -> Vec<String> {
    let (_, words) = refusal
        .split_once(" one of ")
        .unwrap_or_else(|| panic!("no words are listed: {refusal}"));
    let words = words.split('`').skip(1).step_by(2);
    words.map(str::to_owned).collect()
}

#[test]
fn tables_of_settings_agree_with_code() {
    let rows = tables(&read("docs/DEFAULTS.md"), "Settings");
    let (mut limits, mut words) = (0, 0);
    for row in &rows {
        let [setting, default, accepted, effect] = row.as_slice() else {
            panic!("{row:?}")
        };
        let setting = setting.trim_matches('`');
        let stated = default.trim_matches('`');
        assert_eq!(default_of(setting), stated, "the default of {setting}");
        assert!(effect.ends_with('.'), "{setting} has no effect");
        match values(accepted) {
            Values::Range(least, most) => {
                for (limit, larger) in [(Some(least), false), (most, true)] {
                    let Some(limit) = limit else { continue };
                    assert_eq!(refusal(setting, &limit), None, "{setting}={limit}");
                    if let Some(beyond) = beyond(&limit, larger) {
                        let refusal = refusal(setting, &beyond);
                        assert!(refusal.is_some(), "{setting}={beyond}, beyond {limit}");
                        limits += 1;
                    }
                }
            }
            Values::Words(listed) => {
                words += 1;
                for word in &listed {
                    assert_eq!(refusal(setting, word), None, "{setting}={word}");
                }
                let refusal = refusal(setting, "no%20such");
                let known = words_in(&refusal.unwrap_or_else(|| panic!("{setting} takes all")));
                assert!(
                    known.iter().all(|it| listed.contains(it)),
                    "{setting}: {known:?}"
                );
            }
            Values::Text => assert!(!accepted.is_empty(), "{setting} has no values"),
        }
    }
    // Two values cannot be tried: a time below zero, and one above a setting without an upper
    // limit.
    assert_eq!((limits, words), (19, 6), "limits and words that were tried");
    // Otherwise a new setting could be missing from the tables.
    let listed: Vec<_> = rows.iter().map(|row| row[0].clone()).collect();
    let known = there_are("memory://defaults?nonsense=1");
    assert_eq!(listed.len(), known.len());
    for option in known {
        assert!(listed.contains(&option), "{option} is in no table");
    }
}

/// Returns the names that an error lists as available.
fn there_are(url: &str) -> Vec<String> {
    let refused = distlock::connect(url).unwrap_err().to_string();
    let known = refused
        .split("there are ")
        .nth(1)
        .unwrap_or_else(|| panic!("{refused}"));
    known.split(", ").map(str::to_owned).collect()
}

/// Opens an address of this scheme with these options, and returns the error.
fn error_of(scheme: &str, options: &[(&str, &str)]) -> String {
    let address = match scheme {
        "redis+unix://" => "/run/none.sock",
        "redis+sentinel://" | "rediss+sentinel://" => "host/master",
        "redlock://" | "redlocks://" => "a,b,c",
        "postgres://" | "postgresql://" => "host/database",
        _ => "host",
    };
    let mut config = Config::from_url(&format!("{scheme}{address}")).unwrap();
    for (option, value) in options {
        config = config.with_option(option, value);
    }
    let outcome = distlock::builder().config(config).connect();
    outcome.map_or_else(|error| error.to_string(), |_| String::new())
}

#[test]
fn table_of_options_agrees_with_schemes() {
    let document = read("docs/DEFAULTS.md");
    let settings = there_are("memory://x?nonsense=1");
    let mut taken = Vec::new();
    for scheme in there_are("nonsense://x") {
        let options = there_are(&format!("{}x?nonsense=1", scheme.trim_matches('`')));
        let own = options
            .into_iter()
            .filter(|option| !settings.contains(option));
        taken.extend(own.map(|option| (option, scheme.clone())));
    }
    let rows = tables(&document, "Options of the schemes");
    let (kinds, options): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.len() == 2);
    let schemes_of = |kind: &str| {
        let row = kinds.iter().find(|row| row[0] == kind);
        let schemes = &row.unwrap_or_else(|| panic!("there is no kind {kind}"))[1];
        schemes.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    let (mut listed, mut words) = (Vec::new(), 0);
    for row in &options {
        let [option, kinds, default, accepted, _] = row.as_slice() else {
            panic!("{row:?}")
        };
        let schemes: Vec<_> = kinds.split(", ").flat_map(schemes_of).collect();
        listed.extend(
            schemes
                .iter()
                .map(|scheme| (option.clone(), scheme.clone())),
        );
        let option = option.trim_matches('`');
        let scheme = schemes[0].trim_matches('`');
        // Set by name in code: the scheme accepts the option. `memory://`, which has no options,
        // does not.
        let unknown = format!("there is no option `{option}`");
        assert!(!error_of(scheme, &[(option, "no/such\0thing")]).contains(&unknown));
        assert!(error_of("memory://", &[(option, "x")]).contains(&unknown));
        match values(accepted) {
            Values::Words(accepted) if option != "format" => {
                let known = words_in(&error_of(scheme, &[(option, "no such")]));
                assert_eq!(accepted, known, "{option}");
                // The first word is the default: see `Config::scheme_word`.
                assert_eq!(default.trim_matches('`'), known[0], "{option}");
                words += 1;
            }
            Values::Range(least, Some(most)) => {
                for (limit, larger) in [(least, false), (most, true)] {
                    let refused = |value: &str| {
                        error_of(scheme, &[(option, value)])
                            .contains(&format!("`{option}={value}` is not between"))
                    };
                    assert!(!refused(&limit), "{option}={limit}");
                    let beyond = beyond(&limit, larger).unwrap();
                    assert!(refused(&beyond), "{option}={beyond}, beyond {limit}");
                }
            }
            _ => {}
        }
    }
    assert_eq!(words, 10, "options that are words");
    taken.sort_unstable();
    listed.sort_unstable();
    assert_eq!(taken, listed);
}

/// Defaults of the options that are not words, compared with the values that errors name.
#[test]
fn defaults_of_options_agree_with_code() {
    let options = tables(&read("docs/DEFAULTS.md"), "Options of the schemes");
    let row = |option: &str| {
        let is_meant = |row: &&Vec<String>| row[0] == format!("`{option}`");
        options.iter().find(is_meant).unwrap()
    };
    let default = |option| row(option)[2].trim_matches('`').to_owned();
    let duration = |option| Config::parse_duration(&default(option)).unwrap();
    let too_long = error_of("redlock://", &[("watchdog", "2h")]);
    let max_lease = format!("longer than max_lease={:?}", duration("max_lease"));
    assert!(too_long.contains(&max_lease), "{too_long}");
    let too_short = error_of("redlock://", &[("command_timeout", "1ms")]);
    let node_timeout = format!("node_timeout={:?} is longer", duration("node_timeout"));
    assert!(too_short.contains(&node_timeout), "{too_short}");
    let format = Format::of(&Config::from_url("redis://host").unwrap()).unwrap();
    assert_eq!(default("format"), format.name());
    let formats = error_of("redis://", &[("format", "nonsense")]);
    let formats: Vec<_> = formats
        .split_once("there are ")
        .unwrap_or_else(|| panic!("{formats}"))
        .1
        .split('`')
        .skip(1)
        .step_by(2)
        .collect();
    let listed = row("format")[3].replace('`', "");
    let mut listed: Vec<_> = listed.split(", ").collect();
    let mut known = formats;
    known.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, known);
}

/// Reasons begin with one of these words.
const REASONS: [&str; 4] = ["because", "so that", "otherwise", "as in"];

/// Returns the names of the `Duration` constants in a source, each with the text of its doc
/// comment.
fn durations(source: &str) -> Vec<(String, String)> {
    let mut comment = String::new();
    let mut found = Vec::new();
    for line in source.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push_str(text);
        } else if !line.starts_with("#[") {
            if let Some((declared, _)) = line.split_once(": Duration =") {
                let name = declared.split_whitespace().last().unwrap_or_default();
                found.push((name.to_owned(), comment.clone()));
            }
            comment.clear();
        }
    }
    found
}

fn has_reason(comment: &str) -> bool {
    let comment = comment.to_lowercase();
    REASONS.iter().any(|reason| comment.contains(reason))
}

#[test]
fn every_duration_constant_says_why_that_long() {
    let (mut seen, mut without) = (0, Vec::new());
    for file in sources(
        [
            "lock-core/src",
            "lock-redis/src",
            "lock-cluster/src",
            "lock-postgres/src",
        ],
        "rs",
    ) {
        if file.contains("/tests") {
            continue;
        }
        let text = read(&file);
        let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
        for (name, comment) in durations(text) {
            seen += 1;
            if !has_reason(&comment) {
                without.push(format!("{file}: {name}"));
            }
        }
    }
    assert!(
        without.is_empty(),
        "the doc comments of these have none of the words {REASONS:?}:\n{}",
        without.join("\n")
    );
    assert!(seen > 100, "only {seen} were found");
}

#[test]
fn constant_without_reason_is_found() {
    let source = "/// A pause,\n/// because a task must not spin.\nconst A: Duration = x;\n\
                  pub(super) const B: Duration =\n    y;\n/// A time.\n#[allow(x)]\n\
                  const C: Duration = z;\nlet d: Duration = w;";
    let found = durations(source);
    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
    let reasons: Vec<_> = found.iter().map(|(_, text)| has_reason(text)).collect();
    assert_eq!(names, ["A", "B", "C", "d"]);
    assert_eq!(reasons, [true, false, false, false]);
}

#[test]
fn later_setting_wins() {
    let of_url = Config::from_url("memory://x?pool=2&watchdog=2s").unwrap();
    assert_eq!(
        (of_url.pool(), of_url.watchdog()),
        (2, Duration::from_secs(2))
    );
    let text = "pool = 3\nurl = 'memory://x?pool=2&watchdog=2s'";
    let of_file: Config = toml::from_str(text).unwrap();
    assert_eq!(
        format!("{of_file:?}"),
        format!("{:?}", Config::from_toml(text).unwrap())
    );
    assert_eq!(
        (of_file.pool(), of_file.watchdog()),
        (3, Duration::from_secs(2))
    );
    // Variables of the environment are tested in a process of their own: see
    // `environment_wins_over_file`.
    let set = of_file.with_pool(4).with_pool(5);
    assert_eq!((set.pool(), set.watchdog()), (5, Duration::from_secs(2)));
    let by_name = set.with_option("pool", "6");
    assert_eq!(by_name.pool(), 6);
    assert!(Config::from_url("memory://x?pool=2&pool=3").is_err());
}

#[test]
fn file_of_the_recipes_is_read_and_options_of_locks_are_listed() {
    let recipes = read("docs/RECIPES.md");
    let file = recipes
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let clients = distlock::builder()
        .connect_set(ConfigSet::from_toml(file).unwrap())
        .unwrap();
    assert_eq!(
        clients.configs().choice("nightly").unwrap(),
        (Some("ledger"), Some("nightly"))
    );
    assert_eq!(
        clients.configs().config("nightly").unwrap().scheme(),
        "redlock"
    );
    let orders = clients.configs().config("orders:7").unwrap();
    assert_eq!(
        (orders.scheme(), orders.watchdog()),
        ("redis", Duration::from_secs(5))
    );

    let refused = ConfigSet::from_toml("url = 'memory://'\n[locks.x]\nnonsense = 1").unwrap_err();
    let refused = refused.to_string();
    let accepted = refused
        .split("it has ")
        .nth(1)
        .unwrap()
        .split(", and all")
        .next()
        .unwrap();
    let page = read("docs/DEFAULTS.md");
    let listed = page
        .split("A section of a lock may have ")
        .nth(1)
        .unwrap()
        .split(';')
        .next()
        .unwrap();
    let listed = listed.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(listed, accepted);
}

#[test]
fn environment_wins_over_file() {
    const NAME: &str = "documents::defaults::environment_wins_over_file";
    const FILE: &str = "url = 'memory://file?pool=2&client_name=by-url'\npool = 3\nwatchdog = '3s'";
    if std::env::var_os("DISTLOCK_WATCHDOG").is_none() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", NAME]).env("DISTLOCK_WATCHDOG", "5s");
        again.env("DISTLOCK_URL", "memory://environment?pool=4&watchdog=4s");
        assert!(again.output().unwrap().status.success());
        return;
    }
    let of_file: Config = toml::from_str(FILE).unwrap();
    let config = of_file.with_env().unwrap();
    assert_eq!(
        (config.hosts()[0].name.as_str(), &*config.client_name()),
        ("environment", "by-url")
    );
    assert_eq!(
        (config.pool(), config.watchdog()),
        (4, Duration::from_secs(5))
    );
    assert_eq!(config.with_pool(6).pool(), 6);
    let alone = Config::from_env().unwrap();
    assert_eq!(
        (alone.pool(), alone.watchdog()),
        (4, Duration::from_secs(5))
    );
}

#[test]
fn bad_names_are_refused_with_reason() {
    let refusal = |name: &str| {
        let error = LockName::new(name).unwrap_err();
        assert!(error.is_misuse(), "{error:?}");
        error.to_string()
    };
    assert!(refusal("").contains("empty"));
    assert!(refusal(&"x".repeat(513)).contains("at most 512"));
    assert!(refusal("{}x").contains("hash tag"));
    // A name is a string, so bytes that are not UTF-8 fail before there is a name.
    assert!(String::from_utf8(vec![0xff]).is_err());
}

#[test]
fn unusual_names_are_accepted() {
    use distlock_tests::process::RedisServer;
    let server = RedisServer::start();
    let clients: [Client; 2] =
        ["memory://odd-names".to_owned(), server.url()].map(|url| distlock::connect(&url).unwrap());
    let longest = "x".repeat(LockName::MAX_BYTES);
    for client in &clients {
        let other = client.mutex("other").unwrap();
        for name in [
            " ",
            "a b",
            "nul\0",
            "line\nbreak",
            "\u{fc}\u{4e2d}",
            "'\"\\",
            "*?[",
            &longest,
        ] {
            let lock = client.mutex(name).unwrap();
            let guard = lock.lock().unwrap();
            assert!(
                lock.is_locked().unwrap() && !other.is_locked().unwrap(),
                "{name:?}"
            );
            guard.unlock().unwrap();
            assert!(!lock.is_locked().unwrap(), "{name:?}");
        }
    }
}

#[test]
fn wait_of_a_nanosecond_ends() {
    use distlock_tests::process::RedisServer;
    let (server, instant) = (RedisServer::start(), Duration::from_nanos(1));
    for url in ["memory://instant".to_owned(), server.url()] {
        let [one, two] = [(); 2].map(|()| distlock::connect(&url).unwrap().mutex("a").unwrap());
        // The time may be over before a request is sent: then the store is unavailable, never busy.
        match one.try_lock_for(instant) {
            Ok(guard) => guard.expect("a free lock is not busy").unlock().unwrap(),
            Err(error) => assert!(error.is_unavailable(), "{error:?}"),
        }
        let _held = one.lock().unwrap();
        match two.try_lock_for(instant) {
            Ok(guard) => assert!(guard.is_none()),
            Err(error) => assert!(error.is_unavailable(), "{error:?}"),
        }
    }
}

#[test]
fn unknown_scheme_is_refused_by_name() {
    let error = distlock::connect("carrier-pigeon://roof").unwrap_err();
    assert!(error.is_configuration());
    let text = error.to_string();
    assert!(
        text.contains("carrier-pigeon") && text.contains("memory"),
        "{text}"
    );
}
