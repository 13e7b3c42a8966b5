//! [`World`]: one store, two clients and their threads. It runs one command at a time. The next one
//! begins when each thread has answered, or waits for a lock that stays busy.

mod actions;
mod observation;

pub(super) use observation::Step;

use super::actor::{Actor, Answer, LockSeen, Shelf};
use super::command::{ACTORS, CLIENTS, Command, HandOff, NAMES, Operation};
use super::stores::Store;
use distlock::backend::ClientId;
use distlock::{Client, Config, Interrupt, LockName, Mutex};
use distlock_tests::time::eventually;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// So long that nothing is renewed while a test runs: what a renewal finds out, and when, is not
/// what is compared here.
const WATCHDOG: Duration = Duration::from_secs(5 * 60);

/// The time limit for something that happens at once.
const SOON: Duration = Duration::from_secs(60);

pub(super) struct World {
    store: Arc<Store>,
    hand_off: HandOff,
    names: [LockName; NAMES],
    clients: [Client; CLIENTS],
    /// The IDs of all clients so far. In a comparison, a client is called by its index in this
    /// list.
    ids: Vec<ClientId>,
    /// A client that inspects the store, and holds no lock.
    observer: Client,
    actors: Vec<Actor>,
    shelf: Shelf,
    waiting: BTreeMap<usize, Waiting>,
    /// The interrupt that several waits share.
    together: Interrupt,
    /// The last view of each thread: a waiting thread cannot be queried.
    seen: Vec<[LockSeen; NAMES]>,
    /// The tokens of each lock, in the order that they were given in.
    tokens: [Vec<u64>; NAMES],
}

struct Waiting {
    lock: usize,
    interrupt: Interrupt,
    /// Whether others wait with the same interrupt.
    is_together: bool,
}

impl World {
    pub(super) fn new(store: Arc<Store>, number: u64, hand_off: HandOff) -> Self {
        let names = std::array::from_fn(|lock| {
            LockName::new(&format!("side-by-side:{number}:{lock}")).unwrap()
        });
        let clients: [Client; CLIENTS] = std::array::from_fn(|_| client(&store, hand_off));
        let observer = client(&store, hand_off);
        let actor = |actor: usize| Actor::start(locks(&clients[client_of(actor)], &names));
        Self {
            actors: (0..ACTORS).map(actor).collect(),
            ids: clients.iter().map(Client::id).collect(),
            store,
            hand_off,
            names,
            clients,
            observer,
            shelf: Shelf::new(),
            waiting: BTreeMap::new(),
            together: Interrupt::new(),
            seen: vec![<[LockSeen; NAMES]>::default(); ACTORS],
            tokens: Default::default(),
        }
    }

    pub(super) fn name(&self) -> String {
        self.store.subject.name()
    }

    /// Runs a command, waits until every thread that must get an answer has it, and returns the
    /// state after that.
    pub(super) fn step(&mut self, command: &Command) -> Result<Step, String> {
        let mut answers = Vec::new();
        if self.applies(command) {
            for who in self.start(command)? {
                let answer = self.actors[who].answer()?;
                answers.push((who, self.ranked(command.lock, answer)?));
            }
            // All waits that the shared interrupt ended have answered, so it can be used again.
            self.together.reset();
            // A drop does not wait for the reply to its release, which an inspection on another
            // connection may overtake.
            for client in &self.clients {
                client
                    .wait_for_cleanup(SOON)
                    .map_err(|error| format!("{error:?}"))?;
            }
        }
        self.settle(&mut answers)?;
        Ok(Step {
            answers,
            waiting: self
                .waiting
                .iter()
                .map(|(who, waiting)| (*who, waiting.lock))
                .collect(),
            threads: self.look()?,
            owned: self.ranked_shelf(),
            store: (0..NAMES)
                .map(|lock| self.holder(lock))
                .collect::<Result<_, _>>()?,
        })
    }

    /// Returns whether the command can run now, and has one right answer.
    fn applies(&self, command: &Command) -> bool {
        let Command {
            actor,
            lock,
            operation,
        } = *command;
        if command.is(Operation::Interrupt) {
            return self.waiting.contains_key(&actor);
        }
        let mut waiters = self
            .waiting
            .iter()
            .filter(|(_, waiting)| waiting.lock == lock);
        !self.waiting.contains_key(&actor)
            && match operation {
                // Two clients that wait for one lock race for it.
                Operation::Lock(_) | Operation::LockTogether(_) | Operation::OwnedLock => {
                    waiters.all(|(waiter, _)| client_of(*waiter) == client_of(actor))
                }
                // After a deleted key or a forced release, the former holder may still hand the
                // lock over, when another client has already had a later token.
                Operation::LoseKey | Operation::ForceUnlock if self.hand_off == HandOff::Always => {
                    false
                }
                // A deleted key wakes no waiter, and waiters attempt again only when the lease
                // should end, minutes later.
                Operation::LoseKey => waiters.next().is_none(),
                // A waiting call keeps a handle on its client.
                Operation::ReplaceClient => self
                    .waiting
                    .keys()
                    .all(|waiter| client_of(*waiter) != client_of(actor)),
                // `run` waits without a limit, and cannot be interrupted.
                Operation::Run => self.seen[actor][lock].holds > 0,
                _ => true,
            }
    }

    /// Collects the answers of all waiters that can be granted, until only those are left that must
    /// wait.
    fn settle(&mut self, answers: &mut Vec<(usize, Answer)>) -> Result<(), String> {
        for lock in 0..NAMES {
            while let Some((who, answer)) = self.next_answer(lock)? {
                self.waiting.remove(&who);
                let answer = self.ranked(lock, answer)?;
                answers.push((who, answer));
            }
        }
        Ok(())
    }

    /// Returns the next waiter that has an answer. `None` when no waiter will get one, and all are
    /// in the queue, so that their order is known.
    fn next_answer(&mut self, lock: usize) -> Result<Option<(usize, Answer)>, String> {
        let waiters = self.waiters(lock);
        let Some(client) = waiters.first().copied().map(client_of) else {
            return Ok(None);
        };
        eventually(
            "each waiter is in the queue, or gets the lock that is free",
            SOON,
            || {
                let answer = |who: &usize| self.actors[*who].answers().try_recv().ok();
                if let Some(answer) = waiters.iter().find_map(|who| Some((*who, answer(who)?))) {
                    return Some(Ok(Some(answer)));
                }
                match self.waiter_can_proceed(client, lock) {
                    Ok(true) => return None,
                    Ok(false) => {}
                    Err(why) => return Some(Err(why)),
                }
                // After the check of the holder: a thread that got the lock in between is not in
                // the queue any more.
                let queued = self.clients[client]
                    .queue_length(&self.names[lock])
                    .unwrap();
                (queued == waiters.len()).then_some(Ok(None))
            },
        )
    }

    fn waiters(&self, lock: usize) -> Vec<usize> {
        self.waiting
            .iter()
            .filter(|(_, it)| it.lock == lock)
            .map(|(who, _)| *who)
            .collect()
    }

    /// Returns whether a waiter of this client gets the lock: no thread and no owned guard of the
    /// client holds it, and in the store it is free, or already granted to the client.
    fn waiter_can_proceed(&mut self, client: usize, lock: usize) -> Result<bool, String> {
        let holder = self.holder(lock)?;
        let now = self.client_now(client);
        if holder.is_some_and(|holder| holder.client != Some(now)) || self.shelf.is_held(now, lock)
        {
            return Ok(false);
        }
        self.look()?;
        let mut of_client = (0..ACTORS).filter(|actor| client_of(*actor) == client);
        Ok(of_client.all(|actor| !self.seen[actor][lock].is_held))
    }

    /// Makes all threads give up, release and end. Fails if a lock is left in the store.
    pub(super) fn end(mut self) -> Result<(), String> {
        for (who, waiting) in std::mem::take(&mut self.waiting) {
            waiting.interrupt.fire();
            match self.actors[who].answer()? {
                Answer::Failed(distlock::ErrorKind::Interrupted) => {}
                other => return Err(format!("thread {who} was interrupted, and says {other:?}")),
            }
        }
        for actor in &self.actors {
            actor.begin(|own| {
                own.guards.iter_mut().for_each(Vec::clear);
                Answer::Done
            });
            actor.answer()?;
        }
        self.shelf.clear();
        // Dropping the last handle releases the detached locks.
        self.actors.clear();
        let observer = self.observer.clone();
        let names = self.names.clone();
        drop(self);
        for name in &names {
            let mutex = observer.mutex(name).unwrap();
            eventually("nothing is left in the store", SOON, || {
                !mutex.is_locked().unwrap()
            });
        }
        Ok(())
    }
}

/// Ends all waits, so that a failed case leaves no thread waiting.
impl Drop for World {
    fn drop(&mut self) {
        for waiting in self.waiting.values() {
            waiting.interrupt.fire();
        }
    }
}

fn client(store: &Store, hand_off: HandOff) -> Client {
    let configure = |config: Config| {
        let config = config.with_command_timeout(SOON).with_connect_timeout(SOON);
        config
            .with_watchdog(WATCHDOG)
            // Also limits the lease of a direct grant until its renewal: no lease here is longer.
            .with_fair_presence(2 * WATCHDOG)
            .with_hand_off(hand_off.time())
    };
    store
        .subject
        .client(&store.context())
        .configure(configure)
        .connect()
        .unwrap()
}

fn locks(client: &Client, names: &[LockName; NAMES]) -> [Mutex; NAMES] {
    names.each_ref().map(|name| client.mutex(name).unwrap())
}

fn client_of(actor: usize) -> usize {
    actor / (ACTORS / CLIENTS)
}
