//! Settings by name, as in a URL, a file, the environment and [`Config::with_option`].

use super::{Config, LockOrder, Secret, TokenPolicy, WriterPriority, similar};
use crate::error::Error;
use crate::replication::{OnInsufficientReplicas, Replicas};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The prefix of all environment variables of this library.
pub(super) const PREFIX: &str = "DISTLOCK_";

/// The settings of [`Config`]; any other option is the scheme's, or unknown.
pub(super) const SETTINGS: [&str; 21] = [
    "password_file",
    "watchdog",
    "lease",
    "outage_limit",
    "hand_off",
    "order",
    "fair_presence",
    "connect_timeout",
    "command_timeout",
    "pool",
    "client_name",
    "owner",
    "prefix",
    "writers",
    "tokens",
    "token_retention",
    "replicas",
    "replication_timeout",
    "on_insufficient_replicas",
    "unconfirmed_renewals",
    "restart_grace",
];

/// The words of an option, each with what it means.
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

/// Where a value came from, for the message that refuses it.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// From the URL, a setter, or through serde: the message needs no location.
    Direct(&'static str),
    /// From this location, as in "locks.toml, line 3".
    Named(String),
}

/// Where each setting came from that the defaults do not decide, and its value then: a setter that
/// changes it later is noticed by that.
#[derive(Clone, Default)]
pub(super) struct Origins(BTreeMap<String, (Source, Option<String>)>);

/// Shows nothing: configurations with the same values are equal.
impl fmt::Debug for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// A setting or an option, as it is used: its value, and where that came from.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Setting {
    /// Its name, as in a URL; `url` for the address.
    pub name: String,
    /// Its value as a URL writes it, and `<redacted>` instead of a secret; `None` if it is not set.
    pub value: Option<String>,
    /// `default`, `URL`, `code`, a file with the line, or the name of an environment variable.
    pub source: String,
}

/// An option that is not a setting.
#[derive(Clone, Debug)]
pub(super) struct SchemeOption {
    pub(super) value: Secret,
    source: Source,
}

/// The name under which [`Config::settings`] lists the address.
pub(super) const URL: &str = "url";

/// Whether the value of this scheme's option must not be shown.
fn is_secret(option: &str) -> bool {
    let names_secret = ["password", "secret", "user"]
        .iter()
        .any(|word| option.contains(word));
    names_secret && !option.ends_with("_file")
}

impl Source {
    /// The source in words.
    fn word(&self) -> &str {
        match self {
            Self::Direct(word) => word,
            Self::Named(place) => place,
        }
    }

    /// The error for a complaint about this value.
    pub(super) fn refuse(&self, complaint: &str) -> Error {
        match self {
            Self::Direct(_) => Error::configuration(complaint),
            Self::Named(source) => Error::configuration(format!("{source}: {complaint}")),
        }
    }
}

impl Config {
    /// Sets an option by its name. `Err` is the complaint about its value.
    pub(super) fn set(&mut self, option: &str, value: &str, source: &Source) -> Result<(), String> {
        match option {
            "password_file" => self.password_file = Some(value.into()),
            "watchdog" => self.watchdog = duration(option, value)?,
            "lease" => self.lease = Some(duration(option, value)?),
            "outage_limit" => self.outage_limit = Some(duration(option, value)?),
            "hand_off" => self.hand_off = duration(option, value)?,
            "restart_grace" => self.restart_grace = duration(option, value)?,
            "order" => self.order = meaning(option, value, ORDERS)?,
            "fair_presence" => self.fair_presence = duration(option, value)?,
            "connect_timeout" => self.connect_timeout = duration(option, value)?,
            "command_timeout" => self.command_timeout = duration(option, value)?,
            "pool" => {
                self.pool = value.parse().map_err(|_| {
                    unreadable(option, value, "a number of connections, as in `pool=8`")
                })?;
            }
            "client_name" => self.client_name = Some(value.to_owned()),
            "owner" => self.owner = Some(value.to_owned()),
            "prefix" => self.prefix = value.to_owned(),
            "writers" => self.writers = meaning(option, value, WRITERS)?,
            "tokens" => self.tokens = meaning(option, value, TOKENS)?,
            "token_retention" => self.token_retention = duration(option, value)?,
            "replicas" => self.replication.replicas = replicas(option, value)?,
            "replication_timeout" => {
                self.replication = self.replication.timeout(duration(option, value)?);
            }
            "unconfirmed_renewals" => {
                let keep = meaning(option, value, UNCONFIRMED_RENEWALS)?;
                self.replication = self.replication.keep_unconfirmed_renewals(keep);
            }
            "on_insufficient_replicas" => {
                self.replication.on_insufficient_replicas =
                    meaning(option, value, ON_INSUFFICIENT_REPLICAS)?;
            }
            other => {
                let extra = SchemeOption {
                    value: Secret::new(value),
                    source: source.clone(),
                };
                self.scheme_options.insert(other.to_owned(), extra);
            }
        }
        Ok(())
    }

    /// Returns the value of a setting as a URL writes it; `None` if it is not set, and if there is
    /// no such setting.
    ///
    /// An `outage_limit` that is not set is that of `watchdog`. See
    /// [`scheme_option`](Self::scheme_option) for the options of a scheme.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<String> {
        let duration = |time: Duration| humantime::format_duration(time).to_string();
        Some(match name {
            "password_file" => self.password_file()?.display().to_string(),
            "watchdog" => duration(self.watchdog()),
            "lease" => duration(self.lease()?),
            "outage_limit" => duration(self.outage_limit()),
            "hand_off" => duration(self.hand_off()),
            "restart_grace" => duration(self.restart_grace()),
            "order" => word(self.order(), ORDERS),
            "fair_presence" => duration(self.fair_presence()),
            "connect_timeout" => duration(self.connect_timeout()),
            "command_timeout" => duration(self.command_timeout()),
            "pool" => self.pool().to_string(),
            "client_name" => self.client_name().into_owned(),
            "owner" => self
                .owner()
                .map_or_else(|| "off".to_owned(), Cow::into_owned),
            "prefix" => self.prefix().to_owned(),
            "writers" => word(self.writers(), WRITERS),
            "tokens" => word(self.tokens(), TOKENS),
            "token_retention" => duration(self.token_retention()),
            "replicas" => self.replication().count().to_string(),
            "replication_timeout" => duration(self.replication().time()),
            "on_insufficient_replicas" => {
                word(self.replication().insufficient(), ON_INSUFFICIENT_REPLICAS)
            }
            "unconfirmed_renewals" => word(
                self.replication().keeps_unconfirmed_renewals(),
                UNCONFIRMED_RENEWALS,
            ),
            _ => return None,
        })
    }

    /// Returns the meaning of a scheme option that is one of several words, such as `eviction`;
    /// `default` if the option is not given.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the option has another word.
    pub fn scheme_word<T: Copy>(
        &self,
        option: &str,
        words: &[(&str, T)],
        default: T,
    ) -> Result<T, Error> {
        match self.scheme_options.get(option) {
            Some(SchemeOption { value, source }) => {
                meaning(option, value.reveal(), words).map_err(|wrong| source.refuse(&wrong))
            }
            None => Ok(default),
        }
    }

    /// Returns all settings and options, each with its value and where that came from: for a
    /// program that shows what it runs with.
    #[must_use]
    pub fn settings(&self) -> Vec<Setting> {
        let address = Setting {
            name: URL.to_owned(),
            value: Some(self.address.to_string()),
            source: self
                .origins
                .0
                .get(URL)
                .map_or("default", |(at, _)| at.word())
                .to_owned(),
        };
        let defaults = Self::default();
        let settings = SETTINGS.iter().map(|name| {
            let value = self.option(name);
            let source = match self.origins.0.get(*name) {
                Some((source, then)) if *then == value => source.word(),
                None if value == defaults.option(name) => "default",
                // An outage limit that is not set follows `watchdog`.
                None if *name == "outage_limit" && self.outage_limit.is_none() => "watchdog",
                // The name of connections, likewise, is that of the owner.
                None if *name == "client_name" && self.client_name.is_none() => "owner",
                _ => "code",
            };
            Setting {
                name: (*name).to_owned(),
                value,
                source: source.to_owned(),
            }
        });
        let options = self.scheme_options.iter().map(|(name, option)| {
            let value = if is_secret(name) {
                "<redacted>"
            } else {
                option.value.reveal()
            };
            let source = option.source.word().to_owned();
            Setting {
                name: name.clone(),
                value: Some(value.to_owned()),
                source,
            }
        });
        [address]
            .into_iter()
            .chain(settings)
            .chain(options)
            .collect()
    }

    /// Adds a place to an error that names neither a line nor an environment variable: that of the
    /// first option in its text, or else `section`.
    #[cfg(feature = "toml")]
    pub(super) fn locate(&self, error: Error, section: &Source) -> Error {
        let Source::Named(section) = section else {
            return error;
        };
        let file = section.rsplit_once("line ").map_or("", |(file, _)| file);
        let said = error.message();
        let is_located = said.starts_with(&format!("{file}line ")) || said.contains(PREFIX);
        if is_located {
            return error;
        }
        let mut words = said.split(|c: char| !c.is_ascii_lowercase() && c != '_');
        let place = words.find_map(|word| match &self.origins.0.get(word)?.0 {
            Source::Named(place) => Some(place),
            Source::Direct(_) => None,
        });
        let place = place.unwrap_or(section);
        Error::new(error.kind(), format!("{place}: {said}")).with_source(error)
    }

    /// Remembers where a setting came from, after it was set.
    pub(super) fn note_origin(&mut self, option: &str, source: &Source) {
        let value = self.option(option);
        self.origins
            .0
            .insert(option.to_owned(), (source.clone(), value));
    }

    /// Refuses options that nothing reads, and misspelt variables. `also` are the options that the
    /// scheme takes.
    pub(crate) fn refuse_unknown_options(&self, also: &[&str]) -> Result<(), Error> {
        self.refuse_misspelt_variables(also)?;
        let Some((unknown, extra)) = self
            .scheme_options
            .iter()
            .find(|(option, _)| !also.contains(&option.as_str()))
        else {
            return Ok(());
        };
        let mut known: Vec<_> = SETTINGS
            .iter()
            .chain(also)
            .map(|option| format!("`{option}`"))
            .collect();
        known.sort_unstable();
        Err(extra.source.refuse(&format!(
            "there is no option `{}` for `{}://`{}; there are {}",
            unknown.escape_debug(),
            self.scheme(),
            did_you_mean(unknown, SETTINGS.iter().chain(also).copied()),
            known.join(", ")
        )))
    }
}

/// The suggestion after an unknown word, empty if no known word resembles it.
pub(crate) fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    similar(word, known).map_or_else(String::new, |meant| format!(" (did you mean `{meant}`?)"))
}

fn duration(option: &str, value: &str) -> Result<Duration, String> {
    // `humantime` counts nanoseconds in 64 bits, and so refuses the longest lease in milliseconds.
    let milliseconds = value.strip_suffix("ms").filter(|digits| is_number(digits));
    if let Some(Ok(milliseconds)) = milliseconds.map(str::parse) {
        return Ok(Duration::from_millis(milliseconds));
    }
    humantime::parse_duration(value).map_err(|error| {
        let wanted = format!("a duration, as in `30s`, `500ms` or `1m 30s` ({error})");
        unreadable(option, value, &wanted)
    })
}

fn replicas(option: &str, value: &str) -> Result<Replicas, String> {
    match value {
        "off" => Ok(Replicas::Off),
        "all" => Ok(Replicas::All),
        count => count.parse().map(Replicas::AtLeast).map_err(|_| {
            unreadable(
                option,
                value,
                "a number of replicas, or one of `off` and `all`",
            )
        }),
    }
}

/// What a word means as the value of an option that has these.
fn meaning<T: Copy>(option: &str, value: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found = words.iter().find(|(word, _)| *word == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let mut words: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
        let last = words.pop().unwrap_or_default();
        unreadable(
            option,
            value,
            format_args!("one of {} and {last}", words.join(", ")),
        )
    })
}

/// The word that means this.
fn word<T: PartialEq>(meaning: T, words: &Words<T>) -> String {
    let found = words.iter().find(|(_, it)| *it == meaning);
    let (word, _) = found.expect("each meaning has a word");
    (*word).to_owned()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn unreadable(option: &str, value: &str, wanted: impl fmt::Display) -> String {
    format!("`{option}={}` is not {wanted}", value.escape_debug())
}
