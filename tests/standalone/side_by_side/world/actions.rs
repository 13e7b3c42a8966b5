//! What each command does.

use super::{SOON, Waiting, World, client, client_of, locks};
use crate::side_by_side::actor::{Answer, done};
use crate::side_by_side::command::{ACTORS, BRIEF, Command, Operation, PATIENCE, RENEWED_ONCE};
use distlock::{Interrupt, LockOptions};
use distlock_tests::time::eventually;
use std::sync::Arc;
use std::time::Duration;

impl World {
    /// Begins a command, and returns which threads must answer now. A thread that may have to wait
    /// is added to the waiting ones.
    pub(super) fn start(&mut self, command: &Command) -> Result<Vec<usize>, String> {
        let Command {
            actor: who,
            lock,
            operation,
        } = *command;
        let actor = &self.actors[who];
        let client = self.client_now(client_of(who));
        let (shelf, name) = (self.shelf.clone(), self.names[lock].clone());
        let owned = self.clients[client_of(who)].owned_mutex(&name).unwrap();
        let interrupt = Interrupt::new();
        match operation {
            Operation::Lock(terms) | Operation::LockTogether(terms) => {
                let is_together = command.is(Operation::LockTogether(terms));
                let interrupt = if is_together {
                    self.together.clone()
                } else {
                    interrupt
                };
                let fired = interrupt.clone();
                actor.begin(move |own| own.lock(lock, terms, &fired));
                if self.seen[who][lock].holds == 0 {
                    self.waiting.insert(
                        who,
                        Waiting {
                            lock,
                            interrupt,
                            is_together,
                        },
                    );
                    return Ok(vec![]);
                }
            }
            Operation::OwnedLock => {
                let fired = interrupt.clone();
                actor.begin(move |_| {
                    shelf.put(client, lock, &owned, |it| {
                        it.lock_interruptibly(&fired).map(Some)
                    })
                });
                self.waiting.insert(
                    who,
                    Waiting {
                        lock,
                        interrupt,
                        is_together: false,
                    },
                );
                return Ok(vec![]);
            }
            Operation::Interrupt => return Ok(self.interrupt(who)),
            Operation::TakeAndOutlive => {
                let options = LockOptions::new().lease(BRIEF);
                self.take_and_outlive(who, lock, options, BRIEF, Lives::NotRenewed);
            }
            Operation::TakeAndUseUp => {
                let once = LockOptions::new().watched_at_most(RENEWED_ONCE, 1);
                self.take_and_outlive(who, lock, once, RENEWED_ONCE, Lives::RenewedOnce);
            }
            Operation::LockInterrupted(terms) => {
                interrupt.fire();
                actor.begin(move |own| own.lock(lock, terms, &interrupt));
            }
            Operation::ReplaceClient => {
                drop(owned);
                self.replace_client(who)?;
            }
            Operation::OwnedTry => {
                actor.begin(move |_| shelf.put(client, lock, &owned, |it| it.try_lock()));
            }
            Operation::OwnedUnlock(which) => actor.begin(move |_| {
                shelf
                    .take(lock, which)
                    .map_or(Answer::Says(false), |guard| done(guard.unlock()))
            }),
            Operation::OwnedDrop(which) => {
                actor.begin(move |_| Answer::Says(shelf.take(lock, which).is_some()));
            }
            Operation::OwnedVerify(which) => actor.begin(move |_| {
                let verified = shelf.with(lock, which, |guard| done(guard.verify()));
                verified.unwrap_or(Answer::Says(false))
            }),
            Operation::LoseKey => {
                let store = Arc::clone(&self.store);
                actor.begin(move |_| {
                    store.subject.lose(&name);
                    Answer::Done
                });
            }
            Operation::Settle => {
                let client = self.clients[client_of(who)].clone();
                actor.begin(move |_| done(client.wait_for_cleanup(SOON)));
            }
            _ => self.start_alone(command),
        }
        Ok(vec![who])
    }

    /// Ends this thread's wait, and all waits with the same interrupt.
    fn interrupt(&mut self, who: usize) -> Vec<usize> {
        let Some(waiting) = self.waiting.remove(&who) else {
            unreachable!("it applies")
        };
        let mut ended = vec![who];
        if waiting.is_together {
            let others = self.waiting.iter().filter(|(_, other)| other.is_together);
            ended.extend(others.map(|(who, _)| *who));
            self.waiting.retain(|_, other| !other.is_together);
        }
        waiting.interrupt.fire();
        ended
    }

    /// Begins a command for the locks and guards of the thread itself.
    fn start_alone(&self, command: &Command) {
        let Command {
            actor,
            lock,
            operation,
        } = *command;
        self.actors[actor].begin(move |own| {
            let nothing = Answer::Says(false);
            let mutex = &own.locks[lock];
            match operation {
                Operation::Try(terms) => {
                    let taken = mutex.try_lock_with(&terms.options());
                    own.keep(lock, taken)
                }
                Operation::TryFor(terms) => {
                    let taken = mutex.try_lock_for_with(PATIENCE, &terms.options());
                    own.keep(lock, taken)
                }
                Operation::Run => mutex
                    .run(|_| mutex.hold_count())
                    .map_or_else(|error| Answer::Failed(error.kind()), Answer::Counts),
                Operation::TryWithoutALease => {
                    done(mutex.try_lock_with(&LockOptions::new().lease(Duration::ZERO)))
                }
                Operation::Unlock(which) => own
                    .take_guard(lock, which)
                    .map_or(nothing, |guard| done(guard.unlock())),
                Operation::Drop(which) => Answer::Says(own.take_guard(lock, which).is_some()),
                Operation::Detach(which) => own.take_guard(lock, which).map_or(nothing, |guard| {
                    guard.detach();
                    Answer::Done
                }),
                Operation::UnlockDetached => done(mutex.unlock()),
                Operation::Extend(which, minutes) => own
                    .guard(lock, which)
                    .map_or(nothing, |guard| done(guard.extend(minutes.time()))),
                Operation::Ensure(which, minutes) => own
                    .guard(lock, which)
                    .map_or(nothing, |guard| done(guard.ensure(minutes.time()))),
                Operation::Verify(which) => own
                    .guard(lock, which)
                    .map_or(nothing, |guard| done(guard.verify())),
                Operation::ForceUnlock => mutex
                    .force_unlock()
                    .map_or_else(|error| Answer::Failed(error.kind()), Answer::Says),
                other => unreachable!("{other:?} is not done alone"),
            }
        });
    }

    /// Replaces a client. Its handles are dropped one after the other, those of this thread last.
    fn replace_client(&mut self, who: usize) -> Result<(), String> {
        let side = client_of(who);
        self.clients[side] = client(&self.store, self.hand_off);
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

    /// Returns the number by which the current client of this side is compared.
    pub(super) fn client_now(&self, side: usize) -> usize {
        let id = self.clients[side].id();
        self.ids
            .iter()
            .position(|known| *known == id)
            .expect("it is among them")
    }

    /// Acquires the lock for a short lease, moves the clocks past its end, and answers when it has
    /// ended for the holder and in the store. Checks that the store keeps the lock for as long as
    /// the holder's guard is valid.
    fn take_and_outlive(
        &self,
        who: usize,
        lock: usize,
        options: LockOptions,
        lease: Duration,
        lives: Lives,
    ) {
        let observer = self.observer.mutex(&self.names[lock]).unwrap();
        let store = Arc::clone(&self.store);
        self.actors[who].begin(move |own| {
            let held_before = own.locks[lock].hold_count() > 0;
            let taken = own.locks[lock].try_lock_with(&options);
            let answer = own.keep(lock, taken);
            let mut is_kept = true;
            if !held_before && let (Answer::Took(_), Some(guard)) = (answer, own.newest_guard(lock))
            {
                let mut pass = |steps: u32| {
                    for _ in 0..steps {
                        store.advance(lease / STEPS);
                        // The store is read first: a guard that is still valid after that was valid
                        // during the read.
                        let is_locked = observer.is_locked().unwrap();
                        is_kept &= is_locked || !guard.is_valid();
                    }
                };
                if lives == Lives::RenewedOnce {
                    pass(STEPS / 2);
                    eventually("it is renewed, or lost", SOON, || {
                        guard.remaining() > lease * 3 / 4 || !guard.is_valid()
                    });
                    pass(STEPS / 2);
                    eventually("no renewal is left, or it is lost", SOON, || {
                        guard.loss().is_some() || !guard.is_valid()
                    });
                }
                pass(2 * STEPS);
                eventually("the lease is over for its holder", SOON, || {
                    !guard.is_valid()
                });
                eventually("the lease is over in the store", SOON, || {
                    !observer.is_locked().unwrap()
                });
            }
            if is_kept {
                answer
            } else {
                Answer::Says(is_kept)
            }
        });
    }
}

/// The number of steps in which the clocks are moved by a lease.
const STEPS: u32 = 8;

/// Whether a lock is renewed before its lease ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lives {
    NotRenewed,
    RenewedOnce,
}
