//! Settings by name, as in a URL, a file, the environment and [`Config::with_option`].

use super::{Config, Secret, TokenPolicy, similar};
use crate::error::Error;
use crate::replication::{OnInsufficientReplicas, Replicas};
use std::fmt;
use std::time::Duration;

/// The settings of [`Config`]; any other option is the scheme's, or unknown.
pub(super) const SETTINGS: [&str; 16] = [
    "password_file",
    "watchdog",
    "lease",
    "outage_limit",
    "hand_off",
    "connect_timeout",
    "command_timeout",
    "pool",
    "client_name",
    "prefix",
    "tokens",
    "token_retention",
    "replicas",
    "replication_timeout",
    "on_insufficient_replicas",
    "unconfirmed_renewals",
];

/// Where a value came from, for the message that refuses it.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// From the URL or a setter: the message needs no location.
    Direct,
    /// From this location, as in "locks.toml, line 3".
    Named(String),
}

/// An option that is not a setting.
#[derive(Clone, Debug)]
pub(super) struct SchemeOption {
    pub(super) value: Secret,
    source: Source,
}

impl Source {
    /// The error for a complaint about this value.
    pub(super) fn refuse(&self, complaint: &str) -> Error {
        match self {
            Self::Direct => Error::configuration(complaint),
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
            "connect_timeout" => self.connect_timeout = duration(option, value)?,
            "command_timeout" => self.command_timeout = duration(option, value)?,
            "pool" => {
                self.pool = value.parse().map_err(|_| {
                    unreadable(option, value, "a number of connections, as in `pool=8`")
                })?;
            }
            "client_name" => self.client_name = Some(value.to_owned()),
            "prefix" => self.prefix = value.to_owned(),
            "tokens" => {
                self.tokens = match value {
                    "expire" => TokenPolicy::Expire,
                    "keep" => TokenPolicy::Keep,
                    "off" => TokenPolicy::Off,
                    _ => {
                        return Err(unreadable(option, value, "one of `expire`, `keep` and `off`"));
                    }
                };
            }
            "token_retention" => self.token_retention = duration(option, value)?,
            "replicas" => self.replication.replicas = replicas(option, value)?,
            "replication_timeout" => {
                self.replication = self.replication.timeout(duration(option, value)?);
            }
            "unconfirmed_renewals" => {
                let keep = match value {
                    "refuse" => false,
                    "keep" => true,
                    _ => return Err(unreadable(option, value, "one of `refuse` and `keep`")),
                };
                self.replication = self.replication.keep_unconfirmed_renewals(keep);
            }
            "on_insufficient_replicas" => {
                self.replication.on_insufficient_replicas = match value {
                    "retry" => OnInsufficientReplicas::Retry,
                    "fail" => OnInsufficientReplicas::Fail,
                    "accept" => OnInsufficientReplicas::Accept,
                    _ => {
                        return Err(unreadable(
                            option,
                            value,
                            "one of `retry`, `fail` and `accept`",
                        ));
                    }
                };
            }
            other => {
                let extra = SchemeOption { value: Secret::new(value), source: source.clone() };
                self.scheme_options.insert(other.to_owned(), extra);
            }
        }
        Ok(())
    }

    /// Refuses options that nothing reads, and misspelt variables. `also` are the options that the
    /// scheme takes.
    pub(crate) fn refuse_unknown_options(&self, also: &[&str]) -> Result<(), Error> {
        self.refuse_misspelt_variables(also)?;
        let Some((unknown, extra)) =
            self.scheme_options.iter().find(|(option, _)| !also.contains(&option.as_str()))
        else {
            return Ok(());
        };
        let mut known: Vec<_> =
            SETTINGS.iter().chain(also).map(|option| format!("`{option}`")).collect();
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
            unreadable(option, value, "a number of replicas, or one of `off` and `all`")
        }),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn unreadable(option: &str, value: &str, wanted: impl fmt::Display) -> String {
    format!("`{option}={}` is not {wanted}", value.escape_debug())
}
