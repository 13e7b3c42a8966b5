//! The server: one lock, its token counter, the queue of its waiters, and tombstones. Each script
//! is one step.

use super::{Answer, DIRECT_LEASE, Flaw, LEASE, Order, PRESENCE, Rules};

const MOST_ROUNDS: u8 = 2;

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Server {
    pub lock: Option<Hold>,
    /// The last token.
    pub counter: u8,
    pub queue: Vec<Entry>,
    /// The owners with a tombstone, one bit each.
    pub tombstones: u8,
}

/// One acquisition of a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Owner {
    pub client: u8,
    pub round: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Hold {
    pub owner: Owner,
    pub left: u8,
}

/// Whether an attempt is its client's last one. The model keeps nothing else of its number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Number {
    Old,
    Last,
}

/// A waiter in the queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    pub owner: Owner,
    /// The last attempt; `None` after `PUBLISH` did not reach the waiter, until its next attempt.
    pub attempt: Option<Number>,
    /// For how many more ticks the waiter counts as present.
    pub left: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Request {
    pub owner: Owner,
    pub call: Call,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Call {
    Acquire { attempt: Number, waits: bool },
    Release { tombstone: bool },
}

/// A message to the inbox of a client.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Message {
    pub owner: Owner,
    /// `None` if the owner is only named as next.
    pub grant: Option<DirectGrant>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DirectGrant {
    pub attempt: Number,
    pub token: u8,
}

/// The connections that a script finds, and the message that it publishes.
#[derive(Debug, Default)]
pub struct Publishing {
    /// The clients whose inbox is connected, one bit each.
    pub connected: u8,
    pub fails: bool,
    pub only_names: bool,
    pub message: Option<Message>,
    pub has_failed: bool,
}

impl Owner {
    /// A client of another library.
    pub const FOREIGN: Self = Self {
        client: 7,
        round: 0,
    };

    #[must_use]
    pub fn bit(self) -> u8 {
        1 << (self.client * MOST_ROUNDS + self.round)
    }

    /// Returns whether both owners share one place in the queue.
    #[must_use]
    pub fn is_member_of(self, other: Self, order: Order) -> bool {
        match order {
            Order::Any => self.client == other.client,
            Order::Fair => self == other,
        }
    }
}

impl Request {
    /// Returns whether the request is an attempt of a waiter.
    #[must_use]
    pub fn waits(self) -> bool {
        matches!(self.call, Call::Acquire { waits: true, .. })
    }
}

impl Publishing {
    fn reaches(&self, owner: Owner) -> bool {
        self.connected & 1 << owner.client != 0
    }
}

impl Server {
    #[must_use]
    pub fn is_held_by(&self, owner: Owner) -> bool {
        self.lock.is_some_and(|hold| hold.owner == owner)
    }

    /// Runs `acquire.lua`.
    pub fn acquire(
        &mut self,
        rules: Rules,
        owner: Owner,
        (attempt, waits): (Number, bool),
        publishing: &mut Publishing,
    ) -> Answer {
        if self.tombstones & owner.bit() != 0 {
            return Answer::Closed;
        }
        if let Some(hold) = self.lock.as_mut().filter(|hold| hold.owner == owner) {
            hold.left = hold.left.max(LEASE);
            let token = self.counter;
            return Answer::Granted { token };
        }
        if waits {
            self.enter(rules, owner, attempt);
        }
        if self.lock.is_some() {
            return Answer::Busy;
        }
        let is_next = match rules.order {
            _ if waits => {
                rules.flaw == Flaw::Barges || self.pass_on(rules, Some(owner), publishing)
            }
            Order::Any => true,
            Order::Fair if rules.flaw == Flaw::TriesBarge => true,
            Order::Fair => self.queue.iter().all(|entry| entry.attempt.is_none()),
        };
        if !is_next {
            return Answer::Busy;
        }
        self.queue
            .retain(|entry| !entry.owner.is_member_of(owner, rules.order));
        self.counter += 1;
        self.lock = Some(Hold { owner, left: LEASE });
        let token = self.counter;
        Answer::Granted { token }
    }

    /// Runs `release.lua`, or `close.lua` if a tombstone is wanted.
    pub fn release(
        &mut self,
        rules: Rules,
        owner: Owner,
        tombstone: bool,
        publishing: &mut Publishing,
    ) {
        if tombstone && rules.flaw != Flaw::NoTombstone {
            self.tombstones |= owner.bit();
        }
        if self.is_held_by(owner) || self.lock.is_some() && rules.flaw == Flaw::ReleasesAnyOwner {
            self.lock = None;
            self.pass_on(rules, None, publishing);
            return;
        }
        let waiters = self.queue.len();
        self.queue.retain(|entry| entry.owner != owner);
        if self.lock.is_none() && self.queue.len() < waiters {
            // The owner may have been named as next. Then the next waiter must be granted the lock,
            // or named.
            self.pass_on(rules, None, publishing);
        }
    }

    fn enter(&mut self, rules: Rules, owner: Owner, attempt: Number) {
        let entry = Entry {
            owner,
            attempt: Some(attempt),
            left: PRESENCE,
        };
        let mut entries = self.queue.iter_mut();
        match entries.find(|entry| entry.owner.is_member_of(owner, rules.order)) {
            Some(same) => *same = entry,
            None => self.queue.push(entry),
        }
    }

    /// Grants a free lock to the first waiter that `PUBLISH` reaches, or names that waiter as next.
    /// Returns `true` if the lock stays free for this `caller`.
    fn pass_on(
        &mut self,
        rules: Rules,
        caller: Option<Owner>,
        publishing: &mut Publishing,
    ) -> bool {
        let mut at = 0;
        while let Some(Entry { owner, attempt, .. }) = self.queue.get(at).copied() {
            if Some(owner) == caller {
                return true;
            }
            let Some(attempt) = attempt else {
                at += 1;
                continue;
            };
            let is_reached = publishing.reaches(owner);
            if rules.is_only_named(owner) || publishing.only_names {
                let message = Message { owner, grant: None };
                publishing.message = is_reached.then_some(message);
                return rules.flaw == Flaw::OvertakesNamed;
            }
            let token = self.counter + 1;
            let grant = Some(DirectGrant { attempt, token });
            if publishing.fails {
                // The script undoes what it wrote, and no waiter loses its place.
                let is_published = is_reached && rules.flaw == Flaw::PublishesFirst;
                publishing.message = is_published.then_some(Message { owner, grant });
                publishing.has_failed = true;
                return false;
            }
            self.counter = token;
            if is_reached || rules.flaw == Flaw::KeepsUnreached {
                let left = DIRECT_LEASE;
                self.lock = Some(Hold { owner, left });
                publishing.message = is_reached.then_some(Message { owner, grant });
                self.queue.remove(at);
                return false;
            }
            if rules.flaw == Flaw::RemovesUnreached {
                self.queue.remove(at);
            } else {
                self.queue[at].attempt = None;
                at += 1;
            }
        }
        true
    }
}
