//! [`ConfigSet`]: backends and locks by name, from one TOML file.

mod reader;

use super::Config;
use super::environment::{URL, is_set};
use super::option::{PREFIX, Source};
use crate::error::Error;
use reader::{Reader, unknown_backend};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// Settings of several backends, and of individual locks, from a TOML file.
///
/// ```toml
/// default = "main"                  # the backend of locks that name none
///
/// [backends.main]
/// url = "redis://127.0.0.1:6379"
/// watchdog = "10s"
///
/// [backends.ledger]
/// url = "redlock://a,b,c"
///
/// [locks.nightly]                   # the lock of this name
/// backend = "ledger"
/// watchdog = "60s"
///
/// [locks."orders:*"]                # all locks whose names begin with this
/// replicas = 1
/// ```
///
/// The section of a backend has the same lines as the file of [`Config::from_file`]. Instead of
/// `default` and a section, the `url` and the settings of the default backend may be written above
/// all sections. The section of a lock is the one with its name, otherwise the pattern with the
/// longest match; a lock may have no section. Sections are not merged. The section of a lock may
/// have `backend`, `format`, `hand_off`, `lease`, `on_insufficient_replicas`, `outage_limit`,
/// `prefix`, `replicas`, `replication_timeout`, `tokens`, `unconfirmed_renewals` and `watchdog`.
///
/// Later sources win: the defaults, the options of the backend's URL, the lines of the backend, the
/// lines of the lock, the environment ([`with_env`](Self::with_env)), and code
/// ([`configure`](Self::configure)).
///
/// [`ClientBuilder::connect_set`](crate::ClientBuilder::connect_set) creates clients from a set.
/// [`Debug`](fmt::Debug) shows the names only.
#[derive(Clone)]
pub struct ConfigSet {
    backends: Vec<Backend>,
    /// The index of the default backend.
    default: Option<usize>,
    locks: Vec<Lock>,
    /// The environment variables that begin with [`PREFIX`]; `None` without
    /// [`ConfigSet::with_env`].
    environment: Option<Vec<(OsString, OsString)>>,
    change: Option<Change>,
    /// The beginning of errors that concern no line: the name of the file and a comma, or nothing.
    file: String,
}

type Change = Arc<dyn Fn(Option<&str>, Config) -> Config + Send + Sync>;

#[derive(Clone)]
struct Backend {
    /// The name; `None` for the backend that is defined above all sections.
    name: Option<String>,
    /// The location of the URL.
    place: Source,
    config: Config,
}

#[derive(Clone)]
struct Lock {
    /// The name of a lock or, with `*` at the end, the beginning of the names of several locks.
    name: String,
    place: Source,
    backend: usize,
    lines: Vec<Line>,
}

#[derive(Clone)]
struct Line {
    key: String,
    value: String,
    place: Source,
}

/// The backend and the options that determine the settings of a client. Locks with equal keys share
/// a client.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ClientKey {
    backend: usize,
    options: BTreeMap<String, String>,
}

impl ConfigSet {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with the file, the line, the key and the accepted values. The
    /// text quotes nothing that may be a password.
    /// [`ClientBuilder::connect_set`](crate::ClientBuilder::connect_set) checks the options that
    /// depend on the scheme.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|source| {
            Error::configuration(format!("cannot read the settings in {}", path.display()))
                .with_source(source)
        })?;
        Reader {
            text: &text,
            file: format!("{}, ", path.display()),
        }
        .read()
    }

    /// Parses the text of a file as [`from_file`](Self::from_file) reads it.
    ///
    /// # Errors
    ///
    /// Those of [`from_file`](Self::from_file), without the file.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        Reader {
            text,
            file: String::new(),
        }
        .read()
    }

    /// Overrides the settings of the file with those of the environment.
    ///
    /// The URL in `DISTLOCK_URL` replaces the address of the default backend, and its options
    /// replace the settings of the same names. The variable of a setting, as in
    /// `DISTLOCK_WATCHDOG=10s`, applies to all backends and locks. See [`Config::with_env`].
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with the variable and the accepted values, and if `DISTLOCK_URL`
    /// is set but there is no default backend.
    pub fn with_env(self) -> Result<Self, Error> {
        self.with_variables(std::env::vars_os())
    }

    fn with_variables(
        mut self,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Error> {
        let is_ours = |name: &OsString| {
            let start = name.as_encoded_bytes().get(..PREFIX.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(PREFIX.as_bytes()))
        };
        let ours = variables.filter(|(name, _)| is_ours(name)).filter(is_set);
        self.environment = Some(ours.collect());
        if self.default.is_none() && self.variable(URL).is_some() {
            return Err(Error::configuration(format!(
                "{URL} replaces the URL of the default backend, and {}there is none: add \
                 `default`, or unset {URL}",
                self.file
            )));
        }
        self.checked()
    }

    fn variable(&self, name: &str) -> Option<OsString> {
        let mut all = self.environment.iter().flatten();
        all.find(|(variable, _)| variable == name)
            .map(|(_, value)| value.clone())
    }

    /// Sets a function that changes the configuration of each client. It is called last, so its
    /// changes win over all other sources. Its first argument is the name of the backend, or `None`
    /// for the backend that is defined above the sections. For settings that a file cannot express,
    /// such as [`Config::with_credentials`].
    #[must_use]
    pub fn configure(
        mut self,
        change: impl Fn(Option<&str>, Config) -> Config + Send + Sync + 'static,
    ) -> Self {
        self.change = Some(Arc::new(change));
        self
    }

    /// Returns the names of the backends, in the order of the file; `None` for the backend that is
    /// defined above the sections.
    pub fn backends(&self) -> impl Iterator<Item = Option<&str>> {
        self.backends.iter().map(|backend| backend.name.as_deref())
    }

    /// Returns the names and patterns of the sections of locks, in the order of the file.
    pub fn locks(&self) -> impl Iterator<Item = &str> {
        self.locks.iter().map(|lock| lock.name.as_str())
    }

    /// Returns the settings of the lock of this name.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if the file has no backend for the lock.
    pub fn config(&self, lock: &str) -> Result<Config, Error> {
        let (backend, section) = self.choose(lock)?;
        self.effective(backend, section)
    }

    /// Returns the settings of a backend, without those of any lock. `None` selects the default
    /// backend.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if there is no backend of this name, with a list of all names,
    /// or no default backend.
    pub fn backend_config(&self, name: Option<&str>) -> Result<Config, Error> {
        self.effective(self.index_of(name)?, None)
    }

    /// Returns where the settings of the lock of this name come from: the name of its backend
    /// (`None` for the one that is defined above the sections), and its section, if it has one.
    ///
    /// # Errors
    ///
    /// Those of [`config`](Self::config).
    pub fn choice(&self, lock: &str) -> Result<(Option<&str>, Option<&str>), Error> {
        let (backend, section) = self.choose(lock)?;
        Ok((
            self.backends[backend].name.as_deref(),
            section.map(|lock| lock.name.as_str()),
        ))
    }

    /// Returns the key of this lock's client.
    pub(crate) fn key(&self, lock: &str) -> Result<ClientKey, Error> {
        let (backend, section) = self.choose(lock)?;
        let lines = section.map_or(&[][..], |section| &section.lines);
        let options = lines
            .iter()
            .map(|line| (line.key.clone(), line.value.clone()))
            .collect();
        Ok(ClientKey { backend, options })
    }

    /// Returns the key of a backend's client, without the options of any lock.
    pub(crate) fn backend_key(&self, name: Option<&str>) -> Result<ClientKey, Error> {
        Ok(ClientKey {
            backend: self.index_of(name)?,
            options: BTreeMap::new(),
        })
    }

    /// Calls `check` with the configuration of each backend and of each section of a lock. Adds the
    /// location to the errors that `check` returns.
    pub(crate) fn check_each(
        &self,
        check: impl Fn(&Config) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let backends = self
            .backends
            .iter()
            .enumerate()
            .map(|(at, it)| (at, None, &it.place));
        let locks = self
            .locks
            .iter()
            .map(|lock| (lock.backend, Some(lock), &lock.place));
        for (backend, section, place) in backends.chain(locks) {
            let config = self.effective(backend, section)?;
            check(&config).map_err(|error| config.locate(error, place))?;
        }
        Ok(())
    }

    /// Returns the settings of a file without sections.
    pub(super) fn into_unnamed(mut self) -> Result<Config, Error> {
        let named = self
            .backends
            .iter()
            .filter(|backend| backend.name.is_some());
        let mut places = named
            .map(|it| &it.place)
            .chain(self.locks.iter().map(|it| &it.place));
        if let Some(place) = places.next() {
            return Err(place.refuse(
                "this file has backends or locks by name, which `Config` cannot hold: read it with \
                 `ConfigSet::from_file`",
            ));
        }
        Ok(self.backends.remove(0).config)
    }

    fn index_of(&self, name: Option<&str>) -> Result<usize, Error> {
        let Some(name) = name else {
            return self
                .default
                .ok_or_else(|| self.without_default("no backend is named"));
        };
        let found = self
            .backends
            .iter()
            .position(|it| it.name.as_deref() == Some(name));
        found.ok_or_else(|| Error::configuration(format!("{}{}", self.file, self.unknown(name))))
    }

    fn unknown(&self, name: &str) -> String {
        unknown_backend(name, self.backends().flatten())
    }

    fn without_default(&self, what: &str) -> Error {
        Error::configuration(format!(
            "{}{what}, and there is no default: add `default`, as in default = \"{}\"",
            self.file,
            self.backends()
                .flatten()
                .next()
                .unwrap_or("main")
                .escape_debug()
        ))
    }

    /// Returns the index of this lock's backend, and the lock's section, if it has one.
    fn choose(&self, lock: &str) -> Result<(usize, Option<&Lock>), Error> {
        let length = |section: &Lock| match section.name.strip_suffix('*') {
            None => (section.name == lock).then_some(usize::MAX),
            Some(start) => lock.starts_with(start).then_some(start.len()),
        };
        let matching = self
            .locks
            .iter()
            .filter_map(|section| Some((length(section)?, section)));
        match (matching.max_by_key(|(length, _)| *length), self.default) {
            (Some((_, section)), _) => Ok((section.backend, Some(section))),
            (None, Some(default)) => Ok((default, None)),
            (None, None) => {
                Err(self.without_default(&format!("lock {lock:?} is in none of the sections")))
            }
        }
    }

    /// Returns the settings of a client: each source overrides the sources before it.
    fn effective(&self, backend: usize, section: Option<&Lock>) -> Result<Config, Error> {
        let Backend { name, config, .. } = &self.backends[backend];
        let mut config = config.clone();
        for Line { key, value, place } in section.map_or(&[][..], |section| &section.lines) {
            config.take(key, value, place)?;
        }
        if let Some(environment) = &self.environment {
            let is_default = self.default == Some(backend);
            let variable = |name: &str| (is_default || name != URL).then(|| self.variable(name))?;
            config = config
                .overlaid(variable)?
                .noting_unknown(environment.iter().cloned());
        }
        Ok(match &self.change {
            Some(change) => change(name.as_deref(), config),
            None => config,
        })
    }

    /// Checks the configuration of each backend and of each section of a lock, except for the
    /// options that depend on a scheme.
    fn checked(self) -> Result<Self, Error> {
        self.check_each(|_| Ok(()))?;
        Ok(self)
    }
}

/// Converts the settings of one unnamed backend.
impl From<Config> for ConfigSet {
    fn from(config: Config) -> Self {
        let backend = Backend {
            name: None,
            place: Source::Direct("URL"),
            config,
        };
        Self {
            backends: vec![backend],
            default: Some(0),
            locks: Vec::new(),
            environment: None,
            change: None,
            file: String::new(),
        }
    }
}

impl fmt::Debug for ConfigSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConfigSet")
            .field("backends", &self.backends().collect::<Vec<_>>())
            .field("locks", &self.locks().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl Config {
    /// Reads a TOML file: `url`, and a line for each further setting. A line overrides the option
    /// of the same name in the URL.
    ///
    /// ```toml
    /// url = "redis://127.0.0.1:6379"
    /// watchdog = "10s"
    /// pool = 4
    /// ```
    ///
    /// A file with `[backends]` or `[locks]` is refused: see [`ConfigSet`].
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with the file, the line, the key and the accepted values. The
    /// text quotes nothing that may be a password.
    /// [`ClientBuilder::connect`](crate::ClientBuilder::connect) refuses a key that the scheme does
    /// not know, with the file and the line.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
        ConfigSet::from_file(path)?.into_unnamed()
    }

    /// Parses the text of a file as [`from_file`](Self::from_file) reads it.
    ///
    /// # Errors
    ///
    /// Those of [`from_file`](Self::from_file), without the file.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        ConfigSet::from_toml(text)?.into_unnamed()
    }
}

#[cfg(test)]
mod tests;
