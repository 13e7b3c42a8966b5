//! [`SETTINGS`]: the name, parser, text and limits of each setting of [`Config`].

use super::duration::{parse_duration, shown};
use super::{Config, LockOrder, TokenPolicy, WriterPriority, label};
use crate::backend::replication::{OnInsufficientReplicas, Replicas};
use crate::time::lease::Lease;
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// A setting of [`Config`]. Any other option belongs to the scheme, or is unknown.
pub(super) struct Definition {
    pub(super) name: &'static str,
    /// Sets the value. `Err` describes what is wrong with the text.
    pub(super) set: fn(&mut Config, Given<'_>) -> Result<(), String>,
    /// Returns the value as a URL writes it; `None` if it is not set.
    pub(super) get: fn(&Config) -> Option<String>,
    /// Describes what is wrong with the value, whatever its source; `None` if nothing is. The text
    /// calls the setting by the given name.
    pub(super) complaint: fn(&Config, &str) -> Option<String>,
}

/// The text given for an option.
#[derive(Clone, Copy)]
pub(super) struct Given<'a> {
    pub(super) option: &'a str,
    pub(super) value: &'a str,
}

/// The words that an option accepts, each with its meaning.
type Words<T> = [(&'static str, T)];

const ORDERS: &Words<LockOrder> = &[("any", LockOrder::Any), ("fair", LockOrder::Fair)];

const WRITERS: &Words<WriterPriority> = &[
    ("first", WriterPriority::First),
    ("equal", WriterPriority::Equal),
];

const TOKENS: &Words<TokenPolicy> = &[
    ("expire", TokenPolicy::Expire),
    ("keep", TokenPolicy::Keep),
    ("off", TokenPolicy::Off),
];

const ON_INSUFFICIENT_REPLICAS: &Words<OnInsufficientReplicas> = &[
    ("retry", OnInsufficientReplicas::Retry),
    ("fail", OnInsufficientReplicas::Fail),
    ("accept", OnInsufficientReplicas::Accept),
];

const UNCONFIRMED_RENEWALS: &Words<bool> = &[("refuse", false), ("keep", true)];

/// All settings, in the order in which they are listed.
pub(super) const SETTINGS: [Definition; 21] = [
    Definition {
        name: "password_file",
        set: |config, given| {
            config.password_file = Some(given.value.into());
            Ok(())
        },
        get: |config| Some(config.password_file()?.display().to_string()),
        complaint: |config, _| config.complaint_about_passwords(),
    },
    Definition {
        name: "watchdog",
        set: |config, given| given.duration().map(|it| config.watchdog = it),
        get: |config| Some(shown(config.watchdog())),
        complaint: |config, name| {
            let refused = Lease::watched(config.watchdog).time().err()?;
            Some(format!("{name} {:?}: {refused}", config.watchdog))
        },
    },
    Definition {
        name: "lease",
        set: |config, given| given.duration().map(|it| config.lease = Some(it)),
        get: |config| config.lease().map(shown),
        complaint: |config, name| {
            let refused = Lease::Fixed(config.lease?).time().err()?;
            Some(format!("{name} {:?}: {refused}", config.lease?))
        },
    },
    Definition {
        name: "outage_limit",
        set: |config, given| given.duration().map(|it| config.outage_limit = Some(it)),
        get: |config| Some(shown(config.outage_limit())),
        complaint: |config, name| {
            let limit = config.outage_limit?;
            (limit < Duration::from_millis(1))
                .then(|| format!("{name} {limit:?} leaves no time to try: give it at least 1ms"))
        },
    },
    Definition {
        name: "hand_off",
        set: |config, given| given.duration().map(|it| config.hand_off = it),
        get: |config| Some(shown(config.hand_off())),
        complaint: |config, name| longer(name, config.hand_off, Config::LONGEST_HAND_OFF),
    },
    Definition {
        name: "order",
        set: |config, given| given.meaning(ORDERS).map(|it| config.order = it),
        get: |config| Some(word(config.order(), ORDERS)),
        complaint: none,
    },
    Definition {
        name: "fair_presence",
        set: |config, given| given.duration().map(|it| config.fair_presence = it),
        get: |config| Some(shown(config.fair_presence())),
        complaint: |config, name| {
            let good = Config::SHORTEST_FAIR_PRESENCE..=Config::LONGEST_FAIR_PRESENCE;
            let time = config.fair_presence;
            (!good.contains(&time) || !is_whole(time))
                .then(|| format!("{name} {time:?} is not between 1s and 10m, in {WHOLE}"))
        },
    },
    Definition {
        name: "connect_timeout",
        set: |config, given| given.duration().map(|it| config.connect_timeout = it),
        get: |config| Some(shown(config.connect_timeout())),
        complaint: |config, name| wrong_timeout(name, config.connect_timeout),
    },
    Definition {
        name: "command_timeout",
        set: |config, given| given.duration().map(|it| config.command_timeout = it),
        get: |config| Some(shown(config.command_timeout())),
        complaint: |config, name| wrong_timeout(name, config.command_timeout),
    },
    Definition {
        name: "pool",
        set: |config, given| {
            let number = given.value.parse();
            let wrong = |_| given.unreadable("a number of connections, as in `pool=8`");
            number.map(|it| config.pool = it).map_err(wrong)
        },
        get: |config| Some(config.pool().to_string()),
        complaint: |config, name| {
            let (pool, largest) = (config.pool, Config::LARGEST_POOL);
            (!(1..=largest).contains(&pool))
                .then(|| format!("{name} {pool} is not between 1 and {largest}"))
        },
    },
    Definition {
        name: "client_name",
        set: |config, given| {
            config.client_name = Some(given.value.to_owned());
            Ok(())
        },
        get: |config| Some(config.client_name().into_owned()),
        complaint: |config, name| {
            let is_good = config.client_name.as_deref().is_none_or(is_printable);
            (!is_good)
                .then(|| format!("{name} must be printable ASCII without spaces, and not empty"))
        },
    },
    Definition {
        name: "owner",
        set: |config, given| {
            config.owner = Some(given.value.to_owned());
            Ok(())
        },
        get: |config| {
            let label = config.owner().map(Cow::into_owned);
            Some(label.unwrap_or_else(|| "off".to_owned()))
        },
        complaint: |config, _| label::complaint(config.owner.as_deref()?, Config::LONGEST_OWNER),
    },
    Definition {
        name: "prefix",
        set: |config, given| {
            config.prefix = given.value.to_owned();
            Ok(())
        },
        get: |config| Some(config.prefix().to_owned()),
        complaint: |config, name| {
            let prefix = &config.prefix;
            prefix.contains(['{', '}']).then(|| {
                format!("{name} {prefix:?} has a brace in it: that would move keys to another slot")
            })
        },
    },
    Definition {
        name: "writers",
        set: |config, given| given.meaning(WRITERS).map(|it| config.writers = it),
        get: |config| Some(word(config.writers(), WRITERS)),
        complaint: none,
    },
    Definition {
        name: "tokens",
        set: |config, given| given.meaning(TOKENS).map(|it| config.tokens = it),
        get: |config| Some(word(config.tokens(), TOKENS)),
        complaint: none,
    },
    Definition {
        name: "token_retention",
        set: |config, given| given.duration().map(|it| config.token_retention = it),
        get: |config| Some(shown(config.token_retention())),
        complaint: |config, name| {
            let good = Config::SHORTEST_TOKEN_RETENTION..=Config::LONGEST_TOKEN_RETENTION;
            let time = config.token_retention;
            (!good.contains(&time) || !is_whole(time))
                .then(|| format!("{name} {time:?} is not between 3m and 365days, in {WHOLE}"))
        },
    },
    Definition {
        name: "replicas",
        set: |config, given| given.replicas().map(|it| config.replication.replicas = it),
        get: |config| Some(config.replication().count().to_string()),
        complaint: |config, _| config.replication.wrong_count(),
    },
    Definition {
        name: "replication_timeout",
        set: |config, given| {
            let time = given.duration()?;
            config.replication = config.replication.timeout(time);
            Ok(())
        },
        get: |config| Some(shown(config.replication().time())),
        complaint: |config, name| wrong_timeout(name, config.replication.time()),
    },
    Definition {
        name: "on_insufficient_replicas",
        set: |config, given| {
            let meaning = given.meaning(ON_INSUFFICIENT_REPLICAS)?;
            config.replication.on_insufficient_replicas = meaning;
            Ok(())
        },
        get: |config| {
            let insufficient = config.replication().insufficient();
            Some(word(insufficient, ON_INSUFFICIENT_REPLICAS))
        },
        complaint: none,
    },
    Definition {
        name: "unconfirmed_renewals",
        set: |config, given| {
            let keep = given.meaning(UNCONFIRMED_RENEWALS)?;
            config.replication = config.replication.keep_unconfirmed_renewals(keep);
            Ok(())
        },
        get: |config| {
            let keep = config.replication().keeps_unconfirmed_renewals();
            Some(word(keep, UNCONFIRMED_RENEWALS))
        },
        complaint: none,
    },
    Definition {
        name: "restart_grace",
        set: |config, given| given.duration().map(|it| config.restart_grace = it),
        get: |config| Some(shown(config.restart_grace())),
        complaint: |config, name| longer(name, config.restart_grace, Config::LONGEST_RESTART_GRACE),
    },
];

/// Returns the setting of this name.
pub(super) fn setting(name: &str) -> Option<&'static Definition> {
    const ALL: &[Definition] = &SETTINGS;
    ALL.iter().find(|setting| setting.name == name)
}

/// Returns the names of all settings.
pub(super) fn names<'a>() -> impl Iterator<Item = &'a str> + Clone {
    const ALL: &[Definition] = &SETTINGS;
    ALL.iter().map(|setting| setting.name)
}

/// Accepts every value.
fn none(_config: &Config, _name: &str) -> Option<String> {
    None
}

/// Describes what is wrong with the timeout of a request, if it is invalid.
pub(crate) fn wrong_timeout(option: &str, value: Duration) -> Option<String> {
    let longest = Config::LONGEST_TIMEOUT;
    let is_good = (Duration::from_millis(1)..=longest).contains(&value);
    (!is_good).then(|| format!("{option} {value:?} is not between 1ms and {longest:?}"))
}

fn is_printable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(label::is_printable)
}

/// The unit of a time that a store counts.
const WHOLE: &str = "whole milliseconds";

fn is_whole(time: Duration) -> bool {
    time.subsec_nanos().is_multiple_of(1_000_000)
}

fn longer(name: &str, time: Duration, longest: Duration) -> Option<String> {
    (time > longest).then(|| format!("{name} {time:?} is longer than {longest:?}"))
}

impl Given<'_> {
    pub(super) fn duration(self) -> Result<Duration, String> {
        parse_duration(self.value).map_err(|wanted| self.unreadable(wanted))
    }

    /// Returns the meaning of the value as one of these words.
    pub(super) fn meaning<T: Copy>(self, words: &[(&str, T)]) -> Result<T, String> {
        let found = words.iter().find(|(word, _)| *word == self.value);
        found.map(|(_, meaning)| *meaning).ok_or_else(|| {
            let mut words: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
            let last = words.pop().unwrap_or_default();
            self.unreadable(format!("one of {} and {last}", words.join(", ")))
        })
    }

    fn replicas(self) -> Result<Replicas, String> {
        match self.value {
            "off" => Ok(Replicas::Off),
            "all" => Ok(Replicas::All),
            count => count
                .parse()
                .map(Replicas::AtLeast)
                .map_err(|_| self.unreadable("a number of replicas, or one of `off` and `all`")),
        }
    }

    fn unreadable(self, wanted: impl fmt::Display) -> String {
        let value = self.value.escape_debug();
        format!("`{}={value}` is not {wanted}", self.option)
    }
}

/// Returns the word for this meaning.
fn word<T: PartialEq>(meaning: T, words: &Words<T>) -> String {
    let found = words.iter().find(|(_, it)| *it == meaning);
    let (word, _) = found.expect("each meaning has a word");
    (*word).to_owned()
}
