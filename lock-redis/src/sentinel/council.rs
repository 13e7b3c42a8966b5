//! [`Council`]: all sentinels together. Whoever has heard of the latest failover is right about the master.

use super::lookout::Alarm;
use super::member::{Member, Opinion, Said};
use crate::address::Address;
use crate::link::Place;
use crate::node::NodeSettings;
use lock_core::backend::{Failure, no_thread};
use lock_core::{Clock, Error, Moment, Secret, Signal};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// The most sentinels that are known at a time, those of the URL not counted: each has a connection.
const MOST: usize = 7;

/// How long the others have once the first has answered: one that hangs costs no more, and one that has heard of a
/// failover answers as fast as one that has not.
const GRACE: Duration = Duration::from_millis(100);

/// The sentinels of a master.
pub(super) struct Council {
    master: String,
    members: Mutex<Vec<Arc<Member>>>,
    /// What sentinels that are heard of later are asked with.
    credentials: Credentials,
    /// Told of everything that the sentinels tell.
    alarm: Arc<Alarm>,
}

/// Who we are to the sentinels.
#[derive(Clone, Debug, Default)]
pub(super) struct Credentials {
    pub(super) user: Option<String>,
    pub(super) password: Option<Secret>,
}

/// What they say together.
#[derive(Clone, Debug)]
pub(super) struct Verdict {
    pub(super) master: Address,
    pub(super) epoch: u64,
    /// Whether more than half of all known sentinels say so.
    pub(super) by_majority: bool,
    /// How many replicas may be promoted: those that at least one of the sentinels has heard and
    /// does not hold for down.
    pub(super) replicas: u32,
}

/// Where the answers come in.
#[derive(Default)]
struct Gathering {
    said: Mutex<Vec<Option<Said>>>,
    signal: Arc<Signal>,
}

impl Council {
    /// The sentinels at these addresses. Does not talk to them.
    pub(super) fn new(
        master: &str,
        given: impl IntoIterator<Item = Address>,
        credentials: Credentials,
        settings: &NodeSettings,
        alarm: Arc<Alarm>,
    ) -> Result<Self, Error> {
        let council =
            Self { master: master.to_owned(), members: Mutex::default(), credentials, alarm };
        for address in given {
            let member = council.member(address, true, settings)?;
            council.members.lock().push(Arc::new(member));
        }
        Ok(council)
    }

    fn member(
        &self,
        address: Address,
        given: bool,
        settings: &NodeSettings,
    ) -> Result<Member, Error> {
        let place = Place::tcp(&address.host, address.port);
        let Credentials { user, password } = &self.credentials;
        let dialer = settings.dialer_for(place, user.as_deref(), password.clone())?;
        Ok(Member::new(address, given, dialer, settings.bounds().command))
    }

    /// Listens to the news of all that are known.
    pub(super) fn listen(&self) {
        for member in self.members() {
            member.listen(&self.alarm);
        }
    }

    fn members(&self) -> Vec<Arc<Member>> {
        self.members.lock().clone()
    }

    /// Asks all of them at once, until `by`.
    pub(super) fn ask(&self, settings: &NodeSettings, by: Moment) -> Result<Verdict, Failure> {
        let by = by.min(settings.clock().now() + settings.bounds().connect);
        let members = self.members();
        let gathering = Arc::new(Gathering::default());
        gathering.said.lock().resize_with(members.len(), || None);
        for (at, member) in members.iter().enumerate() {
            self.send(at, member, &gathering, by);
        }
        let said = gathering.wait(&members, &**settings.clock(), by);
        self.learn(&said, settings);
        self.judge(&members, &said)
    }

    /// Asks one of them, on a thread of its own: connecting cannot be waited for together.
    fn send(&self, at: usize, member: &Arc<Member>, gathering: &Arc<Gathering>, by: Moment) {
        let (asked, answers) = (Arc::clone(member), Arc::clone(gathering));
        let master = self.master.clone();
        let ask = move || {
            // Also if it panics nobody waits for longer than the deadline.
            let said = asked.ask(&master, by);
            answers.put(at, said);
        };
        if let Err(error) = thread::Builder::new().name("distlock-ask".to_owned()).spawn(ask) {
            let error = no_thread("could not start a thread to ask a sentinel", error);
            gathering.put(at, Said::Failed(Failure::NotSent(error)));
        }
    }

    /// Takes in the sentinels that those we know have told us of, and lets go of such that they tell of no more and that
    /// do not answer.
    fn learn(&self, said: &[Option<Said>], settings: &NodeSettings) {
        let mut told: Vec<(Address, String)> = Vec::new();
        for opinion in opinions(said) {
            told.extend(opinion.others.iter().cloned());
        }
        let mut members = self.members.lock();
        let (kept, gone) =
            std::mem::take(&mut *members).into_iter().partition(|member: &Arc<Member>| {
                let is_told_of =
                    told.is_empty() || told.iter().any(|(it, _)| *it == member.address);
                member.is_given || is_told_of || !member.is_silent()
            });
        *members = kept;
        let mut fresh = Vec::new();
        for (address, id) in told {
            let is_known = members.iter().any(|member| {
                member.address == address || member.id().is_some_and(|known| known == id)
            });
            let room = members.iter().filter(|member| !member.is_given).count() < MOST;
            if is_known || !room {
                continue;
            }
            // An address that cannot be had is no loss: somebody told us of it who can.
            if let Ok(member) = self.member(address, false, settings) {
                let member = Arc::new(member);
                members.push(Arc::clone(&member));
                fresh.push(member);
            }
        }
        drop(members);
        let _gone: Vec<_> = gone;
        for member in fresh {
            member.listen(&self.alarm);
        }
    }

    fn judge(&self, members: &[Arc<Member>], said: &[Option<Said>]) -> Result<Verdict, Failure> {
        let Some(latest) = opinions(said).max_by_key(|opinion| opinion.epoch) else {
            return Err(self.at_a_loss(members, said));
        };
        let epoch = latest.epoch;
        let same = |master: &Address| {
            opinions(said).filter(|it| it.epoch == epoch && it.master == *master).count()
        };
        let of_latest = opinions(said).filter(|opinion| opinion.epoch == epoch);
        let (master, supporters) = of_latest
            .map(|opinion| (opinion.master.clone(), same(&opinion.master)))
            .max_by_key(|(_, supporters)| *supporters)
            .expect("the latest is among them");
        let replicas: HashSet<_> = opinions(said)
            .filter(|it| it.epoch == epoch && it.master == master)
            .flat_map(|opinion| &opinion.replicas)
            // Whoever leads the failover names the new one already, and lists it as a replica of the old one.
            .filter(|replica| **replica != master)
            .collect();
        let replicas = u32::try_from(replicas.len()).unwrap_or(u32::MAX);
        let by_majority = supporters * 2 > members.len();
        Ok(Verdict { master, epoch, by_majority, replicas })
    }

    /// None of them says who is master: what each says, and what may be done about it. If more than half have answered
    /// so that they will answer the same again, it is our settings that are wrong.
    fn at_a_loss(&self, members: &[Arc<Member>], said: &[Option<Said>]) -> Failure {
        let mut each = Vec::new();
        let (mut final_words, mut unknown, mut source) = (0, 0, None);
        for (member, said) in members.iter().zip(said) {
            let says = match said {
                Some(Said::Unknown(names)) => {
                    unknown += 1;
                    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
                    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                    format!("does not know it (it watches {names})")
                }
                Some(Said::Failed(failure)) => {
                    let error = failure.error();
                    if matches!(failure, Failure::Refused(error) if error.is_configuration()) {
                        final_words += 1;
                    }
                    source = Some(error.clone());
                    error.to_string()
                }
                Some(Said::Opinion(_)) | None => "has not answered in time".to_owned(),
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
            _ => {
                Error::unavailable(format!("no sentinel says who is the master `{master}`: {each}"))
            }
        };
        let error = match source {
            Some(source) => error.with_source(source),
            None => error,
        };
        if is_final { Failure::Refused(error) } else { Failure::NotSent(error) }
    }
}

fn opinions(said: &[Option<Said>]) -> impl Iterator<Item = &Opinion> {
    said.iter().filter_map(|said| match said {
        Some(Said::Opinion(opinion)) => Some(opinion),
        _ => None,
    })
}

impl Gathering {
    fn put(&self, at: usize, said: Said) {
        self.said.lock()[at] = Some(said);
        self.signal.raise();
    }

    /// Waits until all have answered; for those who were silent before, only until the others have; and for nobody much
    /// longer than for the first.
    fn wait(&self, members: &[Arc<Member>], clock: &dyn Clock, by: Moment) -> Vec<Option<Said>> {
        let was_silent: Vec<_> = members.iter().map(|member| member.is_silent()).collect();
        let mut until = by;
        loop {
            let said = self.said.lock().clone();
            let now = clock.now();
            let has_opinion = opinions(&said).next().is_some();
            if has_opinion {
                until = until.min(now + GRACE);
            }
            let missing = |at: usize| said[at].is_none() && !(has_opinion && was_silent[at]);
            if now >= until || !(0..said.len()).any(missing) {
                return said;
            }
            clock.wait(&self.signal, until);
        }
    }
}

impl fmt::Debug for Council {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sentinels: Vec<_> =
            self.members().iter().map(|member| member.address.to_string()).collect();
        f.debug_struct("Council")
            .field("master", &self.master)
            .field("sentinels", &sentinels)
            .finish_non_exhaustive()
    }
}
