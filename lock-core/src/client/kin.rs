//! [`Kin`]: clients of the same store that differ in some settings.

use super::{Client, ClientBuilder};
use crate::engine::EngineHandle;
use crate::error::Error;
use crate::sync::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};

/// What a client has in common with others, and what not.
#[derive(Clone)]
pub(super) struct Kin {
    family: Arc<Family>,
    differs: Settings,
}

/// Options and their values.
type Settings = BTreeMap<String, String>;

struct Family {
    /// What the first of them was made from.
    origin: ClientBuilder,
    /// Those that differ from it, while handles and guards keep them alive.
    known: Mutex<HashMap<Settings, Weak<EngineHandle>>>,
}

impl Kin {
    /// Of a client that has none yet.
    pub(super) fn none(origin: ClientBuilder) -> Self {
        let family = Family { origin, known: Mutex::default() };
        Self { family: Arc::new(family), differs: Settings::new() }
    }

    /// The one that differs in this, too: the one in use, or a new one.
    pub(super) fn differing_in(&self, option: &str, value: &str) -> Result<Client, Error> {
        let Family { origin, known } = &*self.family;
        if origin.backend.is_some() {
            return Err(Error::configuration(format!(
                "`{option}` is read where a store is opened, and this client was given one that \
                was open: give it a URL"
            )));
        }
        let mut kin = self.clone();
        kin.differs.insert(option.to_owned(), value.to_owned());
        // Held while it is made, which asks no store: or two threads would make two, strangers to
        // each other.
        let mut known = known.lock();
        if let Some(alive) = known.get(&kin.differs).and_then(Weak::upgrade) {
            return Ok(Client(alive, kin));
        }
        let set = |config: crate::Config, (option, value): (&String, &String)| {
            config.with_option(option, value)
        };
        let varied = |config| kin.differs.iter().fold(config, set).without_unknown_variables();
        let alive = origin.clone().configure(varied).open()?;
        known.retain(|_, known| known.strong_count() > 0);
        known.insert(kin.differs.clone(), Arc::downgrade(&alive));
        Ok(Client(alive, kin))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Client, DistLock, MemoryBackend, SystemClock};
    use std::sync::Arc;

    #[test]
    fn one_that_differs_is_a_stranger_on_the_same_store_and_the_same_while_it_is_in_use() {
        let client = Client::builder().url("memory://kin").unwrap().connect().unwrap();
        let brief = client.with_option("watchdog", "2s").unwrap();
        let held = client.mutex("a").unwrap().lock().unwrap();
        let lock = brief.mutex("a").unwrap();
        assert!(lock.try_lock().unwrap().is_none(), "the store is the same");
        let id = brief.id();
        assert!(id != client.id());
        drop(brief);
        assert_eq!(client.with_option("watchdog", "2s").unwrap().id(), id, "a handle keeps it");
        let also = client.with_option("watchdog", "2s").unwrap().with_option("tokens", "off");
        assert!(also.unwrap().id() != id);
        drop((held, lock));
        assert!(client.with_option("watchdog", "2s").unwrap().id() != id, "nobody used it");
    }

    #[test]
    fn what_cannot_be_said_otherwise_is_refused() {
        let client = Client::builder().url("memory://").unwrap().connect().unwrap();
        let refused = |client: &Client, option, value| {
            let error = client.with_option(option, value).unwrap_err();
            assert!(error.is_configuration(), "{error}");
            error.to_string()
        };
        assert!(refused(&client, "format", "token").contains("no option `format`"));
        assert!(refused(&client, "watchdog", "soon").contains("soon"));
        let given = Client::builder()
            .backend(Arc::new(MemoryBackend::new(Arc::new(SystemClock))))
            .connect()
            .unwrap();
        assert!(refused(&given, "watchdog", "2s").contains("give it a URL"));
    }
}
