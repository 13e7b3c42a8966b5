//! Attempts that several stores were asked for together: answers that only those give.

use super::*;
use crate::SystemClock;
use crate::backend::Withdrawal;
use crate::token::FencingToken;

/// The memory store, which first gives other answers.
#[derive(Debug)]
struct Scripted {
    store: MemoryBackend,
    answers: Mutex<VecDeque<Answer>>,
    owners: Mutex<Vec<OwnerId>>,
}

impl Scripted {
    fn new(answers: impl IntoIterator<Item = Answer>) -> (Arc<Self>, Client) {
        let store = MemoryBackend::new(Arc::new(SystemClock));
        let answers = Mutex::new(answers.into_iter().collect());
        let scripted = Arc::new(Self { store, answers, owners: Mutex::default() });
        let client = Client::builder().backend(Arc::clone(&scripted) as _).connect().unwrap();
        (scripted, client)
    }

    /// How many owners asked.
    fn owners(&self) -> usize {
        let mut owners: Vec<_> = self.owners.lock().iter().map(|owner| owner.number()).collect();
        owners.dedup();
        owners.len()
    }
}

impl Backend for Scripted {
    fn acquire(&self, attempt: &Attempt<'_>, by: Moment) -> Result<Answer, Failure> {
        self.owners.lock().push(attempt.owner);
        let answer = self.answers.lock().pop_front();
        answer.map_or_else(|| self.store.acquire(attempt, by), Ok)
    }

    fn renew(&self, lane: Lane, batch: &[Renewing], by: Moment) -> Vec<Result<Renewal, Failure>> {
        self.store.renew(lane, batch, by)
    }

    fn release(&self, tenure: &TenureId, closing: Closing, by: Moment) -> Result<Release, Failure> {
        self.store.release(tenure, closing, by)
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.store.inspect(name, by)
    }

    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        self.store.force_release(name, by)
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.store.watch(name, wake, by)
    }

    fn lane(&self, name: &LockName) -> Lane {
        self.store.lane(name)
    }

    fn abilities(&self) -> Abilities {
        self.store.abilities()
    }
}

fn failed() -> Answer {
    Answer::Withdrawn(Withdrawal::Failed(Error::unavailable("two of three are down")))
}

#[test]
fn an_owner_that_is_used_up_is_never_used_again() {
    let divided = || Answer::Withdrawn(Withdrawal::Divided);
    let held = Answer::Withdrawn(Withdrawal::Held(Some(Duration::from_millis(1))));
    let (store, client) = Scripted::new([divided(), divided(), failed(), held]);
    client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
    assert_eq!(store.owners(), 5);
}

#[test]
fn a_try_that_was_divided_is_busy_and_one_that_failed_is_not() {
    let (_store, client) = Scripted::new([Answer::Withdrawn(Withdrawal::Divided)]);
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    let (store, client) = Scripted::new([failed(), failed()]);
    let error = client.mutex("x").unwrap().try_lock().unwrap_err();
    assert!(error.is_unavailable() && error.to_string().contains("two of three"), "{error}");
    assert_eq!(store.owners(), 2, "one more try, at once");
}

#[test]
fn a_store_that_does_not_vote_or_turns_down_what_nobody_proposed_is_unavailable() {
    let minute = Duration::from_secs(60);
    for (answer, says) in [
        (Answer::NotVoting(minute), "in 60.0s"),
        (Answer::Stale(FencingToken::new(7)), "nobody had proposed"),
    ] {
        let (store, client) = Scripted::new([answer.clone(), answer]);
        let lock = client.mutex("x").unwrap();
        let error = lock.try_lock().unwrap_err();
        assert!(error.is_unavailable() && error.to_string().contains(says), "{error}");
        assert_eq!(store.owners(), 1);
        drop(lock.try_lock().unwrap().expect("it is free again"));
    }
}

#[test]
fn an_interrupt_ends_the_pause_of_those_who_were_divided() {
    let many = (0..100_000).map(|_| Answer::Withdrawn(Withdrawal::Divided));
    let (_store, client) = Scripted::new(many);
    let lock = client.mutex("x").unwrap();
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock_interruptibly(&interrupt).map(drop));
        eventually("it waits", || client.waiting("x").unwrap() > 0);
        interrupt.fire();
        assert!(waiting.join().unwrap().unwrap_err().is_interrupted());
    });
}
