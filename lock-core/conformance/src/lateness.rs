//! [`Late`]: a test that fails because something came too late, and the measurement that may excuse
//! it.
//!
//! A test of times runs once more only if it fails by [`Late`], and only if a thread of this
//! process, or a server that it uses, was ready to run meanwhile and got no processor: at one go
//! for longer than the excuse and than a twentieth of the bound that passed, or for half of that
//! bound in all. Any other panic is final, and so is a [`Violation`](super::Violation) on any
//! thread.

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

/// How often a test runs once more at most.
const RETRIES: usize = 2;

/// Beyond this a delay excuses a late test, if nothing else is said.
const EXCUSE: Duration = Duration::from_millis(20);

/// A delay shorter than this part of the bound that passed is no excuse: what needs a moment, and
/// was given seconds for it, is not late because of it.
const PART_OF_BOUND: u32 = 20;

/// One that was queued for this part of a bound, in many small pieces, may be late: a bound is at
/// least twice of what is needed.
const PART_QUEUED: u32 = 2;

/// How often the timekeeper wakes up, to see how late it is.
const BEAT: Duration = Duration::from_millis(5);

/// In how many beats the threads' accounts are read once.
const BEATS_PER_ACCOUNT: u32 = 20;

/// The file to which each excuse is appended, one a line.
const EXCUSES: &str = "DISTLOCK_TEST_EXCUSES";

/// The panic of a test whose bound passed. Raised by [`late`] only; a wrong answer is an ordinary
/// panic.
#[derive(Clone, Debug)]
pub struct Late {
    what: String,
    /// How long there was time. The excuse must be a part of it.
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

    /// Whether what was measured is the reason.
    fn is_excused(&self, measured: &Measured, excuse: Duration) -> bool {
        measured.delays.longest() > excuse.max(self.bound / PART_OF_BOUND)
            || self.queued(measured) > excuse.max(self.bound / PART_QUEUED)
    }

    /// For how long in all a thread or a server was queued while the bound passed.
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

/// Fails the test because `bound` passed: `what` says what did not happen until then.
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

/// Runs a test, and up to twice more if it fails by [`Late`] while a thread or a watched process
/// was kept from a processor for more than 20 ms, and for more than a twentieth of the bound.
///
/// # Panics
///
/// As the test does.
pub fn retry_if_late<T>(test: impl FnMut() -> T) -> T {
    retry_if_late_beyond(EXCUSE, test)
}

/// The same where only a longer delay than `excuse` excuses a late test.
///
/// # Panics
///
/// As the test does.
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
            // Of several threads that panic, one panic is passed on: perhaps not the decisive one.
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

/// How late this machine was over a span of time.
#[derive(Clone, Copy, Default, Debug)]
#[non_exhaustive]
pub struct Lateness {
    /// For how long at one go a thread of this process, or a watched process, got no processor.
    pub longest: Duration,
    /// For how long in all the thread that was measured got none.
    pub queued: Duration,
}

/// How late this machine was while `work` ran.
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

/// From now on the delays of this process count, too: a server that tests wait for.
pub fn watch_process(pid: u32) {
    let mut keeper = KEEPER.lock();
    keeper.processes.push(pid);
    // What it waited for before is not counted.
    keeper.read_accounts();
}

/// The delays of this process do not count any more.
pub fn forget_process(pid: u32) {
    KEEPER.lock().processes.retain(|other| *other != pid);
}

/// What was measured over a span of time: the longest of each kind.
#[derive(Clone, Copy, Default)]
struct Delays {
    /// How late a thread was woken that only keeps time.
    wake_up: Duration,
    /// How long a thread of ours was queued for a processor, between two looks at its account.
    queued: Duration,
    /// The same of a watched process.
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

/// By how much each that was queued grew, from one look to the next.
struct Look {
    since: Moment,
    at: Moment,
    queued: Vec<(Account, Duration)>,
}

impl Look {
    /// How much of the time between these moments it covers.
    fn overlap(&self, from: Moment, to: Moment) -> Duration {
        self.at.min(to).since(self.since.max(from))
    }
}

/// What was measured over a span of time.
#[derive(Default)]
struct Measured {
    delays: Delays,
    looks: Vec<Arc<Look>>,
}

impl Measured {
    /// For how long each was queued in all between these moments.
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

    /// The same of the one that was queued for longest.
    fn most_queued(&self, from: Moment, to: Moment) -> Duration {
        self.queued(from, to)
            .into_values()
            .max()
            .unwrap_or_default()
    }
}

/// Keeps time for all spans that are open.
static KEEPER: LazyLock<Mutex<Timekeeper>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Timekeeper {
    /// The spans that are open, by number: when each began, and what was measured in it.
    spans: HashMap<u64, (Moment, Delays)>,
    next: u64,
    /// Whose delays count besides our own.
    processes: Vec<u32>,
    /// How long each has been queued, by the last look.
    accounts: HashMap<Account, Duration>,
    /// When that was.
    looked: Option<Moment>,
    /// The looks since the oldest span began.
    looks: VecDeque<Arc<Look>>,
    /// When the thread wants to be awake next. `None` if there is none.
    due: Option<Moment>,
    /// Ends the thread's sleep.
    signal: Arc<Signal>,
}

/// Whose queueing the kernel counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Account {
    Thread(u32),
    Process(u32),
}

/// What was measured while `work` ran.
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
        // Until it runs, it is late.
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
    /// Sees how late the thread is, or was until now.
    fn read_clock(&mut self) {
        let now = SystemClock.now();
        let wake_up = self.due.map(|due| now.since(due)).unwrap_or_default();
        self.add(Delays {
            wake_up,
            ..Delays::default()
        });
    }

    /// Sees for how long each was queued since the last look. One that is new since then was queued
    /// in this time.
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

    /// Those from before the oldest span.
    fn forget_looks(&mut self) {
        let oldest = self.spans.values().map(|(began, _)| *began).min();
        let is_old = |look: &Arc<Look>| oldest.is_none_or(|oldest| look.at <= oldest);
        self.looks.retain(|look| !is_old(look));
    }

    /// A thread that ends cuts the kernel's list of threads short: the caller's, and those that are
    /// known, are read as well.
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
        // <process>/task/<thread>
        let own = fs::read_link("/proc/thread-self").ok()?;
        own.file_name()?.to_str()?.parse().ok().map(Self::Thread)
    }

    /// How long it was ready to run and got no processor, in all its life. `None` where that is not
    /// counted.
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

/// Counts an excuse: a test was late, and may be. An excuse is never silent.
pub fn note_excuse(excuse: impl fmt::Display) {
    let line = format!("{}: {excuse}", thread::current().name().unwrap_or("a test"));
    // One line for each, or the suite counts it several times.
    let line = line.replace('\n', " ");
    eprintln!("{line}");
    // Its own tests are late on purpose.
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

    /// Keeps the timekeeper from waking up.
    fn delay() {
        let keeper = KEEPER.lock();
        let _due = SystemClock.wait(&Arc::default(), SystemClock.now() + BEAT * 20);
        drop(keeper);
    }

    /// A violation that one test raises on purpose takes the excuses of the others.
    static TURN: Mutex<()> = Mutex::new(());

    #[test]
    fn violation_beside_late_thread_is_not_retried() {
        let _turn = TURN.lock();
        // As in `never_two_inside`: the thread that is joined first is late, a later one is wrong.
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

    /// Ten seconds in which a thread was queued for this part of each tenth of a second.
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
        // No single piece is a twentieth of the bound.
        let (starved, busy) = (ten_seconds(ms(90)), ten_seconds(ms(30)));
        let late = after(ms(10_000), 10);
        assert_eq!(late.queued(&starved), ms(9_000));
        assert!(late.is_excused(&starved, EXCUSE));
        assert!(!late.is_excused(&busy, EXCUSE));
        // What was before the bound began to pass, or came afterwards, is no excuse.
        assert_eq!(after(ms(4_000), 12).queued(&starved), ms(1_800));
        assert!(!after(ms(4_000), 12).is_excused(&starved, EXCUSE));
        // Pieces that are shorter than the excuse, however short the bound is.
        assert!(!after(ms(10), 10).is_excused(&starved, ms(300)));
    }

    /// Threads that end cut the kernel's list short: of those behind them in it nothing is read.
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
            // Each sleep ends in the queue, for a moment at least.
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
