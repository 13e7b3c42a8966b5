//! [`QuorumNode`]: one store of a quorum, and its responses.

use lock_core::backend::{Abilities, AcquisitionId, ReplicaSupport};
use lock_core::backend::{
    Answer, Attempt, Backend, Failure, FoundBusyBy, LockInfo, LockPage, NodeId, OnReleased,
    PagePosition, Release, ReleaseOptions, Renewal, RenewalRequest, Wake, Watch,
};
use lock_core::{Error, LockName, Moment};
use lock_redis::parts::{
    Format, MarkerRequest, Node, NodeDiagnosis, NodeView, ProposalReply, RequestMode, ServerInfo,
    ServerState, StoreKind, VoteTerms, WithView,
};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// How long a server that cannot be a node is not asked again whether it still cannot.
const REFUSAL_VALIDITY: Duration = Duration::from_secs(1);

/// One store of a quorum.
pub(super) enum QuorumNode {
    /// A store that loses no data and keeps its identity, named by its number.
    Store { store: Arc<dyn Backend>, name: String },
    /// A Redis server, whose marker is read with each answer.
    Server(Box<RedisNode>),
}

/// The values that all nodes and clients of a quorum must agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QuorumTerms {
    /// The longest lease, in whole milliseconds: the pause of a node that may have lost data.
    pub(super) max_lease: Duration,
    /// How long a token counter is kept beyond the time that it stands for.
    pub(super) keep: Duration,
    /// Whether the operator declares that no write is lost (`appendfsync always`).
    pub(super) durable: bool,
}

/// An answer and the node that gave it; without one if the store has no marker.
#[derive(Clone)]
pub(super) struct Response<T> {
    pub(super) what: T,
    pub(super) by: Option<Arc<NodeView>>,
}

impl<T> Response<T> {
    fn of((what, by): WithView<T>) -> Self {
        Self { what, by }
    }

    fn of_store(what: T) -> Self {
        Self { what, by: None }
    }
}

/// The response to an attempt.
#[derive(Debug)]
pub(super) enum Vote {
    Cast(Answer),
    /// The node does not vote for this time.
    Paused(Duration),
    /// The server is no node of any quorum.
    Unmarked,
}

impl QuorumNode {
    /// The name of the node in messages.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Store { name, .. } => name.clone(),
            Self::Server(server) => server.node.server().to_string(),
        }
    }

    pub(super) fn server(&self) -> Option<&RedisNode> {
        match self {
            Self::Store { .. } => None,
            Self::Server(server) => Some(server),
        }
    }

    pub(super) fn abilities(&self) -> Abilities {
        match self {
            Self::Store { store, .. } => store.abilities(),
            Self::Server(server) => {
                server.format.abilities(ReplicaSupport::Never).independent(true)
            }
        }
    }

    pub(super) fn acquire(
        &self,
        attempt: &Attempt<'_>,
        by: Moment,
    ) -> Result<Response<Vote>, Failure> {
        match self {
            Self::Store { store, .. } => {
                store.acquire(attempt, by).map(|answer| Response::of_store(Vote::Cast(answer)))
            }
            Self::Server(server) => server.vote(attempt, by).map(Response::of),
        }
    }

    pub(super) fn renew(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Response<Renewal>, Failure>> {
        match self {
            Self::Store { store, .. } => {
                let renewals = store.renew(NodeId::new(0), batch, by).into_iter();
                renewals.map(|renewal| renewal.map(Response::of_store)).collect()
            }
            Self::Server(server) => {
                let renewals = server.node.renew_with_view(&server.format, batch, by).into_iter();
                renewals.map(|renewal| renewal.map(Response::of)).collect()
            }
        }
    }

    pub(super) fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        match self {
            Self::Store { store, .. } => store.release(acquisition, options, by),
            Self::Server(server) => {
                let mode = RequestMode::Direct;
                server.node.release(mode, &server.format, acquisition, options, by)
            }
        }
    }

    pub(super) fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        match self {
            Self::Store { store, .. } => store.submit_release(acquisition, options, by, done),
            Self::Server(server) => {
                server.node.submit_release(&server.format, acquisition, options, by, done);
            }
        }
    }

    pub(super) fn inspect(
        &self,
        name: &LockName,
        by: Moment,
    ) -> Result<Response<LockInfo>, Failure> {
        match self {
            Self::Store { store, .. } => store.inspect(name, by).map(Response::of_store),
            Self::Server(server) => {
                server.node.inspect_with_view(&server.format, name, by).map(Response::of)
            }
        }
    }

    pub(super) fn inspect_all(
        &self,
        names: &[LockName],
        by: Moment,
    ) -> Result<Response<Vec<Result<LockInfo, Failure>>>, Failure> {
        match self {
            Self::Store { store, .. } => Ok(Response::of_store(store.inspect_all(names, by))),
            Self::Server(server) => {
                server.node.inspect_all_with_view(&server.format, names, by).map(Response::of)
            }
        }
    }

    /// The locks that this node alone holds to be held.
    pub(super) fn list(
        &self,
        pattern: &str,
        from: &PagePosition,
        by: Moment,
    ) -> Result<LockPage, Failure> {
        match self {
            Self::Store { store, .. } => store.list(pattern, from, by),
            Self::Server(server) => {
                server.node.list(&server.format, pattern, from.cursor, by)?.into_page("")
            }
        }
    }

    /// Frees a lock of any owner; on a server only if it is a node of this quorum.
    pub(super) fn force_release(
        &self,
        name: &LockName,
        quorum: Option<&str>,
        by: Moment,
    ) -> Result<Response<bool>, Failure> {
        match self {
            Self::Store { store, .. } => store.force_release(name, by).map(Response::of_store),
            Self::Server(server) => server
                .node
                .force_release_with_view(&server.format, name, quorum, by)
                .map(Response::of),
        }
    }

    pub(super) fn poll_pause(&self, name: &LockName, found_by: FoundBusyBy) -> Option<Duration> {
        match self {
            Self::Store { store, .. } => store.poll_pause(name, found_by),
            Self::Server(server) => server.node.poll_pause(&server.format, name, found_by),
        }
    }

    pub(super) fn watch(
        &self,
        name: &LockName,
        wake: Arc<dyn Wake>,
        by: Moment,
    ) -> Result<Watch, Failure> {
        match self {
            Self::Store { store, .. } => store.watch(name, wake, by),
            Self::Server(server) => server.node.watch(&server.format, name, wake, by),
        }
    }
}

impl fmt::Debug for QuorumNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Store { store, .. } => store.fmt(f),
            Self::Server(server) => server.node.fmt(f),
        }
    }
}

/// A Redis server as a node of a quorum.
///
/// Its identity and its marker are read once and cached for votes, which name them: the script
/// refuses a vote if they have changed.
pub(super) struct RedisNode {
    node: Node,
    format: Arc<Format>,
    terms: QuorumTerms,
    cached: Mutex<CachedView>,
}

/// What was read from the server last.
enum CachedView {
    None,
    Node(Arc<NodeView>),
    /// The server cannot be a node, for this reason. It is asked again at this time.
    Refused(Error, Moment),
}

impl RedisNode {
    /// A server under these terms. Connects to nothing.
    pub(super) fn new(node: Node, format: Arc<Format>, terms: QuorumTerms) -> Self {
        Self { node, format, terms, cached: Mutex::new(CachedView::None) }
    }

    pub(super) fn terms(&self) -> &QuorumTerms {
        &self.terms
    }

    /// The key of the marker.
    pub(super) fn marker_key(&self) -> String {
        self.format.marker_key()
    }

    /// Asks the server for its identity and its marker. A server that cannot be a node of this
    /// quorum is [`Failure::Refused`]; one that does not answer [`Failure::NotSent`].
    pub(super) fn read_state(&self, by: Moment) -> Result<ServerState, Failure> {
        let state = self.ask_state(by);
        *self.cached.lock() = match &state {
            Ok(ServerState { marker: Some((_, view)), .. }) => {
                CachedView::Node(Arc::new(view.clone()))
            }
            Err(Failure::Refused(error)) => {
                CachedView::Refused(error.clone(), self.node.clock().now() + REFUSAL_VALIDITY)
            }
            _ => CachedView::None,
        };
        state
    }

    /// What its settings and its state mean for locks.
    pub(super) fn diagnose(&self, store: StoreKind, by: Moment) -> Result<NodeDiagnosis, Failure> {
        self.node.diagnose(&self.format, store, by)
    }

    fn ask_state(&self, by: Moment) -> Result<ServerState, Failure> {
        // A server that refuses the credentials may accept them later: no reason to exclude it.
        let info = self.node.server_info(by);
        let info = info.map_err(|failure| Failure::NotSent(failure.into_error()))?;
        self.check(&info)?;
        self.mark(&info.run_id, &MarkerRequest::Look, by)
    }

    fn check(&self, info: &ServerInfo) -> Result<(), Failure> {
        let server = self.node.server();
        let why = if info.is_cluster {
            "is a node of a Redis Cluster: its replica may take its place without the last writes, \
             and a quorum is of servers without failover"
        } else if !info.is_master {
            "is a replica, and a quorum is of masters that know nothing of each other"
        } else if info.has_sentinels {
            "is watched by a Sentinel, which may put a replica in its place that lacks the last \
             writes: a quorum is of servers without failover; use `redis+sentinel://`, or have it \
             watched no more (`SENTINEL REMOVE`)"
        } else if info.eviction != "noeviction" {
            "may throw keys away when its memory is full, locks among them: set `maxmemory-policy \
             noeviction`"
        } else {
            return Ok(());
        };
        Err(Failure::Refused(Error::configuration(format!("{server} {why}"))))
    }

    /// Reads or changes the marker of the server of this `run_id`. Another server, and one with
    /// other terms, is [`Failure::Refused`].
    pub(super) fn mark(
        &self,
        run_id: &str,
        request: &MarkerRequest<'_>,
        by: Moment,
    ) -> Result<ServerState, Failure> {
        let state = self.node.mark(&self.format, run_id, request, by)?;
        if &*state.run_id != run_id {
            return Err(Failure::Refused(self.changed()));
        }
        if let Some((agreed, _)) = &state.marker {
            let QuorumTerms { max_lease, keep, .. } = self.terms;
            self.compare("max_lease", "the longest lease", agreed.max_lease, max_lease)?;
            self.compare("token_retention", "for how long token counters stay", agreed.keep, keep)?;
        }
        Ok(state)
    }

    fn compare(
        &self,
        name: &str,
        what: &str,
        theirs: Duration,
        ours: Duration,
    ) -> Result<(), Failure> {
        if theirs == ours {
            return Ok(());
        }
        Err(Failure::Refused(Error::configuration(format!(
            "{what} in this quorum is {theirs:?} on {}, and this client says {name}={ours:?}: all \
             clients must say the same",
            self.node.server()
        ))))
    }

    /// The cached node, or what the server says; `None` if it is no node.
    fn view(&self, by: Moment) -> Result<Option<Arc<NodeView>>, Failure> {
        match &*self.cached.lock() {
            CachedView::Node(view) => return Ok(Some(Arc::clone(view))),
            CachedView::Refused(error, again) if self.node.clock().now() < *again => {
                return Err(Failure::Refused(error.clone()));
            }
            _ => {}
        }
        Ok(self.read_state(by)?.view())
    }

    fn vote(&self, attempt: &Attempt<'_>, by: Moment) -> Result<WithView<Vote>, Failure> {
        // The server may have restarted or recorded other members since it was read, and once more.
        for _ in 0..3 {
            let Some(view) = self.view(by)? else { return Ok((Vote::Unmarked, None)) };
            let QuorumTerms { max_lease, durable, .. } = self.terms;
            let terms = VoteTerms { max_lease, durable, view: &view };
            match self.node.propose(&self.format, attempt, &terms, by)? {
                ProposalReply::Answer(answer) => return Ok((Vote::Cast(answer), Some(view))),
                ProposalReply::Paused(left) => return Ok((Vote::Paused(left), Some(view))),
                ProposalReply::Ahead(ahead) => return Err(self.ahead(ahead)),
                ProposalReply::Stranger | ProposalReply::Unmarked | ProposalReply::Outdated => {
                    *self.cached.lock() = CachedView::None;
                }
            }
        }
        Err(Failure::Refused(self.changed()))
    }

    fn ahead(&self, ahead: Duration) -> Failure {
        Failure::Refused(Error::configuration(format!(
            "this machine's clock, or the tokens that it has seen, are {ahead:.1?} ahead of the \
             clock of {}, and max_lease={:?} is the most: set the clock that is wrong",
            self.node.server(),
            self.terms.max_lease
        )))
    }

    fn changed(&self) -> Error {
        Error::unavailable(format!(
            "{} was started again just now, or its address leads to another server",
            self.node.server()
        ))
    }
}
