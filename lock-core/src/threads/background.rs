//! [`BackgroundTask`] and [`run_in_background`]: threads for work outside the callers' threads.

use crate::panics::contain;
use crate::sync::{Mutex, thread};
use crate::time::{Clock, Moment, Signal};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The name of the threads. Linux cuts it off after 15 characters.
const NAME: &str = "distlock-task";
/// The pause after a turn that panicked, because a task that always panics must not spin.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs `task` on a new thread, which ends when the task returns. Catches a panic of the task.
///
/// # Errors
///
/// If the system has no more threads.
pub fn run_in_background(task: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        contain(task);
    };
    thread::Builder::new()
        .name(NAME.to_owned())
        .spawn(run)
        .map(drop)
}

/// A repeated task that has a thread while there is work for it.
///
/// Each turn does the work that is due, and returns the time of the next turn. Dropping this handle
/// does not end the task.
#[derive(Clone, Debug, Default)]
pub struct BackgroundTask(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    signal: Arc<Signal>,
}

#[derive(Debug, Default)]
struct State {
    is_running: bool,
    /// True if `start` was called after the latest turn began. That turn may have missed the new
    /// work.
    is_wanted: bool,
}

impl BackgroundTask {
    /// Starts the thread, unless it runs: then `turn` is not used. The caller must add the work
    /// before this call. Does not [wake](Self::wake) a sleeping thread.
    ///
    /// `turn` returns the time until which the thread sleeps, or `None` to end the thread. After
    /// `None`, the thread begins another turn if `start` was called since that turn began. After a
    /// turn that panicked, the thread sleeps for 50 ms, unless it is woken.
    ///
    /// # Errors
    ///
    /// If the system has no more threads.
    pub fn start(
        &self,
        clock: &Arc<dyn Clock>,
        turn: impl FnMut() -> Option<Moment> + Send + 'static,
    ) -> io::Result<()> {
        let mut state = self.0.state.lock();
        if !state.is_running {
            let (shared, clock) = (Arc::clone(&self.0), Arc::clone(clock));
            run_in_background(move || shared.run(clock.as_ref(), turn))?;
            state.is_running = true;
        }
        state.is_wanted = true;
        Ok(())
    }

    /// Ends the sleep of the thread, or prevents the sleep after the present turn.
    pub fn wake(&self) {
        self.0.signal.raise();
    }

    /// Returns whether the task was started and has not ended.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.0.state.lock().is_running
    }
}

impl Shared {
    fn run(&self, clock: &dyn Clock, mut turn: impl FnMut() -> Option<Moment>) {
        loop {
            // This turn finds all work that was added before this point.
            self.signal.take();
            self.state.lock().is_wanted = false;
            let next = contain(&mut turn).unwrap_or_else(|| Some(clock.now() + PAUSE));
            if let Some(until) = next {
                clock.wait(&self.signal, until);
                continue;
            }
            let mut state = self.state.lock();
            if !state.is_wanted {
                state.is_running = false;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::SystemClock;
    use std::sync::mpsc::{Receiver, channel};

    const LONG: Duration = Duration::from_secs(60);

    type Turn = Box<dyn FnOnce() -> Option<Moment> + Send>;

    /// Starts a task of these turns. Each turn sends its number, counted from 0, before it runs.
    fn start(turns: Vec<Turn>) -> (BackgroundTask, Receiver<usize>) {
        let (task, (tell, told)) = (BackgroundTask::default(), channel());
        let mut turns = turns.into_iter().enumerate();
        let turn = move || {
            let (number, turn) = turns.next().expect("one more turn");
            tell.send(number).unwrap();
            turn()
        };
        task.start(&clock(), turn).unwrap();
        (task, told)
    }

    fn clock() -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    #[test]
    fn panicking_turn_is_followed_by_the_next() {
        let (_, told) = start(vec![Box::new(|| panic!("on purpose")), Box::new(|| None)]);
        assert_eq!(told.iter().collect::<Vec<_>>(), [0, 1]);
    }

    #[test]
    fn sleeping_task_is_woken_and_ends() {
        let (task, told) = start(vec![Box::new(|| Some(Moment::NEVER)), Box::new(|| None)]);
        assert_eq!(told.recv_timeout(LONG), Ok(0));
        assert!(task.is_running());
        task.wake();
        assert_eq!(told.recv_timeout(LONG), Ok(1));
        assert!(
            told.recv_timeout(LONG).is_err(),
            "the thread has dropped the sender"
        );
        assert!(!task.is_running());
    }

    #[test]
    fn start_during_the_last_turn_is_followed_by_one_more() {
        let (pass, passed) = channel::<BackgroundTask>();
        let last: Turn = Box::new(move || {
            let task = passed.recv().unwrap();
            task.start(&clock(), || unreachable!("the task runs"))
                .unwrap();
            None
        });
        let (task, told) = start(vec![last, Box::new(|| None)]);
        pass.send(task.clone()).unwrap();
        assert_eq!(told.iter().collect::<Vec<_>>(), [0, 1]);
        assert!(!task.is_running());
    }
}
