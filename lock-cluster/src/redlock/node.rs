//! [`QuorumNode`]: one store of a quorum.

use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Backend, Failure, LockInfo, LockPage,
    NO_FORCED_RELEASE, NO_LISTING, NodeId, OnReleased, PagePosition, Proposal, ProposalAnswer,
    Receipt, Release, ReleaseOptions, Renewal, RenewalRequest, ReplicaSupport, Wake, Watch,
};
use lock_core::{Error, LockName, Moment};
use lock_redis::quorum::{
    MarkerRequest, NodeView, ProposalReply, Response, ServerState, VoteTerms,
};
use lock_redis::servers::Node;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The time for which the refusal of a server that cannot be a node is cached, because the server
/// may be repaired at any moment.
const REFUSAL_VALIDITY: Duration = Duration::from_secs(1);

/// One store of a quorum.
pub(super) struct QuorumNode {
    name: String,
    kind: NodeKind,
}

/// The kinds of nodes of a quorum.
enum NodeKind {
    /// A store that loses no data and keeps its identity.
    Store(Arc<dyn Backend>),
    /// A server, whose marker says whether it may vote.
    Server(RedisNode),
}

/// The terms of the votes in a quorum. All its nodes and clients must have the same `max_lease` and
/// `keep`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct QuorumTerms {
    /// The longest lease, in whole milliseconds. A node that may have lost data does not vote for
    /// this time.
    pub(super) max_lease: Duration,
    /// The time for which a token counter is kept beyond the time of day that the token represents.
    pub(super) keep: Duration,
    /// True if the operator declares that no write is lost (`appendfsync always`).
    pub(super) durable: bool,
}

/// The response to an attempt.
#[derive(Debug)]
pub(super) enum Vote {
    Cast(ProposalAnswer),
    /// The node does not vote before this time has passed.
    Paused(Duration),
    /// The server has no valid marker, so it belongs to no quorum.
    Unmarked,
    /// The proposal is ahead of the node's clock by this time, which is more than allowed.
    Ahead(Duration),
}

/// Requests the vote of a store without a marker.
fn vote_of_store(
    store: &dyn Backend,
    attempt: &Attempt<'_>,
    proposal: Option<Proposal>,
    by: Moment,
) -> Result<ProposalAnswer, Failure> {
    match (proposal, store.voter()) {
        (Some(proposal), Some(voter)) => voter.propose(attempt, proposal, by),
        _ => store.acquire(attempt, by).map(ProposalAnswer::Answer),
    }
}

impl QuorumNode {
    /// Creates a node from a store without a marker, named by its number.
    pub(super) fn of_store(number: usize, store: Arc<dyn Backend>) -> Self {
        Self {
            name: format!("node {number}"),
            kind: NodeKind::Store(store),
        }
    }

    /// Creates a node from a Redis server, whose marker says whether it may vote. Does not connect.
    pub(super) fn of_server(node: Node, terms: QuorumTerms) -> Self {
        let name = node.server().to_string();
        Self {
            name,
            kind: NodeKind::Server(RedisNode::new(node, terms)),
        }
    }

    /// Returns the name of the node in messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn server(&self) -> Option<&RedisNode> {
        match &self.kind {
            NodeKind::Store(_) => None,
            NodeKind::Server(server) => Some(server),
        }
    }

    pub(super) fn abilities(&self) -> Abilities {
        match &self.kind {
            NodeKind::Store(store) => store.abilities(),
            NodeKind::Server(server) => server.node.format().abilities(ReplicaSupport::Never),
        }
    }

    /// Returns whether the store is able to vote. Every server is; its marker says whether it may
    /// vote.
    pub(super) fn is_voter(&self) -> bool {
        match &self.kind {
            NodeKind::Store(store) => store.voter().is_some(),
            NodeKind::Server(_) => true,
        }
    }

    pub(super) fn acquire(
        &self,
        attempt: &Attempt<'_>,
        proposal: Option<Proposal>,
        by: Moment,
    ) -> Result<Response<Vote>, Failure> {
        match &self.kind {
            NodeKind::Store(store) => vote_of_store(store.as_ref(), attempt, proposal, by)
                .map(Vote::Cast)
                .map(Response::of_store),
            NodeKind::Server(server) => server.vote(attempt, proposal, by),
        }
    }

    pub(super) fn renew(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Response<Renewal>, Failure>> {
        match &self.kind {
            NodeKind::Store(store) => {
                let renewals = store.renew(NodeId::new(0), batch, by).into_iter();
                renewals
                    .map(|renewal| renewal.map(Response::of_store))
                    .collect()
            }
            NodeKind::Server(server) => server.node.renew_with_view(batch, by),
        }
    }

    /// Requests votes for locks that a majority of other nodes has granted at these tokens. `view`
    /// is the node's marker, which was just read. Returns the receipt of each vote; `None` if the
    /// node does not vote now.
    pub(super) fn vote_again(
        &self,
        attempts: &[(Attempt<'_>, Option<Proposal>)],
        view: Option<&NodeView>,
        by: Moment,
    ) -> Vec<Result<Option<Receipt>, Failure>> {
        let votes = match (&self.kind, view) {
            (NodeKind::Store(store), _) => attempts
                .iter()
                .map(|(attempt, proposal)| vote_of_store(store.as_ref(), attempt, *proposal, by))
                .collect(),
            (NodeKind::Server(server), Some(view)) => server.vote_again(attempts, view, by),
            (NodeKind::Server(_), None) => return vec![Ok(None); attempts.len()],
        };
        let receipt = |answer| match answer {
            ProposalAnswer::Answer(Answer::Granted(grant)) => Some(grant.receipt),
            _ => None,
        };
        votes.into_iter().map(|vote| vote.map(receipt)).collect()
    }

    /// Returns whether the operator declares that the node loses no write.
    pub(super) fn is_durable(&self) -> bool {
        self.server().is_none_or(|server| server.terms.durable)
    }

    pub(super) fn inspect(
        &self,
        name: &LockName,
        by: Moment,
    ) -> Result<Response<LockInfo>, Failure> {
        match &self.kind {
            NodeKind::Store(store) => store.inspect(name, by).map(Response::of_store),
            NodeKind::Server(server) => server.node.inspect_with_view(name, by),
        }
    }

    pub(super) fn inspect_all(
        &self,
        names: &[LockName],
        by: Moment,
    ) -> Result<Response<Vec<Result<LockInfo, Failure>>>, Failure> {
        match &self.kind {
            NodeKind::Store(store) => Ok(Response::of_store(store.inspect_many(names, by))),
            NodeKind::Server(server) => server.node.inspect_all_with_view(names, by),
        }
    }

    /// Frees a lock of any owner; on a server only if it is a node of this quorum.
    pub(super) fn force_release(
        &self,
        name: &LockName,
        quorum: Option<&str>,
        by: Moment,
    ) -> Result<Response<bool>, Failure> {
        match &self.kind {
            NodeKind::Store(store) => {
                let forced = store
                    .require_admin(NO_FORCED_RELEASE)?
                    .force_release(name, by);
                forced.map(Response::of_store)
            }
            NodeKind::Server(server) => server.node.force_release_with_view(name, quorum, by),
        }
    }

    // Requests that do not read the marker.

    pub(super) fn release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        match &self.kind {
            NodeKind::Store(store) => store.release(acquisition, options, by),
            NodeKind::Server(server) => server.node.release(acquisition, options, by),
        }
    }

    pub(super) fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        match &self.kind {
            NodeKind::Store(store) => store.submit_release(acquisition, options, by, done),
            NodeKind::Server(server) => {
                server.node.submit_release(acquisition, options, by, done);
            }
        }
    }

    pub(super) fn list(
        &self,
        pattern: &str,
        from: &PagePosition,
        by: Moment,
    ) -> Result<LockPage, Failure> {
        match &self.kind {
            NodeKind::Store(store) => store.require_admin(NO_LISTING)?.list(pattern, from, by),
            NodeKind::Server(server) => {
                let page = server.node.list_page(pattern, from.cursor, by)?;
                page.into_page("")
            }
        }
    }

    pub(super) fn watch(
        &self,
        name: &LockName,
        wake: Arc<dyn Wake>,
        by: Moment,
    ) -> Result<Watch, Failure> {
        match &self.kind {
            NodeKind::Store(store) => store.watch(name, wake, by),
            NodeKind::Server(server) => server.node.watch(name, wake, by),
        }
    }
}

impl fmt::Debug for QuorumNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            NodeKind::Store(store) => store.fmt(f),
            NodeKind::Server(server) => server.node.fmt(f),
        }
    }
}

/// A Redis server as a node of a quorum.
///
/// Its identity and its marker are read once and cached. Each vote names both, and the script
/// refuses a vote if they have changed.
pub(super) struct RedisNode {
    node: Node,
    terms: QuorumTerms,
    cached: Mutex<CachedView>,
}

/// The state last read from the server.
enum CachedView {
    None,
    Node(Arc<NodeView>),
    /// The server cannot be a node, for this reason. The server is read again at this time.
    Refused(Error, Moment),
}

impl RedisNode {
    fn new(node: Node, terms: QuorumTerms) -> Self {
        Self {
            node,
            terms,
            cached: Mutex::new(CachedView::None),
        }
    }

    pub(super) fn terms(&self) -> &QuorumTerms {
        &self.terms
    }

    /// Returns the key of the marker.
    pub(super) fn marker_key(&self) -> String {
        self.node.format().marker_key()
    }

    /// Reads the server's identity and its marker. Fails with [`Failure::Refused`] if the server
    /// cannot be a node of this quorum, and with [`Failure::NotSent`] if it does not answer.
    pub(super) fn read_state(&self, by: Moment) -> Result<ServerState, Failure> {
        let state = self.ask_state(by);
        *self.cached.lock() = match &state {
            Ok(ServerState {
                marker: Some((_, view)),
                ..
            }) => CachedView::Node(Arc::new(view.clone())),
            Err(Failure::Refused(error)) => {
                CachedView::Refused(error.clone(), self.node.clock().now() + REFUSAL_VALIDITY)
            }
            _ => CachedView::None,
        };
        state
    }

    pub(super) fn node(&self) -> &Node {
        &self.node
    }

    fn ask_state(&self, by: Moment) -> Result<ServerState, Failure> {
        let run_id = self.node.voter_run_id(by)?;
        self.mark(&run_id, &MarkerRequest::Look, by)
    }

    /// Reads or changes the marker of the server with this `run_id`. Fails with
    /// [`Failure::Refused`] for another server, and for a server with other terms.
    pub(super) fn mark(
        &self,
        run_id: &str,
        request: &MarkerRequest<'_>,
        by: Moment,
    ) -> Result<ServerState, Failure> {
        let state = self.node.mark(run_id, request, by)?;
        if &*state.run_id != run_id {
            return Err(Failure::Refused(self.changed()));
        }
        if let Some((agreed, _)) = &state.marker {
            let QuorumTerms {
                max_lease, keep, ..
            } = self.terms;
            self.compare(
                "max_lease",
                "the longest lease",
                agreed.max_lease,
                max_lease,
            )?;
            self.compare(
                "token_retention",
                "for how long token counters stay",
                agreed.keep,
                keep,
            )?;
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

    /// Returns the cached view of the server, or reads it; `None` if the server is no node.
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

    fn vote(
        &self,
        attempt: &Attempt<'_>,
        proposal: Option<Proposal>,
        by: Moment,
    ) -> Result<Response<Vote>, Failure> {
        // Tried more than once, because the server may have restarted or recorded other members
        // since it was last read.
        for _ in 0..3 {
            let Some(view) = self.view(by)? else {
                return Ok(Response::of_store(Vote::Unmarked));
            };
            let QuorumTerms {
                max_lease, durable, ..
            } = self.terms;
            let terms = VoteTerms {
                max_lease,
                durable,
                view: &view,
            };
            match self.node.propose(attempt, proposal, &terms, by)? {
                ProposalReply::Answer(answer) => {
                    return Ok(Response {
                        what: Vote::Cast(answer),
                        from: Some(view),
                    });
                }
                ProposalReply::Paused(left) => {
                    return Ok(Response {
                        what: Vote::Paused(left),
                        from: Some(view),
                    });
                }
                ProposalReply::Ahead(ahead) => {
                    return Ok(Response {
                        what: Vote::Ahead(ahead),
                        from: Some(view),
                    });
                }
                ProposalReply::Stranger | ProposalReply::Unmarked | ProposalReply::Outdated => {
                    *self.cached.lock() = CachedView::None;
                }
            }
        }
        Err(Failure::Refused(self.changed()))
    }

    fn vote_again(
        &self,
        attempts: &[(Attempt<'_>, Option<Proposal>)],
        view: &NodeView,
        by: Moment,
    ) -> Vec<Result<ProposalAnswer, Failure>> {
        let QuorumTerms {
            max_lease, durable, ..
        } = self.terms;
        let terms = VoteTerms {
            max_lease,
            durable,
            view,
        };
        let answer = |reply| match reply {
            ProposalReply::Answer(answer) => Ok(answer),
            // The next renewal requests the vote again.
            ProposalReply::Ahead(ahead) => Err(self.behind(ahead)),
            _ => Err(Failure::Refused(self.changed())),
        };
        let votes = self.node.vote_again(attempts, &terms, by).into_iter();
        votes.map(|vote| vote.and_then(answer)).collect()
    }

    fn behind(&self, time: Duration) -> Failure {
        Failure::Refused(Error::configuration(format!(
            "the clock of {} is {time:.1?} behind the token of the lock, and max_lease={:?} is the \
             most: set the clock that is wrong",
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
