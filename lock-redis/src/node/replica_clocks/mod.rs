//! [`ReplicaClocks`]: by how much the clocks of a master's replicas are ahead of the master's.
//!
//! A lease is replicated as the time of day of its end. A replica whose clock is ahead ends leases
//! earlier by that lead once it is promoted, and grants the lock again while its holder still
//! relies on it. So under a replication policy a client relies on a lock for less time, by the
//! largest possible lead of a clock. The confirmation of a replica that is certainly ahead by more
//! than a third of the lease does not count.
//!
//! A background task reads the clocks while there are leases under a policy. No request waits for
//! it.
//!
//! - `known`: the consequences of the clocks for a policy and a lease
//! - `reading`: the clock of one server, and the replicas that a master lists

mod known;
mod reading;

pub(super) use known::{PART_OF_LEASE, ReplicaClock};
pub use reading::ServerClock;
pub(super) use reading::{ListedReplica, WRONG, read_clock};

use crate::connection::{
    Address, CallError, Cause, Connection, ConnectionLike, Dialer, NeededReplicas, Request,
    info_field,
};
use known::KnownClocks;
use lock_core::backend::{BackgroundTask, Failure};
use lock_core::{Error, LeaseTime, Moment, Replication, WarningKind};
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// The time between two reads of the clocks, because clocks drift slowly. While a clock is reported
/// as ahead, all clocks are read as often as the replicas are listed, so that a replica with a
/// corrected clock counts again soon.
const SAMPLE: Duration = Duration::from_secs(60);
/// The time between two lists of the master's replicas, so that the clock of a new replica is read
/// soon.
const LIST: Duration = Duration::from_secs(5);
/// The shortest time from one list to the next if more replicas acknowledge than are known, because
/// a replica is new or has come back. Otherwise every confirmed request could cause a list.
const EARLY_LIST: Duration = Duration::from_secs(1);
/// The time that a server has to answer, because a replica that does not answer must not prevent
/// the read of the next clock. Only a diagnosis waits for these answers.
const PATIENCE: Duration = Duration::from_secs(1);

/// The function that makes a dialer for a replica, with the master's credentials.
pub(super) type ReplicaDialer = Box<dyn Fn(&Address) -> Result<Dialer, Error> + Send + Sync>;

/// The function that returns the known addresses at which the replicas of a node can be reached.
pub(crate) type ReplicaAddresses = Arc<dyn Fn() -> Vec<Address> + Send + Sync>;

/// The clocks of a master's replicas; see the [module](self). Dropping them ends the background
/// task.
pub(super) struct ReplicaClocks(Arc<Sampler>);

struct Sampler {
    master: Arc<Dialer>,
    dialer: ReplicaDialer,
    /// The source of the replicas' addresses; `None` if the master must be queried for them.
    addresses: Option<ReplicaAddresses>,
    /// The longest lease of locks that are acquired without a lease of their own: for warnings.
    lease: Duration,
    known: Mutex<KnownClocks>,
    /// The time until which a lease that was requested under a policy may last, in nanoseconds.
    used_until: AtomicU64,
    /// The time of the last list of replicas, in nanoseconds.
    listed: AtomicU64,
    is_closed: AtomicBool,
    task: BackgroundTask,
}

/// The state that the background task keeps from one turn to the next.
#[derive(Default)]
struct Watched {
    master: Option<Connection>,
    sampled: Option<Moment>,
    /// The time from one read of the clocks to the next, if the replicas are the same.
    pause: Duration,
    addresses: Vec<Address>,
}

impl ReplicaClocks {
    pub(super) fn new(
        master: Arc<Dialer>,
        dialer: ReplicaDialer,
        addresses: Option<ReplicaAddresses>,
        lease: Duration,
    ) -> Self {
        Self(Arc::new(Sampler {
            master,
            dialer,
            addresses,
            lease,
            known: Mutex::default(),
            used_until: AtomicU64::new(0),
            listed: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            task: BackgroundTask::default(),
        }))
    }

    /// Lets the task read the clocks until the end of a lease that is requested now.
    pub(super) fn note_use(&self, lease: LeaseTime) {
        let until = self.0.now() + lease.duration();
        self.0
            .used_until
            .fetch_max(until.as_nanos(), Ordering::Relaxed);
        let (sampler, mut watched) = (Arc::downgrade(&self.0), Watched::default());
        let turn = move || Weak::upgrade(&sampler)?.turn(&mut watched);
        // Without a thread the clocks stay unknown, as if they could not be read.
        let _started = self.0.task.start(self.0.master.clock(), turn);
    }

    /// Returns how many replicas must confirm a request for this lease, if the policy requires
    /// `count`.
    pub(super) fn needed(
        &self,
        count: u32,
        lease: LeaseTime,
        replication: Replication,
    ) -> NeededReplicas {
        self.0.known.lock().needed(count, lease, replication)
    }

    /// Returns by how much earlier than on the master a lease may end on a replica whose
    /// confirmation counts.
    pub(super) fn lead(&self, lease: LeaseTime, replication: Replication) -> Duration {
        self.0.known.lock().lead(lease, replication)
    }

    /// Sets the lead of the only known replica's clock.
    #[cfg(test)]
    pub(super) fn set_lead(&self, lead: Duration) {
        let clock = ReplicaClock {
            address: Address::new("replica", 1),
            lead: Some(ServerClock::read(lead, Duration::ZERO, Duration::ZERO)),
        };
        self.0.known.lock().update(vec![clock]);
    }

    /// Records that so many replicas have confirmed a request. If more confirm than are known, the
    /// replicas are listed now, unless that was done less than [`EARLY_LIST`] ago.
    pub(super) fn note_confirmed(&self, count: u32) {
        let listed = Moment::from_nanos(self.0.listed.load(Ordering::Relaxed));
        let is_early = self.0.now().since(listed) < EARLY_LIST;
        if !is_early && count as usize > self.0.known.lock().len() {
            self.0.task.wake();
        }
    }

    /// Reads all clocks now. Each result is a clock, or the reason for which it could not be read.
    /// Returns no results if the user may not read the master's clock.
    pub(super) fn survey(&self, by: Moment) -> Result<Vec<(Address, Lead)>, Failure> {
        let mut master = self.0.master.dial(by)?;
        let listed = self.0.list(&mut master, by)?;
        let Some(own) = read_clock(&mut master, &**self.0.master.clock(), || {
            self.0.patience(by)
        })?
        else {
            return Ok(Vec::new());
        };
        let lead = |address: Address| {
            let lead = self.0.ask(&address, &listed, own, by);
            (address, lead)
        };
        Ok(listed.addresses.clone().into_iter().map(lead).collect())
    }
}

/// The clock of a replica compared with its master's, or the reason for which it is not known.
pub(super) type Lead = Result<ServerClock, Failure>;

impl Drop for ReplicaClocks {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::SeqCst);
        self.0.task.wake();
    }
}

/// The replicas of a master, and the history of their data.
struct Listing {
    addresses: Vec<Address>,
    history: Option<String>,
}

impl Sampler {
    fn now(&self) -> Moment {
        self.master.clock().now()
    }

    /// Returns the deadline of a request that is sent now, within the deadline `by` of all
    /// requests.
    fn patience(&self, by: Moment) -> Moment {
        by.min(self.now() + PATIENCE)
    }

    fn turn(&self, watched: &mut Watched) -> Option<Moment> {
        let now = self.now();
        if self.is_closed.load(Ordering::SeqCst)
            || now.as_nanos() >= self.used_until.load(Ordering::Relaxed)
        {
            *watched = Watched::default();
            return None;
        }
        self.listed.store(now.as_nanos(), Ordering::Relaxed);
        let looked = self.look(watched);
        // A connection of the application's pool goes back after each look.
        if looked.is_ok() {
            watched.master.take_if(|master| master.is_lent());
        } else {
            // The known clocks stay, because one of these replicas may just be replacing the
            // master.
            watched.master = None;
        }
        Some(self.now() + LIST)
    }

    /// Lists the replicas. Reads their clocks if that is due or the replicas have changed.
    fn look(&self, watched: &mut Watched) -> Result<(), Failure> {
        let by = self.now() + PATIENCE;
        let master = match &mut watched.master {
            Some(master) if master.is_open() => master,
            closed => closed.insert(self.master.dial(by)?),
        };
        let mut listing = self.list(master, by)?;
        listing.addresses.sort_by_cached_key(ToString::to_string);
        let now = self.now();
        let is_due = watched
            .sampled
            .is_none_or(|sampled| now.since(sampled) >= watched.pause);
        if !is_due && listing.addresses == watched.addresses {
            return Ok(());
        }
        let Some(own) = read_clock(master, &**self.master.clock(), || {
            self.patience(Moment::NEVER)
        })?
        else {
            return Ok(());
        };
        let mut clocks = Vec::new();
        for address in &listing.addresses {
            if self.is_closed.load(Ordering::SeqCst) {
                return Ok(());
            }
            let lead = self.ask(address, &listing, own, Moment::NEVER).ok();
            clocks.push(ReplicaClock {
                address: address.clone(),
                lead,
            });
        }
        (watched.sampled, watched.addresses) = (Some(now), listing.addresses);
        let (clocks, has_grown) = self.known.lock().update(clocks);
        watched.pause = if self.report(&clocks) { LIST } else { SAMPLE };
        if has_grown {
            self.master.server().notices().replica_lead_grew();
        }
        Ok(())
    }

    /// Returns the replicas from `addresses`; if there is no such function, the replicas in sync
    /// that the master lists.
    fn list(&self, master: &mut Connection, by: Moment) -> Result<Listing, Failure> {
        let info = replication(master, by)?;
        let addresses = match &self.addresses {
            Some(known) => known(),
            None => ListedReplica::all(&info)
                .into_iter()
                .filter(|replica| replica.is_online)
                .map(|replica| replica.address)
                .collect(),
        };
        let history = info_field(&info, "master_replid").map(|id| id.trim().to_owned());
        Ok(Listing { addresses, history })
    }

    /// Reads the clock of this replica, and compares it with the master's clock.
    fn ask(&self, address: &Address, listing: &Listing, own: ServerClock, by: Moment) -> Lead {
        let dialer = (self.dialer)(address).map_err(Failure::NotSent)?;
        let mut link = dialer.dial(self.patience(by))?;
        let info = replication(&mut link, self.patience(by))?;
        let field = |name| info_field(&info, name).map(str::trim);
        // The address may lead to another server by now, whose clock does not matter.
        let is_another = field("role") == Some("master")
            || field("master_replid")
                .zip(listing.history.as_deref())
                .is_some_and(|(a, b)| a != b);
        let why = match is_another {
            false => match read_clock(&mut link, &**self.master.clock(), || self.patience(by))? {
                Some(clock) => return Ok(clock.beside(own)),
                None => "TIME is refused: allow it with `+time`",
            },
            true => "another server answers there, or its data are not the master's",
        };
        Err(Failure::NotSent(Error::unavailable(why)))
    }

    /// Warns of each clock that is certainly ahead by more than a second or a third of the lease,
    /// once for each clock. Returns whether there is such a clock.
    fn report(&self, clocks: &[ReplicaClock]) -> bool {
        let server = self.master.server();
        let limit = WRONG.min(self.lease / PART_OF_LEASE);
        let ahead: Vec<_> = clocks
            .iter()
            .filter(|it| it.lead.is_some_and(|it| it.at_least() > limit))
            .collect();
        if ahead.is_empty() {
            server.clear_warnings(WarningKind::ReplicaClock);
        }
        for ReplicaClock { address, lead } in &ahead {
            let change = format!("the clock of {address}");
            server.warn_of(WarningKind::ReplicaClock, Cause { change, channel: None }, || {
                format!(
                    "the clock of {address}, a replica of {server}, is {:.1?} ahead of it: leases \
                     end so much earlier there after a failover, so locks with `replicas` are \
                     trusted for as much less, and it does not count for leases of less than \
                     three times that; set it right, and run chrony or ntpd on every machine",
                    lead.unwrap_or_default().at_least()
                )
            });
        }
        !ahead.is_empty()
    }
}

/// Returns the reply to `INFO replication`; an empty text if it is refused.
fn replication(link: &mut Connection, by: Moment) -> Result<String, CallError> {
    let reply = link.call(&Request(&[&[b"INFO", b"replication"]]), by)?;
    Ok(reply
        .as_bytes()
        .map(|it| String::from_utf8_lossy(it).into_owned())
        .unwrap_or_default())
}

impl fmt::Debug for ReplicaClocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ReplicaClocks")
            .field(&self.0.known.lock())
            .finish()
    }
}
