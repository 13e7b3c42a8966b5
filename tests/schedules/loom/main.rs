//! Checks the signal on which every wait is built, in all interleavings, with loom.
//!
//! The copy of `lock-core/src/time/clock.rs`, with its mutant, is compiled into this program on top
//! of loom's locks. Loom knows no time: a wait with a deadline becomes one without, so a lost
//! wake-up that a time-out would hide is found as a deadlock. Only the signal is modelled: anything
//! larger has too many interleavings.

use std::process::ExitCode;
use std::sync::Arc;
use sync::model;

#[allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "a part of it is used here"
)]
mod clock {
    include!(concat!(env!("OUT_DIR"), "/lock-core/src/time/clock.rs"));
}
#[path = "../src/mutants.rs"]
#[allow(unreachable_pub, reason = "the library exports it")]
mod mutants;
mod sync;

use clock::{Clock, Moment, Signal, SystemClock, Woken};

/// A raise before, while or after the other thread goes to sleep wakes it.
fn raised_once() {
    model(|| {
        let signal = Arc::new(Signal::new());
        let raising = {
            let signal = Arc::clone(&signal);
            loom::thread::spawn(move || signal.raise())
        };
        assert_eq!(SystemClock.wait(&signal, Moment::NEVER), Woken::Signalled);
        raising.join().expect("no panic");
        assert!(!signal.take(), "it is taken once");
    });
}

/// Two raises end the wait, and leave the signal raised at most once more.
fn raised_twice() {
    model(|| {
        let signal = Arc::new(Signal::new());
        let raising = [(); 2].map(|()| {
            let signal = Arc::clone(&signal);
            loom::thread::spawn(move || signal.raise())
        });
        assert_eq!(SystemClock.wait(&signal, Moment::NEVER), Woken::Signalled);
        raising
            .into_iter()
            .for_each(|thread| thread.join().expect("no panic"));
        let _second = signal.take();
        assert!(!signal.take());
    });
}

/// Register, check again, then sleep: a flag that is set meanwhile always ends the wait.
fn flag_and_signal() {
    model(|| {
        let signal = Arc::new(Signal::new());
        let flag = Arc::new(loom::sync::atomic::AtomicBool::new(false));
        let firing = {
            let (signal, flag) = (Arc::clone(&signal), Arc::clone(&flag));
            loom::thread::spawn(move || {
                flag.store(true, loom::sync::atomic::Ordering::SeqCst);
                signal.raise();
            })
        };
        loop {
            // In this order: a raise that comes in between leaves the signal raised, which ends the
            // wait.
            signal.take();
            if flag.load(loom::sync::atomic::Ordering::SeqCst) {
                break;
            }
            SystemClock.wait(&signal, Moment::NEVER);
        }
        firing.join().expect("no panic");
    });
}

fn main() -> ExitCode {
    raised_once();
    raised_twice();
    flag_and_signal();
    ExitCode::SUCCESS
}
