//! [`Identity`]: which server answers at an endpoint.
//!
//! Every new connection is compared with it before the first request on that connection is sent.

use crate::connection::Server;
use lock_core::{Error, Moment};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// By what the servers of an endpoint are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IdentityKind {
    /// A server's `run_id`, which is new whenever the server is started.
    Run,
    /// The ID of a cluster node, which it keeps.
    Node,
}

/// What happens where another server answers than before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IdentityPolicy {
    /// Connections to it are refused.
    Keep,
    /// It is used from now on. The server before it is not used again for so long.
    Follow(Duration),
}

/// See the [module's text](self).
#[derive(Debug)]
pub(crate) struct Identity {
    kind: IdentityKind,
    policy: IdentityPolicy,
    state: Mutex<State>,
    /// Counts the servers that were followed. Written under the lock of the state, read by every
    /// connection.
    latest: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct State {
    known: Option<Arc<str>>,
    /// The servers before, and since when they are not used any more.
    left: Vec<(Arc<str>, Moment)>,
    /// The last server that was refused.
    refused: Option<String>,
}

/// To which of the servers that were followed a connection leads.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerGeneration {
    own: u64,
    latest: Option<Arc<AtomicU64>>,
}

impl ServerGeneration {
    /// Whether another server was followed since: what this connection's server says does not count
    /// any more.
    pub(crate) fn is_over(&self) -> bool {
        self.latest.as_ref().is_some_and(|latest| latest.load(Ordering::SeqCst) != self.own)
    }
}

impl Identity {
    /// An endpoint that belongs to this server alone; to the first that answers, where it is
    /// `None`.
    pub(crate) fn of(kind: IdentityKind, expected: Option<&str>) -> Self {
        let state = State { known: expected.map(Arc::from), ..State::default() };
        Self::new(kind, IdentityPolicy::Keep, state)
    }

    /// An endpoint whose server may be another one, which is followed then, and not back to the one
    /// before for `rest`.
    pub(crate) fn followed(rest: Duration) -> Self {
        Self::new(IdentityKind::Run, IdentityPolicy::Follow(rest), State::default())
    }

    fn new(kind: IdentityKind, policy: IdentityPolicy, state: State) -> Self {
        Self { kind, policy, state: Mutex::new(state), latest: Arc::default() }
    }

    pub(crate) fn kind(&self) -> IdentityKind {
        self.kind
    }

    /// The server that belongs there, as far as is known.
    pub(crate) fn known(&self) -> Option<Arc<str>> {
        self.state.lock().known.clone()
    }

    /// How often another server was followed.
    pub(super) fn changes(&self) -> u64 {
        self.latest.load(Ordering::SeqCst)
    }

    /// Whether a connection whose server does not say which one it is may be used.
    pub(super) fn is_optional(&self) -> bool {
        matches!(self.policy, IdentityPolicy::Follow(_)) || self.known().is_none()
    }

    fn generation(&self) -> ServerGeneration {
        let own = self.latest.load(Ordering::SeqCst);
        ServerGeneration { own, latest: Some(Arc::clone(&self.latest)) }
    }

    /// A new connection has found this server at the endpoint.
    ///
    /// # Errors
    ///
    /// If it is not the one that belongs there.
    pub(super) fn admit(
        &self,
        server: &Server,
        found: Option<&str>,
        now: Moment,
    ) -> Result<ServerGeneration, Error> {
        let mut state = self.state.lock();
        let (found, known) = match (found, state.known.clone()) {
            (None, _) => return Ok(self.generation()),
            (Some(found), None) => {
                state.known = Some(found.into());
                return Ok(self.generation());
            }
            (Some(found), Some(known)) => (found, known),
        };
        if *known == *found {
            return Ok(self.generation());
        }
        let is_back =
            |rest| state.left.iter().any(|(left, at)| **left == *found && now.since(*at) < rest);
        let error = match self.policy {
            IdentityPolicy::Follow(rest) if !is_back(rest) => {
                state.left.retain(|(_, at)| now.since(*at) < rest);
                state.left.push((Arc::clone(&known), now));
                state.known = Some(found.into());
                self.latest.fetch_add(1, Ordering::SeqCst);
                let generation = self.generation();
                drop(state);
                server.notices.server_changed(&server.to_string(), &known, found);
                server.notices.verify_held();
                return Ok(generation);
            }
            IdentityPolicy::Follow(rest) => Error::unavailable(format!(
                "{server} leads to the {kind} {known} now, and a new connection to {found}, which \
                 was left less than {rest:.0?} ago: does something balance connections over \
                 several servers there? A lock needs one",
                kind = self.kind,
            )),
            IdentityPolicy::Keep => Error::unavailable(format!(
                "another server answers at {server}: the {kind} {found}, where {known} belongs; \
                 nothing was asked of it",
                kind = self.kind,
            )),
        };
        let is_news = state.refused.as_deref() != Some(found);
        if is_news {
            state.refused = Some(found.to_owned());
        }
        drop(state);
        if is_news {
            server.notices.server_refused(&server.to_string(), &known, found);
        }
        Err(error)
    }
}

impl fmt::Display for IdentityKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Run => "server with run_id",
            Self::Node => "cluster node",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Endpoint;

    const REST: Duration = Duration::from_secs(30);

    fn server() -> Server {
        Server::new(Endpoint::tcp("host", 1), None)
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(1) + Duration::from_secs(seconds)
    }

    fn admit(identity: &Identity, found: &str, seconds: u64) -> Result<ServerGeneration, Error> {
        identity.admit(&server(), Some(found), at(seconds))
    }

    #[test]
    fn kept_endpoint_refuses_strangers_and_names_both() {
        for identity in
            [Identity::of(IdentityKind::Node, Some("aaa")), Identity::of(IdentityKind::Node, None)]
        {
            let first = admit(&identity, "aaa", 0).unwrap();
            let error = admit(&identity, "bbb", 1).unwrap_err();
            assert!(error.is_unavailable(), "{error:?}");
            let told = error.to_string();
            assert!(["aaa", "bbb", "host:1"].iter().all(|part| told.contains(part)), "{told}");
            assert!(!first.is_over() && !admit(&identity, "aaa", 2).unwrap().is_over());
        }
    }

    #[test]
    fn followed_endpoint_ends_connections_to_the_former_server() {
        let identity = Identity::followed(REST);
        let first = admit(&identity, "aaa", 0).unwrap();
        let second = admit(&identity, "bbb", 1).unwrap();
        assert!(first.is_over() && !second.is_over());
        assert_eq!(identity.known().as_deref(), Some("bbb"));
    }

    #[test]
    fn server_that_was_left_is_not_followed_until_its_leases_end() {
        let identity = Identity::followed(REST);
        admit(&identity, "aaa", 0).unwrap();
        let second = admit(&identity, "bbb", 1).unwrap();
        assert!(admit(&identity, "aaa", 2).is_err());
        let told = admit(&identity, "aaa", 30).unwrap_err().to_string();
        assert!(told.contains("aaa") && told.contains("bbb") && told.contains("balance"), "{told}");
        assert!(!second.is_over());
        assert!(!admit(&identity, "aaa", 31).unwrap().is_over() && second.is_over());
    }
}
