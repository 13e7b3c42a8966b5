//! [`HeldKey`]: a key that one side holds, as the store reports it, and the earliest end of its
//! lease.

use crate::late::TURN;
use distlock::time::{Clock, Moment, SystemClock};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::time::{late, let_pass};
use lock_conformance::violated;
use std::thread;
use std::time::Duration;

/// The shortest lease that any program of these tests takes by default.
pub(crate) const SHORTEST: Duration = Duration::from_secs(1);

/// The pause between two checks while an attempt waits.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A key whose holder must not change. If the key disappears or changes, that is late if its lease
/// may be over, and a violation otherwise.
pub(crate) struct HeldKey {
    probe: Probe,
    key: String,
    value: Value,
    /// The key must exist until then, by the time to live that was last read.
    until: Moment,
}

impl HeldKey {
    /// Reads the key, which must exist.
    #[track_caller]
    pub(crate) fn of(probe: Probe, key: &str) -> Self {
        Self::find(probe, key).unwrap_or_else(|| late(SHORTEST, format!("{key}: no lock")))
    }

    /// Reads the key. `None` if it does not exist.
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

    /// Checks that the key has not changed, and reads its time to live again.
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

    /// Checks the key, and that the attempt is not granted.
    #[track_caller]
    pub(crate) fn must_refuse(&mut self, is_granted: impl FnOnce() -> bool) {
        self.look();
        if is_granted() {
            self.ended("the lock was granted");
        }
    }

    /// Checks the key for as long as the attempt waits, perhaps for longer than a lease, and that
    /// it is not granted.
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

    /// Fails because of `what`: with a violation if the lease cannot be over yet, and as late
    /// otherwise.
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

/// Returns what the holder of `key` wrote, and the first moment at which the key may expire.
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
        // A key without a time to live, or no key.
        Err(_) => Moment::NEVER,
    };
    (value.clone(), until)
}
