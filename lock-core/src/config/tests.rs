//! Settings from a URL, from setters and by name: values, defaults and refusals.

use super::*;

fn refusal(url: &str) -> String {
    let refused = Config::from_url(url)
        .and_then(|config| config.check().and(config.refuse_unknown_options(&[])));
    told(refused.expect_err(url))
}

fn told(error: Error) -> String {
    assert!(error.is_configuration(), "{error:?}");
    error.to_string()
}

#[test]
fn invalid_value_is_refused_by_name() {
    assert!(refusal("localhost:6379").contains("scheme://"));
    assert!(refusal("://localhost").contains("scheme"));
    assert!(refusal("redis://host:port").contains("host:port"));
    assert!(refusal("redis://host:0").contains("host:0"));
    assert!(refusal("redis://host:65536").contains("host:65536"));
    assert!(refusal("redis://host:").contains("host:"));
    assert!(refusal("redis://:6379").contains(":6379"));
    assert!(refusal("redis://a,,b").contains("host"));
    assert!(refusal("memory://?watchdog=soon").contains("soon"));
    assert!(refusal("memory://?watchdog=").contains("`watchdog=`"));
    assert!(refusal("memory://?watchdog=1ms").contains("1ms"));
    assert!(refusal("memory://?watchdog=1000000000y").contains("too long"));
    assert!(refusal("memory://?watchdog=99999999999999999999ms").contains("too large"));
    assert!(refusal("memory://?command_timeout=0s").contains("command_timeout 0ns"));
    assert!(refusal("memory://?connect_timeout=2h").contains("3600s"));
    assert!(refusal("memory://?hand_off=2s").contains("hand_off 2s"));
    assert!(refusal("memory://?restart_grace=2days").contains("restart_grace 172800s"));
    assert!(refusal("memory://?token_retention=10s").contains("token_retention 10s"));
    assert!(refusal("memory://?pool=many").contains("many"));
    assert!(refusal("memory://?pool=0").contains("pool 0"));
    assert!(refusal("memory://?wachdog=3s").contains("`wachdog`"));
    assert!(refusal("memory://?tokens=maybe").contains("maybe"));
    assert!(refusal("memory://?pool=1&pool=2").contains("twice"));
    assert!(refusal("memory://?prefix={").contains("brace"));
    assert!(refusal("redis://h/0#x").contains('#'));
}

#[test]
fn options_are_set_alike_by_url_and_by_setter() {
    let by_url = Config::from_url(
        "memory://?watchdog=10s&outage_limit=11s&hand_off=8ms&connect_timeout=12s\
         &command_timeout=13s&pool=14&client_name=me&owner=till%207&prefix=p:\
         &tokens=off&token_retention=15m&writers=equal&restart_grace=16s",
    )
    .unwrap();
    let by_setter = Config::default()
        .with_watchdog(Duration::from_secs(10))
        .with_outage_limit(Duration::from_secs(11))
        .with_hand_off(Duration::from_millis(8))
        .with_restart_grace(Duration::from_secs(16))
        .with_connect_timeout(Duration::from_secs(12))
        .with_command_timeout(Duration::from_secs(13))
        .with_pool(14)
        .with_client_name("me")
        .with_owner("till 7")
        .with_prefix("p:")
        .with_tokens(TokenPolicy::Off)
        .with_writers(WriterPriority::Equal)
        .with_token_retention(Duration::from_secs(15 * 60));
    for config in [by_url, by_setter] {
        config.check().unwrap();
        let durations = [
            config.watchdog(),
            config.outage_limit(),
            config.connect_timeout(),
            config.command_timeout(),
            config.token_retention(),
            config.restart_grace(),
        ];
        assert_eq!(
            durations.map(|duration| duration.as_secs()),
            [10, 11, 12, 13, 15 * 60, 16]
        );
        assert_eq!(config.hand_off(), Duration::from_millis(8));
        assert_eq!((config.pool(), &*config.client_name()), (14, "me"));
        assert_eq!(config.owner().as_deref(), Some("till 7"));
        assert_eq!((config.prefix(), config.tokens()), ("p:", TokenPolicy::Off));
        assert_eq!(config.writers(), WriterPriority::Equal);
    }
}

#[test]
fn outage_limit_defaults_to_one_lease() {
    let config = Config::default().with_watchdog(Duration::from_secs(7));
    assert_eq!(config.outage_limit(), Duration::from_secs(7));
}

#[test]
fn unprintable_client_name_is_refused() {
    for name in ["", "two words", "ümlaut", "line\n"] {
        let refused = Config::default()
            .with_client_name(name)
            .check()
            .unwrap_err();
        assert!(
            refused.to_string().contains("client_name"),
            "{name:?}: {refused}"
        );
    }
}

#[test]
fn owner_is_bounded_text_and_names_connections() {
    for (owner, why) in [
        ("", "owner is empty"),
        ("two\nlines", "control character"),
        ("\u{1b}[2J", "control character"),
        (&"ü".repeat(65), "130 bytes, which is more than 128"),
    ] {
        let refused = Config::default().with_owner(owner).check().unwrap_err();
        assert!(
            refused.is_configuration() && refused.to_string().contains(why),
            "{refused}"
        );
    }
    let config = Config::default().with_owner("till 7, \"Łódź\"");
    config.check().unwrap();
    assert_eq!(config.client_name(), "distlock:till_7,_\"__d_\"");
    let off = Config::from_url("memory://?owner=off").unwrap();
    off.check().unwrap();
    assert_eq!((off.owner(), &*off.client_name()), (None, "distlock"));
    let usual = Config::default()
        .owner()
        .map(|owner| owner.into_owned())
        .unwrap();
    assert!(
        usual.contains(&format!(":{}:", std::process::id())),
        "{usual}"
    );
}

#[test]
fn longest_lease_can_be_written_in_milliseconds() {
    let longest = Config::from_url("memory://?watchdog=9007199254740991ms").unwrap();
    assert_eq!(longest.watchdog(), Duration::from_millis((1 << 53) - 1));
    longest.check().unwrap();
    assert!(refusal("memory://?watchdog=9007199254740992ms").contains("too long"));
    for odd in ["ms", "-5ms", "%2B500ms", "0x5ms"] {
        assert!(
            refusal(&format!("memory://?watchdog={odd}")).contains("duration"),
            "{odd}"
        );
    }
}

#[test]
fn named_option_is_setting_or_scheme_option_or_refused() {
    let config = Config::default()
        .with_option("pool", "3")
        .with_option("tls_ca", "s3cret.pem");
    config.check().unwrap();
    assert_eq!(config.pool(), 3);
    assert_eq!(config.scheme_option("tls_ca"), Some("s3cret.pem"));
    config.refuse_unknown_options(&["tls_ca"]).unwrap();
    let unknown = told(config.refuse_unknown_options(&["db"]).unwrap_err());
    assert!(
        unknown.contains("no option `tls_ca`") && unknown.contains("`db`"),
        "{unknown}"
    );
    let wrong = config
        .with_option("pool", "many")
        .with_option("watchdog", "x")
        .with_pool(0);
    let wrong = told(wrong.check().unwrap_err());
    for one in ["`pool=many`", "`watchdog=x`", "pool 0"] {
        assert!(wrong.contains(one), "{wrong}");
    }
    assert!(!wrong.contains("s3cret"));
}

#[test]
fn user_and_password_are_set_without_escapes() {
    let config = Config::from_url("redis://a:b@h")
        .unwrap()
        .with_user("m@")
        .with_password("s3cr%t/");
    let password = config.password().map(Secret::reveal);
    assert_eq!((config.user(), password), (Some("m@"), Some("s3cr%t/")));
    assert!(!format!("{config:?}").contains("s3cr"));
}

#[test]
fn option_is_what_a_url_says() {
    let changed = [
        ("password_file", "/run/secret"),
        ("watchdog", "10s"),
        ("lease", "1m 1s"),
        ("outage_limit", "11s"),
        ("hand_off", "8ms"),
        ("order", "fair"),
        ("fair_presence", "1m"),
        ("connect_timeout", "12s"),
        ("command_timeout", "13s"),
        ("pool", "14"),
        ("client_name", "me"),
        ("owner", "till"),
        ("prefix", "p:"),
        ("writers", "equal"),
        ("tokens", "keep"),
        ("token_retention", "15m"),
        ("replicas", "all"),
        ("replication_timeout", "9s"),
        ("on_insufficient_replicas", "accept"),
        ("unconfirmed_renewals", "keep"),
        ("restart_grace", "40s"),
    ];
    let names: Vec<_> = definitions::names().collect();
    assert_eq!(changed.map(|(option, _)| option), *names);
    for (option, value) in changed {
        let config = Config::default().with_option(option, value);
        assert_eq!(config.option(option).as_deref(), Some(value));
        assert_ne!(Config::default().option(option).as_deref(), Some(value));
    }
    let listed = Config::default()
        .settings()
        .into_iter()
        .map(|setting| setting.name);
    assert_eq!(listed.skip(1).collect::<Vec<_>>(), names);
    assert_eq!(Config::default().option("format"), None);
}

#[test]
fn scheme_duration_is_read_like_a_setting() {
    let read = |value: &str| {
        let config = Config::from_url(&format!("memory://?max_lease={value}"))?;
        config.scheme_duration("max_lease")
    };
    let longest = Duration::from_millis((1 << 53) - 1);
    for (text, time) in [
        ("1m%2030s", Duration::from_secs(90)),
        ("9007199254740991ms", longest),
    ] {
        assert_eq!(read(text).unwrap(), Some(time), "{text}");
        let config = Config::from_url(&format!("memory://?watchdog={text}")).unwrap();
        assert_eq!(config.watchdog(), time, "{text}");
    }
    let said = read("30").unwrap_err().to_string();
    assert!(
        said.contains("`max_lease=30` is not a duration, as in `30s`"),
        "{said}"
    );
    assert_eq!(
        Config::default().scheme_duration("max_lease").unwrap(),
        None
    );
}

#[test]
fn first_word_of_scheme_option_is_its_default() {
    let read = |url: &str| {
        let config = Config::from_url(url)?;
        config.scheme_word("tracking", &[("auto", 1), ("off", 2)])
    };
    assert_eq!(read("memory://").unwrap(), 1);
    assert_eq!(read("memory://?tracking=off").unwrap(), 2);
    let said = read("memory://?tracking=on").unwrap_err().to_string();
    assert!(said.contains("is not one of `auto` and `off`"), "{said}");
}

#[test]
fn fair_presence_outside_its_limits_is_refused() {
    let values = [
        ("1s", true),
        ("10m", true),
        ("999ms", false),
        ("601s", false),
        ("2s 1us", false),
    ];
    for (value, is_good) in values {
        let config = Config::default().with_option("fair_presence", value);
        let refused = config.check().err().map(|error| error.to_string());
        assert_eq!(refused.is_none(), is_good, "{value}: {refused:?}");
        let says_how = |text: String| text.contains("fair_presence") && text.contains("1s and 10m");
        assert!(refused.is_none_or(says_how), "{value}");
    }
}

#[test]
fn timeout_outside_its_limits_is_refused() {
    for option in ["connect_timeout", "command_timeout", "replication_timeout"] {
        for (value, is_good) in [("0ms", false), ("1ms", true), ("1h", true), ("61m", false)] {
            let config = Config::from_url(&format!("memory://?{option}={value}")).unwrap();
            let refused = config.check().err().map(|error| error.to_string());
            assert_eq!(refused.is_none(), is_good, "{option}={value}: {refused:?}");
            assert!(refused.is_none_or(|text| text.contains(&format!("{option} "))));
        }
    }
}
