//! `docs/DEFAULTS.md` against the code.

use super::{read, sources, table};
use distlock::config::ConfigSet;
use distlock::{Client, Config, LockName};
use std::time::Duration;

/// A setting's value as the table writes it.
fn value(config: &Config, setting: &str) -> String {
    let duration = |time: Duration| humantime::format_duration(time).to_string();
    match setting {
        "password_file" => config
            .password_file()
            .map_or_else(|| "none".to_owned(), |it| it.display().to_string()),
        "watchdog" => duration(config.watchdog()),
        "lease" => config.lease().map_or_else(|| "none".to_owned(), duration),
        "outage_limit" if config.outage_limit() == config.watchdog() => "one `watchdog`".to_owned(),
        "outage_limit" => duration(config.outage_limit()),
        "hand_off" => duration(config.hand_off()),
        "restart_grace" if config.restart_grace().is_zero() => "nothing (off)".to_owned(),
        "restart_grace" => duration(config.restart_grace()),
        "order" => format!("`{:?}`", config.order()).to_lowercase(),
        "fair_presence" => duration(config.fair_presence()),
        "connect_timeout" => duration(config.connect_timeout()),
        "command_timeout" => duration(config.command_timeout()),
        "pool" => config.pool().to_string(),
        "client_name" if config.client_name() == format!("distlock:{}", owner(config)) => {
            "`distlock:` and `owner`".to_owned()
        }
        "client_name" => format!("`{}`", config.client_name()),
        "owner" if owner(config).contains(&format!(":{}:", std::process::id())) => {
            "host, process and program".to_owned()
        }
        "owner" => format!("`{}`", owner(config)),
        "prefix" if config.prefix().is_empty() => "nothing".to_owned(),
        "prefix" => format!("`{}`", config.prefix()),
        "writers" => format!("`{:?}`", config.writers()).to_lowercase(),
        "tokens" => format!("`{:?}`", config.tokens()).to_lowercase(),
        "token_retention" => duration(config.token_retention()),
        "replicas" => config.replication().count().to_string(),
        "replication_timeout" => duration(config.replication().time()),
        "on_insufficient_replicas" => {
            format!("`{:?}`", config.replication().insufficient()).to_lowercase()
        }
        "unconfirmed_renewals" if config.replication().keeps_unconfirmed_renewals() => {
            "`keep`".to_owned()
        }
        "unconfirmed_renewals" => "`refuse`".to_owned(),
        other => panic!("the table has a setting `{other}` that this test does not know"),
    }
}

fn owner(config: &Config) -> String {
    config.owner().unwrap_or_default().into_owned()
}

fn is_taken(setting: &str, value: &str) -> bool {
    let url = format!("memory://defaults?{setting}={value}");
    Config::from_url(&url)
        .and_then(|config| config.check())
        .is_ok()
}

/// What stands in back-quotes in the last column: a file, and what is in it.
fn code(row: &[String]) -> Vec<&str> {
    row.last().unwrap().split('`').skip(1).step_by(2).collect()
}

/// The nearest value beyond a limit, as an option is written; `None` where there is no limit.
fn beyond(limit: &str, larger: bool) -> Option<String> {
    if let Ok(time) = Config::parse_duration(limit) {
        let step = Duration::from_nanos(1);
        let beyond = if larger { time + step } else { time - step };
        return Some(
            humantime::format_duration(beyond)
                .to_string()
                .replace(' ', "%20"),
        );
    }
    let number = limit.parse::<u32>().ok()?;
    Some(if larger { number + 1 } else { number - 1 }.to_string())
}

#[test]
fn table_of_settings_agrees_with_code() {
    let rows = table(&read("docs/DEFAULTS.md"), "Settings");
    let mut limits = 0;
    for row in &rows {
        let [setting, default, smallest, largest, why] = row.as_slice() else {
            panic!("{row:?}")
        };
        let setting = setting.trim_matches('`');
        assert_eq!(
            value(&Config::default(), setting),
            *default,
            "the default of {setting}"
        );
        assert!(!why.is_empty(), "{setting} has no reason");
        for (limit, larger) in [(smallest, false), (largest, true)] {
            if let Some(beyond) = beyond(limit, larger) {
                assert!(is_taken(setting, limit), "{setting}={limit}");
                assert!(
                    !is_taken(setting, &beyond),
                    "{setting}={beyond}, beyond {limit}"
                );
                limits += 1;
            }
        }
    }
    assert_eq!(limits, 18, "limits that are written as options are");
    assert_eq!(rows[0][3], "2^53 - 1 ms", "the longest lease");
    let longest = (1_u64 << 53) - 1;
    assert!(is_taken("watchdog", &format!("{longest}ms")));
    assert!(!is_taken("watchdog", &format!("{}ms", longest + 1)));
    // A new setting must be added to the table.
    let in_table: Vec<_> = rows.iter().map(|row| row[0].clone()).collect();
    for option in there_are("memory://defaults?nonsense=1") {
        assert!(in_table.contains(&option), "{option} is not in the table");
    }
}

/// Without what depends on the width of lines: white space, and commas before a bracket.
fn squeezed(text: &str) -> String {
    let text: String = text.split_whitespace().collect();
    ["}", "]", ")"].iter().fold(text, |text, bracket| {
        text.replace(&format!(",{bracket}"), bracket)
    })
}

/// The names that an error lists as available.
fn there_are(url: &str) -> Vec<String> {
    let refused = distlock::connect(url).unwrap_err().to_string();
    let known = refused
        .split("there are ")
        .nth(1)
        .unwrap_or_else(|| panic!("{refused}"));
    known.split(", ").map(str::to_owned).collect()
}

#[test]
fn table_of_options_agrees_with_schemes() {
    let settings = there_are("memory://x?nonsense=1");
    let mut taken = Vec::new();
    for scheme in there_are("nonsense://x") {
        let options = there_are(&format!("{}x?nonsense=1", scheme.trim_matches('`')));
        let own = options
            .into_iter()
            .filter(|option| !settings.contains(option));
        taken.extend(own.map(|option| (option, scheme.clone())));
    }
    let mut listed = Vec::new();
    for row in table(&read("docs/DEFAULTS.md"), "Options of the schemes") {
        listed.extend(
            row[1]
                .split(", ")
                .map(|scheme| (row[0].clone(), scheme.to_owned())),
        );
        let [option, scheme] = [&row[0], row[1].split(", ").next().unwrap()];
        let [option, scheme] = [option, scheme].map(|cell| cell.trim_matches('`'));
        // By name in code: its scheme takes it, whatever the value is worth, and no other does.
        let said = |url: &str| {
            let config = Config::from_url(url)
                .unwrap()
                .with_option(option, "no/such\0thing");
            let outcome = distlock::builder().config(config).connect();
            outcome.map_or_else(|error| error.to_string(), |_| String::new())
        };
        let unknown = format!("there is no option `{option}`");
        assert!(!said(&format!("{scheme}x")).contains(&unknown), "{option}");
        // One of memory's, which has none of these.
        assert!(said("memory://x").contains(&unknown), "{option}");
        let quoted = code(&row);
        let [file, text] = quoted.as_slice() else {
            panic!("{row:?}")
        };
        assert!(
            squeezed(&read(file)).contains(&squeezed(text)),
            "{file} has no `{text}`: {option}"
        );
    }
    taken.sort_unstable();
    listed.sort_unstable();
    assert_eq!(taken, listed);
}

#[test]
fn table_of_constants_agrees_with_code() {
    for row in table(&read("docs/DEFAULTS.md"), "Constants") {
        let quoted = code(&row);
        let [file, texts @ ..] = quoted.as_slice() else {
            panic!("{row:?}")
        };
        assert!(!texts.is_empty(), "{row:?}");
        let source = squeezed(&read(file));
        for text in texts {
            assert!(
                source.contains(&squeezed(text)),
                "{file} has no `{text}`: {}",
                row[0]
            );
        }
    }
}

/// A new constant must be added to the table.
#[test]
fn every_duration_constant_is_in_the_table() {
    let rows = table(&read("docs/DEFAULTS.md"), "Constants");
    let listed: Vec<_> = rows.iter().map(|row| code(row)).collect();
    let mut seen = 0;
    for file in sources(
        ["lock-core/src", "lock-redis/src", "lock-cluster/src"],
        "rs",
    ) {
        // Settings have their own table, and the rest does not wait when a program runs.
        if ["/config/", "/tests"]
            .iter()
            .any(|part| file.contains(part))
        {
            continue;
        }
        let text = read(&file);
        let text = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for line in text.lines().filter(|line| line.contains(": Duration = ")) {
            let constant = line.split("const ").nth(1).unwrap().trim_end_matches(';');
            let is_listed = |row: &Vec<&str>| row[0] == file && row[1..].contains(&constant);
            assert!(
                listed.iter().any(is_listed),
                "{file}: `{constant}` is not in the table"
            );
            seen += 1;
        }
    }
    assert!(seen > 20, "only {seen} were found");
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
    // The environment needs a process of its own: see `environment_wins_over_file`.
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
    let token = clients.configs().config("orders:7").unwrap();
    assert_eq!(
        (token.scheme(), token.scheme_option("format")),
        ("redis", Some("token"))
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
    let listed = read("docs/DEFAULTS.md");
    let listed = listed
        .split("mixed. It may have ")
        .nth(1)
        .unwrap()
        .split(';')
        .next()
        .unwrap();
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
    // Bytes that are no text never get as far as a name.
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
        // The time may be over before anything could be asked: that is unavailable, and never busy.
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
