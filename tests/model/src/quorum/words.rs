//! `Debug` of [`Action`]: what happens, in words, for printed paths.

use super::{Action, index};
use std::fmt;

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |attempt: &usize| char::from(b'A' + index(*attempt));
        match self {
            Self::Begin { attempt, first } => {
                write!(f, "{} asks all nodes, at {first}", name(attempt))
            }
            Self::Again { attempt, first } => {
                write!(f, "{} asks all again, at {first}", name(attempt))
            }
            Self::Arrives {
                attempt,
                round,
                node,
            } => {
                write!(
                    f,
                    "{}'s request {} arrives at node {node}",
                    name(attempt),
                    round + 1
                )
            }
            Self::Wins { attempt } => write!(f, "{} believes in its lock", name(attempt)),
            Self::HandsOn { attempt } => {
                write!(f, "{} hands on, with the next token", name(attempt))
            }
            Self::LeaseEnds { attempt } => write!(f, "{}'s lease is over", name(attempt)),
            Self::Releases { attempt } => write!(f, "{} releases", name(attempt)),
            Self::ReleaseArrives { attempt, node } => {
                write!(f, "{}'s release arrives at node {node}", name(attempt))
            }
            Self::LetsGo { node } => write!(f, "the lease on node {node} ends"),
            Self::Tick { node } => write!(f, "the clock of node {node} goes on"),
            Self::Restarts { node } => write!(f, "node {node} is started again"),
            Self::Saves { node } => write!(f, "node {node} saves what it has"),
            Self::IsMarked { node } => write!(f, "server {node} becomes a node"),
            Self::Replaces { newcomer, replaced } => {
                write!(f, "server {newcomer} is chosen for node {replaced}")
            }
            Self::Records { node } => write!(f, "node {node} records the new members"),
            Self::Renews { attempt } => write!(f, "{} asks all nodes to renew", name(attempt)),
            Self::RenewalArrives { attempt, node } => {
                write!(f, "{}'s renewal arrives at node {node}", name(attempt))
            }
            Self::VoteArrives {
                attempt,
                node,
                late,
            } => {
                let which = if *late { "earlier request" } else { "request" };
                write!(
                    f,
                    "{}'s {which} to vote again arrives at node {node}",
                    name(attempt)
                )
            }
            Self::IsRenewed { attempt } => {
                write!(f, "{} believes in its longer lease", name(attempt))
            }
        }
    }
}
