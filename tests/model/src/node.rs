//! [`Node`]: one node of a quorum, as a plain function from state and request to answer. The
//! scripts `propose.lua`, `mark.lua` and `close.lua`, and the in-memory store, must give the same
//! answers.
//!
//! Tokens, the node's clock, the longest lease and the time for which a counter is kept are all
//! counted in the same small unit.

/// The state of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Node {
    /// The node's clock.
    pub now: u8,
    /// The number of the node's current run, which each restart increments.
    pub run: u8,
    pub disk: Disk,
    /// The data with which the node restarts.
    pub saved: Disk,
}

/// The data of a node. A restart replaces it by what was saved last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Disk {
    /// The owner that holds the lock.
    pub lock: Option<u8>,
    pub counter: Option<Counter>,
    /// The owners with a tombstone, one bit each.
    pub closed: u8,
    pub marker: Option<Marker>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Counter {
    pub value: u8,
    /// The time that the counter was set for: the counter expires [`Rules::keep`] units later.
    pub stands_for: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Marker {
    pub run: u8,
    /// The time from which the node votes.
    pub since: u8,
    pub view: View,
}

/// A quorum, and the number of one of its memberships, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct View {
    pub quorum: u8,
    pub epoch: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// `propose.lua`. `run` and `view` are those of the node, as the client knows them.
    Propose {
        owner: u8,
        first: u8,
        last: u8,
        run: u8,
        view: View,
    },
    /// `propose.lua` for an owner that a majority has granted this token, and that has no vote of
    /// this node.
    VoteAgain {
        owner: u8,
        first: u8,
        last: u8,
        run: u8,
        view: View,
    },
    /// `close.lua`. `tokens` are the last token used and the last token set aside.
    Close {
        owner: u8,
        tokens: Option<(u8, u8)>,
        tombstone: bool,
    },
    /// `mark.lua`: records a view. If `is_admitted`, a server without a marker becomes a node. It
    /// votes one longest lease after now, or after `not_before` if that is later.
    Mark {
        run: u8,
        view: View,
        is_admitted: bool,
        not_before: u8,
    },
    /// Of the naive protocol: takes the lock if it is free, and increments the counter.
    Count { owner: u8 },
    /// Of the naive protocol: raises the counter to at least this token.
    WriteBack { token: u8 },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    Granted,
    Busy,
    /// The proposed token must be larger than this one.
    Stale(u8),
    NotVoting,
    Unmarked,
    /// The proposal is too far ahead of the node's clock.
    Ahead,
    /// The node has been restarted since the client learned its run.
    Stranger,
    /// The node belongs to another quorum, or has recorded another membership.
    Outdated,
    Freed,
    Gone,
    Marked,
    Counted(u8),
}

/// The rules that all nodes follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The longest lease; `None` if the nodes have no markers.
    pub longest: Option<u8>,
    /// For how long a counter is kept after the time that it was set for.
    pub keep: u8,
    pub flaw: Flaw,
}

/// A rule that the model leaves out, to show that the rule is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    None,
    /// A node grants at a token that it has granted before.
    GrantsEqual,
    /// An older message of the holder lowers the counter.
    OwnLowers,
    /// A grant sets the counter to the first token of the range, not to the last.
    CountsFirst,
    /// A release gives tokens back even if its owner no longer holds the lock.
    GivesBackLate,
    /// A node that lost its data votes at once.
    NoMarker,
    /// A node that lost its data waits before it votes, but then takes an absent counter for zero.
    NoFloor,
    /// A node grants tokens however far they are ahead of its clock.
    NoCeiling,
    /// A node takes an expired counter for zero.
    ExpiredIsNothing,
    /// The client also counts grants of earlier rounds, at other tokens.
    CountsOldRounds,
    /// The client does not check that its lease is still running before it believes that it holds
    /// the lock.
    NoLeaseCheck,
    /// One grant is enough for the client.
    Minority,
    /// The client counts addresses, two of which may lead to one server.
    CountsAddresses,
    /// The client adds up grants under different views, and grants of servers that are not members.
    CountsStrangers,
    /// A server becomes a node before a majority of the members has recorded the membership that
    /// includes it.
    Unrecorded,
    /// The client adds up renewals whatever the views of the nodes are.
    RenewsAnywhere,
    /// The time for which a new node does not vote counts from the earliest clock of the nodes that
    /// recorded it, not from the latest.
    EarliestClock,
    /// A node that votes again lowers a larger counter.
    AgainLowers,
    /// A node votes again for an owner that has a tombstone.
    AgainClosed,
    /// The client counts votes that were given again after its lease was over.
    CountsLapsed,
}

/// The first and the last token of a proposal, and whether a majority has already granted it.
struct Tokens {
    first: u8,
    last: u8,
    is_again: bool,
}

impl Flaw {
    /// Returns whether a client may believe that it holds the lock after its lease was over.
    pub(crate) fn revives(self) -> bool {
        matches!(self, Self::NoLeaseCheck | Self::CountsLapsed)
    }
}

impl View {
    /// The first membership of the quorum.
    pub const FIRST: Self = Self {
        quorum: 1,
        epoch: 1,
    };
    /// The first membership of another quorum.
    pub const FOREIGN: Self = Self {
        quorum: 2,
        epoch: 1,
    };
}

impl Node {
    /// Returns the view under which the node votes; without a marker, the view of no quorum.
    #[must_use]
    pub fn view(&self) -> View {
        self.disk
            .marker
            .map_or(View::default(), |marker| marker.view)
    }

    /// Returns the stored token, unless it has expired.
    #[must_use]
    pub fn stored(&self, rules: &Rules) -> Option<u8> {
        let kept = |counter: &Counter| counter.stands_for.saturating_add(rules.keep) > self.now;
        self.disk.counter.filter(kept).map(|counter| counter.value)
    }

    /// Carries out a request, and returns the node's answer.
    pub fn step(&mut self, rules: &Rules, request: Request) -> Answer {
        match request {
            Request::Propose {
                owner,
                first,
                last,
                run,
                view,
            } => {
                let tokens = Tokens {
                    first,
                    last,
                    is_again: false,
                };
                self.propose(rules, owner, tokens, run, view)
            }
            Request::VoteAgain {
                owner,
                first,
                last,
                run,
                view,
            } => {
                let tokens = Tokens {
                    first,
                    last,
                    is_again: true,
                };
                self.propose(rules, owner, tokens, run, view)
            }
            Request::Close {
                owner,
                tokens,
                tombstone,
            } => self.close(rules, owner, tokens, tombstone),
            Request::Mark {
                run,
                view,
                is_admitted,
                not_before,
            } => self.mark(rules, run, view, is_admitted.then_some(not_before)),
            Request::Count { owner } => match self.disk.lock {
                Some(holder) if holder != owner => Answer::Busy,
                Some(_) => Answer::Counted(self.disk.counter.map_or(0, |counter| counter.value)),
                None => {
                    let next = self.disk.counter.map_or(0, |counter| counter.value) + 1;
                    self.disk.lock = Some(owner);
                    self.set(next);
                    Answer::Counted(next)
                }
            },
            Request::WriteBack { token } => {
                self.set(
                    self.disk
                        .counter
                        .map_or(0, |counter| counter.value)
                        .max(token),
                );
                Answer::Granted
            }
        }
    }

    fn set(&mut self, value: u8) {
        self.disk.counter = Some(Counter {
            value,
            stands_for: value,
        });
    }

    fn propose(&mut self, rules: &Rules, owner: u8, tokens: Tokens, run: u8, view: View) -> Answer {
        let Tokens {
            first,
            last,
            is_again,
        } = tokens;
        let mut floor = self.now.saturating_sub(rules.keep);
        if let Some(longest) = rules.longest {
            if run != self.run {
                return Answer::Stranger;
            }
            let Some(marker) = &mut self.disk.marker else {
                return Answer::Unmarked;
            };
            if marker.view != view {
                return Answer::Outdated;
            }
            if marker.run != run {
                *marker = Marker {
                    run,
                    since: self.now + longest,
                    view,
                };
            }
            let since = marker.since;
            if self.now < since {
                return Answer::NotVoting;
            }
            floor = floor.max(since);
            if last > self.now + longest && rules.flaw != Flaw::NoCeiling {
                return Answer::Ahead;
            }
        }
        if matches!(rules.flaw, Flaw::NoFloor | Flaw::ExpiredIsNothing) {
            floor = 0;
        }
        let ours = self.disk.lock == Some(owner);
        let is_closed = self.disk.closed & 1 << owner != 0;
        let is_missed = is_again && rules.flaw == Flaw::AgainClosed;
        if is_closed && !is_missed || !ours && self.disk.lock.is_some() {
            return Answer::Busy;
        }
        let stored = self.stored(rules);
        let value = stored.unwrap_or(0).max(floor);
        let lowest = if rules.flaw == Flaw::GrantsEqual {
            value
        } else {
            value + 1
        };
        if !ours && !is_again && first < lowest {
            return Answer::Stale(value);
        }
        let last = if rules.flaw == Flaw::CountsFirst {
            first
        } else {
            last
        };
        let lowers = if is_again {
            Flaw::AgainLowers
        } else {
            Flaw::OwnLowers
        };
        if stored.is_none_or(|stored| stored < last) || rules.flaw == lowers {
            self.set(last);
        }
        self.disk.lock = Some(owner);
        Answer::Granted
    }

    fn close(
        &mut self,
        rules: &Rules,
        owner: u8,
        tokens: Option<(u8, u8)>,
        tombstone: bool,
    ) -> Answer {
        if tombstone {
            self.disk.closed |= 1 << owner;
        }
        let ours = self.disk.lock == Some(owner);
        if !ours && rules.flaw != Flaw::GivesBackLate {
            return Answer::Gone;
        }
        if let Some((used, end)) = tokens
            && (self.stored(rules) == Some(end) || rules.flaw == Flaw::GivesBackLate)
            && let Some(counter) = &mut self.disk.counter
        {
            counter.value = used;
        }
        if !ours {
            return Answer::Gone;
        }
        self.disk.lock = None;
        Answer::Freed
    }

    fn mark(&mut self, rules: &Rules, run: u8, view: View, not_before: Option<u8>) -> Answer {
        if run != self.run {
            return Answer::Stranger;
        }
        match (&mut self.disk.marker, not_before) {
            (Some(marker), _) if marker.view.quorum == view.quorum => {
                marker.view.epoch = marker.view.epoch.max(view.epoch);
            }
            (None, Some(not_before)) => {
                let since = self.now.max(not_before) + rules.longest.unwrap_or_default();
                self.disk.marker = Some(Marker { run, since, view });
            }
            _ => {}
        }
        match self.disk.marker {
            Some(marker) if marker.view == view => Answer::Marked,
            Some(_) => Answer::Outdated,
            None => Answer::Unmarked,
        }
    }

    /// Restarts the node with the data that was saved last.
    pub fn restart(&mut self, rules: &Rules) {
        self.run += 1;
        self.disk = self.saved;
        if rules.flaw == Flaw::NoMarker {
            // The node votes at once, as if it had never been away.
            self.disk.marker = Some(Marker {
                run: self.run,
                since: 0,
                view: View::FIRST,
            });
        }
    }
}
