//! [`Quorum`]: a model of three nodes, and of clients that want one lock, with a network that may
//! lose, delay and reorder all messages. There may be a fourth server that is no node at first: an
//! empty one that takes a node's place, or a node of another quorum.
//!
//! An address may lead any client to any of these servers at any time, so a request may arrive at
//! each of them. With the answer, the client learns the server and the view under which it
//! answered.
//!
//! The members agree on the next membership in one step here; [`choice`](crate::choice) models how
//! they do.
//!
//! Messages are not part of the state. A request that was sent may arrive at any time, or never. An
//! answer is a fact as soon as it is given, and the client may or may not know it when it takes its
//! next step. So the choice of the next action covers loss, delay and order of messages.
//!
//! Leases have no length. The model chooses when a lease is over by the client's clock, and any
//! time after that each node may free the lock. Of the time that leases take, the model keeps only
//! what the protocol relies on: no node frees the lock before the client's own deadline (which
//! counts from before the request was sent), and a node that was restarted votes only when all
//! leases from before are over.

use crate::node::{Answer, Flaw, Node, Request, Rules, View};

mod checking;
mod choices;
mod hashing;
mod renewals;
mod words;

pub const NODES: usize = 3;
/// The nodes, and the fourth server, which is no node at first.
pub const SERVERS: usize = 4;
pub const MAJORITY: usize = 2;
const MOST_ATTEMPTS: usize = 3;
const MOST_ROUNDS: usize = 2;
const MOST_EPOCHS: usize = 3;
const FIRST_MEMBERS: u8 = 0b111;

/// The model: what may happen, and how often.
#[derive(Clone, Debug)]
pub struct Quorum {
    pub rules: Rules,
    pub protocol: Protocol,
    pub attempts: u8,
    /// How many times an attempt may send its request to all nodes.
    pub rounds: u8,
    /// The largest time that a client's clock may show. The client proposes this time as token.
    pub latest: u8,
    /// The largest value with which a node's counter may begin.
    pub skew: u8,
    /// The number of tokens that each grant sets aside for hand-offs.
    pub reserve: u8,
    /// Requests may arrive any number of times, and may be sent again with the same token.
    pub resends: bool,
    /// Clients send releases, which leave a tombstone on a node that a request may still reach.
    pub releases: bool,
    /// The time at which the nodes' clocks stop.
    pub clocks: u8,
    /// How many nodes may be restarted. `restarts` limits how often, for all of them together.
    pub mortals: usize,
    pub restarts: u8,
    /// A node may save its data, with which it restarts later.
    pub saves: bool,
    /// States that differ only in the order of the nodes count as one.
    pub is_symmetric: bool,
    pub outsider: Outsider,
    /// How often a server may take a node's place.
    pub replacements: u8,
    /// How often each lock may be renewed.
    pub renews: u8,
    /// A renewal that finds a node without a vote for the owner leads to a request to vote again.
    pub votes_again: bool,
    /// All clocks advance together.
    pub has_one_clock: bool,
    /// By how much the clocks of the first two nodes are ahead at the beginning.
    pub ahead: u8,
}

/// What the fourth server is at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outsider {
    /// There is no fourth server.
    None,
    Empty,
    /// A node of another quorum, which votes.
    Foreign,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// The client proposes tokens, like ballots.
    Proposed,
    /// Each node increments its own counter, and the client writes the largest answer of a majority
    /// back.
    Naive,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    pub attempts: [Attempt; MOST_ATTEMPTS],
    pub columns: [Column; SERVERS],
    /// The members of each epoch, one bit each; `epochs` is the number of epochs so far.
    memberships: [u8; MOST_EPOCHS],
    epochs: u8,
    /// The largest token that a client has used while it believed that it held the lock.
    last: u8,
    /// How many attempts have won the lock so far.
    winners: u8,
    restarts: u8,
    fault: Option<Fault>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fault {
    TwoHolders,
    OldToken,
    /// A node votes for an owner whose release has arrived there.
    Revived,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Attempt {
    phase: Phase,
    round: u8,
    /// The first token that was proposed in each round.
    firsts: [u8; MOST_ROUNDS],
    /// The lease is over by the client's clock.
    over: bool,
    /// The last token used.
    used: u8,
    renewal: Renewal,
    /// How often the lock was renewed.
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

/// One server, and the state of each attempt's requests there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Column {
    /// Whether the node may be restarted. Of the fourth server: whether its clock runs.
    is_mortal: bool,
    pub node: Node,
    cells: [[Cell; MOST_ROUNDS]; MOST_ATTEMPTS],
    /// The state of each attempt's last renewal.
    renewals: [Cell; MOST_ATTEMPTS],
    /// The state of the request to vote again to which that renewal led.
    votes: [Cell; MOST_ATTEMPTS],
    /// The attempts, one bit each, whose request to vote again is under way from an earlier
    /// renewal.
    late_votes: u8,
    /// The attempts, one bit each, whose last renewal succeeded without this node: the lease here
    /// may end before the client's.
    short: u8,
    /// The attempts whose release is under way, one bit each.
    closing: u8,
    /// The attempts, one bit each, that were begun when this node was restarted or admitted. The
    /// node does not vote before all their leases are over.
    awaits: u8,
    /// Those of `awaits` whose renewal was sent after the restart. If the renewal succeeds, the
    /// node need not wait for the end of the attempt's longer lease.
    renews: u8,
}

/// The state of one request to one server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
enum Cell {
    #[default]
    Unsent,
    /// The request may still arrive.
    Sent,
    /// The request has arrived, and its answer makes no difference.
    Done,
    /// The request was granted under this view.
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
    /// The client sends its request to all nodes once more.
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
    /// The server becomes a node of the last membership.
    IsMarked {
        node: usize,
    },
    /// A new membership is chosen, in which `newcomer` takes the place of `replaced`.
    Replaces {
        newcomer: usize,
        replaced: usize,
    },
    /// The node records the last membership.
    Records {
        node: usize,
    },
    /// The client asks all nodes to extend the lease.
    Renews {
        attempt: usize,
    },
    RenewalArrives {
        attempt: usize,
        node: usize,
    },
    /// A request to vote again arrives; `late` if an earlier renewal led to it.
    VoteArrives {
        attempt: usize,
        node: usize,
        late: bool,
    },
    /// The client considers its lease extended.
    IsRenewed {
        attempt: usize,
    },
}

/// The effect of an action on a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    Asked(Request, Answer),
    LetGo,
    Tick,
    Restarted,
    Saved,
}

impl Quorum {
    /// Returns a model with all kinds of trouble at once, which has too many states to search.
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

    /// Returns a model of stores without a marker: no node is restarted or replaced, no lock is
    /// renewed, and no counter expires.
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

    /// Returns whether this server is a member under this view.
    fn is_member(&self, state: &State, view: View, server: usize) -> bool {
        let members = match view {
            View { quorum: 1, epoch } => state.memberships[usize::from(epoch) - 1],
            View { quorum: 0, .. } => FIRST_MEMBERS,
            // Another quorum has one server here, the fourth.
            _ => 1 << NODES,
        };
        members & 1 << server != 0
    }

    /// Returns the view of the last membership, for nodes with markers.
    fn last_view(&self, state: &State) -> View {
        View {
            quorum: 1,
            epoch: state.epochs,
        }
    }

    /// Returns whether enough servers agree, as the client counts them. In a model with this
    /// `flaw`, the client ignores views and memberships.
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
                // A request under an older view would be refused, and the client would then send it
                // under the present view. The model skips the refusal.
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

    /// Returns the state after an action, and the event on the node that the action concerns.
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
                // A grant that was given before remains a fact.
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

    /// Returns the earliest time from which the pause of a new node counts: the latest clock of the
    /// nodes that have recorded its membership. Otherwise one of them could have granted a token
    /// that lies beyond the end of the pause. The clocks of nodes that are never restarted do not
    /// count.
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

    /// Forgets what no longer makes a difference, so that equivalent states become equal.
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
    /// Returns whether the client believes that it holds the lock.
    fn is_valid(&self) -> bool {
        self.phase == Phase::Won && !self.over
    }
}

fn index(attempt: usize) -> u8 {
    u8::try_from(attempt).expect("there are few")
}

impl State {
    /// Returns the attempts that were begun and whose lease is not over, one bit each.
    fn begun(&self) -> u8 {
        let begun =
            |(at, it): (usize, &Attempt)| u8::from(it.phase != Phase::Before && !it.over) << at;
        self.attempts.iter().enumerate().map(begun).sum()
    }

    pub fn is_sound(&self) -> bool {
        self.fault.is_none()
    }

    /// Returns whether any attempt ever won the lock.
    pub fn was_won(&self) -> bool {
        self.winners > 0
    }
}
