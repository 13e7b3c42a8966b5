//! [`Node::examine`]: the consequences of a server's settings and state for locks.
//!
//! - `facts`: the server's own description
//! - `service`: the managed service that the server belongs to
//! - `settings`: role, version, eviction, memory, persistence
//! - `replication`: replicas, their clocks, and the writes that the server accepts without them
//! - `rights`: the rights of the user
//! - `cluster`: the cluster that a node belongs to
//! - `timing`: the server's clock, and the time of a round trip

mod cluster;
mod facts;
mod replication;
mod rights;
mod service;
mod settings;
mod timing;

use super::{Node, ServerClock};
use crate::connection::{Connection, Reply, Request, ServerError};
use crate::protocol::Format;
use crate::wakeups::{NotTracked, Tracking};
use facts::Facts;
use lock_core::backend::Failure;
use lock_core::{Finding, FindingLevel, Moment, Replicas};
use rights::Rights;
use service::Service;
use std::fmt;
use std::time::Duration;

/// The kind of store that the server is a part of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_enums,
    reason = "for the crate of the same workspace"
)]
pub enum StoreKind {
    /// One server on its own.
    Standalone,
    /// The master that Sentinel names.
    Sentinel,
    /// A master of a cluster.
    Cluster,
    /// A node of a quorum.
    Quorum {
        /// The longest lease.
        max_lease: Duration,
        /// True if the operator declares that no write is lost.
        durable: bool,
    },
}

/// The settings of the client that the diagnosis compares with those of the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeTerms {
    /// The longest lease of locks that are acquired without a lease of their own.
    pub(crate) lease: Duration,
    pub(crate) replicas: Replicas,
    pub(crate) tracking: Tracking,
    pub(crate) has_prefix: bool,
    pub(crate) database: u32,
    /// The time after a server's start in which no grants are requested from it.
    pub(crate) restart_grace: Duration,
}

/// The result of the examination of one server.
#[derive(Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "for the crate of the same workspace"
)]
pub struct NodeDiagnosis {
    /// The findings about the server.
    pub findings: Vec<Finding>,
    /// The server's clock; `None` if the reply to `TIME` is not a time, as when the user may not
    /// read it.
    pub clock: Option<ServerClock>,
}

/// The facts about one server, and the findings so far.
struct Examination<'a> {
    node: &'a Node,
    format: &'a Format,
    store: StoreKind,
    facts: Facts,
    service: Option<Service>,
    findings: Vec<Finding>,
}

/// A separate connection for the examination. Each request on this connection has its own deadline.
struct Asking<'a> {
    node: &'a Node,
    link: Connection,
    by: Moment,
}

impl Asking<'_> {
    fn new(node: &Node, by: Moment) -> Result<Asking<'_>, Failure> {
        Ok(Asking {
            node,
            link: node.inner.dialer.dial_any(by)?,
            by,
        })
    }

    /// Returns the deadline of a request that is sent now.
    fn deadline(&self) -> Moment {
        self.by
            .min(self.node.inner.dialer.clock().now() + self.node.inner.dialer.command_timeout())
    }

    /// Sends a request. If the server closes two connections instead of replying, but still accepts
    /// new connections, returns a refusal.
    fn ask(&mut self, words: &[&[u8]]) -> Result<Reply, Failure> {
        use crate::connection::ConnectionLike;
        // Twice, because a restart of the server also closes a connection, but only once.
        for _ in 0..2 {
            let by = self.deadline();
            let answer = self.link.call(&Request(&[words]), by);
            if answer.is_ok() || self.node.inner.dialer.clock().now() >= by {
                return Ok(answer?);
            }
            self.link = self.node.inner.dialer.dial_any(self.by)?;
        }
        Ok(Reply::Error(closed()))
    }
}

/// Returns the refusal of a server, or a proxy, that closes the connection instead of answering.
fn closed() -> ServerError {
    ServerError::parse("ERR not allowed: the connection was closed instead of an answer")
}

impl Node {
    /// Reports the settings and the state of the server that matter for locks of the node's format.
    /// Changes nothing on the server.
    ///
    /// # Errors
    ///
    /// See [`Failure`]: the server cannot be queried.
    pub fn examine(&self, store: StoreKind, by: Moment) -> Result<NodeDiagnosis, Failure> {
        let format = &self.inner.format;
        let mut asking = Asking::new(self, by)?;
        let facts = Facts::ask(&mut asking)?;
        let service = Service::of(&facts, &self.inner.dialer.server().endpoint);
        let findings = Vec::new();
        let mut examination = Examination {
            node: self,
            format,
            store,
            facts,
            service,
            findings,
        };
        examination.examine_service();
        examination.examine_role();
        examination.examine_version();
        examination.examine_eviction();
        examination.examine_memory();
        examination.examine_persistence();
        examination.examine_replicas();
        examination.examine_min_replicas();
        let rights = Rights::ask(&mut asking, format, store)?;
        examination.judge_rights(&rights);
        if self.inner.terms.tracking == Tracking::Auto && format.knows_owners() {
            let refused = examination.ask_for_tracking(&rights, by)?;
            examination.judge_tracking(refused.as_ref());
        }
        examination.judge_latency(&timing::round_trips(&mut asking)?);
        let clock = timing::ask_clock(&mut asking)?;
        examination.judge_clock(clock);
        if matches!(
            store,
            StoreKind::Standalone | StoreKind::Sentinel | StoreKind::Cluster
        ) {
            examination.examine_replica_clocks(by);
        }
        Ok(NodeDiagnosis {
            findings: examination.findings,
            clock,
        })
    }
}

impl Examination<'_> {
    fn server(&self) -> impl fmt::Display + use<'_> {
        self.node.inner.dialer.server()
    }

    fn ok(&mut self, id: &'static str, seen: impl Into<String>) {
        let finding = Finding::ok(id, self.server(), seen);
        self.findings.push(finding);
    }

    /// Adds a finding for a fact that the server does not state.
    fn unknown(&mut self, id: &'static str, seen: impl Into<String>, remedy: &str) {
        let finding = Finding::new(FindingLevel::Unknown, id, self.server(), seen).remedy(remedy);
        self.findings.push(finding);
    }

    fn bad(
        &mut self,
        level: FindingLevel,
        id: &'static str,
        seen: impl Into<String>,
        why: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let finding = Finding::new(level, id, self.server(), seen)
            .why(why)
            .remedy(remedy);
        self.findings.push(finding);
    }

    /// Requests reports of key changes on a new connection, as renewals do. Returns the server's
    /// error if the server refuses the reports, or a refusal if the server closes the connection
    /// instead of replying.
    fn ask_for_tracking(
        &self,
        rights: &Rights,
        by: Moment,
    ) -> Result<Option<ServerError>, Failure> {
        if let Some(error) = rights.refusal_of("client|tracking") {
            return Ok(Some(error));
        }
        let mut asking = Asking::new(self.node, by)?;
        let id = match asking.ask(&[b"HELLO", b"2"])? {
            Reply::Error(error) => return Ok(Some(error)),
            Reply::Array(pairs) => pairs.chunks(2).find_map(|pair| match pair {
                [name, Reply::Int(id)] if name.as_bytes() == Some(b"id") => u64::try_from(*id).ok(),
                _ => None,
            }),
            _ => None,
        };
        let by = asking.deadline();
        match asking.link.report_to(id.unwrap_or_default(), by) {
            Err(_) if self.node.inner.dialer.clock().now() < by => Ok(Some(closed())),
            refused => Ok(refused?),
        }
    }

    fn judge_tracking(&mut self, refused: Option<&ServerError>) {
        const ID: &str = "tracking";
        let Some(error) = refused else {
            return self.ok(ID, "the server reports changes of locks");
        };
        let why = NotTracked::Refused(error.clone());
        self.bad(
            FindingLevel::Warning,
            ID,
            format!("the server does not report changes of locks ({why})"),
            "a release that is not published is noticed some seconds later, a loss at the next \
             renewal",
            why.remedy(),
        );
    }
}
