//! [`World`]: one store, two clients, their threads, and whoever waits. It does one command at a time, and goes on only
//! when everybody who can go on has.

use super::actor::{Actor, Answer, GuardSeen, LockSeen, Shelf, Token, done, minutes};
use super::command::{ACTORS, BRIEF, CLIENTS, Command, Deed, NAMES, RENEWED_ONCE};
use crate::harness::time::eventually;
use distlock::{
    Client, ClientId, Context, DistLock, Interrupt, LockName, LockOptions, Mutex, SystemClock,
};
use lock_core::conformance::Subject;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// So long that nothing is renewed while a test runs: what a renewal finds out, and when, is not what is compared here.
const WATCHDOG: Duration = Duration::from_secs(300);

/// The longest that something takes that happens at once.
const SOON: Duration = Duration::from_secs(10);

pub(super) struct World {
    subject: Arc<dyn Subject>,
    names: [LockName; NAMES],
    clients: [Client; CLIENTS],
    /// Of all that there have been, in order: the place is what a client is called when it is compared.
    ids: Vec<ClientId>,
    /// Looks at the store, and holds nothing.
    observer: Client,
    actors: Vec<Actor>,
    shelf: Shelf,
    waiting: BTreeMap<usize, Waiting>,
    /// What each thread said when it was last asked: one that waits cannot be.
    seen: Vec<[LockSeen; NAMES]>,
    /// The tokens of each lock, in the order that they were given in.
    tokens: [Vec<u64>; NAMES],
}

struct Waiting {
    lock: usize,
    interrupt: Interrupt,
}

/// What a command led to.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Step {
    /// Who got an answer, in order; nobody if the command did not apply.
    answers: Vec<(usize, Answer)>,
    /// Who waits, and for which lock.
    waiting: Vec<(usize, usize)>,
    threads: Vec<[LockSeen; NAMES]>,
    owned: Vec<(usize, usize, GuardSeen)>,
    store: Vec<Option<Holder>>,
}

impl Step {
    pub(super) fn answers(&self) -> &[(usize, Answer)] {
        &self.answers
    }
}

/// Who holds a lock, by the store's word.
#[derive(PartialEq, Eq, Debug)]
struct Holder {
    client: Option<usize>,
    /// The number of the wait that got it.
    number: String,
    minutes: u64,
    holds: u64,
}

impl World {
    pub(super) fn new(subject: Arc<dyn Subject>, number: u64) -> Self {
        let names = std::array::from_fn(|lock| {
            LockName::new(&format!("side-by-side:{number}:{lock}")).unwrap()
        });
        let clients: [Client; CLIENTS] = std::array::from_fn(|_| client(&*subject));
        let observer = client(&*subject);
        let actor = |actor: usize| Actor::start(locks(&clients[client_of(actor)], &names));
        Self {
            actors: (0..ACTORS).map(actor).collect(),
            ids: clients.iter().map(Client::id).collect(),
            subject,
            names,
            clients,
            observer,
            shelf: Shelf::new(),
            waiting: BTreeMap::new(),
            seen: vec![<[LockSeen; NAMES]>::default(); ACTORS],
            tokens: Default::default(),
        }
    }

    pub(super) fn name(&self) -> String {
        self.subject.name()
    }

    /// Does it, waits until everybody has an answer who must get one, and looks around.
    pub(super) fn step(&mut self, command: &Command) -> Result<Step, String> {
        let mut answers = Vec::new();
        if self.applies(command) {
            self.start(command)?;
            if !self.waiting.contains_key(&command.actor) {
                let answer = self.actors[command.actor].answer()?;
                answers.push((command.actor, self.ranked(command.lock, answer)?));
            }
        }
        self.settle(&mut answers)?;
        Ok(Step {
            answers,
            waiting: self.waiting.iter().map(|(who, waiting)| (*who, waiting.lock)).collect(),
            threads: self.look()?,
            owned: self.ranked_shelf(),
            store: (0..NAMES).map(|lock| self.holder(lock)).collect::<Result<_, _>>()?,
        })
    }

    /// Whether it can be done now, and has one right answer.
    fn applies(&self, command: &Command) -> bool {
        let Command { actor, lock, deed } = *command;
        if command.is(Deed::Interrupt) {
            return self.waiting.contains_key(&actor);
        }
        let mut waiters = self.waiting.iter().filter(|(_, waiting)| waiting.lock == lock);
        !self.waiting.contains_key(&actor)
            && match deed {
                // Two clients that wait for one lock race for it.
                Deed::Lock(_) | Deed::OwnedLock => {
                    waiters.all(|(waiter, _)| client_of(*waiter) == client_of(actor))
                }
                // Nobody is woken by a key that goes: waiters ask again when the lease should be over, minutes later.
                Deed::LoseKey => waiters.next().is_none(),
                // The calls of who waits have handles on its client.
                Deed::ReplaceClient => {
                    self.waiting.keys().all(|waiter| client_of(*waiter) != client_of(actor))
                }
                // It waits without an end, and cannot be interrupted.
                Deed::Run => self.seen[actor][lock].holds > 0,
                _ => true,
            }
    }

    /// Begins it. Whoever may have to wait is among the waiting then.
    fn start(&mut self, command: &Command) -> Result<(), String> {
        let Command { actor: who, lock, deed } = *command;
        let actor = &self.actors[who];
        let client = self.client_now(client_of(who));
        let (shelf, name) = (self.shelf.clone(), self.names[lock].clone());
        let owned = self.clients[client_of(who)].owned_mutex(&name).unwrap();
        let interrupt = Interrupt::new();
        match deed {
            Deed::Lock(terms) => {
                let fired = interrupt.clone();
                actor.begin(move |own| own.lock(lock, terms, &fired));
                if self.seen[who][lock].holds == 0 {
                    self.waiting.insert(who, Waiting { lock, interrupt });
                }
            }
            Deed::OwnedLock => {
                let fired = interrupt.clone();
                actor.begin(move |_| {
                    shelf.put(client, lock, &owned, |it| it.lock_interruptibly(&fired).map(Some))
                });
                self.waiting.insert(who, Waiting { lock, interrupt });
            }
            Deed::Interrupt => {
                let Some(waiting) = self.waiting.remove(&who) else { unreachable!("it applies") };
                waiting.interrupt.fire();
            }
            Deed::TakeAndOutlive => {
                self.take_and_outlive(who, lock, LockOptions::new().lease(BRIEF));
            }
            Deed::TakeAndUseUp => {
                let once = LockOptions::new().watched_at_most(RENEWED_ONCE, 1);
                self.take_and_outlive(who, lock, once);
            }
            Deed::LockInterrupted(terms) => {
                interrupt.fire();
                actor.begin(move |own| own.lock(lock, terms, &interrupt));
            }
            Deed::ReplaceClient => {
                drop(owned);
                self.replace_client(who)?;
            }
            Deed::OwnedTry => {
                actor.begin(move |_| shelf.put(client, lock, &owned, |it| it.try_lock()));
            }
            Deed::OwnedUnlock(which) => actor.begin(move |_| {
                shelf.take(lock, which).map_or(Answer::Says(false), |guard| done(guard.unlock()))
            }),
            Deed::OwnedDrop(which) => {
                actor.begin(move |_| Answer::Says(shelf.take(lock, which).is_some()));
            }
            Deed::OwnedVerify(which) => actor.begin(move |_| {
                let verified = shelf.with(lock, which, |guard| done(guard.verify()));
                verified.unwrap_or(Answer::Says(false))
            }),
            Deed::LoseKey => {
                let subject = Arc::clone(&self.subject);
                actor.begin(move |_| {
                    subject.lose(&name);
                    Answer::Done
                });
            }
            _ => self.start_alone(command),
        }
        Ok(())
    }

    /// What a thread does with its own locks and guards.
    fn start_alone(&self, command: &Command) {
        let Command { actor, lock, deed } = *command;
        self.actors[actor].begin(move |own| {
            let nothing = Answer::Says(false);
            let mutex = &own.locks[lock];
            match deed {
                Deed::Try(terms) => {
                    let taken = mutex.try_lock_with(&terms.options());
                    own.keep(lock, taken)
                }
                Deed::TryFor(terms) => {
                    let taken = mutex.try_lock_with(&terms.waiting());
                    own.keep(lock, taken)
                }
                Deed::Run => mutex
                    .run(|_| mutex.hold_count())
                    .map_or_else(|error| Answer::Failed(error.kind()), Answer::Counts),
                Deed::LockWithAWait => {
                    done(mutex.lock_with(&LockOptions::new().wait(Duration::ZERO)))
                }
                Deed::TryWithoutALease => {
                    done(mutex.try_lock_with(&LockOptions::new().lease(Duration::ZERO)))
                }
                Deed::Unlock(which) => {
                    own.take_guard(lock, which).map_or(nothing, |guard| done(guard.unlock()))
                }
                Deed::Drop(which) => Answer::Says(own.take_guard(lock, which).is_some()),
                Deed::Detach(which) => own.take_guard(lock, which).map_or(nothing, |guard| {
                    guard.detach();
                    Answer::Done
                }),
                Deed::UnlockDetached => done(mutex.unlock()),
                Deed::Extend(which, minutes) => own
                    .guard(lock, which)
                    .map_or(nothing, |guard| done(guard.extend(minutes.time()))),
                Deed::Ensure(which, minutes) => own
                    .guard(lock, which)
                    .map_or(nothing, |guard| done(guard.ensure(minutes.time()))),
                Deed::Verify(which) => {
                    own.guard(lock, which).map_or(nothing, |guard| done(guard.verify()))
                }
                Deed::ForceUnlock => mutex
                    .force_unlock()
                    .map_or_else(|error| Answer::Failed(error.kind()), Answer::Says),
                other => unreachable!("{other:?} is not done alone"),
            }
        });
    }

    /// The client's handles go one after the other, the one of this thread last.
    fn replace_client(&mut self, who: usize) -> Result<(), String> {
        let side = client_of(who);
        self.clients[side] = client(&*self.subject);
        self.ids.push(self.clients[side].id());
        let others = (0..ACTORS).filter(|actor| client_of(*actor) == side && *actor != who);
        for actor in others.chain([who]) {
            let locks = locks(&self.clients[side], &self.names);
            self.actors[actor].begin(move |own| {
                own.locks = locks;
                Answer::Done
            });
            if actor != who {
                self.actors[actor].answer()?;
            }
        }
        Ok(())
    }

    /// What the client is called that this side has now.
    fn client_now(&self, side: usize) -> usize {
        let id = self.clients[side].id();
        self.ids.iter().position(|known| *known == id).expect("it is among them")
    }

    /// Takes it for a short time, and answers when that is over, for the holder and in the store. Meanwhile the store keeps
    /// it for as long as its holder counts on it.
    fn take_and_outlive(&self, who: usize, lock: usize, options: LockOptions) {
        let observer = self.observer.mutex(&self.names[lock]).unwrap();
        self.actors[who].begin(move |own| {
            let held_before = own.locks[lock].hold_count() > 0;
            let taken = own.locks[lock].try_lock_with(&options);
            let answer = own.keep(lock, taken);
            let mut is_kept = true;
            if !held_before
                && let (Answer::Took(_), Some(guard)) = (answer, own.guards[lock].last())
            {
                eventually("the lease is over for its holder", SOON, || {
                    // In this order: a holder that counts on it now did so when the store was asked.
                    let is_locked = observer.is_locked().unwrap();
                    is_kept &= is_locked || !guard.is_valid();
                    !guard.is_valid()
                });
                eventually("the lease is over in the store", SOON, || {
                    !observer.is_locked().unwrap()
                });
            }
            if is_kept { answer } else { Answer::Says(is_kept) }
        });
    }

    /// Waits for everybody who can go on, until all that wait must.
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

    /// The next waiter who gets an answer; `None` when nobody will: all are in the queue, so that the order is known.
    fn next_answer(&mut self, lock: usize) -> Result<Option<(usize, Answer)>, String> {
        let waiters = self.waiters(lock);
        let Some(client) = waiters.first().copied().map(client_of) else { return Ok(None) };
        eventually("whoever waits is in the queue, or gets the lock that is free", SOON, || {
            let answer = |who: &usize| self.actors[*who].answers().try_recv().ok();
            if let Some(answer) = waiters.iter().find_map(|who| Some((*who, answer(who)?))) {
                return Some(Ok(Some(answer)));
            }
            match self.someone_goes_on(client, lock) {
                Ok(true) => return None,
                Ok(false) => {}
                Err(why) => return Some(Err(why)),
            }
            // After the look at who holds it: whoever got the lock in between is not in the queue any more.
            let queued = self.clients[client].waiting(&self.names[lock]).unwrap();
            (queued == waiters.len()).then_some(Ok(None))
        })
    }

    fn waiters(&self, lock: usize) -> Vec<usize> {
        self.waiting.iter().filter(|(_, it)| it.lock == lock).map(|(who, _)| *who).collect()
    }

    /// Whether a waiter of this client gets the lock: nobody of the client, who would be waited for, believes to hold it,
    /// and the store says that it is free, or that the client has it: then that waiter has it already.
    fn someone_goes_on(&mut self, client: usize, lock: usize) -> Result<bool, String> {
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

    /// Asks all threads that do not wait.
    fn look(&mut self) -> Result<Vec<[LockSeen; NAMES]>, String> {
        for (who, actor) in self.actors.iter().enumerate() {
            if !self.waiting.contains_key(&who) {
                self.seen[who] = actor.look()?;
            }
        }
        let mut seen = self.seen.clone();
        for (lock, thread) in seen.iter_mut().flat_map(|locks| locks.iter_mut().enumerate()) {
            thread.guards.iter_mut().for_each(|guard| guard.token = self.rank(lock, guard.token));
        }
        Ok(seen)
    }

    fn ranked_shelf(&self) -> Vec<(usize, usize, GuardSeen)> {
        let ranked = |(client, lock, mut seen): (usize, usize, GuardSeen)| {
            seen.token = self.rank(lock, seen.token);
            (client, lock, seen)
        };
        self.shelf.look().into_iter().map(ranked).collect()
    }

    fn rank(&self, lock: usize, token: Option<Token>) -> Option<Token> {
        let rank = |Token(token)| self.tokens[lock].iter().position(|known| *known == token);
        token.map(|token| Token(rank(token).map_or(u64::MAX, |rank| rank as u64)))
    }

    /// The answer with the token's place among all of its lock. A new one is larger than all before.
    fn ranked(&mut self, lock: usize, answer: Answer) -> Result<Answer, String> {
        let Answer::Took(token) = answer else { return Ok(answer) };
        if let Some(Token(new)) = token.filter(|token| !self.tokens[lock].contains(&token.0)) {
            if let Some(last) = self.tokens[lock].last().filter(|last| **last >= new) {
                return Err(format!("the token {new} was given after {last}"));
            }
            self.tokens[lock].push(new);
        }
        Ok(Answer::Took(self.rank(lock, token)))
    }

    fn holder(&self, lock: usize) -> Result<Option<Holder>, String> {
        let mutex = self.observer.mutex(&self.names[lock]).unwrap();
        let info = mutex.inspect().map_err(|error| format!("{error:?}"))?;
        Ok(info.holder.map(|holder| {
            let owner = holder.owner.as_str();
            let (id, number) = owner.rsplit_once(':').unwrap_or((owner, ""));
            Holder {
                client: self.ids.iter().position(|client| client.to_string() == id),
                number: number.to_owned(),
                minutes: holder.remaining.map_or(u64::MAX, minutes),
                holds: holder.holds,
            }
        }))
    }

    /// Everybody gives up, lets go and goes. Nothing may be left in the store.
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
        // With the last handle go the holds that were left with threads.
        self.actors.clear();
        let observer = self.observer.clone();
        let names = self.names.clone();
        drop(self);
        for name in &names {
            let mutex = observer.mutex(name).unwrap();
            eventually("nothing is left in the store", SOON, || !mutex.is_locked().unwrap());
        }
        Ok(())
    }
}

/// A case that failed leaves nobody waiting.
impl Drop for World {
    fn drop(&mut self) {
        for waiting in self.waiting.values() {
            waiting.interrupt.fire();
        }
    }
}

fn client(subject: &dyn Subject) -> Client {
    let context = Context::new(Arc::new(SystemClock), ClientId::random());
    let builder = subject.client(&context);
    builder.configure(|config| config.with_watchdog(WATCHDOG)).connect().unwrap()
}

fn locks(client: &Client, names: &[LockName; NAMES]) -> [Mutex; NAMES] {
    names.each_ref().map(|name| client.mutex(name).unwrap())
}

fn client_of(actor: usize) -> usize {
    actor / (ACTORS / CLIENTS)
}
