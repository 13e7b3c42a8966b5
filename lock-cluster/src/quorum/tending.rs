//! Who is a member: servers that become nodes of a quorum, or take a node's place.
//!
//! The members of an epoch choose those of the next one among themselves, as Paxos does (single-decree; the ballots are in their
//! markers), so there is one next epoch whichever clients ask. A server that is new there becomes a node when a majority of
//! the others has recorded it, and votes one longest lease later. `docs/DESIGN.md` says why that is enough.

use super::backend::Quorum;
use super::gathering::Gathering;
use super::seat::{Core, Task};
use super::tally::majority;
use lock_core::backend::Failure;
use lock_core::{ClientId, Error, Moment};
use lock_redis::parts::{Admission, Agreed, Member, Members, Sight, Step, Terms};
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Whether a thread puts the membership in order.
#[derive(Default)]
pub(super) struct Tending {
    is_running: bool,
    /// When that may begin again.
    again: Option<Moment>,
    /// How often in a row there was nothing to do.
    idle: u32,
}

/// How long to leave it alone, at first; doubled as long as nothing comes of it, up to the longest.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(4);
/// The most steps at a time: each server may have to be told of an epoch, and to become a node.
const MOST_STEPS: usize = 32;

/// What is to be done next.
#[derive(Clone, PartialEq, Debug)]
enum Todo {
    /// This server records the members; as a server that is no node, it becomes one, not before this time of its clock.
    Record { seat: usize, epoch: u64, agreed: Agreed, admitted: Option<Admission> },
    /// The members of this epoch choose the next ones.
    Choose { epoch: u64, agreed: Agreed },
}

/// Everything that is known: what each server said, and where it is.
struct Known<'a> {
    sights: &'a [Option<Sight>],
    names: &'a [String],
    /// The members that may be replaced: they have been missing for long enough.
    replaceable: &'a HashSet<Arc<str>>,
    ours: Option<Arc<str>>,
    terms: Terms,
}

impl Quorum {
    /// Puts the membership in order if there is something to do, on a thread of its own that ends with that.
    pub(super) fn tend(self: &Arc<Self>) {
        let mut tending = self.tending.lock();
        let now = self.clock.now();
        if tending.is_running || tending.again.is_some_and(|again| now < again) {
            return;
        }
        if self.terms.is_none() || !self.roll.take_untidy() {
            return;
        }
        let quorum = Arc::clone(self);
        let work = move || {
            // What failed is tried again by the next attempt that meets it.
            let longest = quorum.terms.map(|terms| terms.max_lease).unwrap_or_default();
            let done = catch_unwind(AssertUnwindSafe(|| quorum.put_in_order(longest)));
            let done = done.unwrap_or(Ok(0)).unwrap_or_else(|_failed| {
                quorum.roll.note_untidy();
                0
            });
            let mut tending = quorum.tending.lock();
            tending.is_running = false;
            tending.idle = if done > 0 { 0 } else { tending.idle + 1 };
            let pause = PAUSE * 2_u32.pow(tending.idle.min(10));
            tending.again = Some(quorum.clock.now() + pause.min(LONGEST_PAUSE));
        };
        tending.is_running =
            thread::Builder::new().name("distlock-members".to_owned()).spawn(work).is_ok();
    }

    /// Does what is to be done until nothing is left, or something fails. Returns how much it was.
    ///
    /// A member is replaced when it has been missing for `missing`: the address of one that is well
    /// may lead this client, and no other, to an empty server for a moment.
    pub(super) fn put_in_order(&self, missing: Duration) -> Result<usize, Error> {
        let Some(terms) = self.terms else { return Ok(0) };
        let names: Vec<_> = self.seats.iter().map(|seat| seat.core().member().name()).collect();
        for done in 0..MOST_STEPS {
            let sights = self.look_at_all();
            let replaceable = self.roll.missing_for(missing, &sights, self.clock.now());
            let (ours, replaceable) = (self.roll.ours(), &replaceable);
            let known = Known { sights: &sights, names: &names, replaceable, ours, terms };
            let Some(todo) = known.todo() else { return Ok(done) };
            match todo {
                Todo::Record { seat, epoch, agreed, admitted } => {
                    let record = move |core: &Core, run_id: &str, by| {
                        act(core, run_id, &Step::Record(epoch, &agreed, admitted.as_ref()), by)
                    };
                    if self.ask_seats(&sights, &[seat], record).is_empty() {
                        return Err(Error::unavailable(format!(
                            "{} did not record it",
                            names[seat]
                        )));
                    }
                }
                Todo::Choose { epoch, agreed } => self.choose(&sights, epoch, agreed)?,
            }
        }
        Ok(MOST_STEPS)
    }

    /// What each server says, and each member once: see [`distinct`].
    pub(super) fn look_at_all(&self) -> Vec<Option<Sight>> {
        let look = |core: &Core, by| match core.member().voter() {
            Some(voter) => voter.look(by),
            None => Err(Failure::Refused(Error::unavailable("it says nothing of itself"))),
        };
        let by = self.by(Moment::NEVER);
        let gathering = self.ask(by, look, |_, _| {});
        let _all: Option<()> = gathering.wait(self.clock.as_ref(), by, |_| None);
        let answers = gathering.look(|answers| {
            let sight = |answer: &Option<Result<Sight, _>>| answer.as_ref()?.as_ref().ok().cloned();
            answers.iter().map(sight).collect::<Vec<_>>()
        });
        distinct(answers)
    }

    /// Asks these servers, if they are still those that were seen. What came of it, in the order of `seats`.
    fn ask_seats(
        &self,
        sights: &[Option<Sight>],
        seats: &[usize],
        question: impl Fn(&Core, &str, Moment) -> Result<Sight, Failure> + Clone + Send + 'static,
    ) -> Vec<Sight> {
        let by = self.by(Moment::NEVER);
        let gathering = Gathering::of(seats.len());
        for (place, at) in seats.iter().enumerate() {
            let Some(seen) = &sights[*at] else { continue };
            let (run_id, question) = (Arc::clone(&seen.run_id), question.clone());
            let told = Arc::clone(&gathering);
            let ask = move |core: &Core, by| question(core, &run_id, by);
            self.seats[*at].ask(Task::Attempt, by, ask, move |_, answer| told.put(place, answer));
        }
        let _all: Option<()> = gathering.wait(self.clock.as_ref(), by, |_| None);
        gathering.look(|answers| {
            let said = |answer: &Option<Result<Sight, _>>| answer.as_ref()?.as_ref().ok().cloned();
            answers.iter().filter_map(said).collect()
        })
    }

    /// Has the members of this epoch of the quorum choose the next ones; those of no quorum, with epoch 0, the first ones.
    fn choose(&self, sights: &[Option<Sight>], epoch: u64, agreed: Agreed) -> Result<(), Error> {
        let quorum: Arc<str> = if epoch == 0 { "".into() } else { Arc::clone(&agreed.quorum) };
        let present = |sight: &Sight| match &sight.marker {
            None => epoch == 0,
            Some((_, node)) => {
                (&node.quorum, node.epoch) == (&quorum, epoch)
                    && node.members.contain(&node.node)
                    && sight.admitted != epoch
            }
        };
        let choosers: Vec<_> = sights
            .iter()
            .enumerate()
            .filter(|(_, sight)| sight.as_ref().is_some_and(present))
            .map(|(at, _)| at)
            .collect();
        let needed = majority(self.seats.len());
        let largest = sights.iter().flatten().map(|sight| sight.ballot).max().unwrap_or(0);
        // It need not be unique: each server promises it once, so only one client has the promises of a majority.
        let ballot = largest + 1 + fastrand::u64(..1_000);
        let too_few = |what: &str| {
            Error::unavailable(format!("too few nodes of the quorum {what}: others may have"))
        };
        let of = Arc::clone(&quorum);
        let promise = move |core: &Core, run_id: &str, by| {
            let sight = act(core, run_id, &Step::Promise(&of, epoch, ballot), by)?;
            if sight.did { Ok(sight) } else { Err(refused()) }
        };
        let promised = self.ask_seats(sights, &choosers, promise);
        if promised.len() < needed {
            return Err(too_few("promised to choose the next members"));
        }
        // One that may have been chosen already stays.
        let accepted = promised.into_iter().filter_map(|sight| sight.accepted);
        let choice = accepted.max_by_key(|(ballot, _)| *ballot).map_or(agreed, |(_, its)| its);
        let (of, its) = (quorum, choice.clone());
        let accept = move |core: &Core, run_id: &str, by| {
            let sight = act(core, run_id, &Step::Accept(&of, epoch, ballot, &its), by)?;
            if sight.did { Ok(sight) } else { Err(refused()) }
        };
        if self.ask_seats(sights, &choosers, accept).len() < needed {
            return Err(too_few("chose the next members"));
        }
        self.record_choice(sights, &choosers, epoch + 1, choice);
        Ok(())
    }

    /// Those that chose record it. Of the first members each becomes a node by it.
    fn record_choice(
        &self,
        sights: &[Option<Sight>],
        choosers: &[usize],
        epoch: u64,
        choice: Agreed,
    ) {
        let ours = self.terms.map_or(Duration::ZERO, |terms| terms.max_lease);
        let pause = choice.max_lease.max(ours);
        let is_first = epoch == 1;
        let record = move |core: &Core, run_id: &str, by| {
            let admission = Admission { pause, not_before: 0, replaces: "".into(), chooses: true };
            let admission = Some(admission).filter(|_| is_first && choice.members.contain(run_id));
            act(core, run_id, &Step::Record(epoch, &choice, admission.as_ref()), by)
        };
        self.ask_seats(sights, choosers, record);
    }
}

fn act(core: &Core, run_id: &str, step: &Step<'_>, by: Moment) -> Result<Sight, Failure> {
    match core.member().voter() {
        Some(voter) => voter.act(run_id, step, by),
        None => Err(refused()),
    }
}

fn refused() -> Failure {
    Failure::Refused(Error::unavailable("it knows of another choice"))
}

/// The same with each member once, where two addresses lead to one server, or a server has a copy of
/// another one's data: by the one that is recorded by its own `run_id`, or the first.
fn distinct(mut sights: Vec<Option<Sight>>) -> Vec<Option<Sight>> {
    let node = |sight: &Sight| {
        sight.marker.as_ref().map_or(Arc::clone(&sight.run_id), |(_, node)| Arc::clone(&node.node))
    };
    let rank = |at: usize, sight: &Sight| (*sight.run_id != *node(sight), at);
    let is_twin = |at: usize, sight: &Sight| {
        sights.iter().enumerate().any(|(place, other)| {
            other.as_ref().is_some_and(|other| {
                (other.run_id == sight.run_id || node(other) == node(sight))
                    && rank(place, other) < rank(at, sight)
            })
        })
    };
    let twins: Vec<_> = sights
        .iter()
        .enumerate()
        .filter(|(at, sight)| sight.as_ref().is_some_and(|sight| is_twin(*at, sight)))
        .map(|(at, _)| at)
        .collect();
    twins.into_iter().for_each(|at| sights[at] = None);
    sights
}

/// A new quorum of those that are there: the places of the others stay free.
pub(super) fn begun(sights: &[Option<Sight>], names: &[String], terms: &Terms) -> Agreed {
    let member = |(sight, name): (&Option<Sight>, &String)| {
        let id = sight.as_ref().map(|sight| Arc::clone(&sight.run_id));
        Member { id, address: name.as_str().into() }
    };
    Agreed {
        quorum: ClientId::random().to_string().into(),
        members: sights.iter().zip(names).map(member).collect(),
        max_lease: terms.max_lease,
        keep: terms.keep,
    }
}

impl Known<'_> {
    /// The next thing to do; `None` if everything is in order, or too few servers are there to change it.
    fn todo(&self) -> Option<Todo> {
        let needed = majority(self.sights.len());
        let nodes = || self.sights.iter().flatten().filter_map(|sight| sight.marker.as_ref());
        let outside = self.sights.iter().flatten().filter(|sight| sight.marker.is_none()).count();
        let Some(quorum) = self.quorum() else {
            let is_new = nodes().next().is_none() && outside >= needed;
            return is_new.then(|| {
                let agreed = begun(self.sights, self.names, &self.terms);
                Todo::Choose { epoch: 0, agreed }
            });
        };
        let of_it = nodes().filter(|(_, node)| node.quorum == quorum);
        let members = of_it.filter(|(agreed, node)| agreed.members.contain(&node.node));
        let (agreed, last) = members.max_by_key(|(_, node)| node.epoch)?;
        if last.members.count() != self.sights.len() {
            return None;
        }
        let (agreed, epoch) = (agreed.clone(), last.epoch);
        let has_recorded = |sight: &Sight| {
            sight.marker.as_ref().is_some_and(|(_, node)| {
                (&node.quorum, node.epoch, &node.members) == (&quorum, epoch, &agreed.members)
                    && agreed.members.contain(&node.node)
            })
        };
        let recorded: Vec<_> =
            self.sights.iter().flatten().filter(|sight| has_recorded(sight)).collect();
        let latest = recorded.iter().map(|sight| sight.time).max().unwrap_or_default();
        let record =
            |seat, admitted| Some(Todo::Record { seat, epoch, agreed: agreed.clone(), admitted });
        let choosers = recorded.iter().filter(|sight| sight.admitted != epoch).count();
        for (seat, sight) in self.sights.iter().enumerate() {
            let Some(sight) = sight else { continue };
            match &sight.marker {
                Some((_, node)) => {
                    let lags = node.quorum == quorum && node.epoch < epoch;
                    if lags && agreed.members.contain(&node.node) {
                        return record(seat, None);
                    }
                }
                None if agreed.members.contain(&sight.run_id) => {
                    // One of the first members, which was not told of the choice that it had a part in; or a majority of the
                    // others refuses all that came before.
                    let chose = |(_, its): &(u64, Agreed)| epoch == 1 && *its == agreed;
                    let chose = sight.accepted.as_ref().is_some_and(chose);
                    if recorded.len() >= needed || chose {
                        let (pause, replaces) = (self.terms.max_lease, Arc::clone(&sight.version));
                        let admission =
                            Admission { pause, not_before: latest, replaces, chooses: chose };
                        return record(seat, Some(admission));
                    }
                }
                None if choosers >= needed => {
                    if let Some(place) = self.place(&agreed.members, seat) {
                        let id = Some(Arc::clone(&sight.run_id));
                        let newcomer = Member { id, address: self.names[seat].as_str().into() };
                        let members = agreed.members.with(place, newcomer);
                        return Some(Todo::Choose { epoch, agreed: Agreed { members, ..agreed } });
                    }
                }
                None => {}
            }
        }
        // The same members once more, so that those which became nodes in this epoch take part in
        // the choice of the next ones.
        (choosers >= needed && choosers < recorded.len()).then_some(Todo::Choose { epoch, agreed })
    }

    /// This client's quorum, if one of its nodes is there; one that is new here is of the one that most servers are of.
    fn quorum(&self) -> Option<Arc<str>> {
        let quorums = self.sights.iter().flatten().filter_map(|sight| sight.marker.as_ref());
        let quorums: Vec<_> = quorums.map(|(_, node)| &node.quorum).collect();
        let count = |quorum: &Arc<str>| quorums.iter().filter(|other| **other == quorum).count();
        if let Some(ours) = &self.ours {
            return Some(Arc::clone(ours)).filter(|ours| count(ours) > 0);
        }
        quorums.iter().max_by_key(|quorum| count(quorum)).map(|quorum| Arc::clone(quorum))
    }

    /// Whose place a server takes: that of the member that was at its address, or of the only one that is not there.
    fn place(&self, members: &Members, seat: usize) -> Option<usize> {
        let is_there = |member: &Member| {
            self.sights.iter().flatten().any(|sight| {
                let id = sight.marker.as_ref().map_or(&sight.run_id, |(_, node)| &node.node);
                member.id.as_ref() == Some(id)
            })
        };
        let missing: Vec<_> =
            members.iter().enumerate().filter(|(_, member)| !is_there(member)).collect();
        let may_be_replaced =
            |member: &Member| member.id.as_ref().is_none_or(|id| self.replaceable.contains(id));
        let at_home = missing.iter().find(|(_, member)| *member.address == *self.names[seat]);
        let is_only = missing.len() == 1 && self.sights.iter().all(Option::is_some);
        let replaced = at_home.or(missing.first().filter(|_| is_only));
        replaced.filter(|(_, member)| may_be_replaced(member)).map(|(place, _)| *place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_redis::parts::Standing;

    const TERMS: Terms = Terms {
        max_lease: Duration::from_secs(60),
        keep: Duration::from_secs(3_600),
        durable: false,
    };

    fn agreed(ids: [&str; 3]) -> Agreed {
        let member = |(at, id): (usize, &str)| Member {
            id: Some(id).filter(|id| !id.is_empty()).map(Arc::from),
            address: format!("h:{}", at + 1).into(),
        };
        Agreed {
            quorum: "q".into(),
            members: ids.into_iter().enumerate().map(member).collect(),
            max_lease: TERMS.max_lease,
            keep: TERMS.keep,
        }
    }

    fn outside(run_id: &str) -> Option<Sight> {
        Some(Sight { time: 5, ..Sight::of(run_id) })
    }

    fn node(run_id: &str, epoch: u64, ids: [&str; 3]) -> Option<Sight> {
        let agreed = agreed(ids);
        let standing = Standing {
            quorum: Arc::clone(&agreed.quorum),
            epoch,
            members: agreed.members.clone(),
            node: run_id.into(),
            run_id: run_id.into(),
        };
        outside(run_id).map(|sight| Sight { marker: Some((agreed, standing)), ..sight })
    }

    fn todo_with(sights: &[Option<Sight>], replaceable: &[&str]) -> Option<Todo> {
        let names: Vec<_> = (1..=sights.len()).map(|at| format!("h:{at}")).collect();
        let replaceable = &replaceable.iter().map(|id| Arc::from(*id)).collect();
        Known { sights, names: &names, replaceable, ours: None, terms: TERMS }.todo()
    }

    fn todo(sights: &[Option<Sight>]) -> Option<Todo> {
        todo_with(sights, &["a", "b", "c"])
    }

    fn admission(chooses: bool) -> Admission {
        Admission { pause: TERMS.max_lease, not_before: 5, replaces: "".into(), chooses }
    }

    const FIRST: [&str; 3] = ["a", "b", "c"];
    const SECOND: [&str; 3] = ["a", "d", "c"];

    fn is_choice(todo: Option<Todo>, of_epoch: u64, says: &str) {
        match todo {
            Some(Todo::Choose { epoch, agreed }) => {
                assert_eq!((epoch, agreed.members.to_string().as_str()), (of_epoch, says));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn new_quorum_is_chosen_by_a_majority_of_empty_servers() {
        is_choice(todo(&[outside("a"), None, outside("c")]), 0, "a@h:1 @h:2 c@h:3");
        assert_eq!(todo(&[outside("a"), None, None]), None);
        assert_eq!(
            todo(&[node("a", 1, FIRST), outside("x"), outside("y")]),
            None,
            "too few know it"
        );
    }

    #[test]
    fn empty_server_replaces_the_member_of_its_address() {
        let [a, c] = ["a", "c"].map(|id| node(id, 1, FIRST));
        is_choice(todo(&[a.clone(), outside("d"), c.clone()]), 1, "a@h:1 d@h:2 c@h:3");
        is_choice(todo(&[outside("d"), a.clone(), c]), 1, "a@h:1 d@h:1 c@h:3");
        assert_eq!(todo(&[outside("d"), a, None]), None, "one node cannot change it");
    }

    #[test]
    fn new_member_is_admitted_when_a_majority_has_recorded_it() {
        let behind = [node("a", 2, SECOND), outside("d"), node("c", 1, FIRST)];
        let recorded = |seat, admitted| {
            Some(Todo::Record { seat, epoch: 2, agreed: agreed(SECOND), admitted })
        };
        assert_eq!(todo(&behind), recorded(2, None));
        assert_eq!(todo(&[node("a", 2, SECOND), outside("d"), None]), None);
        let both = [node("a", 2, SECOND), outside("d"), node("c", 2, SECOND)];
        assert_eq!(todo(&both), recorded(1, Some(admission(false))));
        let done = [node("a", 2, SECOND), node("d", 2, SECOND), node("c", 2, SECOND)];
        assert_eq!(todo(&done), None);
        // The one that was replaced stays what it is.
        assert_eq!(todo(&[node("a", 2, SECOND), node("b", 1, FIRST), node("c", 2, SECOND)]), None);
    }

    #[test]
    fn first_member_that_forgot_its_choice_waits_for_a_majority() {
        let chose = outside("b").map(|sight| Sight { accepted: Some((1, agreed(FIRST))), ..sight });
        let told = |chooses| {
            let admitted = Some(admission(chooses));
            Some(Todo::Record { seat: 1, epoch: 1, agreed: agreed(FIRST), admitted })
        };
        assert_eq!(todo(&[node("a", 1, FIRST), chose, None]), told(true));
        assert_eq!(todo(&[node("a", 1, FIRST), outside("b"), None]), None);
        assert_eq!(todo(&[node("a", 1, FIRST), outside("b"), node("c", 1, FIRST)]), told(false));
    }

    #[test]
    fn two_memberships_of_one_epoch_admit_no_server() {
        let other = node("c", 2, ["a", "x", "c"]);
        assert_eq!(todo(&[other, outside("d"), node("a", 2, SECOND)]), None);
    }

    #[test]
    fn admitted_member_chooses_from_the_next_epoch_on() {
        let admitted = node("d", 2, SECOND).map(|sight| Sight { admitted: 2, ..sight });
        let sights = [node("a", 2, SECOND), admitted.clone(), node("c", 2, SECOND)];
        is_choice(todo(&sights), 2, "a@h:1 d@h:2 c@h:3");
        let too_few = [node("a", 2, SECOND), admitted, outside("e")];
        assert_eq!(todo_with(&too_few, &["c"]), None);
    }

    #[test]
    fn member_is_replaced_after_missing_for_a_longest_lease() {
        let sights = [node("a", 1, FIRST), outside("d"), node("c", 1, FIRST)];
        assert_eq!(todo_with(&sights, &["a", "c"]), None);
        is_choice(todo_with(&sights, &["b"]), 1, "a@h:1 d@h:2 c@h:3");
    }

    #[test]
    fn server_with_a_copied_marker_is_no_second_member() {
        let copy = node("a", 1, FIRST).map(|sight| Sight { run_id: "x".into(), ..sight });
        let sights = distinct(vec![copy, node("a", 1, FIRST), node("a", 1, FIRST), outside("d")]);
        assert_eq!(sights, [None, node("a", 1, FIRST), None, outside("d")]);
    }
}
