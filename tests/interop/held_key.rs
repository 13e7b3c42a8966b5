//! [`HeldKey`]: a key that one side holds, as the store reports it, and its earliest end.

use crate::late::TURN;
use distlock::time::{Clock, Moment, SystemClock};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::time::{late, let_pass};
use lock_conformance::violated;
use std::thread;
use std::time::Duration;

/// The shortest lease that any program of these tests takes when it is asked for its own.
pub(crate) const SHORTEST: Duration = Duration::from_secs(1);

/// Between two looks while an attempt waits.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A key whose holder stays the same. That it ends, or is another's, is late if its lease may be
/// over, and a violation if it cannot be.
pub(crate) struct HeldKey {
    probe: Probe,
    key: String,
    value: Value,
    /// Until then it must be there: its lease was seen to be as long.
    until: Moment,
}

impl HeldKey {
    /// What is under this key now.
    #[track_caller]
    pub(crate) fn of(probe: Probe, key: &str) -> Self {
        Self::find(probe, key).unwrap_or_else(|| late(SHORTEST, format!("{key}: no lock")))
    }

    /// The same if there is such a key.
    pub(crate) fn find(mut probe: Probe, key: &str) -> Option<Self> {
        let (value, until) = look(&mut probe, key);
        let is_there = value != Value::Nil;
        is_there.then(|| Self {
            probe,
            key: key.to_owned(),
            value,
            until,
        })
    }

    /// Sees that it is still there, and until when it must be.
    #[track_caller]
    pub(crate) fn look(&mut self) {
        let (value, until) = look(&mut self.probe, &self.key);
        if value == Value::Nil {
            self.ended("the key is gone");
        }
        if value != self.value {
            self.ended("the key is another holder's");
        }
        self.until = until;
    }

    /// An attempt on it must not be granted.
    #[track_caller]
    pub(crate) fn must_refuse(&mut self, is_granted: impl FnOnce() -> bool) {
        self.look();
        if is_granted() {
            self.ended("the lock was granted");
        }
    }

    /// The same for an attempt that waits, perhaps for longer than a lease.
    #[track_caller]
    pub(crate) fn must_refuse_all_along(&mut self, is_granted: impl FnOnce() -> bool + Send) {
        let is_granted = thread::scope(|scope| {
            let attempt = scope.spawn(is_granted);
            while !attempt.is_finished() {
                self.look();
                let_pass(LOOK_AGAIN);
            }
            attempt.join().expect("the attempt is answered")
        });
        if is_granted {
            self.ended("the lock was granted");
        }
    }

    /// Fails because of this, which may not be before the lease ends.
    #[track_caller]
    pub(crate) fn ended(&self, what: &str) -> ! {
        let now = SystemClock.now();
        if now < self.until {
            let left = self.until.since(now);
            violated(format_args!(
                "{}: {what}, its lease ends in {left:?} or later",
                self.key
            ));
        }
        late(
            TURN,
            format!("{}: {what}, its lease was not renewed", self.key),
        );
    }
}

/// Under `key`: what its holder wrote, and the first moment at which it may end.
fn look(probe: &mut Probe, key: &str) -> (Value, Moment) {
    const BOTH: &str = "return {redis.call('PTTL', KEYS[1]), redis.call('DUMP', KEYS[1])}";
    let asked = SystemClock.now();
    let answer = probe.command(&["EVAL", BOTH, "1", key]);
    let Value::List(both) = answer else {
        panic!("the server answered {answer:?}")
    };
    let [Value::Int(left), value] = &both[..] else {
        panic!("the server answered {both:?}")
    };
    let until = match u64::try_from(*left) {
        Ok(left) => asked + Duration::from_millis(left),
        // Without an end.
        Err(_) => Moment::NEVER,
    };
    (value.clone(), until)
}
