//! [`Late`]: the failure of a test because its bound passed, and the measurement that may excuse
//! the failure.
//!
//! A timing test that fails by [`Late`] runs again, at most twice, if a thread of this process or a
//! watched server was delayed: it was ready to run and got no processor. Either one delay was
//! longer than the excuse (20 ms by default) and longer than a twentieth of the bound, or the
//! delays of one thread or server while the bound passed were together longer than the excuse and
//! longer than half of the bound. Any other panic is final, and so is
//! a [`Violation`](super::Violation) on any thread.

use super::violation;
use lock_core::{Clock, Moment, Signal, SystemClock, Woken};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, panic_any, resume_unwind};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

/// The most repetitions of a late test.
const RETRIES: usize = 2;

/// The default excuse: only a longer delay excuses a late test.
const EXCUSE: Duration = Duration::from_millis(20);

/// A single delay is an excuse only if it is longer than the bound divided by this number, because
/// a short delay does not use up a long bound.
const PART_OF_BOUND: u32 = 20;

/// Many short delays are an excuse only if their sum is longer than the bound divided by this
/// number, because a bound is at least twice the time that a test needs.
const PART_QUEUED: u32 = 2;

/// The interval at which the timekeeper thread wakes up, and measures the delay of the wake-up.
/// Shorter than [`EXCUSE`], so that a halt of the machine that can be an excuse delays a wake-up.
const BEAT: Duration = Duration::from_millis(5);

/// The number of wake-ups after which the timekeeper thread reads the [accounts](Account) of all
/// threads and watched processes.
const BEATS_PER_ACCOUNT: u32 = 20;

/// The environment variable that names the file to which each excuse is appended as one line.
const EXCUSES: &str = "LOCK_TEST_EXCUSES";

/// The panic of a test whose bound passed. Raised by [`late`], and for a case that does not end
/// within its bound. A wrong answer raises another panic.
#[derive(Clone, Debug)]
pub struct Late {
    what: String,
    /// The time that the test allowed. A delay is an excuse only if it is a large enough part of
    /// this time.
    bound: Duration,
    raised: Moment,
    at: &'static Location<'static>,
}

impl Late {
    #[track_caller]
    pub(super) fn after(bound: Duration, what: impl Into<String>) -> Self {
        let (raised, at) = (SystemClock.now(), Location::caller());
        Self {
            what: what.into(),
            bound,
            raised,
            at,
        }
    }

    /// Returns whether the measured delays excuse this failure.
    fn is_excused(&self, measured: &Measured, excuse: Duration) -> bool {
        measured.delays.longest() > excuse.max(self.bound / PART_OF_BOUND)
            || self.queued(measured) > excuse.max(self.bound / PART_QUEUED)
    }

    /// Returns the longest total time for which one thread or server was queued while the bound
    /// passed.
    fn queued(&self, measured: &Measured) -> Duration {
        let bound = u64::try_from(self.bound.as_nanos()).unwrap_or(u64::MAX);
        let began = Moment::from_nanos(self.raised.as_nanos().saturating_sub(bound));
        measured.most_queued(began, self.raised)
    }
}

impl fmt::Display for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "too late, at {}: {}", self.at, self.what)
    }
}

/// Fails the test because `bound` passed. `what` describes the event that did not happen in time.
///
/// # Panics
///
/// Always, with [`Late`].
#[track_caller]
pub fn late(bound: Duration, what: impl Into<String>) -> ! {
    let late = Late::after(bound, what);
    if !violation::is_quiet() {
        // The panic hook cannot print such a payload.
        eprintln!("{late}");
    }
    panic_any(late)
}

/// Runs a test, and up to twice more if it fails by [`Late`] and the machine was late: either one
/// delay was longer than 20 ms and longer than a twentieth of the bound, or the delays of one
/// thread or server while the bound passed were together longer than 20 ms and longer than half of
/// the bound. A test in which a [`Violation`](super::Violation) was raised does not run again.
///
/// # Panics
///
/// If the test panics and does not run again.
pub fn retry_if_late<T>(test: impl FnMut() -> T) -> T {
    retry_if_late_beyond(EXCUSE, test)
}

/// Runs a test as [`retry_if_late`] does, with `excuse` in place of 20 ms.
///
/// # Panics
///
/// If the test panics and does not run again.
pub fn retry_if_late_beyond<T>(excuse: Duration, mut test: impl FnMut() -> T) -> T {
    for _ in 0..RETRIES {
        let violations = violation::count();
        let (outcome, measured) = measured(|| catch_unwind(AssertUnwindSafe(&mut test)));
        let panic = match outcome {
            Ok(result) => return result,
            Err(panic) => panic,
        };
        let Some(late) = panic.downcast_ref::<Late>() else {
            resume_unwind(panic)
        };
        if violation::count() > violations {
            // If several threads panic, only one panic is passed on, and that may not be the
            // violation.
            eprintln!("{late}; not excused: a violation was seen meanwhile");
            resume_unwind(panic);
        }
        let delays = format!("{}, {:.1?} in all", measured.delays, late.queued(&measured));
        if !late.is_excused(&measured, excuse) {
            eprintln!("{late}; not excused: {delays}");
            resume_unwind(panic);
        }
        note_excuse(format_args!("{late}; excused: {delays}"));
    }
    test()
}

/// The delays of a span of time.
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct Lateness {
    /// The longest delay: a thread of this process, or a watched process, was ready to run for this
    /// time and got no processor.
    pub longest: Duration,
    /// The total time for which the thread that called [`with_lateness`] was ready to run and got
    /// no processor.
    pub queued: Duration,
}

/// Runs `work`, and returns its result and the delays while it ran.
pub fn with_lateness<T>(work: impl FnOnce() -> T) -> (T, Lateness) {
    let (result, measured) = measured(work);
    let (longest, own) = (measured.delays.longest(), Account::of_this_thread());
    let queued = own.and_then(|own| {
        measured
            .queued(Moment::from_nanos(0), Moment::NEVER)
            .remove(&own)
    });
    (
        result,
        Lateness {
            longest,
            queued: queued.unwrap_or_default(),
        },
    )
}

/// Measures from now on the delays of the process `pid`, too, such as a server that tests wait for.
/// Only the delays of its main thread are measured.
pub fn watch_process(pid: u32) {
    let mut keeper = KEEPER.lock();
    keeper.processes.push(pid);
    // Earlier delays of the process are not counted.
    keeper.read_accounts();
}

/// Stops measuring the delays of the process `pid`.
pub fn forget_process(pid: u32) {
    KEEPER.lock().processes.retain(|other| *other != pid);
}

/// The longest delay of each type in a span of time.
#[derive(Clone, Copy, Default)]
struct Delays {
    /// The delay of the timekeeper's wake-up.
    wake_up: Duration,
    /// The time for which a thread of this process was queued for a processor, between two readings
    /// of its account.
    queued: Duration,
    /// The time for which a watched process was queued for a processor, between two readings of its
    /// account.
    server: Duration,
}

impl Delays {
    fn longest(&self) -> Duration {
        self.wake_up.max(self.queued).max(self.server)
    }

    fn add(&mut self, other: Self) {
        self.wake_up = self.wake_up.max(other.wake_up);
        self.queued = self.queued.max(other.queued);
        self.server = self.server.max(other.server);
    }
}

impl fmt::Display for Delays {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            wake_up,
            queued,
            server,
        } = self;
        write!(
            f,
            "a wake-up was {wake_up:.1?} late, a thread queued {queued:.1?}, a server {server:.1?}"
        )
    }
}

/// One reading of the accounts: the time for which each thread or process was queued since the
/// reading before.
struct Look {
    since: Moment,
    at: Moment,
    queued: Vec<(Account, Duration)>,
}

impl Look {
    /// Returns how much of the time between these moments this reading covers.
    fn overlap(&self, from: Moment, to: Moment) -> Duration {
        self.at.min(to).since(self.since.max(from))
    }
}

/// The measurements of a span of time.
#[derive(Default)]
struct Measured {
    delays: Delays,
    looks: Vec<Arc<Look>>,
}

impl Measured {
    /// Returns the total time for which each thread or process was queued between these moments.
    fn queued(&self, from: Moment, to: Moment) -> HashMap<Account, Duration> {
        let mut sums = HashMap::new();
        for look in &self.looks {
            let overlap = look.overlap(from, to);
            for (account, queued) in &look.queued {
                *sums.entry(*account).or_default() += overlap.min(*queued);
            }
        }
        sums
    }

    /// Returns the total time of the thread or process that was queued for longest between these
    /// moments.
    fn most_queued(&self, from: Moment, to: Moment) -> Duration {
        self.queued(from, to)
            .into_values()
            .max()
            .unwrap_or_default()
    }
}

/// The timekeeper of all open spans.
static KEEPER: LazyLock<Mutex<Timekeeper>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Timekeeper {
    /// The spans that are open, by number, each with its start and the longest delays since then.
    spans: HashMap<u64, (Moment, Delays)>,
    next: u64,
    /// The watched processes, whose delays count in addition to those of this process.
    processes: Vec<u32>,
    /// The queued time of each thread and process at the last reading.
    accounts: HashMap<Account, Duration>,
    /// The time of the last reading.
    looked: Option<Moment>,
    /// The readings since the oldest open span began.
    looks: VecDeque<Arc<Look>>,
    /// The time of the timekeeper thread's next wake-up. `None` while there is no such thread.
    due: Option<Moment>,
    /// Ends the thread's sleep.
    signal: Arc<Signal>,
}

/// A thread or process whose time in the queue for a processor the kernel counts. For a process,
/// the kernel counts only its main thread.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Account {
    Thread(u32),
    Process(u32),
}

/// Runs `work`, and returns its result and the measurements while it ran.
fn measured<T>(work: impl FnOnce() -> T) -> (T, Measured) {
    let span = open();
    let result = work();
    (result, close(span))
}

fn open() -> u64 {
    let mut keeper = KEEPER.lock();
    keeper.read_accounts();
    keeper.next += 1;
    let span = keeper.next;
    keeper
        .spans
        .insert(span, (SystemClock.now(), Delays::default()));
    if keeper.due.is_none() {
        // The time until the thread runs counts as a delay.
        keeper.due = Some(SystemClock.now());
        let spawned = thread::Builder::new()
            .name("timekeeper".to_owned())
            .spawn(keep_time);
        spawned.expect("a thread can be started");
    }
    span
}

fn close(span: u64) -> Measured {
    let mut keeper = KEEPER.lock();
    keeper.read_clock();
    keeper.read_accounts();
    let Some((began, delays)) = keeper.spans.remove(&span) else {
        return Measured::default();
    };
    let looks = keeper
        .looks
        .iter()
        .filter(|look| look.at > began)
        .cloned()
        .collect();
    keeper.forget_looks();
    if keeper.spans.is_empty() {
        keeper.signal.raise();
    }
    Measured { delays, looks }
}

/// Wakes up again and again, until no span is open.
fn keep_time() {
    let mut beats = 0;
    loop {
        let mut keeper = KEEPER.lock();
        keeper.read_clock();
        if keeper.spans.is_empty() {
            keeper.due = None;
            return;
        }
        beats += 1;
        if beats % BEATS_PER_ACCOUNT == 0 {
            keeper.read_accounts();
        }
        let due = SystemClock.now() + BEAT;
        keeper.due = Some(due);
        let signal = Arc::clone(&keeper.signal);
        drop(keeper);
        let _woken: Woken = SystemClock.wait(&signal, due);
    }
}

impl Timekeeper {
    /// Records for how long the timekeeper thread's wake-up has been due.
    fn read_clock(&mut self) {
        let now = SystemClock.now();
        let wake_up = self.due.map(|due| now.since(due)).unwrap_or_default();
        self.add(Delays {
            wake_up,
            ..Delays::default()
        });
    }

    /// Records the time for which each thread or process was queued since the last reading. A
    /// thread that is new in this reading was started since the last one, so all its queued time
    /// counts. A process that is new in this reading may have been started earlier, so none of its
    /// queued time counts. Queued time before the first reading does not count, either.
    fn read_accounts(&mut self) {
        let is_first = self.accounts.is_empty();
        let (accounts, at) = (self.all_accounts(), SystemClock.now());
        let mut look = Look {
            since: self.looked.unwrap_or(at),
            at,
            queued: Vec::new(),
        };
        for (account, queued) in &accounts {
            let before = match account {
                _ if is_first => *queued,
                Account::Thread(_) => self.accounts.get(account).copied().unwrap_or_default(),
                Account::Process(_) => self.accounts.get(account).copied().unwrap_or(*queued),
            };
            let since = queued.saturating_sub(before);
            if !since.is_zero() {
                look.queued.push((*account, since));
            }
            self.add(match account {
                Account::Thread(_) => Delays {
                    queued: since,
                    ..Delays::default()
                },
                Account::Process(_) => Delays {
                    server: since,
                    ..Delays::default()
                },
            });
        }
        (self.accounts, self.looked) = (accounts, Some(at));
        self.looks.push_back(Arc::new(look));
    }

    /// Removes the readings from before the oldest open span.
    fn forget_looks(&mut self) {
        let oldest = self.spans.values().map(|(began, _)| *began).min();
        let is_old = |look: &Arc<Look>| oldest.is_none_or(|oldest| look.at <= oldest);
        self.looks.retain(|look| !is_old(look));
    }

    /// Returns the queued time of each thread and process. If a thread ends meanwhile, the kernel
    /// cuts its list of threads short, so the calling thread and the known threads are read as
    /// well.
    fn all_accounts(&self) -> HashMap<Account, Duration> {
        let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
        let thread = |entry: std::io::Result<fs::DirEntry>| {
            let number = entry.ok()?.file_name().to_str()?.parse().ok()?;
            Some(Account::Thread(number))
        };
        let is_thread = |account: &Account| matches!(account, Account::Thread(_));
        let known = self.accounts.keys().copied().filter(is_thread);
        let processes = self.processes.iter().map(|pid| Account::Process(*pid));
        let all = threads
            .filter_map(thread)
            .chain(known)
            .chain(Account::of_this_thread());
        let all: HashSet<_> = all.chain(processes).collect();
        all.into_iter()
            .filter_map(|account| Some((account, account.queued()?)))
            .collect()
    }

    fn add(&mut self, delays: Delays) {
        self.spans
            .values_mut()
            .for_each(|(_, span)| span.add(delays));
    }
}

impl Account {
    fn of_this_thread() -> Option<Self> {
        // The target of the link is `<process>/task/<thread>`.
        let own = fs::read_link("/proc/thread-self").ok()?;
        own.file_name()?.to_str()?.parse().ok().map(Self::Thread)
    }

    /// Returns the total time for which this thread or process was ready to run and got no
    /// processor. Returns `None` if the kernel does not count this time, or the thread or process
    /// has ended.
    fn queued(self) -> Option<Duration> {
        let account = match self {
            Self::Thread(number) => format!("/proc/self/task/{number}/schedstat"),
            Self::Process(pid) => format!("/proc/{pid}/schedstat"),
        };
        let text = fs::read_to_string(account).ok()?;
        let nanos = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(Duration::from_nanos(nanos))
    }
}

/// Reports that a late test is excused: prints a line, and appends it to the file that
/// `LOCK_TEST_EXCUSES` names, if it is set.
pub fn note_excuse(excuse: impl fmt::Display) {
    let line = format!("{}: {excuse}", thread::current().name().unwrap_or("a test"));
    // The suite counts lines, so each excuse is one line.
    let line = line.replace('\n', " ");
    eprintln!("{line}");
    // The tests of this crate are late on purpose, so their excuses are not counted.
    let Some(path) = std::env::var_os(EXCUSES).filter(|_| !cfg!(test)) else {
        return;
    };
    let opened = OpenOptions::new()
        .append(true)
        .create(true)
        .open(Path::new(&path));
    let written = opened.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|error| panic!("cannot write to {path:?}: {error}"));
}

#[cfg(test)]
mod tests {
    use super::super::violated;
    use super::*;
    use std::hint::black_box;
    use std::sync::mpsc;

    fn runs(excuse: Duration, fail: impl Fn()) -> (usize, bool) {
        let mut runs = 0;
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            retry_if_late_beyond(excuse, || {
                runs += 1;
                fail();
            });
        }));
        (runs, outcome.is_ok())
    }

    /// Delays the timekeeper's next wake-up.
    fn delay() {
        let keeper = KEEPER.lock();
        let _due = SystemClock.wait(&Arc::default(), SystemClock.now() + BEAT * 20);
        drop(keeper);
    }

    /// Locked by each test that expects excuses: while a test raises a violation on purpose, no
    /// other test is excused.
    static TURN: Mutex<()> = Mutex::new(());

    #[test]
    fn violation_beside_late_thread_is_not_retried() {
        let _turn = TURN.lock();
        // As in `never_two_inside`: the thread that is joined first is late, and the next thread
        // raises a violation.
        let one_is_late_and_one_wrong = || {
            delay();
            thread::scope(|scope| {
                let quiet = |work: fn()| {
                    let named = thread::Builder::new().name(violation::QUIET.to_owned());
                    named
                        .spawn_scoped(scope, work)
                        .expect("a thread can be started")
                };
                let threads = [
                    quiet(|| late(BEAT, "on purpose")),
                    quiet(|| violated("on purpose")),
                ];
                for thread in threads {
                    thread.join().unwrap_or_else(|panic| resume_unwind(panic));
                }
            });
        };
        let outcome = catch_unwind(one_is_late_and_one_wrong);
        assert!(
            outcome.unwrap_err().is::<Late>(),
            "the violation's own panic is lost"
        );
        assert_eq!(runs(BEAT, one_is_late_and_one_wrong), (1, false));
    }

    #[test]
    fn late_test_runs_again_only_after_a_delay() {
        let _turn = TURN.lock();
        let is_late = || {
            delay();
            late(BEAT, "on purpose");
        };
        let is_late_after = |bound: Duration| {
            delay();
            late(bound, "on purpose");
        };
        let is_wrong = || {
            delay();
            resume_unwind(Box::new("on purpose"));
        };
        assert_eq!(runs(BEAT, || ()), (1, true));
        assert_eq!(runs(Duration::MAX, is_late), (1, false));
        assert_eq!(runs(BEAT, is_wrong), (1, false));
        assert_eq!(runs(BEAT, is_late), (1 + RETRIES, false));
        assert_eq!(
            runs(BEAT, || is_late_after(BEAT * 20)),
            (1 + RETRIES, false)
        );
        assert_eq!(
            runs(BEAT, || is_late_after(Duration::from_secs(3600))),
            (1, false)
        );
    }

    /// Returns the measurements of ten seconds. A thread was queued for this time in each tenth of
    /// a second.
    fn ten_seconds(queued: Duration) -> Measured {
        let at = |tenths: u64| Moment::from_nanos(tenths * 100_000_000);
        let look = |tenth| {
            let queued = vec![(Account::Thread(7), queued)];
            Arc::new(Look {
                since: at(tenth),
                at: at(tenth + 1),
                queued,
            })
        };
        let delays = Delays {
            queued,
            ..Delays::default()
        };
        Measured {
            delays,
            looks: (0..100).map(look).collect(),
        }
    }

    #[test]
    fn queueing_is_summed_over_the_bound() {
        let ms = Duration::from_millis;
        let after = |bound, raised: u64| {
            let raised = Moment::from_nanos(raised * 1_000_000_000);
            Late {
                raised,
                ..Late::after(bound, "on purpose")
            }
        };
        // No single delay is as long as a twentieth of the bound.
        let (starved, busy) = (ten_seconds(ms(90)), ten_seconds(ms(30)));
        let late = after(ms(10_000), 10);
        assert_eq!(late.queued(&starved), ms(9_000));
        assert!(late.is_excused(&starved, EXCUSE));
        assert!(!late.is_excused(&busy, EXCUSE));
        // Delays from before the bound began to pass are no excuse.
        assert_eq!(after(ms(4_000), 12).queued(&starved), ms(1_800));
        assert!(!after(ms(4_000), 12).is_excused(&starved, EXCUSE));
        // Delays that are shorter than the excuse do not excuse a late test, however short the
        // bound is.
        assert!(!after(ms(10), 10).is_excused(&starved, ms(300)));
    }

    /// Threads that end cut the kernel's list short: the threads behind them in the list are not
    /// read.
    #[test]
    fn known_thread_is_read_while_older_ones_end() {
        for _ in 0..500 {
            let spin = |turns| move || (0..turns * 2_000).map(black_box).for_each(drop);
            let older: Vec<_> = (1..=16).map(|turns| thread::spawn(spin(turns))).collect();
            let ((tell, told), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
            let known = thread::spawn(move || {
                tell.send(Account::of_this_thread()).unwrap();
                ended.recv().unwrap_err()
            });
            let Some(account) = told.recv().unwrap().filter(|it| it.queued().is_some()) else {
                return;
            };
            let accounts = HashMap::from([(account, Duration::ZERO)]);
            let keeper = Timekeeper {
                accounts,
                ..Timekeeper::default()
            };
            assert!((0..30).all(|_| keeper.all_accounts().contains_key(&account)));
            drop(end);
            older.into_iter().for_each(|thread| thread.join().unwrap());
            known.join().unwrap();
        }
    }

    #[test]
    fn queueing_of_the_measured_thread_is_summed() {
        let queued = |account: Account| account.queued().unwrap_or_default();
        let own = Account::of_this_thread().filter(|own| own.queued().is_some());
        let Some(own) = own else { return };
        let before = queued(own);
        let ((), lateness) = with_lateness(|| {
            // After each sleep, the thread is queued for a processor, if only for a moment.
            (0..200).for_each(|_| {
                SystemClock.wait(
                    &Arc::default(),
                    SystemClock.now() + Duration::from_millis(1),
                );
            });
        });
        assert!(lateness.queued > Duration::ZERO);
        assert!(lateness.queued <= queued(own) - before, "{lateness:?}");
    }

    #[test]
    fn delay_of_timekeeper_is_measured() {
        let ((), lateness) = with_lateness(delay);
        assert!(lateness.longest > BEAT * 10, "{lateness:?}");
    }
}
