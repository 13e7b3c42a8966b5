//! [`Quorum`]: three nodes, and clients that want one lock, with a network that does what it likes.
//! Beside the nodes there may be a server that is none: an empty one that takes a node's place, or
//! a node of another quorum.
//!
//! An address may lead any client to any of these servers at any time: a request may arrive at each
//! of them, and the client learns of the server, with its answer, under which view that was given.
//!
//! The members agree on the next membership in one step here; how they do is in
//! [`choice`](crate::choice).
//!
//! Messages are not in the state. A request that was sent may arrive at any time, or never; and an
//! answer is a fact from the moment that it is given, which its client may know or not when it goes
//! on. So loss, delay and order of messages are all in what is chosen next. Nor is time: a lease is
//! over at a moment of the model's choice, and from then on each node may let go of it, sooner or
//! later. What is kept of time is only what the protocol takes from it: that no node lets go before
//! the client's own deadline (which counts from before the request was sent), and that a node that
//! was started again votes when all leases from before are over.

use crate::node::{Answer, Flaw, Node, Request, Rules, View};

mod checking;
mod choices;
mod hashing;
mod renewals;
mod words;

pub const NODES: usize = 3;
/// The nodes, and the server that is none at first.
pub const SERVERS: usize = 4;
pub const MAJORITY: usize = 2;
const MOST_ATTEMPTS: usize = 3;
const MOST_ROUNDS: usize = 2;
const MOST_EPOCHS: usize = 3;
const FIRST_MEMBERS: u8 = 0b111;

/// What may happen, and how often.
#[derive(Clone, Debug)]
pub struct Quorum {
    pub rules: Rules,
    pub protocol: Protocol,
    pub attempts: u8,
    /// How often an attempt asks all nodes.
    pub rounds: u8,
    /// The client's clock says anything up to this.
    pub latest: u8,
    /// The nodes' counters begin anywhere up to this.
    pub skew: u8,
    /// Tokens that are set aside for hand-offs with each grant.
    pub reserve: u8,
    /// Requests arrive again and again, and are sent again at the same token.
    pub resends: bool,
    /// Locks are released with a message, and what is given up leaves tombstones.
    pub releases: bool,
    /// Until when the nodes' clocks go.
    pub clocks: u8,
    /// How many nodes may be started again, and how often all in all.
    pub mortals: usize,
    pub restarts: u8,
    /// What a node keeps may be saved, and come back.
    pub saves: bool,
    /// Nodes that are in the same state are not told apart.
    pub is_symmetric: bool,
    pub outsider: Outsider,
    /// How often a server takes a node's place.
    pub replacements: u8,
    /// How often each lock is renewed.
    pub renews: u8,
    /// A renewal that finds a node without the owner asks it for its vote again.
    pub votes_again: bool,
    /// All clocks go together.
    pub has_one_clock: bool,
    /// By how much the clocks of the first two nodes are ahead.
    pub ahead: u8,
}

/// What the server beside the nodes is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outsider {
    /// There is none.
    None,
    Empty,
    /// A node of another quorum, which votes.
    Foreign,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// Tokens are proposed, like ballots.
    Proposed,
    /// Each node counts, and the client writes the largest answer back.
    Naive,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub attempts: [Attempt; MOST_ATTEMPTS],
    pub columns: [Column; SERVERS],
    /// The members of each epoch, each a bit, and how many epochs there are.
    memberships: [u8; MOST_EPOCHS],
    epochs: u8,
    /// The largest token that a client which believed in its lock has used.
    last: u8,
    /// How many have ever believed in it.
    winners: u8,
    restarts: u8,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    TwoHolders,
    OldToken,
    /// A node votes for an owner that it has released.
    Revived,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Attempt {
    phase: Phase,
    round: u8,
    /// What was proposed in each round.
    firsts: [u8; MOST_ROUNDS],
    /// Its lease is over, by the client's own clock.
    over: bool,
    /// The last token used.
    used: u8,
    renewal: Renewal,
    /// How often it was renewed.
    renewed: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Renewal {
    #[default]
    Unsent,
    Sent,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
enum Phase {
    #[default]
    Before,
    Asking,
    Won,
    After,
}

/// One node, and how it stands with each attempt there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Column {
    /// Whether it may be started again.
    is_mortal: bool,
    pub node: Node,
    cells: [[Cell; MOST_ROUNDS]; MOST_ATTEMPTS],
    /// The last renewal of each attempt.
    renewals: [Cell; MOST_ATTEMPTS],
    /// What came of the request to vote again, which that renewal led to.
    votes: [Cell; MOST_ATTEMPTS],
    /// The attempts with such a request of an earlier renewal under way, each a bit.
    late_votes: u8,
    /// The attempts whose last renewal succeeded without this node, each a bit: the lease here may
    /// end before the client's.
    short: u8,
    /// The attempts whose release is under way, each a bit.
    closing: u8,
    /// Those that were begun when it was started again. It does not vote before all their leases
    /// are over.
    awaits: u8,
    /// Of those, whose renewal was sent after that: if it succeeds, the lease that is awaited is
    /// not the last one.
    renews: u8,
}

/// One request, and what came of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Cell {
    #[default]
    Unsent,
    /// It may arrive yet.
    Sent,
    /// It has arrived, and its answer makes no difference.
    Done,
    /// Under this view.
    Granted(View),
    Stale(u8),
    Counted(u8),
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    Begin {
        attempt: usize,
        first: u8,
    },
    /// All nodes are asked once more.
    Again {
        attempt: usize,
        first: u8,
    },
    Arrives {
        attempt: usize,
        round: usize,
        node: usize,
    },
    Wins {
        attempt: usize,
    },
    HandsOn {
        attempt: usize,
    },
    LeaseEnds {
        attempt: usize,
    },
    Releases {
        attempt: usize,
    },
    ReleaseArrives {
        attempt: usize,
        node: usize,
    },
    LetsGo {
        node: usize,
    },
    Tick {
        node: usize,
    },
    Restarts {
        node: usize,
    },
    Saves {
        node: usize,
    },
    /// It becomes a node of the last membership.
    IsMarked {
        node: usize,
    },
    /// A new membership is chosen, in which this server stands for that one.
    Replaces {
        newcomer: usize,
        replaced: usize,
    },
    /// It records the last membership.
    Records {
        node: usize,
    },
    /// All nodes are asked to extend the lease.
    Renews {
        attempt: usize,
    },
    RenewalArrives {
        attempt: usize,
        node: usize,
    },
    /// `late` if it was sent by an earlier renewal.
    VoteArrives {
        attempt: usize,
        node: usize,
        late: bool,
    },
    /// The client believes that its lease is longer.
    IsRenewed {
        attempt: usize,
    },
}

/// What an action is to a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Asked(Request, Answer),
    LetGo,
    Tick,
    Restarted,
    Saved,
}

impl Quorum {
    /// Everything at once: more than can be searched.
    #[must_use]
    pub fn everything() -> Self {
        Self {
            rules: Rules {
                longest: Some(2),
                keep: 4,
                flaw: Flaw::None,
            },
            protocol: Protocol::Proposed,
            attempts: 3,
            rounds: 2,
            latest: 4,
            skew: 1,
            reserve: 1,
            resends: true,
            releases: true,
            clocks: 8,
            mortals: NODES,
            restarts: 2,
            saves: true,
            is_symmetric: false,
            outsider: Outsider::Empty,
            replacements: 2,
            renews: 2,
            votes_again: true,
            has_one_clock: false,
            ahead: 0,
        }
    }

    /// What stores without a marker know of: no node is started again, and nothing is forgotten.
    #[must_use]
    pub fn without_time() -> Self {
        let rules = Rules {
            longest: None,
            keep: u8::MAX,
            flaw: Flaw::None,
        };
        Self {
            rules,
            clocks: 0,
            mortals: 0,
            restarts: 0,
            saves: false,
            outsider: Outsider::None,
            replacements: 0,
            renews: 0,
            votes_again: false,
            ..Self::everything()
        }
    }

    fn send(&self, state: &mut State, attempt: usize, first: u8) {
        let round = usize::from(state.attempts[attempt].round);
        state.attempts[attempt].firsts[round] = first;
        for column in &mut state.columns[..self.servers()] {
            column.cells[attempt][round] = Cell::Sent;
        }
    }

    fn servers(&self) -> usize {
        if self.outsider == Outsider::None {
            NODES
        } else {
            SERVERS
        }
    }

    /// Whether this server is a member under this view.
    fn is_member(&self, state: &State, view: View, server: usize) -> bool {
        let members = match view {
            View { quorum: 1, epoch } => state.memberships[usize::from(epoch) - 1],
            View { quorum: 0, .. } => FIRST_MEMBERS,
            // Of another quorum there is one server here.
            _ => 1 << NODES,
        };
        members & 1 << server != 0
    }

    /// The last membership, where there are any.
    fn last_view(&self, state: &State) -> View {
        View {
            quorum: 1,
            epoch: state.epochs,
        }
    }

    /// Whether enough servers say yes, as the client counts them.
    fn is_majority(
        &self,
        state: &State,
        said: impl Fn(&Column) -> Option<View>,
        flaw: Flaw,
    ) -> bool {
        let said: Vec<_> = state.columns.iter().map(said).collect();
        let all = said.iter().flatten().count();
        match self.rules.flaw {
            Flaw::Minority => return all >= 1,
            Flaw::CountsAddresses => return 2 * all >= MAJORITY,
            it if it == flaw => return all >= MAJORITY,
            _ => {}
        }
        said.iter().flatten().any(|view| {
            let agrees = |(server, its): &(usize, &Option<View>)| {
                **its == Some(*view) && self.is_member(state, *view, *server)
            };
            said.iter().enumerate().filter(agrees).count() >= MAJORITY
        })
    }

    fn request(&self, state: &State, attempt: usize, round: usize, node: usize) -> Request {
        let (owner, first) = (index(attempt), state.attempts[attempt].firsts[round]);
        match (self.protocol, round) {
            (Protocol::Proposed, _) => {
                // An older view is refused, and then the client asks under the one that there is.
                let Node { run, .. } = state.columns[node].node;
                let view = state.columns[node].node.view();
                Request::Propose {
                    owner,
                    first,
                    last: first + self.reserve,
                    run,
                    view,
                }
            }
            (Protocol::Naive, 0) => Request::Count { owner },
            (Protocol::Naive, _) => Request::WriteBack { token: first },
        }
    }

    /// What comes of an action, and what it is to which node.
    pub fn apply(&self, before: &State, action: Action) -> (State, Option<(usize, Event)>) {
        let mut state = before.clone();
        let mut event = None;
        match action {
            Action::Begin { attempt, first } => {
                state.attempts[attempt].phase = Phase::Asking;
                self.send(&mut state, attempt, first);
            }
            Action::Again { attempt, first } => {
                state.attempts[attempt].round += 1;
                self.send(&mut state, attempt, first);
            }
            Action::Arrives {
                attempt,
                round,
                node,
            } => {
                let request = self.request(&state, attempt, round, node);
                let column = &mut state.columns[node];
                let answer = column.node.step(&self.rules, request);
                let cell = &mut column.cells[attempt][round];
                // An answer that was given before stays a fact.
                if !matches!(cell, Cell::Granted(_)) {
                    *cell = match answer {
                        Answer::Granted => Cell::Granted(column.node.view()),
                        Answer::Stale(token) => Cell::Stale(token),
                        Answer::Counted(token) => Cell::Counted(token),
                        _ => Cell::Done,
                    };
                }
                event = Some((node, Event::Asked(request, answer)));
            }
            Action::Wins { attempt } => {
                let round = usize::from(state.attempts[attempt].round);
                let token = state.attempts[attempt].firsts[round];
                if state.attempts.iter().any(Attempt::is_valid) {
                    state.fault = Some(Fault::TwoHolders);
                } else if token <= state.last {
                    state.fault = Some(Fault::OldToken);
                }
                state.attempts[attempt].phase = Phase::Won;
                state.winners += 1;
                state.attempts[attempt].used = token;
                state.last = state.last.max(token);
            }
            Action::HandsOn { attempt } => {
                let next = state.attempts[attempt].used + 1;
                if next <= state.last {
                    state.fault = Some(Fault::OldToken);
                }
                state.attempts[attempt].used = next;
                state.last = state.last.max(next);
            }
            Action::LeaseEnds { attempt } => state.attempts[attempt].over = true,
            Action::Releases { attempt } => {
                state.attempts[attempt].phase = Phase::After;
                state.attempts[attempt].over = true;
                let columns = state.columns[..self.servers()].iter_mut();
                columns.for_each(|column| column.closing |= 1 << attempt);
            }
            Action::ReleaseArrives { attempt, node } => {
                let it = state.attempts[attempt];
                let first = it.firsts[usize::from(it.round)];
                let column = &mut state.columns[node];
                let is_open = column.cells[attempt].contains(&Cell::Sent)
                    || column.votes[attempt] == Cell::Sent
                    || column.late_votes & 1 << attempt != 0;
                let request = Request::Close {
                    owner: index(attempt),
                    tokens: (it.used > 0).then_some((it.used, first + self.reserve)),
                    tombstone: is_open,
                };
                let answer = column.node.step(&self.rules, request);
                column.closing &= !(1 << attempt);
                event = Some((node, Event::Asked(request, answer)));
            }
            Action::LetsGo { node } => {
                state.columns[node].node.disk.lock = None;
                event = Some((node, Event::LetGo));
            }
            Action::Tick { .. } if self.has_one_clock => {
                state
                    .columns
                    .iter_mut()
                    .for_each(|column| column.node.now += 1);
            }
            Action::Tick { node } => {
                state.columns[node].node.now += 1;
                event = Some((node, Event::Tick));
            }
            Action::Restarts { node } => {
                let awaits = state.begun();
                let column = &mut state.columns[node];
                column.node.restart(&self.rules);
                column.awaits = awaits;
                column.renews = 0;
                state.restarts += 1;
                event = Some((node, Event::Restarted));
            }
            Action::Saves { node } => {
                let node_state = &mut state.columns[node].node;
                node_state.saved = node_state.disk;
                event = Some((node, Event::Saved));
            }
            Action::IsMarked { node } => {
                let (awaits, view) = (state.begun(), self.last_view(&state));
                let not_before = self.not_before(&state);
                let column = &mut state.columns[node];
                let run = column.node.run;
                let request = Request::Mark {
                    run,
                    view,
                    is_admitted: true,
                    not_before,
                };
                let answer = column.node.step(&self.rules, request);
                column.awaits = awaits;
                column.renews = 0;
                event = Some((node, Event::Asked(request, answer)));
            }
            Action::Replaces { newcomer, replaced } => {
                let last = state.memberships[usize::from(state.epochs) - 1];
                state.memberships[usize::from(state.epochs)] =
                    last & !(1 << replaced) | 1 << newcomer;
                state.epochs += 1;
            }
            Action::Records { node } => {
                let view = self.last_view(&state);
                let column = &mut state.columns[node];
                let run = column.node.run;
                let request = Request::Mark {
                    run,
                    view,
                    is_admitted: false,
                    not_before: 0,
                };
                let answer = column.node.step(&self.rules, request);
                event = Some((node, Event::Asked(request, answer)));
            }
            Action::Renews { attempt } => self.renew(&mut state, attempt),
            Action::RenewalArrives { attempt, node } => {
                self.renewal_arrives(&mut state, attempt, node);
            }
            Action::VoteArrives {
                attempt,
                node,
                late,
            } => {
                event = Some((node, self.vote_arrives(&mut state, attempt, node, late)));
            }
            Action::IsRenewed { attempt } => self.is_renewed(&mut state, attempt),
        }
        self.tidy(&mut state);
        (state, event)
    }

    /// From when at the earliest the pause of a newcomer counts: from the latest clock of those
    /// that have recorded it, so that nothing which they granted before is beyond its end. Nodes
    /// that are never started again have no clock.
    fn not_before(&self, state: &State) -> u8 {
        let view = self.last_view(state);
        let has_clock = |column: &&Column| column.is_mortal || self.mortals == 0;
        let recorded = state
            .columns
            .iter()
            .filter(|column| column.node.view() == view);
        let clocks = recorded.filter(has_clock).map(|column| column.node.now);
        let bound = if self.rules.flaw == Flaw::EarliestClock {
            clocks.min()
        } else {
            clocks.max()
        };
        bound.unwrap_or_default()
    }

    /// Forgets what makes no difference any more, so that states that are the same look the same.
    fn tidy(&self, state: &mut State) {
        let mut over = 0;
        for attempt in 0..MOST_ATTEMPTS {
            let it = &mut state.attempts[attempt];
            let is_done = it.phase == Phase::After || it.over;
            over |= u8::from(it.over) << attempt;
            let round = usize::from(it.round);
            for column in &mut state.columns {
                for (at, cell) in column.cells[attempt].iter_mut().enumerate() {
                    let counts = self.rules.flaw == Flaw::CountsOldRounds && at <= round
                        || self.rules.flaw == Flaw::NoLeaseCheck && at == round
                        || at == round && !is_done;
                    let counts = counts && it.phase == Phase::Asking;
                    let is_last = it.round + 1 == self.rounds;
                    match cell {
                        Cell::Unsent | Cell::Sent | Cell::Done => {}
                        Cell::Granted(_) | Cell::Counted(_) if counts => {}
                        Cell::Stale(_) if counts && !is_last => {}
                        _ => *cell = Cell::Done,
                    }
                }
            }
            if is_done && self.rules.flaw != Flaw::CountsLapsed {
                it.renewal = Renewal::Unsent;
                it.renewed = 0;
                state
                    .columns
                    .iter_mut()
                    .for_each(|column| column.forget_renewal(attempt));
            }
            let is_closing = state
                .columns
                .iter()
                .any(|column| column.closing & 1 << attempt != 0);
            if is_done && !is_closing && !self.rules.flaw.revives() {
                if it.phase == Phase::Won && !self.releases {
                    it.phase = Phase::After;
                }
                if it.phase == Phase::After {
                    it.used = 0;
                }
                let sent = |column: &Column| column.cells[attempt].contains(&Cell::Sent);
                if !self.resends && !state.columns.iter().any(sent) && it.phase == Phase::After {
                    it.firsts = [0; MOST_ROUNDS];
                    it.round = 0;
                }
            }
        }
        for column in &mut state.columns {
            column.awaits &= !over;
            column.renews &= column.awaits;
        }
        if self.is_symmetric {
            state.columns[..NODES].sort_unstable();
        }
    }
}

impl Attempt {
    /// Whether its client believes in its lock.
    fn is_valid(&self) -> bool {
        self.phase == Phase::Won && !self.over
    }
}

fn index(attempt: usize) -> u8 {
    u8::try_from(attempt).expect("there are few")
}

impl State {
    /// The attempts that were begun and whose lease is not over, each a bit.
    fn begun(&self) -> u8 {
        let begun =
            |(at, it): (usize, &Attempt)| u8::from(it.phase != Phase::Before && !it.over) << at;
        self.attempts.iter().enumerate().map(begun).sum()
    }

    pub fn is_sound(&self) -> bool {
        self.fault.is_none()
    }

    /// Whether any attempt ever got the lock.
    pub fn was_won(&self) -> bool {
        self.winners > 0
    }
}
