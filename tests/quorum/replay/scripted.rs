//! The scripts, on a server whose clock is moved.

use super::{LOCK, Real};
use distlock::{Clock, SystemClock};
use distlock_model::node::{Answer, Request, Rules};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::time_of_day::TimeOfDay;

/// A server.
pub(super) struct Scripted {
    rules: Rules,
    clock: TimeOfDay,
    server: RedisServer,
    probe: Probe,
    /// The `run_id` of each start.
    runs: Vec<String>,
    /// When the first unit of time began, in microseconds.
    base: i64,
    pub(super) scripts: Scripts,
}

#[derive(Clone)]
pub(super) struct Scripts {
    pub(super) propose: String,
    pub(super) close: String,
    pub(super) mark: String,
}

impl Scripts {
    pub(super) fn real() -> Self {
        Self {
            propose: concat!(
                include_str!("../../../lock-redis/src/lua/redisson/look.lua"),
                include_str!("../../../lock-redis/src/lua/redisson/take.lua"),
                include_str!("../../../lock-redis/src/lua/redisson/tells.lua"),
                include_str!("../../../lock-redis/src/lua/propose.lua"),
            )
            .to_owned(),
            close: concat!(
                include_str!("../../../lock-redis/src/lua/redisson/look.lua"),
                include_str!("../../../lock-redis/src/lua/redisson/gone.lua"),
                include_str!("../../../lock-redis/src/lua/close.lua"),
                include_str!("../../../lock-redis/src/lua/free/usual.lua"),
            )
            .to_owned(),
            mark: include_str!("../../../lock-redis/src/lua/mark.lua").to_owned(),
        }
    }
}

const COUNTER: &str = "redisson_lock_token:{a}";
const MARKER: &str = "distlock_quorum";
/// A counter is kept for a day.
const KEEP_MILLIS: i64 = 86_400_000;

fn tombstone(owner: u8) -> String {
    format!("distlock_closed:{{a}}:{owner}")
}

impl Scripted {
    pub(super) fn start(rules: Rules, scripts: Scripts) -> Self {
        let clock = TimeOfDay::new();
        let server = RedisServer::start_on(&clock);
        let probe = server.probe();
        Self { rules, clock, server, probe, runs: Vec::new(), base: 0, scripts }
    }

    /// A unit of the model's time. A real clock goes on meanwhile, but not for so long.
    fn unit(&self) -> i64 {
        KEEP_MILLIS / i64::from(self.rules.keep)
    }

    fn token(&self, token: u8) -> String {
        (self.base + i64::from(token) * self.unit() * 1_000).to_string()
    }

    fn unit_of(&self, token: i64) -> u8 {
        let units = (token - self.base).div_euclid(self.unit() * 1_000).max(0);
        u8::try_from(units).unwrap()
    }

    fn longest(&self) -> String {
        self.rules
            .longest
            .map_or(String::new(), |longest| (i64::from(longest) * self.unit()).to_string())
    }

    fn run(&self, run: u8) -> String {
        self.runs[usize::from(run)].clone()
    }

    fn note_run(&mut self) {
        self.runs.push(self.probe.info_field("server", "run_id").unwrap());
    }

    fn script(&mut self, script: &str, keys: &[&str], told: &[&str]) -> Value {
        let count = keys.len().to_string();
        let words = [&["EVAL", script, &count], keys, told].concat();
        let answer = self.probe.command(&words);
        // When leases end is the model's choice.
        for key in self.probe.keys("*") {
            if key != COUNTER && key != MARKER {
                self.probe.command(&["PERSIST", &key]);
            }
        }
        answer
    }

    fn propose(&mut self, owner: u8, first: u8, last: u8, run: u8) -> Answer {
        let (first, last, longest) = (self.token(first), self.token(last), self.longest());
        let (keep, run) = (KEEP_MILLIS.to_string(), self.run(run));
        let lease = (i64::from(self.rules.longest.unwrap_or(1)) * self.unit()).to_string();
        let (owner, tombstone) = (owner.to_string(), tombstone(owner));
        let keys = [LOCK, COUNTER, &tombstone, MARKER];
        let told = [&lease, &owner, "1", &keep, &first, &last, &longest, &run, "1", "0"];
        let script = self.scripts.propose.clone();
        let numbers = match self.script(&script, &keys, &told) {
            Value::List(numbers) => numbers.into_iter().map(Value::int).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        };
        match *numbers {
            [0, _, _] => Answer::Busy,
            [1] => Answer::Granted,
            [2, stored] => Answer::Stale(self.unit_of(stored)),
            [3, -1] => Answer::Unmarked,
            [3, _] => Answer::NotVoting,
            [5] => Answer::Stranger,
            [6, _] => Answer::Ahead,
            _ => panic!("{numbers:?}"),
        }
    }
}

impl Real for Scripted {
    fn begin(&mut self, counter: u8) {
        self.clock.set(0);
        self.probe.command(&["FLUSHALL"]);
        self.runs.clear();
        self.note_run();
        let run = self.run(0);
        let unix = i64::try_from(SystemClock.unix_time().as_micros()).unwrap();
        // It is in the middle of the first unit now, so that nothing hangs on how long the test takes.
        self.base = unix - self.unit() * 500;
        self.save();
        if self.rules.longest.is_some() {
            let (longest, since) = (self.longest(), self.token(0));
            let marker = ["HSET", MARKER, "run_id", &run, "max_lease", &longest, "since", &since];
            self.probe.command(&marker);
        }
        if counter > 0 {
            let token = self.token(counter);
            let until = (token.parse::<i64>().unwrap() / 1_000 + KEEP_MILLIS).to_string();
            self.probe.command(&["SET", COUNTER, &token, "PXAT", &until]);
        }
    }

    fn ask(&mut self, request: Request) -> Answer {
        match request {
            Request::Propose { owner, first, last, run } => self.propose(owner, first, last, run),
            Request::Close { owner, tokens, tombstone: is_left } => {
                let (used, end) = match tokens {
                    Some((used, end)) => (self.token(used), self.token(end)),
                    None => (String::new(), String::new()),
                };
                let (grave, owner) = (tombstone(owner), owner.to_string());
                let stays = if is_left { "60000" } else { "0" };
                let told = [&owner, "channel", "PUBLISH", &used, &end, stays];
                let script = self.scripts.close.clone();
                match self.script(&script, &[LOCK, COUNTER, &grave], &told).int() {
                    0 => Answer::Gone,
                    _ => Answer::Freed,
                }
            }
            Request::Mark { run } => {
                let (run, longest) = (self.run(run), self.longest());
                let script = self.scripts.mark.clone();
                match self.script(&script, &[MARKER], &[&run, &longest, &longest]).int() {
                    -1 => Answer::Stranger,
                    _ => Answer::Marked,
                }
            }
            other => panic!("no script for {other:?}"),
        }
    }

    fn let_go(&mut self) {
        self.probe.command(&["DEL", LOCK]);
    }

    fn tick(&mut self, now: u8) {
        self.clock.set(i64::from(now) * self.unit());
    }

    fn restart(&mut self) {
        self.server.restart();
        self.probe = self.server.probe();
        self.note_run();
    }

    fn save(&mut self) {
        assert_eq!(self.probe.command(&["SAVE"]).text(), "OK");
    }

    fn holder(&mut self) -> Option<u8> {
        let holders: Vec<_> = self.probe.hgetall(LOCK).into_keys().collect();
        holders.first().map(|owner| owner.parse().unwrap())
    }

    fn counter(&mut self) -> Option<Option<u8>> {
        Some(match self.probe.command(&["GET", COUNTER]) {
            Value::Nil => None,
            value => Some(self.unit_of(value.text().parse().unwrap())),
        })
    }
}
