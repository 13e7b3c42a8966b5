//! [`Threads`]: waits until every other thread of this process sleeps, as the kernel reports.

use lock_core::{Clock, Moment, SystemClock};
use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::linux::fs::MetadataExt;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::Duration;

const TASKS: &str = "/proc/self/task";

/// The pause between two checks of a running thread, after a few checks without a pause, so that
/// the checks take little time from the thread.
const PAUSE: Duration = Duration::from_micros(50);

/// The time for which a thread may run without a sleep before its name is printed, because it may
/// never sleep.
const SUSPICIOUS: Duration = Duration::from_secs(60);

/// The longest wait for a moment at which all threads sleep. After this time the wait panics,
/// because one of the threads never sleeps.
const STUCK: Duration = Duration::from_secs(300);

/// The number of checks in one wait that find more or fewer threads than are known, at which the
/// wait panics. A few such checks are usual, because threads start and end.
const MOST_MISCOUNTS: u32 = 100_000;

/// True if the kernel counts how often threads run. The calling thread has run, so its count is not
/// zero then.
static HAS_SCHEDSTAT: LazyLock<bool> = LazyLock::new(|| {
    let ours = fs::read_to_string("/proc/thread-self/schedstat");
    ours.is_ok_and(|ours| third_number(&ours) > Some(0))
});

/// The threads of this process, without the thread that checks them.
///
/// Each thread is checked twice. The first check reads how often the thread has run, and then that
/// it is off its processor. The second check reads that the thread sleeps, and then that it has not
/// run again. So the thread slept from the first check to the second. Between the two rounds of
/// checks, the threads are counted, and none is unknown: at that moment all threads slept, and only
/// a timer or another process can wake one.
pub(super) struct Threads {
    own: u32,
    /// The longest time that one wait may take.
    bound: Duration,
    known: Vec<Thread>,
}

struct Thread {
    id: u32,
    runs_in: RunCount,
    /// The file with the system call in which the thread sleeps, or `running`. `None` if the kernel
    /// has no such file, or does not let this process read it.
    syscall: Option<File>,
    /// The file with the state of the thread.
    stat: File,
    runs: u64,
}

/// The file that says how often a thread has run.
enum RunCount {
    /// Three numbers: the time on a processor, the time in the queue for a processor, and how often
    /// the thread got one.
    Schedstat(File),
    /// For a kernel without the numbers of `Schedstat`: the last two lines say how often the thread
    /// left a processor, by itself and by force.
    Status(File),
}

impl Threads {
    pub(super) fn of_this_process() -> Self {
        allow_many_files();
        let own = u32::try_from(rustix::thread::gettid().as_raw_nonzero().get());
        let own = own.expect("a thread's number is positive");
        Self {
            own,
            bound: stuck(),
            known: Vec::new(),
        }
    }

    /// Returns right after a moment at which all other threads slept.
    ///
    /// # Panics
    ///
    /// If there is no such moment for minutes, by the machine's clock; if the number of threads
    /// that the kernel reports stays wrong, or the kernel does not report on a thread.
    pub(super) fn wait_until_all_sleep(&mut self) {
        let (mut miscounts, by) = (0, SystemClock.now() + self.bound);
        loop {
            self.known
                .retain_mut(|thread| thread.wait_until_off_processor(by));
            if !self.are_all() {
                miscounts += 1;
                assert!(
                    miscounts < MOST_MISCOUNTS,
                    "{TASKS} does not count the threads"
                );
                self.find_new();
            } else if let Some(at) = self.known.iter().position(|thread| !thread.slept_since()) {
                // Checked first in the next round, because this thread most likely still runs, and
                // the round then waits for it.
                self.known.rotate_left(at);
            } else {
                return;
            }
        }
    }

    /// Returns whether every thread is known. The next check of a known thread shows whether it has
    /// ended.
    fn are_all(&self) -> bool {
        let links = fs::metadata(TASKS)
            .expect("the threads can be counted")
            .st_nlink();
        // The links of the directory itself, of its parent, and of this thread.
        usize::try_from(links).is_ok_and(|links| links == self.known.len() + 3)
    }

    fn find_new(&mut self) {
        let known: HashSet<_> = self
            .known
            .iter()
            .map(|it| it.id)
            .chain([self.own])
            .collect();
        let tasks = fs::read_dir(TASKS).expect("the threads can be listed");
        let numbers = tasks.filter_map(|task| task.ok()?.file_name().to_str()?.parse().ok());
        for id in numbers.filter(|id| !known.contains(id)) {
            match Thread::open(id) {
                Ok(thread) => self.known.push(thread),
                Err(error) if is_gone(&error) => {}
                Err(error) => panic!("cannot look at thread {id}: {error}"),
            }
        }
    }
}

impl Thread {
    fn open(id: u32) -> io::Result<Self> {
        let file = |name| File::open(format!("{TASKS}/{id}/{name}"));
        let runs_in = match *HAS_SCHEDSTAT {
            true => RunCount::Schedstat(file("schedstat")?),
            false => RunCount::Status(file("status")?),
        };
        Ok(Self {
            id,
            runs_in,
            syscall: file("syscall").ok(),
            stat: file("stat")?,
            runs: 0,
        })
    }

    /// Waits until the thread is off its processor, and records how often it has run. Returns
    /// `false` if the thread has ended.
    fn wait_until_off_processor(&mut self, by: Moment) -> bool {
        let (start, mut looks) = (SystemClock.now(), 0);
        loop {
            match self.is_off_processor() {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) if is_gone(&error) => return false,
                Err(error) => panic!("cannot look at thread {}: {error}", self.id),
            }
            looks += 1;
            assert!(SystemClock.now() < by, "{} never sleeps", self.name());
            if looks < 3 {
                thread::yield_now();
                continue;
            }
            pause(PAUSE);
            if looks % 100_000 == 0 && SystemClock.now().since(start) > SUSPICIOUS {
                eprintln!("no virtual time passes: {} does not sleep", self.name());
            }
        }
    }

    fn name(&self) -> String {
        let name = fs::read_to_string(format!("{TASKS}/{}/comm", self.id)).unwrap_or_default();
        format!("thread {} ({})", self.id, name.trim_end())
    }

    /// Makes the first check: records how often the thread has run, and returns whether it is off
    /// its processor.
    fn is_off_processor(&mut self) -> io::Result<bool> {
        self.runs = self.count_runs()?;
        let Some(syscall) = &self.syscall else {
            return self.sleeps();
        };
        // A thread that is about to sleep is in the state of a sleeper and still runs: the state is
        // not enough.
        match read(syscall, |text| !text.starts_with("running")) {
            Err(error) if !is_gone(&error) => {
                // This process may not read the file. Without it, a thread that is about to sleep
                // may be taken for a sleeper.
                self.syscall = None;
                self.sleeps()
            }
            is_off => is_off,
        }
    }

    /// Makes the second check: returns whether the thread sleeps, and has not run since the first
    /// check. Returns `false` also if the thread has ended.
    fn slept_since(&self) -> bool {
        let is_asleep = self.sleeps().unwrap_or(false);
        is_asleep && self.count_runs().is_ok_and(|runs| runs == self.runs)
    }

    fn sleeps(&self) -> io::Result<bool> {
        // `number (name) state ...`, and the name may be anything.
        read(&self.stat, |text| {
            text.rsplit(") ")
                .next()
                .is_some_and(|rest| rest.starts_with('S'))
        })
    }

    fn count_runs(&self) -> io::Result<u64> {
        let runs = match &self.runs_in {
            RunCount::Schedstat(file) => read(file, third_number)?,
            RunCount::Status(file) => read(file, |text| {
                let switches = text.lines().filter(|line| line.contains("ctxt_switches:"));
                switches
                    .map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
                    .sum()
            })?,
        };
        runs.ok_or_else(|| io::Error::other("it does not say how often it ran"))
    }
}

/// Returns [`STUCK`]; one second in the process in which a test lets a thread never sleep.
fn stuck() -> Duration {
    let is_tested = cfg!(test) && std::env::var_os(IS_STUCK).is_some();
    if is_tested {
        Duration::from_secs(1)
    } else {
        STUCK
    }
}

/// The environment variable that is set in a process in which one thread never sleeps, on purpose.
pub(super) const IS_STUCK: &str = "VIRTUAL_TIME_IS_STUCK";

/// Sleeps for this time by the machine's clock.
pub(super) fn pause(time: Duration) {
    let _due = SystemClock.wait(&Arc::default(), SystemClock.now() + time);
}

fn third_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(2)?.parse().ok()
}

fn read<T>(file: &File, parse: impl FnOnce(&str) -> T) -> io::Result<T> {
    let mut buffer = [0; 4096];
    let length = file.read_at(&mut buffer, 0)?;
    // Only the name of a thread may not be UTF-8, and no caller reads the name.
    Ok(parse(&String::from_utf8_lossy(&buffer[..length])))
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Raises the limit of open files, because three files for each thread exceed the initial limit of
/// some systems.
fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let highest = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _as_it_was = setrlimit(Resource::Nofile, highest);
}
