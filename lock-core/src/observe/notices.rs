//! [`Notices`]: reports of a backend to its client, besides the replies to requests.

use crate::name::LockName;
use crate::observe::event::{Event, ServerData, WarningKind};
use crate::observe::event_queue::Events;
use crate::observe::metrics::Counted;
use crate::sync::Mutex;
use std::fmt;
use std::sync::Arc;

/// The receiver of a backend's reports. Cheap to clone. Reports have no effect unless a client
/// [opened](crate::Schemes::open) the backend. No method blocks.
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

    /// Sets the callback that verifies the held locks. It must not block.
    pub(crate) fn on_recheck(&self, recheck: Recheck) {
        *self.0.recheck.lock() = Some(recheck);
    }

    /// Sets the callback that renews locks at once. It must not block.
    pub(crate) fn on_change(&self, renew: RenewNow) {
        *self.0.renew.lock() = Some(renew);
    }

    /// Sets the callback that shortens validities because replicas end leases earlier than known
    /// before. It must not block.
    pub(crate) fn on_replica_lead(&self, shorten: Recheck) {
        *self.0.shorten.lock() = Some(shorten);
    }

    /// Reports [`Event::ServerChanged`]: the backend uses another server at this address from now
    /// on, whose data is [unknown](ServerData::Unknown).
    pub fn server_changed(&self, server: &str, was: &str, is: &str) {
        self.server_replaced(server, was, is, ServerData::Unknown);
    }

    /// Reports [`Event::ServerChanged`], with the part of the previous server's data that the new
    /// server has.
    pub fn server_replaced(&self, server: &str, was: &str, is: &str, data: ServerData) {
        self.0.events.emit(|| Event::ServerChanged {
            server: server.to_owned(),
            was: was.to_owned(),
            is: is.to_owned(),
            data,
        });
    }

    /// Reports [`Event::ServerRefused`]: the backend found another server than expected, and does
    /// not use it.
    pub fn server_refused(&self, server: &str, expected: &str, found: &str) {
        self.0.events.emit(|| Event::ServerRefused {
            server: server.to_owned(),
            expected: expected.to_owned(),
            found: found.to_owned(),
        });
    }

    /// Reports [`Event::Warning`]: locks work, but the store or a setting should be corrected.
    /// Calls `message` only if the client has an event handler or records metrics.
    pub fn warn(&self, kind: WarningKind, message: impl FnOnce() -> String) {
        self.0.events.emit(|| Event::Warning {
            kind,
            message: message(),
        });
    }

    /// Reports a new connection to a server, which counts as open until the result is dropped. Has
    /// an effect only with the feature `metrics`.
    #[must_use = "the connection counts as closed when this is dropped"]
    pub fn connected(&self) -> OpenConnection {
        OpenConnection {
            _counted: self.0.events.metrics.connected(),
        }
    }

    /// Renews at once the held locks among `names` (`None`: all held locks), because the store
    /// reported that they have changed. Only locks whose renewals are unlimited are renewed, and
    /// among `names` only locks of one owner. The renewal detects whether the lock was lost.
    pub fn changed(&self, names: Option<&[LockName]>) {
        let renew = self.0.renew.lock().clone();
        if let Some(renew) = renew {
            renew(names);
        }
    }

    /// Shortens the validity of the locks that the client holds under a policy for replicas,
    /// because [`Replicated::replica_lead`](crate::backend::Replicated::replica_lead) has grown.
    pub fn replica_lead_grew(&self) {
        let shorten = self.0.shorten.lock().clone();
        if let Some(shorten) = shorten {
            shorten();
        }
    }

    /// Verifies all locks that the client holds now, on a separate thread, instead of at the next
    /// renewal: the store may have lost them.
    pub fn verify_held(&self) {
        let recheck = self.0.recheck.lock().clone();
        if let Some(recheck) = recheck {
            recheck();
        }
    }
}

/// An open connection that was [reported](Notices::connected).
#[derive(Debug)]
pub struct OpenConnection {
    _counted: Counted,
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Notices").field(&self.0.events).finish()
    }
}
