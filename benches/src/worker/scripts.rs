//! A workload that measures what an acquire and a release cost the server. Many of them are sent in
//! a pipeline, so that the sockets cost little, and the server's processor time is read before and
//! after.

use super::{Task, lean, redisson, serve};
use crate::learn::{Requests, load, load_joined};
use crate::raw::{Raw, Reply, request};
use crate::server::Counters;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// The number of names, which are locked in turn.
const NAMES: usize = 1000;
/// The number of acquires in one pipeline, each with its release. A request may be for several
/// locks.
const DEPTH: usize = 50;

pub(super) fn run(task: &Task) {
    let mut raw = Raw::connect(task.port);
    let (cycles, cleanup) = cycles(task, &mut raw);
    if let Some(count) = task.cycles {
        // The last request may be for fewer locks.
        let whole = &cycles[..cycles.len() - 1];
        let some = whole.iter().cycle().take(count as usize);
        return some.for_each(|one| {
            raw.call(&one.acquire);
            assert!(is_freed(&raw.call(&one.release)), "it was ours");
        });
    }
    serve(|time| turn(&mut raw, &cycles, &cleanup, time));
}

/// Returns the requests for each name, and one that removes the keys that these requests leave
/// behind. The latter is not measured.
fn cycles(task: &Task, raw: &mut Raw) -> (Vec<Requests>, Vec<u8>) {
    match task.who.as_str() {
        "redisson" => return redisson(raw),
        "lean" => return (lean(raw), Vec::new()),
        _ => {}
    }
    let cleanup = match task.who.as_str() {
        // Without the keys that a release leaves behind, the next acquire of a name is like its
        // first.
        "ours-first" => request(&["FLUSHALL"]),
        _ => Vec::new(),
    };
    let mut pair = task.learn();
    if let Some(count) = task.who.strip_prefix("ours-joined-") {
        let count = count.parse().expect("how many are joined");
        let hashes = load_joined(raw);
        let locks: Vec<_> = (0..NAMES).map(|index| (name(index), index)).collect();
        return (
            locks
                .chunks(count)
                .map(|some| pair.joined(&hashes, some))
                .collect(),
            cleanup,
        );
    }
    if let Some(directory) = task.who.strip_prefix("dir:") {
        let script = |name: &str| {
            let path = format!("{directory}/{name}.lua");
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
        };
        pair = pair.with_scripts(["acquire", "release"].map(|name| load(raw, &script(name))));
    }
    (
        (0..NAMES)
            .map(|index| pair.requests(&name(index), index))
            .collect(),
        cleanup,
    )
}

/// Returns a name that no other column uses.
fn name(index: usize) -> String {
    format!("script:{:07}:{index:06}", std::process::id())
}

fn owner(index: usize) -> String {
    format!("0c2f6b0e-57a4-4a3c-9d4e-2f1f6f4f7a11:{index}")
}

fn lean(raw: &mut Raw) -> Vec<Requests> {
    let [lock, unlock] = [lean::LOCK, lean::UNLOCK].map(|text| load(raw, text));
    let requests = |index| {
        let (key, owner) = (name(index), owner(index));
        let channel = format!("redisson_lock__channel:{{{key}}}");
        Requests {
            acquire: request(&["EVALSHA", &lock, "1", &key, "30000", &owner]),
            release: request(&["EVALSHA", &unlock, "1", &key, &owner, &channel]),
        }
    };
    (0..NAMES).map(requests).collect()
}

fn redisson(raw: &mut Raw) -> (Vec<Requests>, Vec<u8>) {
    let [lock, unlock] = [redisson::LOCK, redisson::UNLOCK].map(|text| load(raw, text));
    let mut cleanup = vec!["DEL".to_owned()];
    let cycles = (0..NAMES)
        .map(|index| {
            let key = name(index);
            let owner = owner(index);
            let channel = format!("redisson_lock__channel:{{{key}}}");
            let latch = format!("redisson_unlock_latch:{{{key}}}:{index:032x}");
            cleanup.push(latch.clone());
            Requests {
                acquire: request(&["EVALSHA", &lock, "1", &key, "30000", &owner]),
                release: request(&[
                    "EVALSHA", &unlock, "3", &key, &channel, &latch, "0", "30000", &owner,
                    "PUBLISH", "16000",
                ]),
            }
        })
        .collect();
    (cycles, request(&cleanup))
}

fn is_freed(reply: &Reply) -> bool {
    match reply {
        Reply::List(answers) => answers.iter().all(is_freed),
        reply => matches!(reply, Reply::Int(1..)),
    }
}

fn turn(raw: &mut Raw, cycles: &[Requests], cleanup: &[u8], time: Duration) -> Value {
    let bytes = |one: &Requests| [one.acquire.as_slice(), &one.release].concat();
    let pipelines: Vec<(usize, Vec<u8>)> = cycles
        .chunks(DEPTH)
        .map(|some| (some.len(), some.iter().flat_map(bytes).collect()))
        .collect();
    let (start, mut done, mut cpu, mut script) = (Instant::now(), 0, 0.0, 0.0);
    while start.elapsed() < time {
        let before = Counters::of(raw);
        for (count, pipeline) in &pipelines {
            raw.send(pipeline);
            for answer in 0..2 * count {
                let reply = raw.read().expect("an answer");
                assert!(answer % 2 == 0 || is_freed(&reply), "not freed: {reply:?}");
            }
        }
        let after = Counters::of(raw);
        (cpu, script) = (
            cpu + after.cpu - before.cpu,
            script + after.script_us - before.script_us,
        );
        done += NAMES;
        // Redisson's latches, and in `ours-first` the keys that a release leaves behind, must be
        // removed before a name is locked again.
        if !cleanup.is_empty() {
            raw.call(cleanup);
        }
    }
    let each = |sum: f64| sum / done as f64;
    json!({
        "cycles": done, "seconds": start.elapsed().as_secs_f64(),
        "server_us": each(cpu * 1e6), "script_us": each(script),
    })
}
