//! One node of a quorum: what it says to each request, as plainly as it can be said. The scripts
//! `propose.lua`, `mark.lua` and `close.lua`, and the store in memory, must say the same.
//!
//! Tokens and the node's clock are counted in the same small units, and so are the longest lease
//! and for how long a counter is kept.

/// What a node knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Node {
    /// Its clock.
    pub now: u8,
    /// Which start of it this is.
    pub run: u8,
    pub disk: Disk,
    /// What it comes back with when it is started again.
    pub saved: Disk,
}

/// What of that is lost with its memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Disk {
    /// Who holds the lock.
    pub lock: Option<u8>,
    pub counter: Option<Counter>,
    /// The owners that are closed, each a bit.
    pub closed: u8,
    pub marker: Option<Marker>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Counter {
    pub value: u8,
    /// It is kept so long after this.
    pub stands_for: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Marker {
    pub run: u8,
    /// Since when it votes.
    pub since: u8,
    pub view: View,
}

/// A quorum, and which of its memberships, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct View {
    pub quorum: u8,
    pub epoch: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Request {
    /// `propose.lua`. `run` is the start that the client believes to speak to, `view` what it takes
    /// for the node's.
    Propose {
        owner: u8,
        first: u8,
        last: u8,
        run: u8,
        view: View,
    },
    /// `propose.lua` for an owner that has a majority at this token, and no vote here.
    VoteAgain {
        owner: u8,
        first: u8,
        last: u8,
        run: u8,
        view: View,
    },
    /// `close.lua`, with the last token used and the last one set aside.
    Close {
        owner: u8,
        tokens: Option<(u8, u8)>,
        tombstone: bool,
    },
    /// `mark.lua`: records a view. A server without a marker becomes a node if it `is_admitted`,
    /// and votes one longest lease later, counted from `not_before` at the earliest.
    Mark {
        run: u8,
        view: View,
        is_admitted: bool,
        not_before: u8,
    },
    /// Of the naive protocol: one more than the last, for any owner.
    Count { owner: u8 },
    /// Of the naive protocol: the counter is at least this from now on.
    WriteBack { token: u8 },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    Granted,
    Busy,
    /// This one must be outbid.
    Stale(u8),
    NotVoting,
    Unmarked,
    /// The proposal is too far ahead of the node's clock.
    Ahead,
    /// It has been started again since.
    Stranger,
    /// It belongs to another quorum, or knows another membership.
    Outdated,
    Freed,
    Gone,
    Marked,
    Counted(u8),
}

/// What the nodes agree on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The longest lease, of nodes that vote under a marker.
    pub longest: Option<u8>,
    /// For how long a counter is kept.
    pub keep: u8,
    pub flaw: Flaw,
}

/// A rule that is left out, to see that it is needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    None,
    /// A node grants at a token that it has granted before.
    GrantsEqual,
    /// An older message of the holder lowers the counter.
    OwnLowers,
    /// The counter stands at the first token of a range.
    CountsFirst,
    /// A release gives tokens back also where another owner has the lock.
    GivesBackLate,
    /// A node that was emptied votes at once.
    NoMarker,
    /// It waits, and then an absent counter stands for nothing.
    NoFloor,
    /// It grants whatever the client's clock says.
    NoCeiling,
    /// A counter that has expired stands for nothing.
    ExpiredIsNothing,
    /// The client counts what was granted at an earlier token.
    CountsOldRounds,
    /// The client does not look at its lease before it believes in its lock.
    NoLeaseCheck,
    /// The client is content with one node.
    Minority,
    /// The client counts addresses, two of which may lead to one server.
    CountsAddresses,
    /// The client counts grants of different views together, and those of servers that are no
    /// members.
    CountsStrangers,
    /// A server becomes a node before a majority of the others has recorded it.
    Unrecorded,
    /// The client counts renewals whatever the views of the nodes are.
    RenewsAnywhere,
    /// The pause of a newcomer counts from the earliest clock of those that recorded it.
    EarliestClock,
    /// A node that votes again forgets a larger counter.
    AgainLowers,
    /// A node votes again for an owner that is closed.
    AgainClosed,
    /// The client counts what was voted again when its older votes had lapsed.
    CountsLapsed,
}

/// The first and the last token of a proposal, and whether it was granted elsewhere already.
struct Tokens {
    first: u8,
    last: u8,
    is_again: bool,
}

impl Flaw {
    /// Whether a client believes in its lock again when its lease was over.
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
    /// Another quorum's.
    pub const FOREIGN: Self = Self {
        quorum: 2,
        epoch: 1,
    };
}

impl Node {
    /// The view under which it votes; that of no quorum where there are no markers.
    #[must_use]
    pub fn view(&self) -> View {
        self.disk
            .marker
            .map_or(View::default(), |marker| marker.view)
    }

    /// The stored token, unless it has expired.
    #[must_use]
    pub fn stored(&self, rules: &Rules) -> Option<u8> {
        let kept = |counter: &Counter| counter.stands_for.saturating_add(rules.keep) > self.now;
        self.disk.counter.filter(kept).map(|counter| counter.value)
    }

    /// Carries out a request, and says what the node answers.
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

    /// It is started again, with what is on its disk.
    pub fn restart(&mut self, rules: &Rules) {
        self.run += 1;
        self.disk = self.saved;
        if rules.flaw == Flaw::NoMarker {
            // It counts as a node that has always been there.
            self.disk.marker = Some(Marker {
                run: self.run,
                since: 0,
                view: View::FIRST,
            });
        }
    }
}
