//! [`Notices`]: what a backend reports to its client besides replies to requests.

use crate::name::LockName;
use crate::observe::event::{Event, ServerData, WarningKind};
use crate::observe::event_queue::Events;
use crate::observe::metrics::Counted;
use crate::sync::Mutex;
use std::fmt;
use std::sync::Arc;

/// Where a backend reports which servers it found. Cheap to clone. Reports to no handler unless a
/// client [opened](crate::Schemes::open) the backend. Nothing here blocks.
#[derive(Clone, Default)]
pub struct Notices(Arc<Inner>);

#[derive(Default)]
struct Inner {
    events: Events,
    recheck: Mutex<Option<Recheck>>,
    renew: Mutex<Option<RenewNow>>,
    shorten: Mutex<Option<Recheck>>,
}

type Recheck = Arc<dyn Fn() + Send + Sync>;
type RenewNow = Arc<dyn Fn(Option<&[LockName]>) + Send + Sync>;

impl Notices {
    pub(crate) fn to(events: Events) -> Self {
        Self(Arc::new(Inner {
            events,
            ..Inner::default()
        }))
    }

    /// Calls `recheck`, which must not block, whenever held locks are to be verified.
    pub(crate) fn on_recheck(&self, recheck: Recheck) {
        *self.0.recheck.lock() = Some(recheck);
    }

    /// Calls `renew`, which must not block, whenever locks are to be renewed at once.
    pub(crate) fn on_change(&self, renew: RenewNow) {
        *self.0.renew.lock() = Some(renew);
    }

    /// Calls `shorten`, which must not block, whenever replicas are known to end leases earlier.
    pub(crate) fn on_replica_lead(&self, shorten: Recheck) {
        *self.0.shorten.lock() = Some(shorten);
    }

    /// Reports [`Event::ServerChanged`]: the backend uses another server at this address from now
    /// on, and does not know what data it has.
    pub fn server_changed(&self, server: &str, was: &str, is: &str) {
        self.server_replaced(server, was, is, ServerData::Unknown);
    }

    /// Reports [`Event::ServerChanged`], with what the server has of the data of the one before.
    pub fn server_replaced(&self, server: &str, was: &str, is: &str, data: ServerData) {
        self.0.events.emit(|| Event::ServerChanged {
            server: server.to_owned(),
            was: was.to_owned(),
            is: is.to_owned(),
            data,
        });
    }

    /// Reports [`Event::ServerRefused`]: the backend found another server than it expected, and
    /// does not use it.
    pub fn server_refused(&self, server: &str, expected: &str, found: &str) {
        self.0.events.emit(|| Event::ServerRefused {
            server: server.to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        });
    }

    /// Reports [`Event::Warning`]: locks work, but the store or a setting should be corrected.
    /// `message` is called only if there is a handler.
    pub fn warn(&self, kind: WarningKind, message: impl FnOnce() -> String) {
        self.0.events.emit(|| Event::Warning {
            kind,
            message: message(),
        });
    }

    /// Reports a new connection to a server, which is open until the result is dropped: for the
    /// metrics, if the feature of that name is on.
    #[must_use = "the connection counts as closed when this is dropped"]
    pub fn connected(&self) -> OpenConnection {
        OpenConnection {
            _counted: self.0.events.metrics.connected(),
        }
    }

    /// Makes the client renew those of these locks at once that it holds and renews (`None`: all),
    /// because the store says that they have changed: the renewal finds out whether they are lost.
    pub fn changed(&self, names: Option<&[LockName]>) {
        let renew = self.0.renew.lock().clone();
        if let Some(renew) = renew {
            renew(names);
        }
    }

    /// Makes the client trust the locks that it holds under a policy for replicas for less, because
    /// [`Replicated::replica_lead`](crate::backend::Replicated::replica_lead) has grown.
    pub fn replica_lead_grew(&self) {
        let shorten = self.0.shorten.lock().clone();
        if let Some(shorten) = shorten {
            shorten();
        }
    }

    /// Makes the client verify all locks that it holds now, on a thread of its own, instead of at
    /// the next renewal: the store may have lost them.
    pub fn verify_held(&self) {
        let recheck = self.0.recheck.lock().clone();
        if let Some(recheck) = recheck {
            recheck();
        }
    }
}

/// A connection that was [reported](Notices::connected) and is open.
#[derive(Debug)]
pub struct OpenConnection {
    _counted: Counted,
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Notices").field(&self.0.events).finish()
    }
}
