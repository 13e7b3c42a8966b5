//! The limits of each setting, however it was set.

use super::option::SETTINGS;
use super::{Config, label};
use crate::error::Error;
use crate::lease::Lease;
use std::time::Duration;

impl Config {
    /// Validates all settings.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with every invalid setting, its value and its limits.
    pub fn check(&self) -> Result<(), Error> {
        let beyond_limits = SETTINGS.iter().filter_map(|option| self.complaint(option));
        let wrong: Vec<_> = self
            .unreadable
            .iter()
            .cloned()
            .chain(beyond_limits)
            .collect();
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(Error::configuration(wrong.join("; ")))
        }
    }

    /// The complaint about the value of one setting. Only the sources of a password can contradict
    /// each other; the scheme checks what depends on the store.
    pub(super) fn complaint(&self, option: &str) -> Option<String> {
        match option {
            "password_file" => self.complaint_about_passwords(),
            "watchdog" => {
                let refused = Lease::watched(self.watchdog).time().err()?;
                Some(format!("watchdog {:?}: {refused}", self.watchdog))
            }
            "lease" => {
                let refused = Lease::Fixed(self.lease?).time().err()?;
                Some(format!("lease {:?}: {refused}", self.lease?))
            }
            "outage_limit" => {
                let limit = self.outage_limit?;
                (limit < Duration::from_millis(1)).then(|| {
                    format!("outage_limit {limit:?} leaves no time to try: give it at least 1ms")
                })
            }
            "hand_off" => (self.hand_off > Self::LONGEST_HAND_OFF).then(|| {
                format!(
                    "hand_off {:?} is longer than {:?}",
                    self.hand_off,
                    Self::LONGEST_HAND_OFF
                )
            }),
            "restart_grace" => (self.restart_grace > Self::LONGEST_RESTART_GRACE).then(|| {
                let longest = Self::LONGEST_RESTART_GRACE;
                format!(
                    "restart_grace {:?} is longer than {longest:?}",
                    self.restart_grace
                )
            }),
            "fair_presence" => {
                let good = Self::SHORTEST_FAIR_PRESENCE..=Self::LONGEST_FAIR_PRESENCE;
                (!good.contains(&self.fair_presence)
                    || !self.fair_presence.subsec_nanos().is_multiple_of(1_000_000))
                .then(|| {
                    format!(
                        "fair_presence {:?} is not between 1s and 10m, in whole milliseconds",
                        self.fair_presence
                    )
                })
            }
            "token_retention" => {
                let good = Self::SHORTEST_TOKEN_RETENTION..=Self::LONGEST_TOKEN_RETENTION;
                (!good.contains(&self.token_retention)
                    || !self
                        .token_retention
                        .subsec_nanos()
                        .is_multiple_of(1_000_000))
                .then(|| {
                    format!(
                        "token_retention {:?} is not between 3m and 365days, in whole milliseconds",
                        self.token_retention
                    )
                })
            }
            "connect_timeout" => wrong_timeout(option, self.connect_timeout),
            "command_timeout" => wrong_timeout(option, self.command_timeout),
            "pool" => (!(1..=Self::LARGEST_POOL).contains(&self.pool)).then(|| {
                format!(
                    "pool {} is not between 1 and {}",
                    self.pool,
                    Self::LARGEST_POOL
                )
            }),
            "client_name" => (!self.client_name.as_deref().is_none_or(is_printable)).then(|| {
                "client_name must be printable ASCII without spaces, and not empty".to_owned()
            }),
            "owner" => label::complaint(self.owner.as_deref()?, Self::LONGEST_OWNER),
            "replicas" => self.replication.wrong_count(),
            "replication_timeout" => wrong_timeout(option, self.replication.time()),
            "prefix" => self.prefix.contains(['{', '}']).then(|| {
                let prefix = &self.prefix;
                format!("prefix {prefix:?} has a brace in it: that would move keys to another slot")
            }),
            _ => None,
        }
    }

    /// The complaint about a password that is set in more than one place.
    fn complaint_about_passwords(&self) -> Option<String> {
        if self
            .password_file
            .as_ref()
            .is_some_and(|path| path.as_os_str().is_empty())
        {
            return Some("password_file names no file".to_owned());
        }
        let places = [
            (self.password().is_some(), "in the URL or in code"),
            (self.password_file.is_some(), "as `password_file`"),
            (self.credentials.is_some(), "by a provider of credentials"),
        ];
        let given: Vec<_> = places.iter().filter(|(is_given, _)| *is_given).collect();
        let [(_, one), .., (_, other)] = given[..] else {
            return None;
        };
        Some(format!(
            "the password is given {one} and {other}: leave one of them out"
        ))
    }
}

/// The complaint about the timeout of a request, if it is invalid.
pub(crate) fn wrong_timeout(option: &str, value: Duration) -> Option<String> {
    let longest = Config::LONGEST_TIMEOUT;
    let is_good = (Duration::from_millis(1)..=longest).contains(&value);
    (!is_good).then(|| format!("{option} {value:?} is not between 1ms and {longest:?}"))
}

fn is_printable(name: &str) -> bool {
    !name.is_empty() && name.chars().all(label::is_printable)
}
