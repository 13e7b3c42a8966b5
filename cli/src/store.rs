//! The store that the user names, and its client.

use crate::arguments::{FileArguments, StoreArguments};
use crate::exit::Failure;
use crate::output;
use distlock::backend::HolderInfo;
use distlock::config::ConfigSet;
use distlock::{Client, ClientSet, Config, Error, Event};
use humantime::format_rfc3339_seconds;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The scheme of a store that no other process sees.
const MEMORY: &str = "memory";

impl FileArguments {
    /// Returns the path of the file, if one is named. Only an option or a variable names a file:
    /// one that happens to be in the current folder must not decide which store is used.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        let named = || variable("DISTLOCK_CONFIG").map(PathBuf::from);
        self.config.clone().or_else(named)
    }
}

impl StoreArguments {
    /// Returns the settings of all backends and locks. The store has no default: a lock in the
    /// wrong store excludes no other process.
    pub(crate) fn settings(&self) -> Result<ConfigSet, Failure> {
        if let Some(url) = &self.url {
            let config = Config::from_url(url)?;
            let ignored = config.ignored_variables();
            if !ignored.is_empty() {
                output::report(format_args!(
                    "with --url these variables are not read: {}",
                    ignored.join(", ")
                ));
            }
            return Ok(config.into());
        }
        if let Some(file) = self.file.path() {
            return Ok(ConfigSet::from_file(file)?.with_env()?);
        }
        if variable("DISTLOCK_URL").is_none() {
            return Err(Error::configuration(
                "no store is named: give --url or --config, or set DISTLOCK_URL, as in \
                 redis://127.0.0.1:6379, or DISTLOCK_CONFIG",
            )
            .into());
        }
        Ok(Config::from_env()?.into())
    }

    /// Creates the clients of all backends and locks, with `handler` for their events.
    pub(crate) fn clients_with(
        &self,
        handler: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<Clients, Failure> {
        let builder = distlock::builder().events(Arc::new(handler));
        Ok(Clients(builder.connect_set(self.settings()?)?))
    }

    /// Creates the clients of all backends and locks.
    pub(crate) fn clients(&self) -> Result<Clients, Failure> {
        Ok(Clients(distlock::builder().connect_set(self.settings()?)?))
    }

    /// Creates a client for this lock.
    pub(crate) fn connect_for(&self, lock: &str) -> Result<Client, Failure> {
        self.clients()?.of_lock(lock)
    }
}

/// Returns a variable of the environment. An empty one counts as not set.
fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// The clients that the settings name.
pub(crate) struct Clients(ClientSet);

impl Clients {
    pub(crate) fn settings(&self) -> &ConfigSet {
        self.0.configs()
    }

    /// Returns the settings of this lock.
    pub(crate) fn config_of(&self, lock: &str) -> Result<Config, Failure> {
        usable(self.settings().config(lock)?)
    }

    pub(crate) fn of_lock(&self, lock: &str) -> Result<Client, Failure> {
        self.config_of(lock)?;
        Ok(self.0.client(lock)?)
    }

    pub(crate) fn of_backend(&self, name: Option<&str>) -> Result<Client, Failure> {
        usable(self.settings().backend_config(name)?)?;
        Ok(self.0.backend(name)?)
    }
}

/// Refuses a store that is not visible to other processes.
pub(crate) fn usable(config: Config) -> Result<Config, Failure> {
    if config.scheme() == MEMORY {
        return Err(Error::configuration(
            "memory:// is refused: the lock would be in the memory of this process, which no \
             other process sees",
        )
        .into());
    }
    Ok(config)
}

/// Returns the beginning of the holder's identity: with the whole of it, a program could release
/// the lock.
pub(crate) fn short(holder: &HolderInfo) -> String {
    const SHOWN: usize = 8;
    let text = holder.owner.as_str();
    let shown: String = text
        .chars()
        .take(SHOWN)
        .flat_map(char::escape_debug)
        .collect();
    if text.chars().count() > SHOWN {
        format!("{shown}..")
    } else {
        shown
    }
}

/// Returns the holder's label, or the beginning of its identity. For a minimum hold, which has no
/// holder, returns the text that says when it ends.
pub(crate) fn named(holder: &HolderInfo) -> String {
    if let Some(until) = kept_until(holder) {
        return format!("kept until {until}");
    }
    match &holder.label {
        Some(label) => label.text.escape_debug().to_string(),
        None => short(holder),
    }
}

/// Returns the time of day, by this machine's clock, at which a minimum hold ends. Returns `None`
/// for a client's hold.
pub(crate) fn kept_until(holder: &HolderInfo) -> Option<String> {
    let left = holder
        .remaining
        .filter(|_| holder.owner.is_minimum_hold())?;
    Some(format_rfc3339_seconds(SystemTime::now() + left).to_string())
}

/// Returns how long the holder has held the lock, if that is known. The result is wrong by the
/// difference between the holder's clock and this machine's.
pub(crate) fn held_for(holder: &HolderInfo) -> Option<Duration> {
    let since = holder.label.as_ref()?.since;
    Some(SystemTime::now().duration_since(since).unwrap_or_default())
}

/// Formats a time to a tenth of a second.
pub(crate) fn rounded(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
