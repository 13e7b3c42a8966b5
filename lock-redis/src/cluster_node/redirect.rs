//! [`Redirect`]: what a node of a cluster answers instead of doing what it was asked. Nothing has happened there.

use crate::address::Address;
use crate::reply::ServerError;
use lock_core::backend::Failure;
use std::error::Error as _;

/// What a node of a cluster answers instead.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Redirect {
    /// Another node serves the slot. Its host may be left open: see [`Address::said_by`].
    Moved(Address),
    /// The slot is just moving to another node, which has this key already, or will make it.
    Ask(Address),
    /// The slot is just moving, and some keys of the request have gone and others have not.
    TryAgain,
    /// Nobody serves the slot at the moment, or this node has become a replica, or is not ready yet.
    Down,
}

impl Redirect {
    /// What stands in a failure, if it is one of these.
    #[must_use]
    pub fn of(failure: &Failure) -> Option<Self> {
        let Failure::Refused(error) = failure else { return None };
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
        // `MOVED slot host:port`, and what else there may be one day.
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
        assert_eq!(read("MOVED 3999 127.0.0.1:7001"), Some(Redirect::Moved(to("127.0.0.1"))));
        assert_eq!(read("MOVED 3999 :7001"), Some(Redirect::Moved(to(""))));
        assert_eq!(read("ASK 1 fe80::2:7001"), Some(Redirect::Ask(to("fe80::2"))));
        assert_eq!(read("ASK 1 n1.example:7001"), Some(Redirect::Ask(to("n1.example"))));
        assert_eq!(read("TRYAGAIN Multiple keys request"), Some(Redirect::TryAgain));
        assert_eq!(read("CLUSTERDOWN Hash slot not served"), Some(Redirect::Down));
        assert_eq!(read("CROSSSLOT Keys in request"), None);
        assert_eq!(read("MOVED nonsense"), None);
    }
}
