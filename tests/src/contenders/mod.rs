//! [`Contenders`]: processes whose threads constantly contend for one lock, and record in files
//! when they held it.
//!
//! Any suite can use them: whatever happens to the store meanwhile, the judge of
//! [`claims`](crate::claims) detects two holders at once.

pub mod kills;
pub mod leaders;
pub mod permits;
pub mod read_write;

use crate::child::{Child, Example, own_program};
use crate::claims::{Claim, Log};
use crate::time::let_pass;
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Error, LockGuard};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// The longest wait of one attempt, so that a thread notices in time that it should stop. Then its
/// next attempt begins.
const PATIENCE: Duration = Duration::from_secs(10);

/// The pause between two checks of a holder's guard, so that a claim ends at most this long before
/// the loss of the lock.
const LOOK: Duration = Duration::from_millis(1);

/// The text before the number of threads that release the lock at once.
const BRIEF: &str = "brief-";

/// The range of the time for which a holder keeps the lock, in milliseconds.
const STAY: Range<u64> = 5..40;

/// Contending processes. They run until [`Self::stop`], and are killed when this value is dropped.
pub struct Contenders {
    children: Vec<Child>,
    files: Vec<PathBuf>,
    /// The arguments of a process after its file.
    arguments: [String; 3],
    directory: TempDir,
}

impl Contenders {
    /// Starts so many processes with so many threads each, which all contend for this lock of this
    /// store.
    pub fn start(url: &str, lock: &str, processes: usize, threads: usize) -> Self {
        Self::start_as(&threads.to_string(), url, lock, processes)
    }

    /// Starts processes like [`start`](Self::start) whose threads release the lock at once.
    pub fn start_brief(url: &str, lock: &str, processes: usize, threads: usize) -> Self {
        Self::start_as(&format!("{BRIEF}{threads}"), url, lock, processes)
    }

    /// Starts the processes. `what` is their number of threads, or their [role](leaders::Role) in
    /// an election.
    fn start_as(what: &str, url: &str, lock: &str, processes: usize) -> Self {
        let arguments = [what, lock, url].map(str::to_owned);
        let directory = tempfile::tempdir().unwrap();
        let mut all = Self {
            children: Vec::new(),
            files: Vec::new(),
            arguments,
            directory,
        };
        (0..processes).for_each(|_| all.start_another());
        all
    }

    fn start_another(&mut self) {
        let file = self.directory.path().join(self.files.len().to_string());
        let name = file.display().to_string();
        let words = self.arguments.each_ref().map(String::as_str);
        let program = Example::program(own_program("contender"));
        self.children.push(program.arg(&name).args(&words).spawn());
        self.files.push(file);
    }

    /// Kills the first process, and starts another one instead.
    pub fn replace_first(&mut self) {
        self.children.remove(0).kill();
        self.start_another();
    }

    /// Returns one of the processes.
    pub fn child(&mut self, number: usize) -> &mut Child {
        &mut self.children[number]
    }

    /// Returns the claims of all processes so far.
    pub fn claims(&self) -> Vec<Claim> {
        self.files.iter().flat_map(|file| Log::read(file)).collect()
    }

    /// Ends all processes normally, and returns their claims.
    #[track_caller]
    pub fn stop(mut self) -> Vec<Claim> {
        self.children.iter_mut().for_each(Child::close_input);
        for child in &mut self.children {
            let code = child.wait_exit(PATIENCE * 2);
            let output = child.output();
            assert_eq!(code, 0, "{output}\n{}", child.errors());
            output
                .lines()
                .filter(|line| line.contains("times: "))
                .for_each(|it| println!("{it}"));
        }
        self.claims()
    }
}

/// Runs one of the processes until its standard input ends. Its arguments are
/// `FILE THREADS LOCK URL`, with a role in place of the number of threads for an election.
pub fn contend(arguments: &[String]) {
    if let [how, rest @ ..] = arguments
        && how == "read-write"
    {
        return read_write::contend(rest);
    }
    if let [how, after, name, url] = arguments
        && how == leaders::INTERRUPTED
    {
        return leaders::lead_until_interrupted(after, name, url);
    }
    let [file, threads, lock, url] = arguments else {
        panic!("{arguments:?}")
    };
    if let Some(role) = leaders::Role::of(threads) {
        return leaders::lead(Path::new(file), role, lock, url);
    }
    let (threads, stay) = match threads.strip_prefix(BRIEF) {
        Some(threads) => (threads, 0..1),
        None => (threads.as_str(), STAY),
    };
    let client = distlock::connect(url).unwrap();
    let semaphore = permits::named(&client, lock);
    let lock = client.mutex(lock).unwrap();
    let (log, ended) = (Log::create(Path::new(file)), AtomicBool::new(false));
    let troubles = parking_lot::Mutex::new(BTreeMap::<String, u32>::new());
    thread::scope(|scope| {
        for thread in 0..threads.parse().unwrap() {
            let (lock, log, ended, troubles) = (&lock, &log, &ended, &troubles);
            let stay = stay.clone();
            let semaphore = semaphore.as_ref();
            let holder = format!("{}.{thread}", std::process::id());
            scope.spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    let trouble = match semaphore {
                        Some(semaphore) => permits::visit(semaphore, &holder, log),
                        None => visit(lock, &holder, log, stay.clone())
                            .err()
                            .map(|error| kind(&error)),
                    };
                    if let Some(trouble) = trouble {
                        *troubles.lock().entry(trouble).or_default() += 1;
                    }
                }
            });
        }
        let _end = std::io::stdin().lines().count();
        ended.store(true, Ordering::SeqCst);
    });
    for (kind, count) in troubles.into_inner() {
        println!(
            "process {} met this {count} times: {kind}",
            std::process::id()
        );
    }
}

/// Acquires the lock, holds it for a moment, and releases it.
fn visit(
    lock: &distlock::Mutex,
    holder: &str,
    log: &Log,
    stay_for: Range<u64>,
) -> Result<(), Error> {
    let asked = SystemClock.now();
    let Some(guard) = lock.try_lock_for(PATIENCE)? else {
        return Ok(());
    };
    let until = SystemClock.now() + Duration::from_millis(fastrand::u64(stay_for));
    if let Some(claim) = stay(&guard, holder, asked, || SystemClock.now() >= until) {
        log.write(&claim);
    }
    guard.unlock()
}

/// Holds the lock while the guard is valid, until `enough` returns `true`. Returns the claim of the
/// time for which the guard was valid.
pub fn stay(
    guard: &LockGuard,
    holder: &str,
    asked: Moment,
    mut enough: impl FnMut() -> bool,
) -> Option<Claim> {
    let mut claimed = None;
    loop {
        // The clock is read first: a guard that is valid afterwards was valid at that time, too.
        let now = SystemClock.now();
        if !guard.is_valid() {
            break;
        }
        let (from, _) = claimed.unwrap_or((now, now));
        claimed = Some((from, now));
        if enough() {
            break;
        }
        let_pass(LOOK);
    }
    let (from, to) = claimed?;
    // Only a reader before the first writer has no token.
    let token = guard.fencing_token().map_or(0, |token| token.get());
    Some(Claim {
        lock: guard.name().to_string(),
        holder: holder.to_owned(),
        token,
        asked,
        from,
        to,
    })
}

/// Returns the kind of this error. Fails the test if a store with faults must not cause such an
/// error.
fn kind(error: &Error) -> String {
    let is_expected = error.is_unavailable() || error.is_insufficient_replicas() || error.is_lost();
    assert!(is_expected, "{error:?}");
    format!("{:?}", error.kind())
}
