//! [`SentinelSet`]: all sentinels together. Of the sentinels of the deployment, the one that knows
//! the latest failover is right about the master.
//!
//! A deployment is identified by the IDs of its Sentinels, and by the `run_id` of its master. A
//! Sentinel that answers at a known address counts only if it knows most of the others by their
//! IDs, or watches the same master, because the address may lead to a Sentinel of another
//! deployment by now. At first the deployment is the one that most of the URL's Sentinels belong
//! to.

use super::agreement::Agreement;
use super::instance::SentinelInstance;
use super::report::{MasterReport, SentinelReply};
use super::round::{Answered, Rounds, Said};
use super::watcher_signal::WatcherSignal;
use crate::connection::{Address, AddressMap, Endpoint};
use crate::node::{Account, Deployment, NodeSettings};
use lock_core::backend::{Failure, contain, no_thread, run_in_background};
use lock_core::{Error, Moment};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// The most sentinels that are known at a time, in addition to those of the URL, because each has a
/// connection.
const MOST: usize = 7;

/// The number of times that a survey queries the sentinels, if not all have answered with a report.
const SURVEYS: usize = 2;

/// The sentinels of a master.
pub(super) struct SentinelSet {
    master: String,
    addresses: Arc<AddressMap>,
    members: Mutex<Vec<Arc<SentinelInstance>>>,
    /// Woken by every message of the sentinels.
    signal_to_watcher: Arc<WatcherSignal>,
    rounds: Arc<Rounds>,
    ours: Mutex<KnownSentinels>,
}

/// The Sentinels of the deployment that is in use.
#[derive(Default)]
struct KnownSentinels {
    /// The IDs in the last answers of these Sentinels; empty before the first answer.
    ids: BTreeSet<String>,
    /// The time since which none of these Sentinels has answered.
    silent_since: Option<Moment>,
    /// The Sentinels of other deployments that were reported already, by their addresses.
    reported: HashMap<Address, String>,
}

/// The known facts about the present master.
#[derive(Clone, Debug, Default)]
pub(super) struct PresentMaster {
    pub(super) is_known: bool,
    pub(super) run_id: Option<Arc<str>>,
    /// True if the master has not answered for a lease, and no lock that this client was granted
    /// there can still be held.
    pub(super) is_gone: bool,
}

impl SentinelSet {
    /// Creates the sentinels at these addresses. Does not connect to them.
    pub(super) fn new(
        master: &str,
        given: impl IntoIterator<Item = Address>,
        addresses: AddressMap,
        settings: &NodeSettings,
        signal_to_watcher: Arc<WatcherSignal>,
    ) -> Result<Self, Error> {
        let sentinel_set = Self {
            master: master.to_owned(),
            addresses: Arc::new(addresses),
            members: Mutex::default(),
            rounds: Arc::new(Rounds::new(Arc::clone(&signal_to_watcher))),
            signal_to_watcher,
            ours: Mutex::default(),
        };
        for address in given {
            let member = sentinel_set.member(address, None, settings)?;
            sentinel_set.members.lock().push(Arc::new(member));
        }
        Ok(sentinel_set)
    }

    /// Creates the sentinel at this address. `announced_by` is the address of the sentinel that has
    /// announced it, and `None` if the URL contains the address.
    fn member(
        &self,
        address: Address,
        announced_by: Option<&Address>,
        settings: &NodeSettings,
    ) -> Result<SentinelInstance, Error> {
        let place = Endpoint::tcp(&address.host, address.port);
        let advice = announced_by.map(|by| {
            format!(
                "the sentinel at {by} announced this sentinel: if clients reach it at another \
                 address, set `address_map=ANNOUNCED=REAL` in the URL, or `sentinel announce-ip` \
                 and `sentinel announce-port` in its configuration"
            )
        });
        let dialer = settings.sentinel_dialer(place, advice)?;
        let addresses = Arc::clone(&self.addresses);
        Ok(SentinelInstance::new(
            address,
            announced_by.is_none(),
            dialer,
            addresses,
        ))
    }

    /// Returns the real address of the named master, and advice for the case that it cannot be
    /// reached.
    pub(super) fn reach(&self, agreement: &Agreement) -> (Address, String) {
        let Agreement {
            master, said_by, ..
        } = agreement;
        let advice = format!(
            "the sentinel at {said_by} announced {master} as the master: if clients reach it at \
             another address, set `address_map={master}=REAL` in the URL, or `replica-announce-ip` \
             and `replica-announce-port` in its configuration"
        );
        (self.addresses.real(master), advice)
    }

    /// Returns the map from announced to real addresses.
    pub(super) fn addresses(&self) -> Arc<AddressMap> {
        Arc::clone(&self.addresses)
    }

    /// Subscribes to the messages of all known sentinels.
    pub(super) fn listen(&self) {
        for member in self.members() {
            member.listen(&self.master, &self.signal_to_watcher);
        }
    }

    fn members(&self) -> Vec<Arc<SentinelInstance>> {
        self.members.lock().clone()
    }

    /// Queries all sentinels at once, until `by`, but not longer than the connect timeout. If no
    /// master is known yet and no majority agrees, also queries the sentinels that the answers have
    /// announced.
    pub(super) fn ask(
        &self,
        settings: &NodeSettings,
        by: Moment,
        present: &PresentMaster,
    ) -> Result<Agreement, Failure> {
        let clock = settings.clock();
        let by = by.min(clock.now() + settings.bounds().connect);
        loop {
            let (members, start) = (self.members(), clock.now());
            self.rounds.begin(start);
            self.send_to_all(&members, start, settings);
            let answered = |said: &Said| {
                let counted = self.count(&members, said, present);
                let all: HashSet<_> = counted.iter().flat_map(|it| it.account.ids()).collect();
                match counted.len() {
                    0 => Answered::None,
                    some if some * 2 > all.len() => Answered::Most,
                    _ => Answered::Some,
                }
            };
            self.rounds.wait(&members, (start, by), &**clock, answered);
            self.rounds.end();
            let agreement = self.agree(&members, start, settings, present)?;
            let may_be_outvoted = !present.is_known && !agreement.by_majority;
            let has_learned = self
                .members()
                .iter()
                .any(|it| !members.iter().any(|m| same(m, it)));
            if !(may_be_outvoted && has_learned) || clock.now() >= by {
                return Ok(agreement);
            }
        }
    }

    /// Returns the agreement with the answers that have arrived since the last round was judged;
    /// `None` if none have arrived, or no report counts.
    pub(super) fn hear_late(
        &self,
        settings: &NodeSettings,
        present: &PresentMaster,
    ) -> Option<Agreement> {
        let since = self.rounds.take_late()?;
        self.agree(&self.members(), since, settings, present).ok()
    }

    /// Returns the agreement of the sentinels in the round that began at `since`.
    fn agree(
        &self,
        members: &[Arc<SentinelInstance>],
        since: Moment,
        settings: &NodeSettings,
        present: &PresentMaster,
    ) -> Result<Agreement, Failure> {
        let now = settings.clock().now();
        let said: Said = members
            .iter()
            .map(|it| it.answers.said_since(since, now))
            .collect();
        let (counted, are_others) = self.admit(members, &said, settings, present);
        if counted.is_empty() {
            return Err(self.no_agreement(members, &said));
        }
        self.learn(&counted, settings);
        let agreement = Agreement::of(&counted, since, self.ours.lock().ids.len());
        // Epochs of another deployment cannot be compared with those of the former one.
        Ok(Agreement {
            by_majority: agreement.by_majority || are_others,
            are_others,
            ..agreement
        })
    }

    /// Returns the reports that count, one for each Sentinel.
    fn count<'a>(
        &self,
        members: &[Arc<SentinelInstance>],
        said: &'a [Option<SentinelReply>],
        present: &PresentMaster,
    ) -> Vec<&'a MasterReport> {
        let ours = self.ours.lock();
        if ours.ids.is_empty() {
            return Self::elect(members, said);
        }
        let counts = |it: &&MasterReport| ours.knows(&it.account) || present.is_watched_by(it);
        once(reports(said).filter(counts))
    }

    /// Returns the reports from the deployment that most of the URL's Sentinels belong to; none if
    /// there is no such deployment.
    fn elect<'a>(
        members: &[Arc<SentinelInstance>],
        said: &'a [Option<SentinelReply>],
    ) -> Vec<&'a MasterReport> {
        let given = members.iter().filter(|member| member.is_given);
        let given: Vec<_> = given.map(|member| member.address.clone()).collect();
        let reports: Vec<_> = reports(said).collect();
        let accounts: Vec<_> = reports.iter().map(|it| it.account.clone()).collect();
        let best = Deployment::all(&given, &accounts)
            .into_iter()
            .find(|it| it.is_majority());
        once(
            best.into_iter()
                .flat_map(|it| it.accounts)
                .map(|place| reports[place]),
        )
    }

    /// Returns the reports that count, and whether they are of another deployment. Remembers the
    /// Sentinels in them. If neither a known Sentinel nor the master has answered for a lease, and
    /// no lock of this client can still be held, chooses the deployment by the URL again.
    fn admit<'a>(
        &self,
        members: &[Arc<SentinelInstance>],
        said: &'a [Option<SentinelReply>],
        settings: &NodeSettings,
        present: &PresentMaster,
    ) -> (Vec<&'a MasterReport>, bool) {
        let now = settings.clock().now();
        let mut counted = self.count(members, said, present);
        let mut ours = self.ours.lock();
        if counted.is_empty() {
            let since = *ours.silent_since.get_or_insert(now);
            if present.is_gone && now.since(since) >= settings.lease() {
                counted = Self::elect(members, said);
            }
            if counted.is_empty() {
                return (counted, false);
            }
        }
        ours.silent_since = None;
        let ids = counted
            .iter()
            .flat_map(|it| it.account.ids())
            .map(str::to_owned);
        let before = std::mem::replace(&mut ours.ids, ids.collect());
        let are_others = !before.is_empty() && ours.ids.is_disjoint(&before);
        let (all, strangers) = (ours.listed(), ours.strangers(&counted, said));
        drop(ours);
        if are_others {
            let (name, was) = (self.name(), listed(&before));
            settings.notices().server_changed(&name, &was, &all);
        }
        for (address, expected, found) in strangers {
            settings
                .notices()
                .server_refused(&address.to_string(), &expected, &found);
        }
        (counted, are_others)
    }

    /// Returns the reply of each sentinel. Queries all once more if one has not answered with a
    /// report.
    pub(super) fn survey(
        &self,
        settings: &NodeSettings,
        by: Moment,
    ) -> Vec<(Address, Option<SentinelReply>)> {
        let clock = settings.clock();
        let members = self.members();
        let begin = clock.now();
        for _ in 0..SURVEYS {
            let start = clock.now();
            let by = by.min(start + settings.bounds().connect);
            self.send_to_all(&members, start, settings);
            self.rounds
                .wait(&members, (start, by), &**clock, |_| Answered::None);
            let replies = members.iter().map(|it| it.answers.reply_since(begin));
            if replies
                .into_iter()
                .all(|it| matches!(it, Some(SentinelReply::MasterReport(_))))
            {
                break;
            }
        }
        members
            .iter()
            .map(|it| (it.address.clone(), it.answers.reply_since(begin)))
            .collect()
    }

    pub(super) fn name(&self) -> String {
        format!("the sentinels of `{}`", self.master.escape_debug())
    }

    fn send_to_all(&self, members: &[Arc<SentinelInstance>], now: Moment, settings: &NodeSettings) {
        members
            .iter()
            .for_each(|member| self.send(member, now, settings));
    }

    /// Queries one sentinel, on a thread in the background: one thread can connect to only one
    /// sentinel at a time, and an answer also counts after the caller has stopped waiting for it.
    fn send(&self, member: &Arc<SentinelInstance>, now: Moment, settings: &NodeSettings) {
        if !member.answers.begin(now) {
            return;
        }
        let (asked, rounds) = (Arc::clone(member), Arc::clone(&self.rounds));
        let (master, bound) = (self.master.clone(), settings.bounds().connect);
        let ask = move || {
            let answered = || rounds.answered();
            if contain(|| asked.ask(&master, bound, answered)).is_none() {
                asked.answers.abandon();
            }
        };
        if let Err(error) = run_in_background(ask) {
            let error = no_thread("could not start a thread to ask a sentinel", error);
            member
                .answers
                .note(SentinelReply::Failed(Failure::NotSent(error)), now);
            self.rounds.answered();
        }
    }

    /// Adds the sentinels that the reports list, at most [`MOST`] besides those of the URL. Removes
    /// a sentinel if three conditions are met: the URL does not contain it, the reports list only
    /// others, and it has not reported itself.
    fn learn(&self, counted: &[&MasterReport], settings: &NodeSettings) {
        let told: Vec<_> = counted
            .iter()
            .flat_map(|report| report.account.listed.iter().map(|it| (it, &report.account)))
            .map(|((id, address), account)| (id.clone(), address.clone(), &account.asked_at))
            .collect();
        let counts = |member: &SentinelInstance| {
            counted
                .iter()
                .any(|report| report.account.asked_at == member.address)
        };
        let mut members = self.members.lock();
        let (kept, gone) = std::mem::take(&mut *members).into_iter().partition(
            |member: &Arc<SentinelInstance>| {
                let has_reported =
                    told.is_empty() || told.iter().any(|(_, it, _)| *it == member.address);
                member.is_given || has_reported || counts(member)
            },
        );
        *members = kept;
        let mut fresh = Vec::new();
        for (id, address, by) in told {
            let is_known = members.iter().any(|member| {
                member.address == address || member.id().is_some_and(|known| known == id)
            });
            let room = members.iter().filter(|member| !member.is_given).count() < MOST;
            if is_known || !room {
                continue;
            }
            // An unusable address can be ignored: the sentinel that listed it can itself be
            // queried.
            if let Ok(member) = self.member(address, Some(by), settings) {
                let member = Arc::new(member);
                members.push(Arc::clone(&member));
                fresh.push(member);
            }
        }
        drop(members);
        let _gone: Vec<_> = gone;
        for member in fresh {
            member.listen(&self.master, &self.signal_to_watcher);
        }
    }

    /// Returns the failure if no report counts, with each sentinel's reply. The failure is one of
    /// configuration if more than half of the sentinels do not know the master, or cannot be
    /// queried because of the configuration.
    fn no_agreement(
        &self,
        members: &[Arc<SentinelInstance>],
        said: &[Option<SentinelReply>],
    ) -> Failure {
        let mut each = Vec::new();
        let (mut final_words, mut unknown, mut strangers, mut source) = (0, 0, 0, None);
        for (member, said) in members.iter().zip(said) {
            let says = match said {
                Some(SentinelReply::Unknown(names)) => {
                    unknown += 1;
                    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
                    let names = if names.is_empty() {
                        "none".to_owned()
                    } else {
                        names.join(", ")
                    };
                    format!("does not know it (it watches {names})")
                }
                Some(SentinelReply::Failed(failure)) => {
                    let error = failure.error();
                    if matches!(failure, Failure::Refused(error) if error.is_configuration()) {
                        final_words += 1;
                    }
                    source = Some(error.clone());
                    error.to_string()
                }
                Some(SentinelReply::MasterReport(report)) => {
                    strangers += 1;
                    let Account {
                        id, listed: others, ..
                    } = &report.account;
                    let others = others.iter().map(|(id, _)| id.clone()).collect();
                    format!("is the Sentinel {id}, and knows {}", listed(&others))
                }
                None => "has not answered in time".to_owned(),
            };
            each.push(format!("{}: {says}", member.address));
        }
        let each = each.join("; ");
        let master = self.master.escape_debug();
        let is_final = (final_words + unknown) * 2 > members.len();
        let error = match (is_final, unknown > 0) {
            (true, true) => Error::configuration(format!(
                "no sentinel knows a master `{master}`, the name at the end of the URL: {each}"
            )),
            (true, false) => Error::configuration(format!(
                "no sentinel says who is the master `{master}`: {each}"
            )),
            _ if strangers > 0 => self.undecided(&each),
            _ => Error::unavailable(format!(
                "no sentinel says who is the master `{master}`: {each}"
            )),
        };
        let error = match source {
            Some(source) => error.with_source(source),
            None => error,
        };
        if is_final {
            Failure::Refused(error)
        } else {
            Failure::NotSent(error)
        }
    }
}

/// Ends the queries under way and their dials.
impl Drop for SentinelSet {
    fn drop(&mut self) {
        self.members().iter().for_each(|member| member.close());
    }
}

impl SentinelSet {
    /// Returns the error if Sentinels have answered, but may be of another deployment than the URL
    /// means.
    fn undecided(&self, each: &str) -> Error {
        let (name, known) = (self.name(), self.ours.lock().listed());
        let message = if known == NONE {
            format!(
                "most of {name} in the URL must be of one deployment, and know each other, and \
                 they are not: {each}"
            )
        } else {
            format!("none of {name} that were known ({known}) has answered: {each}")
        };
        Error::unavailable(message)
    }
}

impl KnownSentinels {
    /// Returns whether this account's Sentinel belongs to the deployment: it does if it knows most
    /// of the known Sentinels.
    fn knows(&self, account: &Account) -> bool {
        account.ids().filter(|id| self.ids.contains(*id)).count() * 2 > self.ids.len()
    }

    fn listed(&self) -> String {
        listed(&self.ids)
    }

    /// Returns the Sentinels of other deployments that were not reported yet: the address, the
    /// expected ID or IDs, and the ID found.
    fn strangers(
        &mut self,
        counted: &[&MasterReport],
        said: &[Option<SentinelReply>],
    ) -> Vec<(Address, String, String)> {
        let mut strangers = Vec::new();
        for MasterReport { account, .. } in reports(said) {
            if self.ids.contains(&account.id) {
                self.reported.remove(&account.asked_at);
                continue;
            }
            let (address, found) = (account.asked_at.clone(), account.id.clone());
            if self
                .reported
                .insert(address.clone(), found.clone())
                .as_ref()
                == Some(&found)
            {
                continue;
            }
            let mut known = counted.iter().flat_map(|it| &it.account.listed);
            let expected = known.find(|(_, listed)| *listed == address);
            let expected =
                expected.map_or_else(|| format!("one of {}", self.listed()), |(id, _)| id.clone());
            strangers.push((address, expected, found));
        }
        strangers
    }
}

impl PresentMaster {
    /// Returns whether the report is about the known master: a Sentinel of another deployment
    /// watches another one.
    fn is_watched_by(&self, report: &MasterReport) -> bool {
        self.run_id.is_some() && self.run_id.as_deref() == report.run_id.as_deref()
    }
}

/// The text for an empty list of servers.
const NONE: &str = "none";

/// Returns the IDs for a message.
fn listed(ids: &BTreeSet<String>) -> String {
    if ids.is_empty() {
        return NONE.to_owned();
    }
    ids.iter()
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}

/// Returns one report of each Sentinel, which may have been queried at several addresses.
fn once<'a>(reports: impl Iterator<Item = &'a MasterReport>) -> Vec<&'a MasterReport> {
    let mut ids = HashSet::new();
    reports
        .filter(|report| ids.insert(report.account.id.as_str()))
        .collect()
}

fn reports(said: &[Option<SentinelReply>]) -> impl Iterator<Item = &MasterReport> {
    said.iter().filter_map(|said| match said {
        Some(SentinelReply::MasterReport(report)) => Some(&**report),
        _ => None,
    })
}

fn same(one: &Arc<SentinelInstance>, other: &Arc<SentinelInstance>) -> bool {
    Arc::ptr_eq(one, other)
}

impl fmt::Debug for SentinelSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels: Vec<_> = self
            .members()
            .iter()
            .map(|member| member.address.to_string())
            .collect();
        f.debug_struct("SentinelSet")
            .field("master", &self.master)
            .field("sentinels", &sentinels)
            .finish_non_exhaustive()
    }
}
