//! [`Siblings`]: clients of the same store that differ in one setting.

use super::{Client, ClientBuilder};
use crate::engine::Alive;
use crate::error::Error;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// What a client was made from, and who was made from the same.
pub(super) struct Siblings {
    origin: ClientBuilder,
    /// Those that are in use, by the option in which they differ and its value.
    known: Mutex<HashMap<(String, String), Known>>,
}

/// Does not keep it alive: handles and guards do.
struct Known {
    alive: Weak<Alive>,
    siblings: Weak<Siblings>,
}

impl Siblings {
    pub(super) fn of(origin: ClientBuilder) -> Arc<Self> {
        Arc::new(Self { origin, known: Mutex::default() })
    }

    /// The one in use, or a new one.
    pub(super) fn differing_in(&self, option: &str, value: &str) -> Result<Client, Error> {
        if self.origin.backend.is_some() {
            return Err(Error::configuration(format!(
                "`{option}` is read where a store is opened, and this client was given one that was open: give it a URL"
            )));
        }
        let key = (option.to_owned(), value.to_owned());
        // Held while it is made, which asks no store: or two threads would make two, strangers to each other.
        let mut known = self.known.lock();
        if let Some(client) = known.get(&key).and_then(Known::client) {
            return Ok(client);
        }
        let client =
            self.origin.clone().configure(|config| config.with_option(option, value)).connect()?;
        known.retain(|_, known| known.alive.strong_count() > 0);
        let [alive, siblings] = [(); 2];
        let () = alive;
        let () = siblings;
        known.insert(
            key,
            Known { alive: Arc::downgrade(&client.0), siblings: Arc::downgrade(&client.1) },
        );
        Ok(client)
    }
}

impl Known {
    fn client(&self) -> Option<Client> {
        Some(Client(self.alive.upgrade()?, self.siblings.upgrade()?))
    }
}
