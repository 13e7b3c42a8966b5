//! [`Voter`]: one server as a node of a quorum.

use crate::format::Format;
use crate::marker::{Sight, Standing, Step};
use crate::node::{Node, RequestMode};
use crate::propose::{self, Introduction, Voting};
use lock_core::backend::{
    Abilities, AcquisitionId, Answer, Attempt, Failure, LockInfo, NodeId, OnReleased, Release,
    ReleaseOptions, Renewal, RenewalRequest, ReplicaSupport, Wake, Watch,
};
use lock_core::{Backend, Error, LockName, Moment};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What the nodes and the clients of a quorum must agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(clippy::exhaustive_structs, reason = "made by the crate of the same house")]
pub struct Terms {
    /// The longest lease that a client may ask for, in whole milliseconds: for how long a node that may have forgotten what
    /// it granted does not vote.
    pub max_lease: Duration,
    /// For how long the counter of a lock's tokens is kept after the time that it stands for.
    pub keep: Duration,
    /// Whether the operator declares that no node ever loses a write (`appendfsync always`).
    pub durable: bool,
}

/// One independent server.
///
/// Which server it is, and what it is to a quorum, is read from the server itself and kept here for votes, which name it: the
/// script refuses where that is not so any more. Renewals and looks read it along with their answer.
pub struct Voter {
    node: Node,
    format: Arc<Format>,
    terms: Terms,
    known: Mutex<Known>,
}

/// What is known of the server.
enum Known {
    Nothing,
    /// It is a node.
    Node(Arc<Standing>),
    /// It cannot be a node, for this reason. It is asked again at that time.
    Refused(Error, Moment),
}

/// An answer, and the node that gave it; `None` if the server is none.
pub type Answered<T> = (T, Option<Arc<Standing>>);

/// What a server says to an attempt.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "made by the crate of the same house")]
pub enum Vote {
    /// Its answer, as this node.
    Answer(Answer, Arc<Standing>),
    /// It is a node, and does not vote for so long.
    Paused(Duration, Arc<Standing>),
    /// It is no node of any quorum.
    Outside,
}

impl Voter {
    /// How long a server that cannot be a node is left alone before it is asked again whether it still cannot.
    const LOOK_AGAIN: Duration = Duration::from_secs(1);

    /// This server, under these terms. Does not talk to it.
    #[must_use]
    pub fn new(node: Node, format: Arc<Format>, terms: Terms) -> Self {
        Self { node, format, terms, known: Mutex::new(Known::Nothing) }
    }

    /// The terms under which it votes for this client.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// Asks the server who it is, and what it is to a quorum.
    ///
    /// # Errors
    ///
    /// One that cannot be a node of this quorum is [`Failure::Refused`], with the reason; one that does not say who it is
    /// [`Failure::NotSent`].
    pub fn look(&self, by: Moment) -> Result<Sight, Failure> {
        let seen = self.seen(by);
        *self.known.lock() = match &seen {
            Ok(Sight { marker: Some((_, standing)), .. }) => {
                Known::Node(Arc::new(standing.clone()))
            }
            Err(Failure::Refused(error)) => {
                Known::Refused(error.clone(), self.node.clock().now() + Self::LOOK_AGAIN)
            }
            _ => Known::Nothing,
        };
        seen
    }

    fn seen(&self, by: Moment) -> Result<Sight, Failure> {
        // One that does not let us in may do so later: that is no reason to refuse it for good.
        let asked = self.node.introduction(by);
        let introduction = asked.map_err(|failure| Failure::NotSent(failure.into_error()))?;
        self.accept(&introduction)?;
        self.act(&introduction.run_id, &Step::Look, by)
    }

    fn accept(&self, introduction: &Introduction) -> Result<(), Failure> {
        let server = self.node.server();
        let why = if introduction.is_cluster {
            "is a node of a Redis Cluster: its replica may take its place without the last writes, and a quorum is of \
             servers that nobody replaces"
        } else if !introduction.is_master {
            "is a replica, and a quorum is of masters that know nothing of each other"
        } else if introduction.has_sentinels {
            "is watched by a Sentinel, which may put a replica in its place that lacks the last writes: a quorum is of \
             servers that nobody replaces; use `redis+sentinel://`, or have it watched no more (`SENTINEL REMOVE`)"
        } else if introduction.eviction != "noeviction" {
            "may throw keys away when its memory is full, locks among them: set `maxmemory-policy noeviction`"
        } else {
            return Ok(());
        };
        Err(Failure::Refused(Error::configuration(format!("{server} {why}"))))
    }

    /// Has the server of this `run_id` do something with its marker.
    ///
    /// # Errors
    ///
    /// [`Failure::Refused`] if its terms are others, or it is another server by now; otherwise see [`Failure`].
    pub fn act(&self, run_id: &str, step: &Step<'_>, by: Moment) -> Result<Sight, Failure> {
        let sight = self.node.mark(&self.format, run_id, step, by)?;
        if &*sight.run_id != run_id {
            return Err(Failure::Refused(self.changed()));
        }
        if let Some((agreed, _)) = &sight.marker {
            self.same("max_lease", "the longest lease", agreed.max_lease, self.terms.max_lease)?;
            self.same(
                "token_retention",
                "for how long token counters stay",
                agreed.keep,
                self.terms.keep,
            )?;
        }
        Ok(sight)
    }

    fn same(
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
            "{what} in this quorum is {theirs:?} on {}, and this client says {name}={ours:?}: all clients must say the same",
            self.node.server()
        ))))
    }

    /// The server as a node, asked if that is not known; `None` if it is none.
    fn standing(&self, by: Moment) -> Result<Option<Arc<Standing>>, Failure> {
        match &*self.known.lock() {
            Known::Node(standing) => return Ok(Some(Arc::clone(standing))),
            Known::Refused(error, again) if self.node.clock().now() < *again => {
                return Err(Failure::Refused(error.clone()));
            }
            _ => {}
        }
        let sight = self.look(by)?;
        Ok(sight.marker.map(|(_, standing)| Arc::new(standing)))
    }

    /// Asks it for its vote.
    ///
    /// # Errors
    ///
    /// See [`Failure`]. What cannot be a node is refused, and asked again whether that is still so a second later.
    pub fn vote(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Vote, Failure> {
        // It may have been started again, or learnt of other members, since we asked who it is; and then once more.
        for _ in 0..3 {
            let Some(standing) = self.standing(by)? else { return Ok(Vote::Outside) };
            let Terms { max_lease, durable, .. } = self.terms;
            let voting = Voting { max_lease, durable, standing: &standing };
            match self.node.propose(&self.format, attempt, &voting, by)? {
                propose::Vote::Answer(answer) => return Ok(Vote::Answer(answer, standing)),
                propose::Vote::Paused(left) => return Ok(Vote::Paused(left, standing)),
                propose::Vote::Ahead(ahead) => return Err(self.ahead(ahead)),
                propose::Vote::Stranger | propose::Vote::Unmarked | propose::Vote::Outdated => {
                    *self.known.lock() = Known::Nothing;
                }
            }
        }
        Err(Failure::Refused(self.changed()))
    }

    /// Renews these, each with what the server was when it did.
    pub fn renew_standing(
        &self,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Answered<Renewal>, Failure>> {
        let renewals = self.node.renew_and_look(&self.format, batch, by);
        let with_standing = |renewal: Result<(Renewal, Arc<Sight>), Failure>| {
            let (renewal, sight) = renewal?;
            let standing = sight.marker.as_ref().map(|(_, standing)| Arc::new(standing.clone()));
            Ok((renewal, standing))
        };
        renewals.into_iter().map(with_standing).collect()
    }

    /// Who holds a lock there, with what the server was when it said so.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn inspect_standing(
        &self,
        name: &LockName,
        by: Moment,
    ) -> Result<Answered<LockInfo>, Failure> {
        let (info, sight) = self.node.inspect_and_look(&self.format, name, by)?;
        Ok((info, sight.marker.map(|(_, standing)| Arc::new(standing))))
    }

    /// Frees a lock whoever has it, if the server is a node of this quorum; on another one it is
    /// another lock.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub fn force_release_standing(
        &self,
        name: &LockName,
        quorum: Option<&str>,
        by: Moment,
    ) -> Result<Answered<bool>, Failure> {
        let (freed, sight) = self.node.look_and_force(&self.format, name, quorum, by)?;
        Ok((freed, sight.marker.map(|(_, standing)| Arc::new(standing))))
    }

    /// The key of a server's marker.
    #[must_use]
    pub fn marker_key(&self) -> String {
        self.format.marker_key()
    }

    /// The server, as it is called in messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.node.server().to_string()
    }

    fn ahead(&self, ahead: Duration) -> Failure {
        Failure::Refused(Error::configuration(format!(
            "this machine's clock, or the tokens that it has seen, are {ahead:.1?} ahead of the clock of {}, and max_lease={:?} is \
             the most: set the clock that is wrong",
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

impl Backend for Voter {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        let refused = |why: &str| {
            Failure::Refused(Error::unavailable(format!("{} {why}", self.node.server())))
        };
        match self.vote(attempt, by)? {
            Vote::Answer(answer, _) => Ok(answer),
            Vote::Paused(left, _) => Err(refused(&format!("does not vote for {left:.1?} yet"))),
            Vote::Outside => Err(refused("is no node of a quorum")),
        }
    }

    fn renew(
        &self,
        _: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        self.node.renew(RequestMode::Direct, &self.format, batch, by)
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.node.release(RequestMode::Direct, &self.format, acquisition, closing, by)
    }

    fn submit_release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
        done: OnReleased,
    ) {
        self.node.submit_release(&self.format, acquisition, closing, by, done);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.node.inspect(RequestMode::Direct, &self.format, name, by)
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.node.force_release(RequestMode::Direct, &self.format, name, by)
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.node.watch(&self.format, name, wake, by)
    }

    fn renewal_node(&self, _: &LockName) -> NodeId {
        NodeId::new(0)
    }

    fn abilities(&self) -> Abilities {
        self.format.abilities(ReplicaSupport::Never).independent(true)
    }
}

impl fmt::Debug for Voter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Voter").field("node", &self.node).finish_non_exhaustive()
    }
}
