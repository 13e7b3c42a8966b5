//! [`Deployment`]: servers that belong together, and the choice among several deployments of a URL.
//!
//! Servers of one deployment (Sentinels of a master, or nodes of a cluster) list each other by
//! their IDs. A configured address may lead to a server of another deployment. The URL means the
//! deployment that most of the configured servers belong to.

use crate::connection::Address;
use lock_core::backend::{Attempt, Failure};
use lock_core::{LeaseTime, Moment};
use std::sync::atomic::{AtomicU64, Ordering};

/// A server's description of its deployment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(
    clippy::exhaustive_structs,
    reason = "made by the crate of the same workspace"
)]
pub struct Account {
    /// The address at which the server was queried.
    pub asked_at: Address,
    /// The server's own ID.
    pub id: String,
    /// The IDs and addresses of the listed servers. This server may be among them.
    pub listed: Vec<(String, Address)>,
}

impl Account {
    /// Returns the IDs of all servers of the deployment, according to this account.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        let listed = self.listed.iter().map(|(id, _)| id.as_str());
        std::iter::once(self.id.as_str()).chain(listed.filter(|id| *id != self.id))
    }

    fn lists(&self, id: &str) -> bool {
        self.ids().any(|listed| listed == id)
    }

    fn covers(&self, address: &Address) -> bool {
        self.asked_at == *address || self.listed.iter().any(|(_, listed)| listed == address)
    }
}

/// Servers that are connected by their lists: two servers belong together if one lists the other.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Deployment {
    /// The indexes of the accounts that the servers of this deployment gave.
    pub accounts: Vec<usize>,
    /// The number of configured servers that belong to this deployment.
    pub covered: usize,
    /// The number of configured servers that answered, or that an answering server lists.
    pub known: usize,
    /// The number of configured servers.
    pub configured: usize,
}

impl Deployment {
    /// Returns whether most of the configured servers belong to this deployment.
    #[must_use]
    pub fn is_majority(&self) -> bool {
        self.covered * 2 > self.configured
    }

    /// Returns whether most of the known configured servers belong to this deployment. A server
    /// that neither answered nor is listed does not count, so all configured servers must have been
    /// queried before the call.
    #[must_use]
    pub fn is_majority_of_known(&self) -> bool {
        self.covered * 2 > self.known
    }

    /// Groups accounts by deployment. The deployment with the largest number of `configured`
    /// servers comes first.
    ///
    /// An address belongs to the deployment of the server that answered there. If none answered,
    /// the address belongs to each deployment that lists it. Addresses that lead to the same server
    /// count once.
    #[must_use]
    pub fn all(configured: &[Address], accounts: &[Account]) -> Vec<Self> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (place, account) in accounts.iter().enumerate() {
            let belongs = |group: &mut Vec<usize>| {
                group.iter().map(|other| &accounts[*other]).any(|other| {
                    other.id == account.id || other.lists(&account.id) || account.lists(&other.id)
                })
            };
            let mut together: Vec<_> = groups.extract_if(.., belongs).flatten().collect();
            together.push(place);
            groups.push(together);
        }
        // The addresses of each configured server.
        let mut servers: Vec<(&str, Vec<&Address>)> = Vec::new();
        for address in configured {
            let answered = accounts.iter().find(|account| account.asked_at == *address);
            let same = answered.and_then(|it| servers.iter_mut().find(|(id, _)| *id == it.id));
            match same {
                Some((_, addresses)) => addresses.push(address),
                None => servers.push((answered.map_or("", |it| &it.id), vec![address])),
            }
        }
        let covers = |group: &[usize], (id, addresses): &(&str, Vec<&Address>)| {
            let mut members = group.iter().map(|place| &accounts[*place]);
            match *id {
                "" => members.any(|it| addresses.iter().any(|address| it.covers(address))),
                id => members.any(|it| it.id == id),
            }
        };
        let is_known = |server: &&_| groups.iter().any(|group| covers(group, server));
        let (known, configured) = (servers.iter().filter(is_known).count(), servers.len());
        let mut deployments: Vec<_> = groups
            .iter()
            .map(|group| Self {
                accounts: group.clone(),
                covered: servers
                    .iter()
                    .filter(|server| covers(group, server))
                    .count(),
                known,
                configured,
            })
            .collect();
        deployments.sort_by_key(|deployment| std::cmp::Reverse(deployment.covered));
        deployments
    }
}

/// The latest end of the leases that this client was granted, or may be granted by a release.
#[derive(Debug, Default)]
pub struct Granted(AtomicU64);

impl Granted {
    /// Records that a request for this lease, sent at `sent`, was granted.
    pub fn note(&self, sent: Moment, lease: LeaseTime) {
        self.0
            .fetch_max((sent + lease.duration()).as_nanos(), Ordering::SeqCst);
    }

    /// Records the outcome of an attempt at `now`. If the attempt allows a direct grant, a later
    /// release may grant the lock to the attempt, without notifying this object. A failed attempt
    /// is ignored unless its outcome is unknown: otherwise a waiting client would keep waiting for
    /// a store that is gone.
    pub fn note_attempt<T>(
        &self,
        now: Moment,
        attempt: &Attempt<'_>,
        outcome: &Result<T, &Failure>,
    ) {
        let has_arrived = matches!(outcome, Ok(_) | Err(Failure::Unknown(_)));
        if has_arrived && attempt.direct.is_some() {
            self.0
                .fetch_max((now + attempt.direct_lease).as_nanos(), Ordering::SeqCst);
        }
    }

    /// Returns whether all leases have ended.
    #[must_use]
    pub fn are_over(&self, now: Moment) -> bool {
        now.as_nanos() >= self.0.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::backend::WAITER_PRESENCE;
    use lock_core::{ClientId, Error, LockKind, LockName, OwnerId};
    use std::num::NonZeroU64;
    use std::time::Duration;

    #[test]
    fn what_a_release_may_grant_is_not_over_with_the_attempt() {
        let name = LockName::new("x").unwrap().of_kind(LockKind::Fair);
        let owner = OwnerId::new(ClientId::random(), 1);
        let lease = LeaseTime::new(Duration::from_secs(30)).unwrap();
        let sent = Moment::from_nanos(1);
        let attempt = Attempt::new(&name, owner, lease);
        for (direct, is_over) in [(None, true), (NonZeroU64::new(1), false)] {
            let granted = Granted::default();
            let attempt = attempt.direct(direct);
            let failure = Failure::NotSent(Error::unavailable("refused"));
            granted.note_attempt::<()>(sent, &attempt, &Err(&failure));
            assert!(granted.are_over(sent), "it did not arrive");
            granted.note_attempt(sent, &attempt, &Ok(()));
            assert_eq!(granted.are_over(sent + Duration::from_secs(1)), is_over);
            assert!(granted.are_over(sent + WAITER_PRESENCE));
        }
    }

    fn at(port: u16) -> Address {
        Address::new("host", port)
    }

    fn account(port: u16, id: &str, listed: &[(&str, u16)]) -> Account {
        let listed = listed
            .iter()
            .map(|(id, port)| ((*id).to_owned(), at(*port)));
        Account {
            asked_at: at(port),
            id: id.to_owned(),
            listed: listed.collect(),
        }
    }

    fn all(configured: &[u16], accounts: &[Account]) -> Vec<Deployment> {
        let configured: Vec<_> = configured.iter().map(|port| at(*port)).collect();
        Deployment::all(&configured, accounts)
    }

    fn found(configured: &[u16], accounts: &[Account]) -> Vec<(Vec<usize>, usize, usize)> {
        let found = all(configured, accounts).into_iter();
        found
            .map(|it| (it.accounts, it.covered, it.configured))
            .collect()
    }

    #[test]
    fn stranger_on_one_of_three_addresses_is_outnumbered() {
        let accounts = [
            account(3, "f", &[("g", 8), ("h", 9)]),
            account(1, "a", &[("b", 2), ("c", 3)]),
            account(2, "b", &[("a", 1), ("c", 3)]),
        ];
        assert_eq!(
            found(&[1, 2, 3], &accounts),
            [(vec![1, 2], 2, 3), (vec![0], 1, 3)]
        );
        // If only one of the three sentinels answers, the addresses of the other two count, too,
        // because the answering one lists them.
        assert_eq!(
            found(&[1, 2, 3], &accounts[..2]),
            [(vec![1], 2, 3), (vec![0], 1, 3)]
        );
        assert_eq!(found(&[1, 2, 3], &accounts[..1]), [(vec![0], 1, 3)]);
    }

    #[test]
    fn listed_address_answering_with_another_id_is_not_covered() {
        let left_over = account(1, "f", &[("g", 2), ("h", 3)]);
        let others = [account(2, "b", &[("c", 3)]), account(3, "c", &[("b", 2)])];
        let accounts = [&[left_over], &others[..]].concat();
        assert_eq!(
            found(&[1, 2, 3], &accounts),
            [(vec![1, 2], 2, 3), (vec![0], 1, 3)]
        );
    }

    #[test]
    fn servers_known_by_other_addresses_form_no_majority() {
        let accounts = [account(1, "a", &[("b", 12)]), account(2, "f", &[("g", 8)])];
        assert_eq!(
            found(&[1, 2], &accounts),
            [(vec![0], 1, 2), (vec![1], 1, 2)]
        );
    }

    #[test]
    fn server_that_does_not_answer_is_no_vote_among_the_known() {
        // One of three servers answers, and lists neither of the others.
        let accounts = [account(1, "a", &[("b", 12)]), account(2, "f", &[("g", 8)])];
        let is_majority = |configured: &[u16], accounts: &[Account]| {
            let found = all(configured, accounts);
            (found[0].is_majority(), found[0].is_majority_of_known())
        };
        assert_eq!(is_majority(&[1, 2, 3], &accounts[..1]), (false, true));
        assert_eq!(is_majority(&[1, 2, 3], &accounts), (false, false));
        // A listed server counts, although it does not answer.
        let accounts = [account(1, "a", &[("b", 3)]), account(2, "f", &[("g", 8)])];
        assert_eq!(is_majority(&[1, 2, 3], &accounts), (true, true));
        assert_eq!(is_majority(&[1, 2, 3, 4, 5], &accounts), (false, true));
    }

    #[test]
    fn server_with_several_addresses_counts_once() {
        let strangers = [account(2, "f", &[]), account(3, "f", &[])];
        assert_eq!(found(&[1, 2, 3], &strangers), [(vec![0, 1], 1, 2)]);
        assert_eq!(found(&[2, 3], &strangers), [(vec![0, 1], 1, 1)]);
    }

    #[test]
    fn account_that_lists_two_others_joins_them() {
        let accounts = [
            account(1, "a", &[]),
            account(2, "b", &[]),
            account(3, "c", &[("a", 1), ("b", 2)]),
        ];
        assert_eq!(found(&[1], &accounts), [(vec![0, 1, 2], 1, 1)]);
    }
}
