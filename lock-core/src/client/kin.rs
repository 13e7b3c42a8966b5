//! [`Kin`]: clients of the same store that differ in some settings.

use super::{Client, ClientBuilder};
use crate::engine::Alive;
use crate::error::Error;
use parking_lot::Mutex;
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
    known: Mutex<HashMap<Settings, Weak<Alive>>>,
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
                "`{option}` is read where a store is opened, and this client was given one that was open: give it a URL"
            )));
        }
        let mut kin = self.clone();
        kin.differs.insert(option.to_owned(), value.to_owned());
        // Held while it is made, which asks no store: or two threads would make two, strangers to each other.
        let mut known = known.lock();
        if let Some(alive) = known.get(&kin.differs).and_then(Weak::upgrade) {
            return Ok(Client(alive, kin));
        }
        let set = |config, (option, value): (&String, &String)| {
            crate::Config::with_option(config, option, value)
        };
        let alive =
            origin.clone().configure(|config| kin.differs.iter().fold(config, set)).open()?;
        known.retain(|_, known| known.strong_count() > 0);
        known.insert(kin.differs.clone(), Arc::downgrade(&alive));
        Ok(Client(alive, kin))
    }
}
