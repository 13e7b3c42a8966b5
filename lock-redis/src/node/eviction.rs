//! [`Eviction`]: whether a server may evict a lock that is held when its memory is full. Asked when
//! a lock is first given back or renewed there, and from time to time while they are; or, where it
//! is to be refused, before one is taken.
//!
//! Never between a request and its answer: an answer to something else would hide that the
//! connection is mute.

use crate::connection::error_mapping::{self, Asked};
use crate::connection::{
    Batch, CallError, ConnectionLike, Dialer, Reply, ReplyCheck, Request, Server, SharedConnection,
    info_field,
};
use lock_core::backend::Failure;
use lock_core::{Config, Error, Moment, WarningKind};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The option: `warn`, the default, or `refuse`.
pub(crate) const OPTION: &str = "eviction";

/// The time between two checks of a server's eviction policy, and between two warnings, because
/// operators change it by hand.
const INTERVAL: Duration = Duration::from_secs(5 * 60);
/// The time between two checks while locks are refused, so that they become available once the
/// policy is corrected.
const WHILE_REFUSED: Duration = Duration::from_secs(1);

const INFO: Request<'static> = Request(&[&[b"INFO", b"memory"]]);

/// What is done about it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnEviction {
    Warn,
    Refuse,
    /// A quorum has its own look at its servers, and refuses what evicts.
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

/// What is known of one server.
#[derive(Debug)]
pub(crate) struct Eviction {
    rule: OnEviction,
    dialer: Arc<Dialer>,
    state: Mutex<State>,
}

#[derive(Default, Debug)]
struct State {
    /// When it is asked next; at once before it was asked for the first time.
    next: Option<Moment>,
    /// How often another server had taken the place of the one before when it was asked.
    changes: u64,
    /// Why no locks are taken there.
    refused: Option<Error>,
}

impl Eviction {
    pub(crate) fn new(rule: OnEviction, dialer: Arc<Dialer>) -> Self {
        Self {
            rule,
            dialer,
            state: Mutex::default(),
        }
    }

    /// Before a lock is taken: where that is the rule, asks the server if it is time for that, and
    /// refuses.
    pub(crate) fn refuse(&self, link: &mut dyn ConnectionLike, by: Moment) -> Result<(), Failure> {
        if self.rule != OnEviction::Refuse {
            return Ok(());
        }
        let mut state = self.state.lock();
        let (now, changes) = (self.dialer.clock().now(), self.dialer.changes());
        if state.is_due(now, changes) {
            // Threads that come meanwhile ask, too: none takes a lock before it is known.
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
            *state = State {
                next: Some(now + pause),
                changes,
                refused,
            };
        }
        state
            .refused
            .clone()
            .map_or(Ok(()), |error| Err(Failure::Refused(error)))
    }

    /// Where the rule is to warn: asks the server behind an answer of its own, if it is time for
    /// that. One that does not say is trusted.
    pub(crate) fn look(&self, link: &mut dyn ConnectionLike, by: Moment) {
        if self.rule == OnEviction::Warn && self.is_due(by) {
            let reply = link.call(&INFO, by).ok();
            tell(link.server(), reply.as_ref());
        }
    }

    /// The same without waiting for the answer, behind what was sent there.
    pub(crate) fn look_behind(&self, link: &SharedConnection, by: Moment) {
        if self.rule != OnEviction::Warn || !self.is_due(by) {
            return;
        }
        if !link.is_connected() {
            self.state.lock().next = None;
            return;
        }
        let server = Arc::clone(link.server());
        let done = move |answer: Result<Reply, Failure>| {
            tell(&server, answer.ok().as_ref());
            ReplyCheck::Expected
        };
        link.submit(&Batch::from_requests(&[INFO]), by, Box::new(done));
    }

    /// Whether it is time to ask. If so, it is not again for a while. `by` stands for the time: it
    /// is a command timeout ahead at most, and costs no look at the clock.
    fn is_due(&self, by: Moment) -> bool {
        // Another thread that looks does so for all.
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
            };
        }
        is_due
    }
}

impl State {
    /// Whether it is time to ask, or another server answers since.
    fn is_due(&self, now: Moment, changes: u64) -> bool {
        self.changes != changes || self.next.is_none_or(|next| next <= now)
    }
}

fn tell(server: &Server, reply: Option<&Reply>) {
    // Each time anew.
    server.clear_warnings(WarningKind::Eviction);
    if let Some(danger) = reply.and_then(said).and_then(|said| said.danger(server)) {
        server.warn(WarningKind::Eviction, || danger.to_string());
    }
}

/// What a server says of its memory.
pub(super) struct Memory {
    pub(super) has_limit: bool,
    pub(super) policy: String,
}

impl Memory {
    /// Reads a reply to `INFO`; nothing if it does not say that.
    pub(super) fn read(info: &str) -> Option<Self> {
        let limit = info_field(info, "maxmemory")?;
        let policy = info_field(info, "maxmemory_policy")?.to_owned();
        Some(Self {
            has_limit: limit != "0",
            policy,
        })
    }

    /// Whether locks may be evicted.
    pub(super) fn evicts(&self) -> bool {
        self.has_limit && self.policy != "noeviction"
    }

    /// What may happen to locks there, and how to mend it; nothing if none is evicted.
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

/// With `refuse` a server must say what it does.
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
