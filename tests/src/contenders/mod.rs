//! [`Contenders`]: processes whose threads contend for one lock all the time, and record in a file
//! when they held it.
//!
//! For any suite that has the harness: whatever happens to the store meanwhile, the judge of
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
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// How long one wait for the lock may take. Then the next one begins.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often a holder looks whether its guard is valid.
const LOOK: Duration = Duration::from_millis(1);

/// For how many milliseconds a holder stays.
const STAY: std::ops::Range<u64> = 5..40;

/// They run until they are stopped, and are killed when dropped.
pub struct Contenders {
    children: Vec<Child>,
    files: Vec<PathBuf>,
    /// What follows the file.
    arguments: [String; 3],
    directory: TempDir,
}

impl Contenders {
    /// So many processes of so many threads, which all want this lock of this store.
    pub fn start(url: &str, lock: &str, processes: usize, threads: usize) -> Self {
        Self::start_as(&threads.to_string(), url, lock, processes)
    }

    /// The same with what they are: a number of threads, or a [role](leaders::Role).
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

    /// Kills the first process, and starts another one.
    pub fn replace_first(&mut self) {
        self.children.remove(0).kill();
        self.start_another();
    }

    /// One of the processes.
    pub fn child(&mut self, number: usize) -> &mut Child {
        &mut self.children[number]
    }

    /// Their claims so far.
    pub fn claims(&self) -> Vec<Claim> {
        self.files.iter().flat_map(|file| Log::read(file)).collect()
    }

    /// Ends all of them in order, and returns their claims.
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

/// What the other processes run, until their input ends: `FILE THREADS LOCK URL`, or a role in
/// place of the threads.
pub fn contend(arguments: &[String]) {
    if let [how, rest @ ..] = arguments
        && how == "read-write"
    {
        return read_write::contend(rest);
    }
    let [file, threads, lock, url] = arguments else {
        panic!("{arguments:?}")
    };
    if let Some(role) = leaders::Role::of(threads) {
        return leaders::lead(Path::new(file), role, lock, url);
    }
    let client = distlock::connect(url).unwrap();
    let semaphore = permits::named(&client, lock);
    let lock = client.mutex(lock).unwrap();
    let (log, ended) = (Log::create(Path::new(file)), AtomicBool::new(false));
    let troubles = parking_lot::Mutex::new(BTreeMap::<String, u32>::new());
    thread::scope(|scope| {
        for thread in 0..threads.parse().unwrap() {
            let (lock, log, ended, troubles) = (&lock, &log, &ended, &troubles);
            let semaphore = semaphore.as_ref();
            let holder = format!("{}.{thread}", std::process::id());
            scope.spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    let trouble = match semaphore {
                        Some(semaphore) => permits::visit(semaphore, &holder, log),
                        None => visit(lock, &holder, log).err().map(|error| kind(&error)),
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

/// Takes the lock, stays for a moment, and gives it back.
fn visit(lock: &distlock::Mutex, holder: &str, log: &Log) -> Result<(), Error> {
    let asked = SystemClock.now();
    let Some(guard) = lock.try_lock_for(PATIENCE)? else {
        return Ok(());
    };
    let until = SystemClock.now() + Duration::from_millis(fastrand::u64(STAY));
    if let Some(claim) = stay(&guard, holder, asked, || SystemClock.now() >= until) {
        log.write(&claim);
    }
    guard.unlock()
}

/// Stays for as long as the guard is valid, until it is `enough`, and says from when to when it
/// was.
pub fn stay(
    guard: &LockGuard,
    holder: &str,
    asked: Moment,
    mut enough: impl FnMut() -> bool,
) -> Option<Claim> {
    let mut claimed = None;
    loop {
        // First the clock: a guard that is valid after it was valid then.
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
    // None only of a reader before the first writer.
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

/// What kind of trouble it is. Anything that a store in trouble may not lead to is a failure of the
/// test.
fn kind(error: &Error) -> String {
    let is_expected = error.is_unavailable() || error.is_insufficient_replicas() || error.is_lost();
    assert!(is_expected, "{error:?}");
    format!("{:?}", error.kind())
}
