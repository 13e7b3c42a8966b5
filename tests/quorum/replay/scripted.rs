//! [`Scripted`]: the scripts on a server whose clock the test moves, as a node of the replay.

use super::{LOCK, Real};
use distlock::time::{Clock, SystemClock};
use distlock_model::node::{Answer, Request, Rules, View};
use distlock_tests::probe::{Probe, Value};
use distlock_tests::process::RedisServer;
use distlock_tests::time_of_day::TimeOfDay;

/// One server, with the scripts that it runs.
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
                include_str!("../../../lock-redis/src/lua/redisson/drop.lua"),
                include_str!("../../../lock-redis/src/lua/redisson/gone.lua"),
                include_str!("../../../lock-redis/src/lua/redisson/take.lua"),
                include_str!("../../../lock-redis/src/lua/timestamp.lua"),
                include_str!("../../../lock-redis/src/lua/grant.lua"),
                include_str!("../../../lock-redis/src/lua/tell.lua"),
                include_str!("../../../lock-redis/src/lua/queue_of.lua"),
                include_str!("../../../lock-redis/src/lua/queue.lua"),
                include_str!("../../../lock-redis/src/lua/let_next_in.lua"),
                include_str!("../../../lock-redis/src/lua/leave.lua"),
                include_str!("../../../lock-redis/src/lua/give_up.lua"),
                include_str!("../../../lock-redis/src/lua/free_first.lua"),
                include_str!("../../../lock-redis/src/lua/pass.lua"),
                include_str!("../../../lock-redis/src/lua/close.lua"),
                include_str!("../../../lock-redis/src/lua/endings/usual.lua"),
            )
            .to_owned(),
            mark: include_str!("../../../lock-redis/src/lua/mark.lua").to_owned(),
        }
    }
}

const COUNTER: &str = "redisson_lock_token:{a}";
const MARKER: &str = "distlock_quorum";
/// How long a counter is kept, in milliseconds: a day.
const KEEP_MILLIS: i64 = 86_400_000;
/// The field of the marker with the `run_id` by which the server is recorded.
const NODE: &str = "node";

fn tombstone(owner: u8) -> String {
    format!("distlock_closed:{{a}}:{owner}")
}

impl Scripted {
    pub(super) fn start(rules: Rules, scripts: Scripts) -> Self {
        let clock = TimeOfDay::new();
        let server = RedisServer::start_on(&clock);
        let probe = server.probe();
        Self {
            rules,
            clock,
            server,
            probe,
            runs: Vec::new(),
            base: 0,
            scripts,
        }
    }

    /// Returns a unit of the model's time, in milliseconds. The unit is longer than a test, because
    /// the real clock runs meanwhile.
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
        self.rules.longest.map_or(String::new(), |longest| {
            (i64::from(longest) * self.unit()).to_string()
        })
    }

    fn run(&self, run: u8) -> String {
        self.runs[usize::from(run)].clone()
    }

    fn note_run(&mut self) {
        self.runs
            .push(self.probe.info_field("server", "run_id").unwrap());
    }

    fn script(&mut self, script: &str, keys: &[&str], told: &[&str]) -> Value {
        let count = keys.len().to_string();
        let words = [&["EVAL", script, &count], keys, told].concat();
        let answer = self.probe.command(&words);
        // The model chooses when leases end, so no key may expire by itself.
        for key in self.probe.keys("*") {
            if key != COUNTER && key != MARKER {
                self.probe.command(&["PERSIST", &key]);
            }
        }
        answer
    }

    fn propose(
        &mut self,
        owner: u8,
        first: u8,
        last: u8,
        run: u8,
        view: View,
        is_again: &str,
    ) -> Answer {
        let (first, last, longest) = (self.token(first), self.token(last), self.longest());
        let (keep, run) = (KEEP_MILLIS.to_string(), self.run(run));
        let lease = (i64::from(self.rules.longest.unwrap_or(1)) * self.unit()).to_string();
        let (owner, tombstone) = (owner.to_string(), tombstone(owner));
        let keys = [LOCK, COUNTER, &tombstone, MARKER];
        let (quorum, epoch) = (view.quorum.to_string(), view.epoch.to_string());
        let node = self.probe.command(&["HGET", MARKER, NODE]);
        let node = if let Value::Nil = node {
            String::new()
        } else {
            node.text()
        };
        let told = [
            &lease, &owner, "1", &keep, &first, &last, &longest, &run, "1", "0", &quorum, &epoch,
            &node, is_again,
        ];
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
            [4] => Answer::Outdated,
            [5] => Answer::Stranger,
            [6, _] => Answer::Ahead,
            _ => panic!("{numbers:?}"),
        }
    }
}

impl Real for Scripted {
    fn begin(&mut self, counter: u8, is_node: bool) {
        self.clock.set(0);
        self.probe.command(&["FLUSHALL"]);
        self.runs.clear();
        self.note_run();
        let run = self.run(0);
        let unix = i64::try_from(SystemClock.unix_time().as_micros()).unwrap();
        // The present is the middle of the first unit, so that a slow test does not reach the next
        // one.
        self.base = unix - self.unit() * 500;
        self.save();
        if is_node {
            let (longest, since) = (self.longest(), self.token(0));
            let keep = KEEP_MILLIS.to_string();
            let View { quorum, epoch } = View::FIRST;
            let (quorum, epoch) = (quorum.to_string(), epoch.to_string());
            let marker = [
                ["quorum", &quorum],
                ["epoch", &epoch],
                ["members", "?"],
                ["max_lease", &longest],
                ["keep", &keep],
                [NODE, &run],
                ["run_id", &run],
                ["since", &since],
            ];
            self.probe
                .command(&[&["HSET", MARKER][..], marker.as_flattened()].concat());
        }
        if counter > 0 {
            let token = self.token(counter);
            let until = (token.parse::<i64>().unwrap() / 1_000 + KEEP_MILLIS).to_string();
            self.probe
                .command(&["SET", COUNTER, &token, "PXAT", &until]);
        }
    }

    fn ask(&mut self, request: Request) -> Answer {
        match request {
            Request::Propose {
                owner,
                first,
                last,
                run,
                view,
            } => self.propose(owner, first, last, run, view, "0"),
            Request::VoteAgain {
                owner,
                first,
                last,
                run,
                view,
            } => self.propose(owner, first, last, run, view, "1"),
            Request::Close {
                owner,
                tokens,
                tombstone: is_left,
            } => {
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
            Request::Mark {
                run,
                view,
                is_admitted,
                not_before,
            } => {
                let (run, longest) = (self.run(run), self.longest());
                let (quorum, epoch) = (view.quorum.to_string(), view.epoch.to_string());
                let keep = KEEP_MILLIS.to_string();
                let (pause, not_before) = if is_admitted {
                    (longest.clone(), self.token(not_before))
                } else {
                    Default::default()
                };
                let told = [
                    &run,
                    "record",
                    &quorum,
                    &epoch,
                    "?",
                    &longest,
                    &keep,
                    &pause,
                    &not_before,
                    "",
                    "1",
                ];
                let script = self.scripts.mark.clone();
                // A script that fails is reported as an answer that no node gives to this request.
                let Value::List(state) = self.script(&script, &[MARKER], &told) else {
                    return Answer::Counted(0);
                };
                let text = |value: &Value| match value {
                    Value::Text(text) => Some(text.clone()),
                    _ => None,
                };
                let [server, _, Value::List(fields), _] = &state[..] else {
                    panic!("{state:?}")
                };
                match (text(&fields[0]), text(&fields[1])) {
                    _ if text(server) != Some(run) => Answer::Stranger,
                    (None, _) => Answer::Unmarked,
                    its if its == (Some(quorum), Some(epoch)) => Answer::Marked,
                    _ => Answer::Outdated,
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
