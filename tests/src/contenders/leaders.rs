//! Processes that campaign in an election, and record when they led.

use super::{Contenders, LOOK};
use crate::child::{Child, Example, own_program};
use crate::claims::{Claim, Log};
use crate::time::let_pass;
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Election, FencingToken, Interrupt, LeadershipChange};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// The way in which a process decides whether it leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Asks the election each time.
    Valid,
    /// Trusts the last change that it has read, and reads changes seldom. This is the control, for
    /// which the judge must detect two leaders at once.
    Told,
}

impl Role {
    /// The pause after which the control reads the changes again: long, because it must overlook
    /// the loss of its leadership.
    const SELDOM: Duration = Duration::from_millis(500);

    pub(super) fn of(word: &str) -> Option<Self> {
        [Self::Valid, Self::Told]
            .into_iter()
            .find(|role| role.word() == word)
    }

    fn word(self) -> &'static str {
        match self {
            Self::Valid => "valid",
            Self::Told => "told",
        }
    }
}

impl Contenders {
    /// Starts so many processes that campaign in an election.
    pub fn candidates(role: Role, url: &str, name: &str, processes: usize) -> Self {
        Self::start_as(role.word(), url, name, processes)
    }

    /// Returns the terms of all processes, one claim for each term.
    pub fn terms(&self) -> Vec<Claim> {
        let mut terms = BTreeMap::<(String, u64), Claim>::new();
        for claim in self.claims() {
            let key = (claim.holder.clone(), claim.token);
            let term = terms.entry(key).or_insert_with(|| claim.clone());
            term.to = term.to.max(claim.to);
        }
        terms.into_values().collect()
    }

    /// Returns the process with this ID.
    pub fn of(&mut self, id: u32) -> &mut Child {
        self.children
            .iter_mut()
            .find(|child| child.id() == id)
            .expect("one of ours")
    }

    /// Returns the process that led last, if it led after this moment.
    pub fn leader(&mut self, after: Moment) -> Option<&mut Child> {
        let last = self.terms().into_iter().max_by_key(|term| term.to)?;
        let is_it = |child: &&mut Child| child.id().to_string() == last.holder;
        self.children
            .iter_mut()
            .find(is_it)
            .filter(|_| last.to > after)
    }
}

/// Campaigns, and records each moment at which this process leads. Each record is written at once,
/// so that it remains when the process is killed.
pub(super) fn lead(file: &Path, role: Role, name: &str, url: &str) {
    let election = distlock::connect(url).unwrap().election(name).unwrap();
    let (log, ended) = (Log::create(file), AtomicBool::new(false));
    let mut told = Told::new(&election);
    election.campaign().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _end = std::io::stdin().lines().count();
            ended.store(true, Ordering::SeqCst);
        });
        let mut began = None;
        while !ended.load(Ordering::SeqCst) {
            // The clock is read first: a process that leads afterwards led at that time, too.
            let now = SystemClock.now();
            let term = match role {
                Role::Valid => election.term(),
                Role::Told => told.term(now),
            };
            if let Some(term) = term {
                let (_, from) = *began.get_or_insert((term, now));
                let holder = std::process::id().to_string();
                let (lock, token) = (name.to_owned(), term.get());
                log.write(&Claim {
                    lock,
                    holder,
                    token,
                    asked: from,
                    from,
                    to: now,
                });
            }
            began = began.filter(|(of, _)| Some(*of) == term);
            let_pass(LOOK);
        }
    });
    election.resign().unwrap();
}

/// The argument of a process that is interrupted while it begins to campaign.
pub(super) const INTERRUPTED: &str = "interrupted";

/// Starts a candidate that is interrupted this time after its start, and then ends.
pub fn interrupted_candidate(after: Duration, url: &str, name: &str) -> Child {
    let after = after.as_micros().to_string();
    Example::program(own_program("contender"))
        .args(&[INTERRUPTED, &after, name, url])
        .spawn()
}

/// Ends the process as soon as `lead` returns.
pub(super) fn lead_until_interrupted(after: &str, name: &str, url: &str) {
    let client = distlock::connect(url).unwrap();
    // Connects before the time is measured.
    client.ping(Duration::from_secs(10)).unwrap();
    let (stop, fires) = (
        Interrupt::new(),
        Duration::from_micros(after.parse().unwrap()),
    );
    let firing = stop.clone();
    thread::spawn(move || {
        let_pass(fires);
        firing.fire();
    });
    let election = client.election(name).unwrap();
    let led = election.lead(Duration::from_secs(60), Some(&stop), |_| {
        while !stop.is_fired() {
            thread::yield_now();
        }
    });
    assert!(led.is_ok() || led.is_err_and(|error| error.is_interrupted()));
}

/// The leadership of the control, by the changes that it has read.
struct Told {
    changes: crossbeam_channel::Receiver<LeadershipChange>,
    term: Option<FencingToken>,
    looked: Moment,
}

impl Told {
    fn new(election: &Election) -> Self {
        Self {
            changes: election.changes(),
            term: None,
            looked: Moment::from_nanos(0),
        }
    }

    fn term(&mut self, now: Moment) -> Option<FencingToken> {
        if self.term.is_none() || now.since(self.looked) >= Role::SELDOM {
            self.looked = now;
            for change in self.changes.try_iter() {
                self.term = match change {
                    LeadershipChange::Gained { term } => term,
                    _ => None,
                };
            }
        }
        self.term
    }
}
