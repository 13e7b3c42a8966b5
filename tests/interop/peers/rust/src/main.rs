//! The crates `rslock` (kind=rslock) and `rlock` (kind=rlock), as peers: see ../../README.md.
//! Options: lease=MS, for locks that are taken with lease 0 (rslock has no default; rlock's is 10
//! s, and it renews such a lock); watchdog=MS, which rlock uses instead of lease; retry=MS, the
//! pause between two attempts (rslock: a random part of 200 ms; rlock: 100 ms).

// The library's rule against real clocks does not apply: this program never runs on virtual time.
#![allow(clippy::disallowed_methods)]

mod kinds;

use kinds::{Failed, Library};
use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant, SystemTime};

/// The state of one thread.
struct Worker {
    library: Box<dyn Library>,
    client: redis::Connection,
    label: String,
}

fn microseconds() -> u128 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("after 1970").as_micros()
}

fn lease(word: &str) -> Result<Option<Duration>, Failed> {
    let millis: u64 = word.parse()?;
    Ok((millis > 0).then(|| Duration::from_millis(millis)))
}

fn millis(word: &str) -> Result<Duration, Failed> {
    Ok(Duration::from_millis(word.parse()?))
}

impl Worker {
    fn answer(&mut self, verb: &str, words: &[&str]) -> Result<String, Failed> {
        match (verb, words) {
            ("lock", [name, time]) => {
                self.library.lock(name, lease(time)?)?;
                Ok(microseconds().to_string())
            }
            ("try", [name, wait, time]) => {
                let held = self.library.try_lock(name, millis(wait)?, lease(time)?)?;
                Ok(format!("{} {}", if held { "held" } else { "busy" }, microseconds()))
            }
            ("unlock", [name]) => self.library.unlock(name).map(|()| String::new()),
            ("extend", [name, time]) => {
                self.library.extend(name, millis(time)?).map(|()| String::new())
            }
            ("state", [name]) => self.library.state(name),
            ("count", [name, key, times, pause, time]) => {
                let times: u64 = times.parse()?;
                self.cycles([name, key, pause, time], |done| done < times)
            }
            ("contend", [name, key, time, pause, lease]) => {
                let (start, time) = (Instant::now(), millis(time)?);
                self.cycles([name, key, pause, lease], |_| start.elapsed() < time)
            }
            _ => Err(Failed::Unsupported),
        }
    }

    fn cycles(
        &mut self,
        [name, key, pause, time]: [&str; 4],
        more: impl Fn(u64) -> bool,
    ) -> Result<String, Failed> {
        let (time, pause) = (lease(time)?, Duration::from_micros(pause.parse()?));
        let mut done = 0;
        while more(done) {
            self.library.lock(name, time)?;
            // Two commands, so that only the lock makes the sum exact.
            let value: Option<u64> = redis::cmd("GET").arg(key).query(&mut self.client)?;
            let value = value.unwrap_or(0) + 1;
            redis::cmd("SET").arg(key).arg(value).exec(&mut self.client)?;
            let by = format!("{key}:by");
            redis::cmd("RPUSH").arg(by).arg(&self.label).exec(&mut self.client)?;
            self.library.unlock(name)?;
            done += 1;
            std::thread::sleep(pause);
        }
        Ok(done.to_string())
    }
}

fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    // An error means that the test has ended: there is no reader any more.
    let _ = writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush());
}

fn start(thread: &str, mut worker: Worker) -> Sender<String> {
    let (sender, lines) = channel::<String>();
    let thread = thread.to_owned();
    std::thread::spawn(move || {
        for line in lines {
            let words: Vec<_> = line.split_whitespace().collect();
            match worker.answer(words[1], &words[2..]) {
                Ok(words) => say(&format!("{thread} ok {words}")),
                Err(failed) => say(&format!("{thread} error {failed}")),
            }
        }
    });
    sender
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("peer URL key=value...");
    let options: HashMap<_, _> =
        arguments.filter_map(|word| Some(own(word.split_once('=')?))).collect();
    // `url` may name several servers, for rslock over independent ones. What `count` adds up is on
    // the first.
    let first = url.split(',').next().expect("a text has a first part");
    let client = redis::Client::open(first).expect("a URL of Redis");
    let kind = kinds::of(&url, options).map(Arc::new).expect("the server is there");
    let label = kind.label.clone();
    say(&format!("ready {}", kind.version()));
    let mut threads: HashMap<String, Sender<String>> = HashMap::new();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Some(thread) = line.split_whitespace().next() else { continue };
        let sender = threads.entry(thread.to_owned()).or_insert_with(|| {
            let client = client.get_connection().expect("the server is there");
            let library = kind.for_thread();
            start(thread, Worker { library, client, label: label.clone() })
        });
        // Fails if that thread has panicked, which it has reported on stderr.
        let _ = sender.send(line);
    }
    // Exits at once, and releases no lock.
    std::process::exit(0);
}

fn own((name, value): (&str, &str)) -> (String, String) {
    (name.to_owned(), value.to_owned())
}
