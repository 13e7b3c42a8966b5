//! [`ReadersAndWriters`]: processes whose threads constantly acquire one lock for reading or
//! writing, and record in files when they held it.

use super::{PATIENCE, STAY, stay};
use crate::child::{Child, Example, own_program};
use crate::claims::{Claim, Log};
use distlock::time::{Clock, SystemClock};
use distlock::{DistLock, Error, LockGuard};
use lock_conformance::violated;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Processes of readers and writers. They run until [`Self::stop`], and are killed when this value
/// is dropped.
pub struct ReadersAndWriters {
    pub children: Vec<Child>,
    directory: TempDir,
}

/// The claims of all readers and writers.
#[derive(Default)]
pub struct Account {
    pub reads: Vec<Claim>,
    pub writes: Vec<Claim>,
}

impl ReadersAndWriters {
    /// Starts so many processes, each with so many reading and writing threads.
    pub fn start(url: &str, processes: usize, readers: usize, writers: usize) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let spawn = |process: usize| {
            let file = directory
                .path()
                .join(process.to_string())
                .display()
                .to_string();
            let counts = [readers, writers].map(|count| count.to_string());
            Example::program(own_program("contender"))
                .args(&["read-write", &file, &counts[0], &counts[1], url])
                .spawn()
        };
        Self {
            children: (0..processes).map(spawn).collect(),
            directory,
        }
    }

    /// Returns the claims of all processes so far, including the processes that were killed.
    pub fn account(&self) -> Account {
        let mut account = Account::default();
        for entry in std::fs::read_dir(self.directory.path()).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let claims = Log::read(&path);
            match path.extension().is_some_and(|end| end == "writes") {
                true => account.writes.extend(claims),
                false => account.reads.extend(claims),
            }
        }
        account
    }

    /// Ends the running processes normally, and judges the claims of all processes.
    #[track_caller]
    pub fn stop(mut self) -> Account {
        for child in &mut self.children {
            if child.is_running() {
                child.close_input();
                let code = child.wait_exit(PATIENCE * 2);
                assert_eq!(code, 0, "{}\n{}", child.output(), child.errors());
            }
        }
        let account = self.account();
        account.judge();
        account
    }
}

impl Account {
    /// Fails unless every writer was alone and the writers' tokens grew.
    #[track_caller]
    pub fn judge(&self) {
        let mut writes: Vec<_> = self.writes.iter().collect();
        writes.sort_unstable_by_key(|claim| claim.from);
        for pair in writes.windows(2) {
            if pair[1].from < pair[0].to {
                violated(format_args!(
                    "two writers at once: {} and {}",
                    pair[0], pair[1]
                ));
            }
            if pair[1].token <= pair[0].token {
                violated(format_args!(
                    "tokens do not grow: {} then {}",
                    pair[0], pair[1]
                ));
            }
        }
        for read in &self.reads {
            let behind = writes.partition_point(|write| write.from < read.to);
            // Writers do not overlap, so it is enough to compare the read with the last write that
            // began before its end.
            if let Some(write) = writes[..behind].last().filter(|write| read.from < write.to) {
                violated(format_args!("a reader beside a writer: {read} and {write}"));
            }
        }
    }
}

/// Runs one of the processes until its standard input ends. Its arguments are
/// `FILE READERS WRITERS URL`.
pub(super) fn contend(arguments: &[String]) {
    let [file, readers, writers, url] = arguments else {
        panic!("{arguments:?}")
    };
    let lock = distlock::connect(url).unwrap().rw_lock("x").unwrap();
    let log = |end: &str| Log::create(Path::new(&format!("{file}.{end}")));
    let (reads, writes, ended) = (log("reads"), log("writes"), AtomicBool::new(false));
    thread::scope(|scope| {
        let (readers, writers): (usize, usize) =
            (readers.parse().unwrap(), writers.parse().unwrap());
        for thread in 0..readers + writers {
            let holder = format!("{}.{thread}", std::process::id());
            let (lock, reads, writes, ended) = (&lock, &reads, &writes, &ended);
            scope.spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    let asked = SystemClock.now();
                    let outcome = if thread < readers {
                        visit(lock.read(), &holder, asked, reads)
                    } else {
                        visit(lock.write(), &holder, asked, writes)
                    };
                    if let Err(error) = outcome {
                        super::kind(&error);
                    }
                }
            });
        }
        let _end = std::io::stdin().lines().count();
        ended.store(true, Ordering::SeqCst);
    });
}

fn visit(
    lock: &dyn DistLock,
    holder: &str,
    asked: distlock::time::Moment,
    log: &Log,
) -> Result<(), Error> {
    let Some(guard): Option<LockGuard> = lock.try_lock_for(PATIENCE)? else {
        return Ok(());
    };
    let until = SystemClock.now() + Duration::from_millis(fastrand::u64(STAY));
    if let Some(claim) = stay(&guard, holder, asked, || SystemClock.now() >= until) {
        log.write(&claim);
    }
    guard.unlock()
}
