//! [`Queue`]: a model of clients that wait for one lock in the queue of a server.
//!
//! The model contains:
//!
//! - the scripts that acquire and release, each as one step: [`server`]
//! - clients, each with one acquisition at a time: they wait or try once, believe that they hold
//!   the lock until their lease ends by their own clock, release it, give up, die, freeze and
//!   continue, and lose and restore the connection on which they receive messages (the inbox)
//! - the network: requests, answers and messages that are late, and requests that are repeated.
//!   What is late may never arrive, which models loss
//! - time in ticks. All clocks have the same rate. A tick passes only after everything has happened
//!   that was due and not made late
//! - others: an operator that deletes the lock, a client of another library that takes a free lock
//!   and frees it silently, and a failover that loses the queue but not the lock
//!
//! The [`Budget`] limits how often each kind of trouble happens. Without trouble, everything
//! happens within its tick, in any order.
//!
//! Not modelled are renewals (a holder's belief lasts for one lease), the queue of threads within a
//! client, the expiry of tombstones (they outlast the late requests), clocks of different rates,
//! and a store that loses the lock. A request that is not late arrives within its tick.
//!
//! A client trusts a direct grant that names its last attempt, while less than half of the granted
//! lease has passed since that attempt was sent. Otherwise the client confirms the grant by an
//! attempt.
//!
//! All times are counted in ticks from now, so that states that differ only in the time of day are
//! equal. Instead of an attempt's number, the model keeps whether the attempt is its client's last
//! one, because the protocol compares nothing else. Tokens are replaced by their ranks, because
//! only their order matters.

mod checking;
mod choices;
pub mod server;
mod steps;

#[cfg(test)]
mod checked;

use server::{Message, Owner, Request, Server};

/// The lease of a lock that is granted to a request.
const LEASE: u8 = 4;
/// For how long a waiter counts as present after an attempt.
const PRESENCE: u8 = 3;
/// The lease of a direct grant.
const DIRECT_LEASE: u8 = 3;
/// The time between two attempts of a waiter.
const INTERVAL: u8 = 1;

const MOST_CLIENTS: usize = 3;
/// All clients, one bit each.
const ALL: u8 = 0b111;

/// The model: what may happen, how often, and how much time it may cost.
#[derive(Clone, Debug)]
pub struct Queue {
    pub rules: Rules,
    pub clients: usize,
    /// The number of acquisitions that each client makes.
    pub rounds: u8,
    pub budget: Budget,
    /// The largest total number of ticks for which holders that do not use their direct grants may
    /// keep the lock from a ready waiter.
    pub waste: Limit,
    /// The largest number of consecutive ticks for which the lock may be free while a waiter is
    /// ready.
    pub idle: Limit,
}

/// The largest number of ticks; `None` for no limit.
pub type Limit = Option<u8>;

/// The rules of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    pub order: Order,
    /// The clients, one bit each, that a release only names as next instead of granting them the
    /// lock. On a server where the count that `PUBLISH` returns proves nothing, that is every
    /// client.
    pub named: u8,
    pub flaw: Flaw,
}

impl Rules {
    fn is_only_named(self, owner: Owner) -> bool {
        self.named & 1 << owner.client != 0
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// A call that does not wait takes a free lock, even if others wait.
    Any,
    Fair,
}

/// A rule that the model leaves out, to show that the rule is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    None,
    /// A direct grant remains in force even if `PUBLISH` reached no connection.
    KeepsUnreached,
    /// The client trusts a direct grant to any attempt of its owner.
    TrustsOldAttempt,
    /// A direct grant is published before it is written.
    PublishesFirst,
    /// A release frees the lock of any owner.
    ReleasesAnyOwner,
    /// A waiter's attempt takes a free lock, even if another waiter is first.
    Barges,
    /// A call that does not wait takes a free fair lock, even if others wait.
    TriesBarge,
    /// A waiter's attempt takes a free lock if the first waiter was only named as next.
    OvertakesNamed,
    /// A waiter that `PUBLISH` did not reach loses its place in the queue.
    RemovesUnreached,
    /// A waiter that gives up sends no release.
    LeavesSilently,
    /// The lease of a direct grant counts from the arrival of its message.
    ValidFromArrival,
    /// A release leaves no tombstone.
    NoTombstone,
    /// Waiters count as present for ever.
    NoPresence,
}

/// How often each kind of trouble may happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Budget {
    /// A request, an answer or a message is late.
    pub late: u8,
    /// A request is sent twice, and the second copy is late.
    pub repeats: u8,
    pub deaths: u8,
    pub freezes: u8,
    pub disconnects: u8,
    /// A waiter gives up.
    pub leaves: u8,
    /// A client tries once instead of waiting.
    pub tries: u8,
    /// `PUBLISH` fails with an error.
    pub errors: u8,
    /// A release only names the next waiter, to give clients of other libraries a chance.
    pub pauses: u8,
    /// An operator deletes the lock.
    pub deletes: u8,
    /// A client of another library takes the lock.
    pub foreign: u8,
    /// The server loses the queue.
    pub failovers: u8,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub server: Server,
    clients: [Client; MOST_CLIENTS],
    /// Requests that have not arrived.
    requests: Vec<Sent<Request>>,
    budget: Budget,
    /// The waiters in the order in which they arrived. This field and the following ones belong to
    /// no part of the system: only the checks use them.
    turns: Vec<Turn>,
    /// The holder has used the lock, or its failure to use it is not the queue's fault.
    is_used: bool,
    /// The largest token with which a client has believed that it holds the lock.
    last_token: u8,
    /// The owners whose release has arrived, one bit each.
    released: u8,
    /// The clients that have ever held the lock, one bit each.
    winners: u8,
    /// A client has trusted a direct grant.
    was_trusted: bool,
    wasted: u8,
    idle: u8,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    TwoHolders,
    OldToken,
    /// An owner was granted the lock after its release.
    Revived,
    /// A waiter was granted the lock before another that was ready and had waited for longer.
    OutOfTurn,
}

/// The place of a waiter in the order of arrival.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Turn {
    owner: Owner,
    /// For how many more ticks the waiter counts as present.
    left: u8,
    /// The waiter's inbox has been connected since its last attempt arrived.
    is_ready: bool,
}

/// A request, an answer or a message under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Sent<T> {
    what: T,
    /// If true, it may arrive at any time, or never; if false, it arrives before the next tick.
    is_late: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    phase: Phase,
    /// The number of the client's current acquisition. Each acquisition has its own owner.
    round: u8,
    is_frozen: bool,
    /// The client's inbox is connected.
    is_connected: bool,
    /// The number of ticks since the client sent its last attempt.
    age: u8,
    /// The client's last attempt was answered.
    is_answered: bool,
    /// A copy of a request of this owner may still arrive.
    is_unsure: bool,
    /// The client sends its next attempt at once.
    is_woken: bool,
    /// For how many more ticks the client believes that it holds the lock.
    belief: u8,
    /// An operator has deleted the client's lock.
    lost_to_operator: bool,
    /// The answer to the last attempt, if the client has not read it yet.
    answer: Option<Sent<Answer>>,
    inbox: Vec<Sent<Message>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    Waiting,
    /// The client has sent its only attempt.
    Trying,
    Holding,
    Done,
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Answer {
    Granted {
        token: u8,
    },
    Busy,
    /// The owner has a tombstone.
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    Waits { client: usize },
    Tries { client: usize },
    AttemptsAgain { client: usize },
    GivesUp { client: usize },
    Releases { client: usize },
    ReadsAnswer { client: usize },
    ReadsMessage { client: usize, at: usize },
    Dies { client: usize },
    Freezes { client: usize },
    Continues { client: usize },
    Disconnects { client: usize },
    Connects { client: usize },
    Arrives { request: usize, twist: Twist },
    IsLate { request: usize },
    IsRepeated { request: usize },
    OperatorDeletes,
    ForeignTakes,
    ForeignFrees,
    QueueIsLost,
    Tick,
}

/// The trouble that may happen when a request arrives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Twist {
    None,
    AnswerIsLate,
    MessageIsLate,
    PublishFails,
    OnlyNames,
}

impl Default for Client {
    fn default() -> Self {
        Self {
            phase: Phase::Idle,
            round: 0,
            is_frozen: false,
            is_connected: true,
            age: LEASE,
            is_answered: true,
            is_unsure: false,
            is_woken: false,
            belief: 0,
            lost_to_operator: false,
            answer: None,
            inbox: Vec::new(),
        }
    }
}
