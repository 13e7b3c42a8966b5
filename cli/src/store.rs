//! The store that the user names, and its client.

use crate::arguments::StoreArguments;
use crate::exit::Failure;
use distlock::backend::HolderInfo;
use distlock::{Client, Config, Error, Event};
use std::sync::Arc;
use std::time::Duration;

/// The scheme of a store that no other process sees.
const MEMORY: &str = "memory";

impl StoreArguments {
    /// The settings. There is no default for the URL: a lock on the wrong store excludes no
    /// process.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let config = match &self.url {
            Some(url) => Config::from_url(url)?,
            None if std::env::var_os("DISTLOCK_URL").is_none() => {
                return Err(Error::configuration(
                    "no store is named: give --url or set DISTLOCK_URL, as in \
                     redis://127.0.0.1:6379",
                )
                .into());
            }
            None => Config::from_env()?,
        };
        if config.scheme() == MEMORY {
            return Err(Error::configuration(
                "memory:// is refused: the lock would be in the memory of this process, which no \
                 other process sees",
            )
            .into());
        }
        Ok(config)
    }

    /// A client of the store, which tells `handler` what happens.
    pub(crate) fn connect_with(
        config: Config,
        handler: impl Fn(&Event) + Send + Sync + 'static,
    ) -> Result<Client, Failure> {
        Ok(distlock::builder().config(config).events(Arc::new(handler)).connect()?)
    }

    /// A client of the store.
    pub(crate) fn connect(&self) -> Result<Client, Failure> {
        Ok(distlock::builder().config(self.config()?).connect()?)
    }
}

/// The beginning of the holder's identity: the whole of it is enough to release the lock.
pub(crate) fn short(holder: &HolderInfo) -> String {
    const SHOWN: usize = 8;
    let text = holder.owner.as_str();
    let shown: String = text.chars().take(SHOWN).flat_map(char::escape_debug).collect();
    if text.chars().count() > SHOWN { format!("{shown}..") } else { shown }
}

/// A time for the reader's eye: to a tenth of a second.
pub(crate) fn rounded(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
