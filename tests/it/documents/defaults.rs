//! `docs/DEFAULTS.md` against the code.

use super::{read, table};
use distlock::{Client, Config, LockName};
use std::time::Duration;

/// A setting's value as the table writes it.
fn value(config: &Config, setting: &str) -> String {
    let duration = |time: Duration| humantime::format_duration(time).to_string();
    match setting {
        "watchdog" => duration(config.watchdog()),
        "outage_limit" if config.outage_limit() == config.watchdog() => "one `watchdog`".to_owned(),
        "outage_limit" => duration(config.outage_limit()),
        "connect_timeout" => duration(config.connect_timeout()),
        "command_timeout" => duration(config.command_timeout()),
        "pool" => config.pool().to_string(),
        "client_name" => format!("`{}`", config.client_name()),
        "prefix" if config.prefix().is_empty() => "nothing".to_owned(),
        "prefix" => format!("`{}`", config.prefix()),
        "tokens" => format!("`{:?}`", config.tokens()).to_lowercase(),
        other => panic!("the table has a setting `{other}` that this test does not know"),
    }
}

fn is_taken(setting: &str, value: &str) -> bool {
    let url = format!("memory://defaults?{setting}={value}");
    Config::from_url(&url).and_then(|config| config.check()).is_ok()
}

/// The nearest value beyond a limit, as an option is written; `None` where there is no limit.
fn beyond(limit: &str, larger: bool) -> Option<String> {
    if let Ok(time) = humantime::parse_duration(limit) {
        let step = Duration::from_nanos(1);
        let beyond = if larger { time + step } else { time - step };
        return Some(humantime::format_duration(beyond).to_string().replace(' ', "%20"));
    }
    let number = limit.parse::<u32>().ok()?;
    Some(if larger { number + 1 } else { number - 1 }.to_string())
}

#[test]
fn the_table_of_settings_is_what_the_code_does() {
    let rows = table(&read("docs/DEFAULTS.md"), "Settings");
    let mut limits = 0;
    for row in &rows {
        let [setting, default, smallest, largest, why] = row.as_slice() else { panic!("{row:?}") };
        let setting = setting.trim_matches('`');
        assert_eq!(value(&Config::default(), setting), *default, "the default of {setting}");
        assert!(!why.is_empty(), "{setting} has no reason");
        for (limit, larger) in [(smallest, false), (largest, true)] {
            if let Some(beyond) = beyond(limit, larger) {
                assert!(is_taken(setting, limit), "{setting}={limit}");
                assert!(!is_taken(setting, &beyond), "{setting}={beyond}, beyond {limit}");
                limits += 1;
            }
        }
    }
    assert_eq!(limits, 8, "limits that are written as options are");
    assert_eq!(rows[0][3], "2^53 - 1 ms", "the longest lease");
    let longest = Duration::from_millis((1 << 53) - 1);
    assert!(Config::default().with_watchdog(longest).check().is_ok());
    let beyond = longest + Duration::from_nanos(1);
    assert!(Config::default().with_watchdog(beyond).check().is_err());
    // Whoever adds a setting finds it missing here: the message that refuses another lists all.
    let refused = distlock::connect("memory://defaults?nonsense=1").unwrap_err().to_string();
    let known = refused.split("there are ").nth(1).unwrap();
    let in_table: Vec<_> = rows.iter().map(|row| row[0].as_str()).collect();
    for option in known.split(", ") {
        assert!(in_table.contains(&option), "{option} is not in the table");
    }
}

#[test]
fn the_table_of_constants_is_what_stands_in_the_code() {
    let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for row in table(&read("docs/DEFAULTS.md"), "Constants") {
        let quoted: Vec<_> = row.last().unwrap().split('`').skip(1).step_by(2).collect();
        let [file, text] = quoted.as_slice() else { panic!("{row:?}") };
        assert!(squeezed(&read(file)).contains(text), "{file} has no `{text}`: {}", row[0]);
    }
}

#[test]
fn what_is_set_later_wins() {
    let of_url = Config::from_url("memory://x?pool=2&watchdog=2s").unwrap();
    assert_eq!((of_url.pool(), of_url.watchdog()), (2, Duration::from_secs(2)));
    let of_file: Config =
        toml::from_str("pool = 3\nurl = 'memory://x?pool=2&watchdog=2s'").unwrap();
    assert_eq!((of_file.pool(), of_file.watchdog()), (3, Duration::from_secs(2)));
    let set = of_file.with_pool(4).with_pool(5);
    assert_eq!((set.pool(), set.watchdog()), (5, Duration::from_secs(2)));
    assert!(Config::from_url("memory://x?pool=2&pool=3").is_err());
}

#[test]
fn bad_names_are_refused_and_told_why() {
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
fn odd_names_are_names() {
    use crate::harness::process::RedisServer;
    use distlock::DistLock;
    let server = RedisServer::start();
    let clients: [Client; 2] =
        ["memory://odd-names".to_owned(), server.url()].map(|url| distlock::connect(&url).unwrap());
    let longest = "x".repeat(LockName::MAX_BYTES);
    for client in &clients {
        let other = client.mutex("other").unwrap();
        for name in [" ", "a b", "nul\0", "line\nbreak", "\u{fc}\u{4e2d}", "'\"\\", "*?[", &longest]
        {
            let lock = client.mutex(name).unwrap();
            let guard = lock.lock().unwrap();
            assert!(lock.is_locked().unwrap() && !other.is_locked().unwrap(), "{name:?}");
            guard.unlock().unwrap();
            assert!(!lock.is_locked().unwrap(), "{name:?}");
        }
    }
}

#[test]
fn an_unknown_scheme_is_refused_by_name() {
    let error = distlock::connect("carrier-pigeon://roof").unwrap_err();
    assert!(error.is_configuration());
    let text = error.to_string();
    assert!(text.contains("carrier-pigeon") && text.contains("memory"), "{text}");
}
