//! Attempts on a quorum of stores: the answers that only a quorum returns.

use super::*;
use crate::backend::RetryCause;
use crate::{Counters, SystemClock};

/// The in-memory store, whose first attempts get scripted answers.
#[derive(Debug)]
struct Scripted {
    store: MemoryBackend,
    answers: Mutex<VecDeque<Answer>>,
    owners: Mutex<Vec<OwnerId>>,
}

impl Scripted {
    fn new(answers: impl IntoIterator<Item = Answer>) -> (Arc<Self>, Client) {
        Self::on(Arc::new(SystemClock), answers, Arc::default())
    }

    fn on(
        clock: Arc<dyn Clock>,
        answers: impl IntoIterator<Item = Answer>,
        events: Arc<Counters>,
    ) -> (Arc<Self>, Client) {
        let store = MemoryBackend::new(Arc::clone(&clock));
        let answers = Mutex::new(answers.into_iter().collect());
        let scripted = Arc::new(Self {
            store,
            answers,
            owners: Mutex::default(),
        });
        let builder = crate::builder().backend(Arc::clone(&scripted) as _);
        (
            scripted,
            builder.clock(clock).events(events).connect().unwrap(),
        )
    }

    /// Returns the number of owners that sent attempts.
    fn owners(&self) -> usize {
        let mut owners: Vec<_> = self
            .owners
            .lock()
            .iter()
            .map(|owner| owner.number())
            .collect();
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

    fn renew(
        &self,
        node: NodeId,
        batch: &[RenewalRequest],
        by: Moment,
    ) -> Vec<Result<Renewal, Failure>> {
        self.store.renew(node, batch, by)
    }

    fn release(
        &self,
        acquisition: &AcquisitionId,
        closing: ReleaseOptions,
        by: Moment,
    ) -> Result<Release, Failure> {
        self.store.release(acquisition, closing, by)
    }

    fn inspect(&self, name: &LockName, by: Moment) -> Result<LockInfo, Failure> {
        self.store.inspect(name, by)
    }

    fn watch(&self, name: &LockName, wake: Arc<dyn Wake>, by: Moment) -> Result<Watch, Failure> {
        self.store.watch(name, wake, by)
    }

    fn renewal_node(&self, name: &LockName) -> NodeId {
        self.store.renewal_node(name)
    }

    fn abilities(&self) -> Abilities {
        self.store.abilities()
    }

    fn admin(&self) -> Option<&dyn Admin> {
        self.store.admin()
    }
}

fn rolled_back(cause: RetryCause, after: Option<Duration>) -> Answer {
    Answer::Retry {
        cause,
        after,
        new_owner: true,
    }
}

fn failed() -> Answer {
    let why = Error::unavailable("two of three are down");
    rolled_back(RetryCause::Failed(why), None)
}

fn split_vote() -> Answer {
    rolled_back(RetryCause::SplitVote, None)
}

#[test]
fn rolled_back_attempt_is_retried_with_a_new_owner() {
    let held = rolled_back(RetryCause::Held, Some(Duration::from_millis(1)));
    let (store, client) = Scripted::new([split_vote(), split_vote(), failed(), held]);
    client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
    assert_eq!(store.owners(), 5);
}

#[test]
fn attempt_that_left_nothing_is_retried_with_its_owner() {
    let (cause, after) = (RetryCause::Held, Some(Duration::from_millis(1)));
    let held = Answer::Retry {
        cause,
        after,
        new_owner: false,
    };
    let (store, client) = Scripted::new([held.clone(), held]);
    client.mutex("x").unwrap().lock().unwrap().unlock().unwrap();
    assert_eq!((store.owners(), store.owners.lock().len()), (1, 3));
}

#[test]
fn split_vote_is_busy_and_failed_attempt_is_unavailable() {
    let (_store, client) = Scripted::new([split_vote()]);
    assert!(client.mutex("x").unwrap().try_lock().unwrap().is_none());
    let (store, client) = Scripted::new([failed(), failed()]);
    let error = client.mutex("x").unwrap().try_lock().unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("two of three"),
        "{error}"
    );
    assert_eq!(store.owners(), 2, "the attempt is retried once");
}

/// Returns the answers of a store that grants nothing for a minute.
fn paused(may_end_sooner: bool) -> impl Iterator<Item = Answer> {
    let pause = move |left| {
        let why = Error::unavailable(format!("it is new, and votes in {left} s"));
        let cause = RetryCause::Paused {
            why,
            may_end_sooner,
        };
        rolled_back(cause, Some(Duration::from_secs(left)))
    };
    (1..=60).rev().map(pause)
}

#[test]
fn pause_with_a_known_end_is_waited_out_with_one_event() {
    let (clock, counters) = (ManualClock::new(), Arc::new(Counters::new()));
    let began = clock.now();
    let (_store, client) = Scripted::on(
        Arc::new(clock.clone()),
        paused(false),
        Arc::clone(&counters),
    );
    let lock = client.mutex("x").unwrap();
    let waiting = thread::spawn(move || lock.lock().map(|guard| guard.unlock().unwrap()));
    advance_until_done(&clock, 0, &waiting);
    waiting.join().unwrap().unwrap();
    assert!(
        clock.now().since(began) >= Duration::from_secs(59),
        "longer than any outage"
    );
    eventually("the release is reported", || {
        counters.count("released") == 1
    });
    assert_eq!(counters.count("paused"), 1);
}

#[test]
fn wait_that_ends_within_a_pause_fails_at_once() {
    let (clock, counters) = (ManualClock::new(), Arc::new(Counters::new()));
    let (_store, client) = Scripted::on(
        Arc::new(clock.clone()),
        paused(false),
        Arc::clone(&counters),
    );
    for left in [60, 59] {
        let lock = client.mutex("x").unwrap();
        let asks = thread::spawn(move || lock.try_lock_for(Duration::from_secs(58)).map(drop));
        eventually("the wait fails, and no time passes", || asks.is_finished());
        let error = asks.join().unwrap().unwrap_err();
        let text = error.to_string();
        assert!(
            error.is_unavailable() && text.contains(&format!("in {left} s")),
            "{text}"
        );
    }
}

/// The wait for a member of several locks is shorter than the pause, so it fails at once. The
/// member must not be tried again without a pause in between.
#[test]
fn paused_member_of_several_locks_is_asked_now_and_then() {
    let (store, client) = Scripted::new((0..2_000).flat_map(|_| paused(false)));
    let locks = ["x", "y"].map(|name| client.mutex(name).unwrap());
    let all = crate::MultiLock::new(&locks).unwrap();
    let error = all.try_lock_for(SECOND).unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("votes in"),
        "{error}"
    );
    assert!(
        store.owners() <= 30,
        "{} attempts in a second",
        store.owners()
    );
}

#[test]
fn follower_whose_wait_ends_within_a_pause_fails_at_once() {
    let (clock, counters) = (ManualClock::new(), Arc::new(Counters::new()));
    let (_store, client) = Scripted::on(
        Arc::new(clock.clone()),
        paused(false),
        Arc::clone(&counters),
    );
    let head = client.mutex("x").unwrap();
    let waiting = thread::spawn(move || head.lock().map(|guard| guard.unlock().unwrap()));
    eventually("the head waits", || {
        counters.count("paused") == 1 && sleeping(&clock) == 1
    });
    let lock = client.mutex("x").unwrap();
    let follower = thread::spawn(move || lock.try_lock_for(Duration::from_secs(5)).map(drop));
    eventually("the wait fails, and no time passes", || {
        follower.is_finished()
    });
    let error = follower.join().unwrap().unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("votes in"),
        "{error}"
    );
    advance_until_done(&clock, 0, &waiting);
    waiting.join().unwrap().unwrap();
}

#[test]
fn pause_that_may_end_sooner_is_waited_for_until_deadline() {
    for (answers, is_granted) in [(5, true), (60, false)] {
        let (clock, counters) = (ManualClock::new(), Arc::new(Counters::new()));
        let answers = paused(true).take(answers);
        let (_store, client) = Scripted::on(Arc::new(clock.clone()), answers, counters);
        let (lock, began) = (client.mutex("x").unwrap(), clock.now());
        let asks = thread::spawn(move || lock.try_lock_for(5 * SECOND).map(|it| it.is_some()));
        advance_until_done(&clock, 0, &asks);
        match asks.join().unwrap() {
            Ok(granted) => assert!(granted && is_granted),
            Err(error) => {
                assert!(
                    !is_granted && error.to_string().contains("votes in"),
                    "{error}"
                );
                assert!(clock.now().since(began) >= 5 * SECOND);
            }
        }
    }
}

#[test]
fn interrupt_ends_the_pause_after_a_split_vote() {
    let many = (0..100_000).map(|_| split_vote());
    let (_store, client) = Scripted::new(many);
    let lock = client.mutex("x").unwrap();
    let interrupt = Interrupt::new();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| lock.lock_interruptibly(&interrupt).map(drop));
        eventually("the waiter queues", || {
            client.queue_length("x").unwrap() > 0
        });
        interrupt.fire();
        assert!(waiting.join().unwrap().unwrap_err().is_interrupted());
    });
}
