//! [`MemoryScheme`]: the scheme of stores in memory, and the stores that its URLs have opened.

use super::{MemoryBackend, Store};
use crate::backend::Backend;
use crate::config::Config;
use crate::config::scheme::{Context, Scheme};
use crate::error::Error;
use crate::sync::Mutex;
use crate::threads::process::Origin;
use crate::time::{Clock, ManualClock};
use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, LazyLock, OnceLock, Weak};

/// The scheme `memory://`, and `memory://name`: one store for each name in a process.
///
/// A store exists while a client uses it, and its clients must use the same clock. A forked child
/// has its own stores, which start empty.
#[derive(Clone, Copy, Debug, Default)]
#[allow(
    clippy::exhaustive_structs,
    reason = "it has nothing in it, and is made by its name"
)]
pub struct MemoryScheme;

/// The stores that clients of a process use.
struct Stores {
    origin: Origin,
    by_name: Mutex<HashMap<String, Weak<Store>>>,
    /// The stores of a forked child, whose copy of the parent's mutex may stay locked forever.
    of_child: OnceLock<Box<Self>>,
}

static STORES: LazyLock<Stores> = LazyLock::new(Stores::new);

impl Stores {
    fn new() -> Self {
        Self {
            origin: Origin::here(),
            by_name: Mutex::default(),
            of_child: OnceLock::new(),
        }
    }

    /// Returns the stores of this process.
    fn here() -> &'static Self {
        let mut stores = &*STORES;
        while stores.origin.is_elsewhere() {
            stores = stores.of_child.get_or_init(|| Box::new(Self::new()));
        }
        stores
    }
}

/// Returns whether two clocks agree. Manual clocks agree if they advance together; other clocks
/// agree if they show about the same time.
fn is_same(clock: &(dyn Clock + 'static), other: &(dyn Clock + 'static)) -> bool {
    let manual = [clock, other].map(|it| (it as &dyn Any).downcast_ref::<ManualClock>());
    if let [Some(clock), Some(other)] = manual {
        return clock.is_same(other);
    }
    let (before, there, after) = (clock.now(), other.now(), clock.now());
    before <= there && there <= after
}

impl Scheme for MemoryScheme {
    fn names(&self) -> &[&str] {
        &["memory"]
    }

    fn open(&self, config: &Config, context: &Context) -> Result<Arc<dyn Backend>, Error> {
        let name = match config.hosts() {
            [] => String::new(),
            [host] if host.port.is_none() => host.name.clone(),
            _ => {
                return Err(Error::configuration(
                    "`memory://` takes one name, without a port, as in `memory://orders`",
                ));
            }
        };
        if !config.path().is_empty() || config.user().is_some() || config.password().is_some() {
            return Err(Error::configuration(
                "`memory://` takes a name only: no user, password or path",
            ));
        }
        let mut stores = Stores::here().by_name.lock();
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(&name).and_then(Weak::upgrade) {
            if !is_same(&*store.clock, &*context.clock) {
                return Err(Error::configuration(format!(
                    "`memory://{name}` has clients on another clock, by which its leases end: give \
                    this client the same clock, or the store another name"
                )));
            }
            return Ok(Arc::new(MemoryBackend(store, config.writers())));
        }
        let mut backend = MemoryBackend::new(Arc::clone(&context.clock));
        backend.1 = config.writers();
        stores.insert(name, Arc::downgrade(&backend.0));
        Ok(Arc::new(backend))
    }
}
