//! [`Threads`]: whether every other thread of this process sleeps, as the kernel says.

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

/// How long the next look at a thread that runs is put off, after a few looks without a pause.
const PAUSE: Duration = Duration::from_micros(50);

/// How long a thread may run without a sleep before its name is printed.
const SUSPICIOUS: Duration = Duration::from_secs(60);

/// How long threads may go on without a moment at which all of them sleep: one of them never will.
const STUCK: Duration = Duration::from_secs(300);

/// In how many looks in a row the threads may be more or fewer than were found: some start and end.
const MOST_MISCOUNTS: u32 = 100_000;

/// Whether the kernel counts how often threads run: ours has run, so its number is not zero.
static HAS_SCHEDSTAT: LazyLock<bool> = LazyLock::new(|| {
    let ours = fs::read_to_string("/proc/thread-self/schedstat");
    ours.is_ok_and(|ours| third_number(&ours) > Some(0))
});

/// The threads of this process, without the one that looks.
///
/// Each is looked at twice. First: how often it ran, then that it is off its processor. Later: that
/// it sleeps, then that it ran no more often. So it slept from the one look to the other. Between
/// the two rounds the threads are counted, and none is unknown: at that moment all of them slept,
/// and only a timer or another process can wake one.
pub(super) struct Threads {
    own: u32,
    /// How long a look may take.
    bound: Duration,
    known: Vec<Thread>,
}

struct Thread {
    id: u32,
    runs_in: RunCount,
    /// The system call that it sleeps in, or `running`. Not on every kernel.
    syscall: Option<File>,
    /// Its state.
    stat: File,
    runs: u64,
}

/// Where it stands how often a thread ran.
enum RunCount {
    /// Time on a processor, time in the queue for one, and how often it got one.
    Schedstat(File),
    /// Where the kernel keeps no such account: how often it was taken from one, in the last two
    /// lines.
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

    /// Returns right after a moment at which all threads slept.
    ///
    /// # Panics
    ///
    /// If there is none for minutes, by the machine's clock.
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
                // It is the one that most likely runs next time: look at it first, and wait there.
                self.known.rotate_left(at);
            } else {
                return;
            }
        }
    }

    /// Whether there is no thread but those that are known. (If one had ended, its next look would
    /// tell.)
    fn are_all(&self) -> bool {
        let links = fs::metadata(TASKS)
            .expect("the threads can be counted")
            .st_nlink();
        // The directory, its parent, and this thread.
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

    /// Waits until it is off its processor, and remembers how often it ran. `false` if it has
    /// ended.
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

    /// The first look.
    fn is_off_processor(&mut self) -> io::Result<bool> {
        self.runs = self.count_runs()?;
        let Some(syscall) = &self.syscall else {
            return self.sleeps();
        };
        // A thread that is about to sleep is in the state of a sleeper and still runs: the state is
        // not enough.
        match read(syscall, |text| !text.starts_with("running")) {
            Err(error) if !is_gone(&error) => {
                // Not for us: a thread that is not quite asleep yet may be taken for a sleeper.
                self.syscall = None;
                self.sleeps()
            }
            is_off => is_off,
        }
    }

    /// The second look. `false` also if it has ended.
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

/// [`STUCK`]; a second in the process that a test of it starts.
fn stuck() -> Duration {
    let is_tested = cfg!(test) && std::env::var_os(IS_STUCK).is_some();
    if is_tested {
        Duration::from_secs(1)
    } else {
        STUCK
    }
}

/// Set in a process in which one thread never sleeps, on purpose.
pub(super) const IS_STUCK: &str = "VIRTUAL_TIME_IS_STUCK";

/// Sleeps for so long by the machine's clock.
pub(super) fn pause(time: Duration) {
    let _due = SystemClock.wait(&Arc::default(), SystemClock.now() + time);
}

fn third_number(text: &str) -> Option<u64> {
    text.split_ascii_whitespace().nth(2)?.parse().ok()
}

fn read<T>(file: &File, parse: impl FnOnce(&str) -> T) -> io::Result<T> {
    let mut buffer = [0; 4096];
    let length = file.read_at(&mut buffer, 0)?;
    // Only a thread's name may be anything, and that is not what is asked for.
    Ok(parse(&String::from_utf8_lossy(&buffer[..length])))
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

/// Three files for each thread are more than some systems allow to begin with.
fn allow_many_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let highest = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _as_it_was = setrlimit(Resource::Nofile, highest);
}
