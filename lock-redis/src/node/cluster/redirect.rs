//! [`Redirect`]: the error of a cluster node that refused a request because of its slot, or because
//! the node is a replica or not ready.

use crate::connection::{Address, ServerError};
use lock_core::backend::Failure;
use std::error::Error as _;

/// The error of a cluster node that refused a request because of its slot, or because the node is a
/// replica or not ready.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Redirect {
    /// Another node serves the slot. The host of its address may be empty ([`Address::said_by`]),
    /// or unknown ([`Address::has_host`]).
    Moved(Address),
    /// The slot is moving to another node, which has this key or will create it.
    Ask(Address),
    /// The slot is moving, and this node does not have all keys of the request: some may be on the
    /// other node, or exist on neither node.
    TryAgain,
    /// No node serves the slot, the cluster has failed, or this node is a replica or not ready.
    Down,
}

impl Redirect {
    /// Returns the redirect in a failure, if there is one.
    #[must_use]
    pub fn of(failure: &Failure) -> Option<Self> {
        let Failure::Refused(error) = failure else {
            return None;
        };
        let mut source = error.source();
        while let Some(error) = source {
            if let Some(answer) = error.downcast_ref::<ServerError>() {
                return Self::read(answer);
            }
            source = error.source();
        }
        None
    }

    fn read(answer: &ServerError) -> Option<Self> {
        // `MOVED slot host:port`, and words that later versions may add.
        let to = || Address::parse(answer.detail.split(' ').nth(1)?);
        match answer.code.as_str() {
            "MOVED" => to().map(Self::Moved),
            "ASK" => to().map(Self::Ask),
            "TRYAGAIN" => Some(Self::TryAgain),
            "CLUSTERDOWN" | "READONLY" | "LOADING" | "MASTERDOWN" => Some(Self::Down),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_read() {
        let read = |text| Redirect::read(&ServerError::parse(text));
        let to = |host| Address::new(host, 7001);
        assert_eq!(
            read("MOVED 3999 127.0.0.1:7001"),
            Some(Redirect::Moved(to("127.0.0.1")))
        );
        assert_eq!(read("MOVED 3999 :7001"), Some(Redirect::Moved(to(""))));
        assert_eq!(
            read("ASK 1 fe80::2:7001"),
            Some(Redirect::Ask(to("fe80::2")))
        );
        assert_eq!(read("MOVED 1 ?:7001"), Some(Redirect::Moved(to("?"))));
        assert_eq!(
            read("ASK 1 n1.example:7001"),
            Some(Redirect::Ask(to("n1.example")))
        );
        assert_eq!(
            read("TRYAGAIN Multiple keys request"),
            Some(Redirect::TryAgain)
        );
        assert_eq!(
            read("CLUSTERDOWN Hash slot not served"),
            Some(Redirect::Down)
        );
        assert_eq!(read("CROSSSLOT Keys in request"), None);
        assert_eq!(read("MOVED nonsense"), None);
    }
}
