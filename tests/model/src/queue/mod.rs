//! [`Queue`]: clients that wait for one lock in a queue of waiters, which the server keeps.
//!
//! Modelled are:
//!
//! - the scripts that acquire and release, each as one step: [`server`]
//! - clients, each with one acquisition at a time: they wait or try once, believe in the lock until
//!   their lease ends by their own clock, release it, give up, die, freeze and continue, and lose
//!   and renew the connection of their inbox
//! - the network: requests, answers and messages that are late, or repeated; what is late may never
//!   arrive, and so be lost
//! - time in ticks. All clocks have the same rate. A tick passes when everything has happened that
//!   was due and was not made late
//! - others: an operator that deletes the lock, a client of another library that takes a free lock
//!   and frees it silently, and a failover that loses the queue but not the lock
//!
//! Every trouble has a [`Budget`]. Without it, all happens at once and in any order.
//!
//! Not modelled are renewals (a holder believes in the lock for one lease), the queue of threads
//! within a client, the expiry of tombstones (they outlast the late requests), clocks of different
//! rates, and a store that loses the lock. The time that a request takes is within a tick, or late.
//!
//! A client trusts a direct grant that names its last attempt, while less than half of the granted
//! lease has passed since that attempt was sent. Otherwise it confirms the grant by an attempt.
//!
//! All times are counted in ticks from now, so that states at different times are the same. Of the
//! number of an attempt the model keeps only if it is the last one of its client, because it is
//! compared with nothing else. Tokens are replaced by their ranks.

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
/// A waiter sends an attempt so often.
const INTERVAL: u8 = 1;

const MOST_CLIENTS: usize = 3;
/// All of them, each a bit.
const ALL: u8 = 0b111;

/// What may happen, how often, and what it may cost.
#[derive(Clone, Debug)]
pub struct Queue {
    pub rules: Rules,
    pub clients: usize,
    /// The acquisitions of each client.
    pub rounds: u8,
    pub budget: Budget,
    /// For how many ticks, all in all, waiters that do not use their direct grants may keep the
    /// lock from a waiter that is ready.
    pub waste: Limit,
    /// For how many ticks at a stretch the lock may be free while a waiter is ready.
    pub idle: Limit,
}

/// A number of ticks, if they are counted.
pub type Limit = Option<u8>;

/// The rules of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    pub order: Order,
    /// The clients, each a bit, that a release does not grant the lock but only names as next: all
    /// of them where the count of `PUBLISH` proves nothing.
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

/// A rule that is left out, to see that it is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    None,
    /// A direct grant stands although `PUBLISH` reached no connection.
    KeepsUnreached,
    /// The client trusts a direct grant to any attempt of its owner.
    TrustsOldAttempt,
    /// A direct grant is published before it is written.
    PublishesFirst,
    /// A release frees the lock of any owner.
    ReleasesAnyOwner,
    /// An attempt that waits takes a free lock, even if another waiter is first.
    Barges,
    /// A call that does not wait takes a free fair lock, even if others wait.
    TriesBarge,
    /// An attempt that waits takes a free lock if the first waiter is one that is only named.
    OvertakesNamed,
    /// A waiter that was not reached loses its place.
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

/// How often each trouble happens.
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
    /// The rest is not known to any part of the system, and only needed to check it: the waiters in
    /// the order in which they arrived.
    turns: Vec<Turn>,
    /// The owner that holds the lock has believed in it, or has lost it by its own trouble.
    is_used: bool,
    /// The largest token that a client has believed in.
    last_token: u8,
    /// The owners whose release has arrived, each a bit.
    released: u8,
    /// The clients that have ever held the lock, each a bit.
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

/// The place of a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Turn {
    owner: Owner,
    /// Present for so long.
    left: u8,
    /// Has been connected since its last attempt arrived.
    is_ready: bool,
}

/// Something on the network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
struct Sent<T> {
    what: T,
    /// It arrives at any time, or never; otherwise before the next tick.
    is_late: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Client {
    phase: Phase,
    /// Which of its acquisitions this is. Each has an owner of its own.
    round: u8,
    is_frozen: bool,
    /// Its inbox is connected.
    is_connected: bool,
    /// How long ago its last attempt was sent.
    age: u8,
    /// Its last attempt was answered.
    is_answered: bool,
    /// A copy of a request of this owner may still arrive.
    is_unsure: bool,
    /// It sends the next attempt at once.
    is_woken: bool,
    /// For how long it believes in the lock.
    belief: u8,
    /// An operator has deleted its lock.
    lost_to_operator: bool,
    /// The answer to its last attempt, if not yet received.
    answer: Option<Sent<Answer>>,
    inbox: Vec<Sent<Message>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    Waiting,
    /// Has sent its only attempt.
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

/// What else happens when a request arrives.
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
