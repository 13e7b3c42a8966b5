//! [`Eviction`]: the check whether a server may evict a held lock when its memory is full. Under
//! the rule `warn`, the server is queried after the first attempt, then after a later release or
//! renewal at most every five minutes, and earlier only if another server answers. Under the rule
//! `refuse`, the server is queried before a lock is acquired, unless the last result is recent.
//!
//! Under `warn`, a query is sent only after the reply to a request, or behind requests without
//! waiting for its reply. In front of a request, the reply to the query would hide that the server
//! does not answer the request.

use crate::connection::error_mapping::{self, Asked};
use crate::connection::{
    Batch, CallError, ConnectionLike, Dialer, Reply, ReplyCheck, Request, Server, SharedConnection,
    info_field,
};
use lock_core::backend::Failure;
use lock_core::{Config, Error, Moment, WarningKind};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The option's name. Its values are `warn`, the default, and `refuse`.
pub(crate) const OPTION: &str = "eviction";

/// The time between two checks of a server's eviction policy, and between two warnings, because
/// operators change the policy by hand.
const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The time between two checks while locks are refused, so that locks become available soon after
/// the policy is corrected.
const WHILE_REFUSED: Duration = Duration::from_secs(1);

const INFO: Request<'static> = Request(&[&[b"INFO", b"memory"]]);

/// The reaction to a server that may evict locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnEviction {
    Warn,
    Refuse,
    /// No check here: a quorum checks its servers itself, and refuses those that evict.
    CheckedByQuorum,
}

impl OnEviction {
    pub(crate) fn of(config: &Config) -> Result<Self, Error> {
        if config.scheme().starts_with("redlock") {
            return Ok(Self::CheckedByQuorum);
        }
        config.scheme_word(OPTION, &[("warn", Self::Warn), ("refuse", Self::Refuse)])
    }
}

/// The check of one server's eviction policy, and its last result.
#[derive(Debug)]
pub(crate) struct Eviction {
    rule: OnEviction,
    dialer: Arc<Dialer>,
    state: Mutex<State>,
    /// True until the first query, which must not wait for the first release: a process may hold
    /// one lock for as long as it runs.
    is_new: AtomicBool,
}

#[derive(Default, Debug)]
struct State {
    /// The time of the next query; `None` if a query is due at once, as before the first one.
    next: Option<Moment>,
    /// The dialer's count of changes of the server at the last query. Another count now means that
    /// another server answers.
    changes: u64,
    /// The reason for which locks are refused.
    refused: Option<Error>,
    /// The time of the query that `refused` is the answer to.
    asked: Option<Moment>,
}

impl Eviction {
    pub(crate) fn new(rule: OnEviction, dialer: Arc<Dialer>) -> Self {
        Self {
            rule,
            dialer,
            state: Mutex::default(),
            is_new: AtomicBool::new(rule == OnEviction::Warn),
        }
    }

    /// Returns true until the first query.
    pub(super) fn is_new(&self) -> bool {
        self.is_new.load(Ordering::Relaxed)
    }

    /// Refuses to acquire a lock on a server that may evict it or does not state its policy, if the
    /// rule is to refuse. Queries the server first, if it is time for that.
    pub(crate) fn refuse(&self, link: &mut dyn ConnectionLike, by: Moment) -> Result<(), Failure> {
        if self.rule != OnEviction::Refuse {
            return Ok(());
        }
        let mut state = self.state.lock();
        let (now, changes) = (self.dialer.clock().now(), self.dialer.changes());
        if state.is_due(now, changes) {
            // The mutex is unlocked during the query, so other threads query, too: no thread
            // acquires a lock before the policy is known.
            drop(state);
            let reply = link.call(&INFO, by).map_err(|error| match error {
                CallError::NotSent(error) | CallError::Unknown(error) => Failure::NotSent(error),
            })?;
            let refused = match said(&reply) {
                Some(said) => said.danger(link.server()),
                None => Some(untold(link.server(), &reply)),
            };
            let pause = if refused.is_some() {
                WHILE_REFUSED
            } else {
                INTERVAL
            };
            state = self.state.lock();
            // Otherwise an answer that was read long ago could replace a newer one.
            if state.asked.is_none_or(|asked| asked <= now) {
                *state = State {
                    next: Some(now + pause),
                    changes,
                    refused,
                    asked: Some(now),
                };
            }
        }
        state
            .refused
            .clone()
            .map_or(Ok(()), |error| Err(Failure::Refused(error)))
    }

    /// Queries the server after a reply, if the rule is to warn and it is time for that. A server
    /// that does not state its policy is trusted.
    pub(crate) fn look(&self, link: &mut dyn ConnectionLike, by: Moment) {
        if self.rule == OnEviction::Warn && self.is_due(by) {
            let reply = link.call(&INFO, by).ok();
            tell(link.server(), reply.as_ref());
        }
    }

    /// Queries the server behind the requests that were already sent, without waiting for the
    /// reply, if the rule is to warn and it is time for that.
    pub(crate) fn look_behind(&self, link: &SharedConnection, by: Moment) {
        if self.rule != OnEviction::Warn || !self.is_due(by) {
            return;
        }
        if !link.is_connected() {
            self.state.lock().next = None;
            self.is_new.store(true, Ordering::Relaxed);
            return;
        }
        let server = Arc::clone(link.server());
        let done = move |answer: Result<Reply, Failure>| {
            tell(&server, answer.ok().as_ref());
            ReplyCheck::Expected
        };
        link.submit(&Batch::from_requests(&[INFO]), by, Box::new(done));
    }

    /// Returns whether a query is due, and if so, sets the time of the next. `by` stands for the
    /// present time: it is at most a command timeout ahead, and saves reading the clock.
    fn is_due(&self, by: Moment) -> bool {
        // The thread that has locked the mutex queries for all.
        let Some(mut state) = self.state.try_lock() else {
            return false;
        };
        let changes = self.dialer.changes();
        let is_due = state.is_due(by, changes);
        if is_due {
            *state = State {
                next: Some(by + INTERVAL),
                changes,
                refused: None,
                asked: None,
            };
            self.is_new.store(false, Ordering::Relaxed);
        }
        is_due
    }
}

impl State {
    /// Returns whether it is time to query, or another server has answered since the last query.
    fn is_due(&self, now: Moment, changes: u64) -> bool {
        self.changes != changes || self.next.is_none_or(|next| next <= now)
    }
}

fn tell(server: &Server, reply: Option<&Reply>) {
    // Without this, a warning that was given before would not be repeated.
    server.clear_warnings(WarningKind::Eviction);
    if let Some(danger) = reply.and_then(said).and_then(|said| said.danger(server)) {
        server.warn(WarningKind::Eviction, || danger.to_string());
    }
}

/// A server's memory limit and eviction policy.
pub(super) struct Memory {
    pub(super) has_limit: bool,
    pub(super) policy: String,
}

impl Memory {
    /// Reads a reply to `INFO`. Returns `None` if one of the two fields is missing.
    pub(super) fn read(info: &str) -> Option<Self> {
        let limit = info_field(info, "maxmemory")?;
        let policy = info_field(info, "maxmemory_policy")?.to_owned();
        Some(Self {
            has_limit: limit != "0",
            policy,
        })
    }

    /// Returns whether locks may be evicted.
    pub(super) fn evicts(&self) -> bool {
        self.has_limit && self.policy != "noeviction"
    }

    /// Returns an error that describes the danger to locks and its remedy; `None` if no lock can be
    /// evicted.
    fn danger(&self, server: &Server) -> Option<Error> {
        self.evicts().then(|| {
            Error::configuration(format!(
                "{server} has a `maxmemory`, and its `maxmemory-policy` is `{}`: when the memory \
                 is full it may evict a lock that is held, and grant it to another client: set \
                 `maxmemory-policy noeviction` there, or give the locks a server of their own",
                self.policy
            ))
        })
    }
}

fn said(reply: &Reply) -> Option<Memory> {
    Memory::read(&String::from_utf8_lossy(reply.as_bytes()?))
}

/// Returns the error for a server that does not state its policy, which `refuse` requires.
fn untold(server: &Server, reply: &Reply) -> Error {
    if let Reply::Error(answer) = reply {
        return error_mapping::explain(server, answer, &Asked::Introduction)
            .with_hint("`eviction=refuse` needs to ask for `INFO memory`");
    }
    Error::configuration(format!(
        "{server} does not say what it does when its memory is full, which `eviction=refuse` needs \
         to know"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Endpoint;

    #[test]
    fn only_a_limit_and_a_policy_that_evicts_are_a_danger() {
        let server = Server::new(Endpoint::tcp("h", 1), None);
        for (limit, policy, is_danger) in [
            ("0", "noeviction", false),
            ("0", "volatile-lru", false),
            ("100", "noeviction", false),
            ("100", "volatile-lru", true),
            ("100", "allkeys-random", true),
        ] {
            let text = format!(
                "# Memory\r\nmaxmemory:{limit}\r\nmaxmemory_human:x\r\n\
                 maxmemory_policy:{policy}\r\n"
            );
            let said = said(&Reply::Bulk(text.into_bytes())).unwrap();
            let danger = said.danger(&server).map(|error| error.to_string());
            assert_eq!(danger.is_some(), is_danger, "{limit} {policy}");
            assert!(danger.is_none_or(|text| text.contains(policy) && text.contains("h:1")));
        }
        assert!(said(&Reply::Bulk(b"# Memory\r\nused_memory:1\r\n".to_vec())).is_none());
    }
}
