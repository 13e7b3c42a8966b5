//! [`Asking`]: a link to a node of a cluster that a slot is just moving to.

use super::{Ask, CallError, Link, Request, Server};
use crate::reply::Reply;
use lock_core::{Error, Moment};
use std::sync::Arc;

/// Sends `ASKING` before each request, in the same write: the node serves that one although the slot is not its own yet.
/// Only on a link of one's own, where nothing can come between the two.
pub(crate) struct Asking<'a>(pub(crate) &'a mut Link);

const ASKING: Request<'static> = Request(&[&[b"ASKING"]]);

impl Ask for Asking<'_> {
    fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        let both: Vec<_> = requests.iter().flat_map(|request| [ASKING, *request]).collect();
        let (replies, outcome) = self.0.call_many(&both, by);
        let mut answers = Vec::with_capacity(requests.len());
        let mut replies = replies.into_iter();
        while let (Some(asking), Some(answer)) = (replies.next(), replies.next()) {
            // Where `ASKING` was refused, the answer behind it is only that the slot is elsewhere.
            answers.push(if matches!(asking, Reply::Error(_)) { asking } else { answer });
        }
        (answers, outcome)
    }

    fn is_first(&mut self, script: u32) -> bool {
        self.0.is_first(script)
    }

    fn server(&self) -> &Arc<Server> {
        self.0.server()
    }

    fn condemn(&mut self) {
        self.0.condemn();
    }

    fn end_for(&mut self, why: &Error) {
        self.0.end_for(why);
    }
}
