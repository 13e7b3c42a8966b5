//! Settings by name, as in a URL, a file, the environment and [`Config::with_option`].

use super::definitions::{Given, names, setting};
use super::{Config, Secret, similar};
use crate::error::Error;
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// The prefix of all environment variables of this library.
pub(super) const PREFIX: &str = "DISTLOCK_";

/// The source of a value, for the message that refuses the value.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A URL in code, a setter, or serde: the message needs no location.
    Direct(&'static str),
    /// A location, as in "locks.toml, line 3".
    Named(String),
}

/// The source of each setting from a URL, a file or the environment, and the value from that
/// source. If the setting has another value now, a setter has changed it later.
#[derive(Clone, Default)]
pub(super) struct Origins(BTreeMap<String, (Source, Option<String>)>);

/// Shows no content, so that configurations with equal values have equal text.
impl fmt::Debug for Origins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

/// A setting or an option, with the value in effect and the source of the value.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Setting {
    /// The name, as in a URL; `url` for the address.
    pub name: String,
    /// The value as a URL writes it, with `<redacted>` in place of a secret; `None` if it is not
    /// set.
    pub value: Option<String>,
    /// `default`, `URL`, `code`, a TOML file with the line (only the line if a text was parsed),
    /// `file` if serde read it, or the name of an environment variable. Also the name of the
    /// setting that determines the value: `watchdog` for `outage_limit`, `owner` for `client_name`.
    pub source: String,
}

/// An option of a scheme, which is not a setting.
#[derive(Clone, Debug)]
pub(super) struct SchemeOption {
    pub(super) value: Secret,
    source: Source,
}

/// The name under which [`Config::settings`] lists the address.
pub(super) const URL: &str = "url";

/// Returns whether the value of this option of a scheme must not be shown.
fn is_secret(option: &str) -> bool {
    let names_secret = ["password", "secret", "user"]
        .iter()
        .any(|word| option.contains(word));
    names_secret && !option.ends_with("_file")
}

impl Source {
    /// Returns the source in words.
    fn word(&self) -> &str {
        match self {
            Self::Direct(word) => word,
            Self::Named(place) => place,
        }
    }

    /// Returns the error for an invalid value from this source.
    pub(super) fn refuse(&self, complaint: &str) -> Error {
        match self {
            Self::Direct(_) => Error::configuration(complaint),
            Self::Named(source) => Error::configuration(format!("{source}: {complaint}")),
        }
    }
}

impl Config {
    /// Sets an option by its name. `Err` describes what is wrong with the value.
    pub(super) fn set(&mut self, option: &str, value: &str, source: &Source) -> Result<(), String> {
        if let Some(setting) = setting(option) {
            return (setting.set)(self, Given { option, value });
        }
        let extra = SchemeOption {
            value: Secret::new(value),
            source: source.clone(),
        };
        self.scheme_options.insert(option.to_owned(), extra);
        Ok(())
    }

    /// Returns the value of a setting as a URL writes it; `None` if it is not set, or if there is
    /// no such setting.
    ///
    /// An `outage_limit` that is not set equals `watchdog`. See
    /// [`scheme_option`](Self::scheme_option) for the options of a scheme.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<String> {
        (setting(name)?.get)(self)
    }

    /// Returns the meaning of a scheme option that is one of several words, such as `eviction`. The
    /// first word is the default.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the option has another word.
    ///
    /// # Panics
    ///
    /// If there are no words.
    pub fn scheme_word<T: Copy>(&self, option: &str, words: &[(&str, T)]) -> Result<T, Error> {
        let (_, default) = words.first().expect("an option has words");
        self.scheme_value(option, |given| given.meaning(words))
            .map(|meaning| meaning.unwrap_or(*default))
    }

    /// Returns the value of a scheme option that is a [duration](Self::parse_duration), such as
    /// `max_lease`; `None` if the option is not given.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if its value is not a duration.
    pub fn scheme_duration(&self, option: &str) -> Result<Option<Duration>, Error> {
        self.scheme_value(option, |given| given.duration())
    }

    fn scheme_value<T>(
        &self,
        option: &str,
        read: impl FnOnce(Given<'_>) -> Result<T, String>,
    ) -> Result<Option<T>, Error> {
        let Some(SchemeOption { value, source }) = self.scheme_options.get(option) else {
            return Ok(None);
        };
        let value = value.reveal();
        read(Given { option, value })
            .map(Some)
            .map_err(|wrong| source.refuse(&wrong))
    }

    /// Returns all settings and options, each with its value and source, for a program that shows
    /// its configuration.
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
        let settings = names().map(|name| {
            let value = self.option(name);
            let source = match self.origins.0.get(name) {
                Some((source, then)) if *then == value => source.word(),
                None if value == defaults.option(name) => "default",
                // An outage limit that is not set follows `watchdog`.
                None if name == "outage_limit" && self.outage_limit.is_none() => "watchdog",
                // A connection name that is not set follows `owner`.
                None if name == "client_name" && self.client_name.is_none() => "owner",
                _ => "code",
            };
            Setting {
                name: name.to_owned(),
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

    /// Adds a location to an error that names neither a line nor an environment variable: the
    /// location of the first option that the error's text names, otherwise `section`.
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

    /// Records the source of a setting. Must be called after the setting has its new value.
    pub(super) fn note_origin(&mut self, option: &str, source: &Source) {
        let value = self.option(option);
        self.origins
            .0
            .insert(option.to_owned(), (source.clone(), value));
    }

    /// Refuses unknown options and misspelt variables. `also` are the known options of the scheme.
    pub(crate) fn refuse_unknown_options(&self, also: &[&str]) -> Result<(), Error> {
        self.refuse_misspelt_variables(also)?;
        let Some((unknown, extra)) = self
            .scheme_options
            .iter()
            .find(|(option, _)| !also.contains(&option.as_str()))
        else {
            return Ok(());
        };
        let mut known: Vec<_> = names()
            .chain(also.iter().copied())
            .map(|option| format!("`{option}`"))
            .collect();
        known.sort_unstable();
        Err(extra.source.refuse(&format!(
            "there is no option `{}` for `{}://`{}; there are {}",
            unknown.escape_debug(),
            self.scheme(),
            did_you_mean(unknown, names().chain(also.iter().copied())),
            known.join(", ")
        )))
    }
}

/// Returns a suggestion to append to an unknown word; empty if no known word resembles it.
pub(crate) fn did_you_mean<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    similar(word, known).map_or_else(String::new, |meant| format!(" (did you mean `{meant}`?)"))
}
