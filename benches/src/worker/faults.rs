//! A workload of processes with one thread each, which want one lock until they are killed. Each
//! entry and exit is written at once to a file that all processes share, because a killed process
//! cannot write a log at its end.

use super::{Task, nanos, serve_and_look};
use distlock::Error;
use rustix::fs::{FlockOperation, flock};
use serde_json::json;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// The shared file of events.
pub(crate) const EVENTS: &str = "events";

/// An event of a process: its time in nanoseconds, its kind, and the token of the grant.
pub(crate) type Event = [u64; 3];

/// The kind of an entry while no other process was inside.
pub(crate) const ENTERED: u64 = 0;
/// The kind of an entry while another process was inside.
pub(crate) const ENTERED_WITH_ANOTHER: u64 = 1;
pub(crate) const LEFT: u64 = 2;
/// The kind of a failure of `lock` or `unlock`.
pub(crate) const FAILED: u64 = 3;

pub(super) fn run(task: &Task) {
    let directory = task.shared.as_deref().expect("a directory is named");
    let (events, inside) = (open(directory, EVENTS), open(directory, "inside"));
    let note = |what: u64, token: u64| {
        let event: Event = [nanos(), what, token];
        let bytes: Vec<u8> = event.iter().flat_map(|it| it.to_le_bytes()).collect();
        // In one write at the end of the file, so that events of two processes do not mix.
        (&events).write_all(&bytes).expect("there is room");
    };
    let client = task.client();
    let lock = client.mutex(task.lock()).expect("a name");
    let visit = || -> Result<(), Error> {
        let guard = lock.lock()?;
        let token = guard.fencing_token().map_or(0, |token| token.get());
        // The system releases this file lock when the process is killed.
        let alone = flock(&inside, FlockOperation::NonBlockingLockExclusive).is_ok();
        let what = if alone { ENTERED } else { ENTERED_WITH_ANOTHER };
        note(what, token);
        task.pause_inside();
        note(LEFT, token);
        if alone {
            flock(&inside, FlockOperation::Unlock).expect("it is ours");
        }
        guard.unlock()
    };
    serve_and_look(
        |time| {
            let start = Instant::now();
            while start.elapsed() < time {
                if let Err(error) = visit() {
                    eprintln!("{error}");
                    note(FAILED, 0);
                }
            }
            json!({})
        },
        || json!({ "client": client.id().to_string() }),
    );
}

fn open(directory: &Path, name: &str) -> File {
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(directory.join(name));
    file.expect("a directory of ours")
}

/// Returns the events of all processes, in the order of their times.
pub(crate) fn events(directory: &Path) -> Vec<Event> {
    let bytes = std::fs::read(directory.join(EVENTS)).expect("each process opens it");
    let number = |chunk: &[u8]| u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
    let event = |chunk: &[u8]| [0, 8, 16].map(|at| number(&chunk[at..at + 8]));
    let mut events: Vec<Event> = bytes.chunks_exact(24).map(event).collect();
    events.sort_unstable();
    events
}
