//! [`Router`]: to the node of a slot, and on from there by what it answers.
//!
//! What a node answers instead - the slot is elsewhere, or just moving, or nobody's - says that nothing happened there,
//! so the request goes on to where it belongs. A request that got no answer is never sent again here: it may have been
//! carried out, and who asked knows what to do about that.

use crate::map::Member;
use crate::topology::Shared;
use lock_core::backend::Failure;
use lock_core::{Error, Moment, Signal};
use lock_redis::parts::{Node, Redirect, RequestMode};
use std::sync::Arc;
use std::time::Duration;

/// The pause before a slot that is just moving is asked for again; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// How often a request goes on from node to node without a pause.
const HOPS: u32 = 4;

/// See the [module's text](self).
#[derive(Clone, Debug)]
pub(crate) struct Router(pub(crate) Arc<Shared>);

/// What a node answered.
#[derive(Debug)]
pub(crate) struct Answered<T> {
    pub(crate) answer: T,
    member: Arc<Member>,
    /// The slot was just moving there.
    asking: bool,
}

impl<T> Answered<T> {
    /// The answer, if it is one of the slot's node still. A master that another one has replaced meanwhile may have been
    /// frozen, or cut off from the rest, and what it did is lost with it: who asked asks again, and the new one will say.
    pub(crate) fn believed(self, slot: u16, shared: &Shared) -> Result<T, Failure> {
        let is_present =
            || shared.look(slot).is_some_and(|owner| Arc::ptr_eq(&owner, &self.member));
        if self.asking || is_present() {
            return Ok(self.answer);
        }
        Err(Failure::Unknown(over(&self.member)))
    }
}

/// What is said of an answer by one who serves the slot no longer.
pub(crate) fn over(member: &Member) -> Error {
    Error::unavailable(format!("{} has answered, and serves the slot no longer", member.address))
}

/// Where to go next.
enum Next {
    To(Arc<Member>),
    Ask(Arc<Member>),
    /// To the slot's owner, after a pause.
    Later,
}

impl Router {
    /// Asks the node of `slot`, and those that it names.
    pub(crate) fn route<T>(
        &self,
        slot: u16,
        by: Moment,
        mut ask: impl FnMut(&Arc<Node>, RequestMode) -> Result<T, Failure>,
    ) -> Result<Answered<T>, Failure> {
        let mut next = Next::To(self.0.owner(slot, by)?);
        let (mut hops, mut pause) = (0, FIRST_PAUSE);
        loop {
            let (member, asking) = match next {
                Next::To(member) => (member, false),
                Next::Ask(member) => (member, true),
                Next::Later => {
                    self.0
                        .clock()
                        .wait(&Arc::<Signal>::default(), by.min(self.0.clock().now() + pause));
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    next = Next::To(self.0.owner(slot, by)?);
                    continue;
                }
            };
            let mode = if asking { RequestMode::Asking } else { RequestMode::Direct };
            let failure = match ask(&member.node, mode) {
                Ok(answer) => return Ok(Answered { answer, member, asking }),
                Err(failure) => failure,
            };
            hops += 1;
            next = self.next(slot, &member, failure, by)?;
            if self.0.clock().now() >= by {
                return Err(Failure::NotSent(late(slot)));
            }
            if hops > HOPS {
                next = Next::Later;
            }
        }
    }

    /// Where a request goes that this node did not answer; or the failure, if it goes nowhere.
    fn next(
        &self,
        slot: u16,
        member: &Arc<Member>,
        failure: Failure,
        by: Moment,
    ) -> Result<Next, Failure> {
        match (Redirect::of(&failure), &failure) {
            (Some(Redirect::Moved(to)), _) => {
                let to = to.said_by(&member.address.host);
                // A node that names itself, as one behind an address that it does not know of.
                if to == member.address {
                    return Ok(Next::Later);
                }
                self.0.moved(slot, member, &to, by).map(Next::To)
            }
            (Some(Redirect::Ask(to)), _) => {
                self.0.member(member, &to.said_by(&member.address.host), by).map(Next::Ask)
            }
            (Some(Redirect::TryAgain), _) => Ok(Next::Later),
            (Some(_), _) | (None, Failure::NotSent(_)) => {
                self.0.suspect(member);
                // Another one may have taken over long ago.
                self.0.refreshed(by)?;
                match self.0.look(slot) {
                    Some(owner) if !Arc::ptr_eq(&owner, member) => Ok(Next::To(owner)),
                    _ => Err(failure),
                }
            }
            (None, Failure::Unknown(_)) => {
                self.0.suspect(member);
                Err(failure)
            }
            (None, _) => Err(failure),
        }
    }
}

fn late(slot: u16) -> Error {
    Error::unavailable(format!(
        "slot {slot} of the cluster was moving, or without a node, until the deadline"
    ))
}
