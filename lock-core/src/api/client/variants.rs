//! [`Variant`]: clients of the same store that differ in some settings.

use super::{Client, ClientBuilder};
use crate::config::Config;
use crate::engine::EngineHandle;
use crate::error::Error;
use crate::sync::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// The settings in which a client differs from the client that the builder made, and the data that
/// it shares with that client and its other variants.
#[derive(Clone)]
pub(super) struct Variant {
    shared: Arc<Shared>,
    changes: Changes,
}

/// Options and their values.
type Changes = BTreeMap<String, String>;

struct Shared {
    /// The builder of the client without changes.
    origin: ClientBuilder,
    /// The clients with changes. The entry of a dropped client stays until the next client is made.
    open: Mutex<HashMap<Changes, Weak<EngineHandle>>>,
}

impl Variant {
    /// Makes the variant without changes.
    pub(super) fn first(origin: ClientBuilder) -> Self {
        let shared = Shared {
            origin,
            open: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            changes: Changes::new(),
        }
    }

    /// Returns the client with one more change: the existing client if it is in use, or a new
    /// client.
    pub(super) fn with_option(&self, option: &str, value: &str) -> Result<Client, Error> {
        let Shared { origin, open } = &*self.shared;
        if origin.backend.is_some() {
            return Err(Error::configuration(format!(
                "`{option}` cannot be changed for a client that was given a backend: give it a URL"
            )));
        }
        let mut variant = self.clone();
        variant.changes.insert(option.to_owned(), value.to_owned());
        // Locked while the client is made, which sends no request, so that two threads get the same
        // client.
        let mut open = open.lock();
        if let Some(alive) = open.get(&variant.changes).and_then(Weak::upgrade) {
            return Ok(Client(alive, variant));
        }
        let change =
            |config: Config, (name, value): (&String, &String)| config.with_option(name, value);
        let configure = |config: Config| {
            variant
                .changes
                .iter()
                .fold(config, change)
                .without_unknown_variables()
        };
        let alive = origin.clone().configure(configure).open()?;
        open.retain(|_, client| client.strong_count() > 0);
        open.insert(variant.changes.clone(), Arc::downgrade(&alive));
        Ok(Client(alive, variant))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Client, MemoryBackend, SystemClock};
    use std::sync::Arc;

    #[test]
    fn variant_is_a_client_of_its_own_and_reused_while_in_use() {
        let client = crate::builder()
            .url("memory://variants")
            .unwrap()
            .connect()
            .unwrap();
        let brief = client.with_option("watchdog", "2s").unwrap();
        let held = client.mutex("a").unwrap().lock().unwrap();
        let lock = brief.mutex("a").unwrap();
        assert!(lock.try_lock().unwrap().is_none(), "the store is the same");
        let id = brief.id();
        assert!(id != client.id());
        drop(brief);
        assert_eq!(
            client.with_option("watchdog", "2s").unwrap().id(),
            id,
            "kept by a handle"
        );
        let also = client
            .with_option("watchdog", "2s")
            .unwrap()
            .with_option("tokens", "off");
        assert!(also.unwrap().id() != id);
        drop((held, lock));
        assert!(
            client.with_option("watchdog", "2s").unwrap().id() != id,
            "the first variant was dropped"
        );
    }

    #[test]
    fn variant_with_invalid_option_or_given_backend_is_refused() {
        let client = crate::builder()
            .url("memory://")
            .unwrap()
            .connect()
            .unwrap();
        let refused = |client: &Client, option, value| {
            let error = client.with_option(option, value).unwrap_err();
            assert!(error.is_configuration(), "{error}");
            error.to_string()
        };
        assert!(refused(&client, "format", "token").contains("no option `format`"));
        assert!(refused(&client, "watchdog", "soon").contains("soon"));
        let given = crate::builder()
            .backend(Arc::new(MemoryBackend::new(Arc::new(SystemClock))))
            .connect()
            .unwrap();
        assert!(refused(&given, "watchdog", "2s").contains("give it a URL"));
    }
}
