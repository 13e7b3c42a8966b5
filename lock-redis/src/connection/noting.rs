//! [`NotingConnection`]: a link on which the server is asked behind each write how far its data's
//! history has come.
//!
//! Behind the write and not in its script or transaction, where the offset is that before the
//! write.

use super::{CallError, ConnectionLike, Dialer, Introduction, Reply, Request, Server};
use crate::connection::history::{HISTORY, Shown};
use lock_core::{Error, Moment};
use std::sync::Arc;

/// A link with `INFO replication` behind all requests of a write, where the server answers that.
pub(crate) struct NotingConnection<'a> {
    link: &'a mut dyn ConnectionLike,
    dialer: &'a Dialer,
}

impl<'a> NotingConnection<'a> {
    pub(crate) fn new(link: &'a mut dyn ConnectionLike, dialer: &'a Dialer) -> Self {
        Self { link, dialer }
    }
}

impl Introduction {
    /// Reads the reply to [`HISTORY`].
    pub(crate) fn of(reply: &Reply, asked: Moment, answered: Moment) -> Option<Self> {
        let shown = Shown::read(&String::from_utf8_lossy(reply.as_bytes()?));
        Some(Self {
            shown,
            asked,
            answered,
        })
    }
}

impl ConnectionLike for NotingConnection<'_> {
    fn call_many(
        &mut self,
        requests: &[Request<'_>],
        by: Moment,
    ) -> (Vec<Reply>, Result<(), CallError>) {
        let Some(generation) = self.link.history().cloned() else {
            return self.link.call_many(requests, by);
        };
        let asked = self.dialer.clock().now();
        let all = [requests, &[HISTORY]].concat();
        let (mut replies, outcome) = self.link.call_many(&all, by);
        if replies.len() < requests.len() {
            return (replies, outcome);
        }
        if let Some(reply) = replies.drain(requests.len()..).next()
            && let Some(introduction) = Introduction::of(&reply, asked, self.dialer.clock().now())
        {
            self.dialer.note(&generation, introduction);
        }
        // What they say counts, also if the connection broke behind them.
        (replies, Ok(()))
    }

    fn is_first_use(&mut self, script: u64) -> bool {
        self.link.is_first_use(script)
    }

    fn needs_script_text(&mut self, script: u64) -> bool {
        self.link.needs_script_text(script)
    }

    fn report_changes_of_keys(&mut self, are_reported: bool) {
        self.link.report_changes_of_keys(are_reported);
    }

    fn is_one_store(&self) -> bool {
        self.link.is_one_store()
    }

    fn server(&self) -> &Arc<Server> {
        self.link.server()
    }

    fn close_with(&mut self, why: &Error) {
        self.link.close_with(why);
    }

    fn is_verified(&self) -> bool {
        self.link.is_verified()
    }

    fn mark_verified(&mut self) {
        self.link.mark_verified();
    }
}
