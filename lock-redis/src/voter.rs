//! [`Voter`]: one server as a node of a quorum.

use crate::format::Format;
use crate::node::Node;
use crate::propose::{Introduction, Mark, Vote, Voting};
use lock_core::backend::{
    Abilities, Answer, Attempt, Closing, Failure, Lane, LockInfo, Release, Released, Renewal,
    Renewing, Replicates, TenureId, Wake, Watch,
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
    /// The longest lease that anybody may ask for, in whole milliseconds: for how long a node that may have forgotten what
    /// it granted does not vote.
    pub max_lease: Duration,
    /// Whether the operator declares that no node ever loses a write (`appendfsync always`).
    pub durable: bool,
}

/// One independent server.
pub struct Voter {
    node: Node,
    format: Arc<Format>,
    terms: Terms,
    /// Who the server is, as far as was heard. Written by whoever asks it.
    run_id: Mutex<Option<Arc<str>>>,
}

impl Voter {
    /// This server, under these terms. Does not talk to it.
    #[must_use]
    pub fn new(node: Node, format: Arc<Format>, terms: Terms) -> Self {
        Self { node, format, terms, run_id: Mutex::new(None) }
    }

    /// The `run_id` of the server, which is new whenever it is started, asked for anew.
    ///
    /// # Errors
    ///
    /// One that cannot be a node of a quorum is [`Failure::Refused`], with the reason; one that does not say who it is
    /// [`Failure::NotSent`].
    pub fn introduce(&self, by: Moment) -> Result<Arc<str>, Failure> {
        // One that does not let us in may do so later: that is no reason to refuse the whole quorum.
        let asked = self.node.introduction(by);
        let introduction = asked.map_err(|failure| Failure::NotSent(failure.into_error()))?;
        self.accept(&introduction)?;
        let run_id: Arc<str> = introduction.run_id.into();
        *self.run_id.lock() = Some(Arc::clone(&run_id));
        Ok(run_id)
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

    fn known(&self, by: Moment) -> Result<Arc<str>, Failure> {
        let known = self.run_id.lock().clone();
        known.map_or_else(|| self.introduce(by), Ok)
    }

    fn voting<'a>(&self, run_id: &'a str) -> Voting<'a> {
        let Terms { max_lease, durable } = self.terms;
        Voting { max_lease, durable, run_id }
    }

    /// Makes the server a node of the quorum, unless it is one. It does not vote for `pause` then.
    ///
    /// # Errors
    ///
    /// See [`Failure`]. A node whose longest lease is another one refuses.
    pub fn mark(&self, pause: Duration, by: Moment) -> Result<(), Failure> {
        self.look_or_mark(Some(pause), by).map(|_is_node| ())
    }

    /// Whether the server is a node of the quorum.
    ///
    /// # Errors
    ///
    /// The same.
    pub fn is_marked(&self, by: Moment) -> Result<bool, Failure> {
        self.look_or_mark(None, by)
    }

    fn look_or_mark(&self, pause: Option<Duration>, by: Moment) -> Result<bool, Failure> {
        let run_id = self.known(by)?;
        match self.node.mark(&self.format, &self.voting(&run_id), pause, by)? {
            Mark::Node(longest) if longest == self.terms.max_lease => Ok(true),
            Mark::Node(longest) => Err(self.differs(longest)),
            Mark::None => Ok(false),
            Mark::Stranger => {
                *self.run_id.lock() = None;
                Err(Failure::Refused(self.changed()))
            }
        }
    }

    /// The server, as it is called in messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.node.server().to_string()
    }

    fn differs(&self, longest: Duration) -> Failure {
        Failure::Refused(Error::configuration(format!(
            "the longest lease of this quorum is {longest:?} on {}, and this client says max_lease={:?}: all clients must \
             say the same",
            self.node.server(),
            self.terms.max_lease
        )))
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
        Error::unavailable(format!("{} was started again just now", self.node.server()))
    }
}

impl Backend for Voter {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        // It may have been started again since we asked who it is, and then once more.
        for _ in 0..2 {
            let run_id = self.known(by)?;
            match self.node.propose(&self.format, attempt, &self.voting(&run_id), by)? {
                Vote::Answer(answer) => return Ok(answer),
                Vote::Stranger => *self.run_id.lock() = None,
                Vote::Differs(longest) => return Err(self.differs(longest)),
                Vote::Ahead(ahead) => return Err(self.ahead(ahead)),
            }
        }
        Err(Failure::Refused(self.changed()))
    }

    fn renew(&self, _: Lane, batch: &[Renewing], by: Moment) -> Vec<Result<Renewal, Failure>> {
        self.node.renew(&self.format, batch, by)
    }

    fn release(&self, tenure: &TenureId, closing: Closing, by: Moment) -> Result<Release, Failure> {
        self.node.release(&self.format, tenure, closing, by)
    }

    fn submit_release(&self, tenure: &TenureId, closing: Closing, by: Moment, done: Released) {
        self.node.submit_release(&self.format, tenure, closing, by, done);
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.node.inspect(&self.format, name, by)
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.node.force_release(&self.format, name, by)
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.node.watch(&self.format, name, wake, by)
    }

    fn lane(&self, _: &LockName) -> Lane {
        Lane::new(0)
    }

    fn abilities(&self) -> Abilities {
        self.format.abilities(Replicates::Never).independent(true)
    }
}

impl fmt::Debug for Voter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Voter").field("node", &self.node).finish_non_exhaustive()
    }
}
