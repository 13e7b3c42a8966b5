//! The workers of one process: here the lock is used.

use crate::Arguments;
use crate::counter::{self, cannot};
use crate::report::{Report, Sale};
use crate::shared::{Trouble, exit};
use crossbeam_channel::{Sender, unbounded};
use distlock::{Client, Event, Interrupt, Mutex};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The time that must be left of the lease before a number is written: more than a write takes,
/// because a write after the end of the lease could meet another worker's.
const A_WRITE: Duration = Duration::from_millis(10);

/// The data that the threads of a process share.
struct Shop<'a> {
    /// The lock; `None` to work without one.
    lock: Option<Mutex>,
    counter: &'a Path,
    stop: &'a Interrupt,
    /// Jobs that no thread has taken yet.
    left: AtomicUsize,
}

/// Returns a client that prints on standard error why a store grants no lock yet, as a new quorum
/// does for some time.
fn connect(url: &str) -> Result<Client, distlock::Error> {
    let is_told = AtomicBool::new(false);
    let tell = move |event: &Event| {
        if let Event::Paused { left, why, .. } = event
            && !is_told.swap(true, Ordering::Relaxed)
        {
            eprintln!("waiting for {left:.0?}: {why}");
        }
    };
    distlock::builder()
        .url(url)?
        .events(Arc::new(tell))
        .connect()
}

/// Runs all threads of this process until the jobs are done, and hands every report to `count`, on
/// this thread.
pub(crate) fn run_all(
    arguments: &Arguments,
    counter: &Path,
    stop: &Interrupt,
    mut count: impl FnMut(Report),
) -> Result<(), Trouble> {
    let lock = match arguments.without_lock {
        false => Some(connect(&arguments.url)?.mutex(&arguments.name)?),
        true => None,
    };
    let shop = Shop {
        lock,
        counter,
        stop,
        left: AtomicUsize::new(arguments.jobs),
    };
    let (reports, told) = unbounded();
    thread::scope(|scope| {
        for _ in 0..arguments.workers {
            let (shop, reports) = (&shop, reports.clone());
            scope.spawn(move || {
                if let Err(trouble) = shop.work(&reports) {
                    // The other workers would fail in the same way: the first failure stops them.
                    shop.stop.fire();
                    tell(&reports, Report::Failed(trouble));
                }
            });
        }
        drop(reports); // so that the loop ends with the last worker
        for report in told {
            count(report);
        }
    });
    Ok(())
}

impl Shop<'_> {
    /// The loop of one worker thread.
    fn work(&self, reports: &Sender<Report>) -> Result<(), Trouble> {
        while self.take_job() {
            let result = match &self.lock {
                Some(lock) => self.sell_under(lock, reports),
                None => self.sell_without(reports),
            };
            if let Stopped::Interrupted = result? {
                tell(reports, Report::Interrupted);
                return Ok(());
            }
        }
        Ok(())
    }

    /// Does one job under the lock.
    fn sell_under(&self, lock: &Mutex, reports: &Sender<Report>) -> Result<Stopped, Trouble> {
        let guard = match lock.lock_interruptibly(self.stop) {
            Err(error) if error.is_interrupted() => return Ok(Stopped::Interrupted),
            guard => guard?,
        };
        let token = guard.fencing_token().map(|token| token.get());
        // Checked right before the write: after a pause longer than the lease another worker may
        // be selling this number.
        let report = self.sell(token, || Ok(guard.ensure(A_WRITE)?))?;
        tell(reports, report);
        // Reports a loss of the lock, which dropping the guard would not.
        match guard.unlock() {
            // The release was not answered. The sale is valid, and the release is repeated in the
            // background.
            Err(error) if error.is_unavailable() => {}
            released => released?,
        }
        Ok(Stopped::No)
    }

    /// Does one job without the lock, so that a number may be sold twice.
    fn sell_without(&self, reports: &Sender<Report>) -> Result<Stopped, Trouble> {
        if self.stop.is_fired() {
            return Ok(Stopped::Interrupted);
        }
        let report = self.sell(None, || Ok(()))?;
        tell(reports, report);
        Ok(Stopped::No)
    }

    /// Reads the number, yields the processor, and writes the number plus one.
    fn sell(
        &self,
        token: Option<u64>,
        may_write: impl FnOnce() -> Result<(), Trouble>,
    ) -> Result<Report, Trouble> {
        let failed = |what| {
            let path = self.counter.display();
            move |error| cannot(&format!("{what} the counter {path}"), &error)
        };
        let Some(last) = counter::read(self.counter).map_err(failed("read"))? else {
            return Ok(Report::Unreadable);
        };
        thread::yield_now();
        may_write()?;
        let number = last.checked_add(1).ok_or_else(|| {
            let path = self.counter.display();
            Trouble::new(
                exit::CONFIGURATION,
                format_args!("the counter {path} is at its end: begin a new one"),
            )
        })?;
        counter::write(self.counter, number).map_err(failed("write"))?;
        Ok(Report::Sold(Sale { number, token }))
    }

    fn take_job(&self) -> bool {
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        taken.is_ok()
    }
}

/// Whether a worker stops.
enum Stopped {
    No,
    Interrupted,
}

fn tell(reports: &Sender<Report>, report: Report) {
    reports
        .send(report)
        .expect("the receiver outlives the workers");
}
