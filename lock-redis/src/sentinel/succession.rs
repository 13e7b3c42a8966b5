//! [`Succession`]: the check whether a server that the sentinels name may replace the master at
//! once.
//!
//! A failover promotes a replica that was known before. If two deployments use the same name for
//! their masters, their Sentinels merge when an address is reused. Then all of them may name a
//! server of the other deployment, which has none of this client's locks. Such a server is not
//! followed as long as one of these locks may be held.

use super::agreement::Agreement;
use crate::connection::Address;
use lock_core::{Error, Moment};
use std::time::Duration;

/// The largest number of servers whose `run_id` is remembered, to recognize the next master. The
/// server recorded longest ago is forgotten first.
const MOST: usize = 64;

/// The servers that may replace the master; see the [module](self).
#[derive(Debug, Default)]
pub(super) struct Succession {
    /// The servers of the deployment, each with its last address and its `run_id`.
    known: Vec<(Address, String)>,
    /// True if the sentinels have listed the replicas, and reported the `run_id` of any server.
    says_ids: bool,
    stranger: Option<Stranger>,
}

/// A server that the sentinels name, and that is not followed yet.
#[derive(Clone, Debug)]
pub(super) struct Stranger {
    address: Address,
    run_id: Option<String>,
    /// The time at which the sentinels first named the server.
    since: Moment,
}

/// The permission of a server to replace the master.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The server may replace the master, but must have this `run_id` if there is one.
    Known(Option<String>),
    Unknown,
}

impl Succession {
    /// Records the servers that an agreement lists. Its master is the present one, or a new one
    /// that is followed from now on.
    ///
    /// If the sentinels may not be queried for replicas, or never report a `run_id`, any server may
    /// be the next master.
    pub(super) fn note(&mut self, agreement: &Agreement) {
        self.stranger = None;
        let Some(replicas) = &agreement.replica_ids else {
            return;
        };
        let master = agreement.run_id.iter().map(|id| (&agreement.master, id));
        for (address, id) in replicas
            .iter()
            .map(|(address, id)| (address, id))
            .chain(master)
        {
            self.says_ids = true;
            self.known.retain(|(_, known)| known != id);
            self.known.push((address.clone(), id.clone()));
        }
        let surplus = self.known.len().saturating_sub(MOST);
        self.known.drain(..surplus);
    }

    /// Returns whether the named server may replace the known master.
    pub(super) fn claim(&self, agreement: &Agreement) -> Claim {
        let run_id = agreement.run_id.clone();
        let is_known = |id: &String| self.known.iter().any(|(_, known)| known == id);
        match run_id {
            _ if !self.says_ids || agreement.are_others || agreement.is_proven => {
                Claim::Known(run_id)
            }
            Some(id) if is_known(&id) => Claim::Known(Some(id)),
            Some(_) => Claim::Unknown,
            // Right after a failover the sentinels do not have the new master's `run_id` yet.
            None => {
                let mut known = self.known.iter().rev();
                let here = known.find(|(address, _)| *address == agreement.master);
                here.map_or(Claim::Unknown, |(_, id)| Claim::Known(Some(id.clone())))
            }
        }
    }

    /// Records an unknown server that is named. Returns the time at which it was first named, and
    /// whether its address or `run_id` is new.
    pub(super) fn note_stranger(&mut self, agreement: &Agreement, now: Moment) -> (Moment, bool) {
        let Agreement { master, run_id, .. } = agreement;
        let before = self.stranger.take().filter(|it| it.address == *master);
        let (since, before) = before.map_or((now, None), |it| (it.since, Some(it.run_id)));
        let is_news = before.is_none_or(|before| run_id.is_some() && before != *run_id);
        let (address, run_id) = (master.clone(), run_id.clone());
        self.stranger = Some(Stranger {
            address,
            run_id,
            since,
        });
        (since, is_news)
    }

    pub(super) fn stranger(&self) -> Option<&Stranger> {
        self.stranger.as_ref()
    }
}

impl Stranger {
    /// Returns the error for all attempts while this server is named. The server replaces
    /// `present`, the known master, at the earliest one `lease` after it was first named.
    pub(super) fn refusal(&self, present: &str, lease: Duration, now: Moment) -> Error {
        let Self {
            address,
            run_id,
            since,
        } = self;
        let id = run_id
            .as_ref()
            .map_or_else(String::new, |id| format!(" (run_id {id})"));
        let rest = (*since + lease).since(now).as_secs();
        Error::unavailable(format!(
            "the sentinels name {address}{id} as the master, which none of them had listed as a \
             replica of {present}, and which does not show that it continues its data: it is used \
             when no lock of this client can be held any more, in {rest} s at the earliest; if it \
             belongs to another deployment, give the masters different names, and let the \
             sentinels of this one forget it (`SENTINEL REMOVE` and `SENTINEL MONITOR`)"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement(port: u16, run_id: Option<&str>, replicas: &[(u16, &str)]) -> Agreement {
        let at = |port| Address::new("host", port);
        Agreement {
            master: at(port),
            epoch: 1,
            run_id: run_id.map(str::to_owned),
            by_majority: true,
            are_others: false,
            is_proven: false,
            replicas: 0,
            replica_ids: Some(
                replicas
                    .iter()
                    .map(|(port, id)| (at(*port), (*id).to_owned()))
                    .collect(),
            ),
            has_unheard: false,
            said_by: at(9),
        }
    }

    #[test]
    fn successor_is_a_replica_that_was_listed_by_its_run_id() {
        let mut succession = Succession::default();
        let claim = |succession: &Succession, port, run_id| {
            succession.claim(&agreement(port, run_id, &[(port, "listed with the claim")]))
        };
        let known = |id: &str| Claim::Known(Some(id.to_owned()));
        assert_eq!(
            claim(&succession, 2, Some("b")),
            known("b"),
            "nothing was said before"
        );
        assert_eq!(claim(&succession, 2, None), Claim::Known(None));
        succession.note(&agreement(1, Some("a"), &[(2, "b"), (3, "c")]));
        assert_eq!(claim(&succession, 2, Some("b")), known("b"));
        assert_eq!(
            claim(&succession, 7, Some("c")),
            known("c"),
            "under another address"
        );
        assert_eq!(
            claim(&succession, 3, None),
            known("c"),
            "not asked for its run_id yet"
        );
        assert_eq!(
            claim(&succession, 2, Some("x")),
            Claim::Unknown,
            "a reused address"
        );
        assert_eq!(claim(&succession, 4, Some("x")), Claim::Unknown);
        assert_eq!(claim(&succession, 4, None), Claim::Unknown);
        // The named master is followed. The former one may replace it again.
        succession.note(&agreement(2, Some("b"), &[(3, "c")]));
        assert_eq!(claim(&succession, 1, Some("a")), known("a"));
        // A restarted replica is known once it is listed again.
        succession.note(&agreement(2, Some("b"), &[(3, "d")]));
        assert_eq!(claim(&succession, 3, None), known("d"));
        let mut unlisted = Succession::default();
        unlisted.note(&Agreement {
            replica_ids: None,
            ..agreement(1, Some("a"), &[])
        });
        assert_eq!(
            claim(&unlisted, 4, Some("x")),
            known("x"),
            "replicas may not be listed"
        );
        let proven = Agreement {
            is_proven: true,
            ..agreement(4, Some("x"), &[])
        };
        assert_eq!(
            succession.claim(&proven),
            known("x"),
            "it continues the data"
        );
        let others = Agreement {
            are_others: true,
            ..agreement(4, Some("x"), &[])
        };
        assert_eq!(
            succession.claim(&others),
            known("x"),
            "the deployment was replaced"
        );
    }

    #[test]
    fn stranger_is_reported_once_and_counted_from_the_first_word() {
        let mut succession = Succession::default();
        let at = |seconds| Moment::from_nanos(1) + Duration::from_secs(seconds);
        let mut note =
            |port, run_id, now| succession.note_stranger(&agreement(port, run_id, &[]), at(now));
        assert_eq!(note(4, None, 1), (at(1), true));
        assert_eq!(
            note(4, Some("x"), 2),
            (at(1), true),
            "now it is known which one"
        );
        assert_eq!(note(4, Some("x"), 3), (at(1), false));
        assert_eq!(note(4, None, 4), (at(1), false));
        assert_eq!(note(5, Some("y"), 5), (at(5), true));
        let refusal = succession
            .stranger()
            .unwrap()
            .refusal("m:1", Duration::from_secs(9), at(6));
        let text = refusal.to_string();
        assert!(refusal.is_unavailable());
        assert!(
            ["host:5", "run_id y", "m:1", "8 s"]
                .iter()
                .all(|it| text.contains(it)),
            "{text}"
        );
        succession.note(&agreement(1, Some("a"), &[]));
        assert!(
            succession.stranger().is_none(),
            "the known one is named again"
        );
    }

    #[test]
    fn only_the_latest_servers_are_remembered() {
        let mut succession = Succession::default();
        for number in 0..200_u16 {
            succession.note(&agreement(1, Some(&format!("id{number}")), &[]));
        }
        assert_eq!(succession.known.len(), MOST);
        assert_eq!(
            succession.claim(&agreement(1, Some("id0"), &[])),
            Claim::Unknown
        );
    }
}
