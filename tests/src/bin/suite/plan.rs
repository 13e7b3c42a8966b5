//! [`Plan`]: what runs in which tier, in which order, and with how many threads.

use crate::build::Binaries;
use crate::job::{Job, LOGS};
use std::collections::HashSet;
use std::process::{Command, Stdio};

/// How much is run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// What a change is judged by.
    Default,
    /// Everything.
    All,
}

/// Jobs that run beside each other, in lanes of jobs that run one after the other.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) lanes: Vec<Vec<Job>>,
}

/// The phases, the last of which has the machine for itself, and what runs behind the others.
pub(crate) struct Plan {
    pub(crate) background: Vec<Vec<Job>>,
    pub(crate) phases: Vec<Phase>,
}

impl Plan {
    /// Leaves out all jobs that none of these texts chooses: it is the name of a job, or else a
    /// part of it.
    ///
    /// # Errors
    ///
    /// A text that chooses none, and the names of all jobs.
    pub(crate) fn keep(&mut self, texts: &[String]) -> Result<(), String> {
        let phases = self.phases.iter().flat_map(|phase| &phase.lanes);
        let jobs = phases.chain(&self.background).flatten();
        let names: Vec<_> = jobs.map(|job| job.name.clone()).collect();
        let mut chosen = HashSet::new();
        for text in texts {
            let is_name = names.contains(text);
            let fits = |name: &&String| {
                if is_name {
                    *name == text
                } else {
                    name.contains(text)
                }
            };
            if !names.iter().any(|name| fits(&name)) {
                return Err(format!(
                    "no job is called `{text}`: there are {}",
                    names.join(", ")
                ));
            }
            chosen.extend(names.iter().filter(fits));
        }
        let phases = self.phases.iter_mut().flat_map(|phase| &mut phase.lanes);
        for lane in phases.chain(&mut self.background) {
            lane.retain(|job| chosen.contains(&job.name));
        }
        Ok(())
    }
}

/// The file that a test writes a line to when it failed by lateness and is repeated.
pub(crate) fn excuses() -> String {
    let folder = std::env::current_dir().expect("there is a current folder");
    folder.join(LOGS).join("excuses").display().to_string()
}

/// The tests that measure how equal shares of a lock are, which other tests would change.
const TURNS: &str = "turns::";

/// What `tests/servers.sh` calls a server whose `CLUSTER SHARDS` leaves out the slots of a failed
/// master, as that of many versions does.
const OLDER: &str = "redis-7.2";

/// Where its binary is. It is fetched, which takes some ten seconds, once on a machine.
///
/// # Errors
///
/// Why it cannot be had here.
fn older_server() -> Result<String, String> {
    let fetch = ["60", "tests/servers.sh", "--fetch", OLDER];
    let output = Command::new("timeout")
        .args(fetch)
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| format!("{}: {error}", fetch[1]))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    // The path, and then the version in brackets.
    match text(&output.stdout).split_once(" (") {
        Some((path, _)) if output.status.success() => Ok(path.to_owned()),
        _ => {
            let why = text(&output.stderr);
            let why = why.lines().last().unwrap_or("it took longer than a minute");
            Err(format!("{OLDER} cannot be fetched: {why}"))
        }
    }
}

/// Parts of the names of tests that cannot pass on the server in `REDIS_SERVER`.
const SKIP: &str = "DISTLOCK_TEST_SKIP";

/// What runs in this tier.
pub(crate) fn plan(tier: Tier, binaries: &Binaries, first_seed: Option<u64>) -> Plan {
    // 1: unchanged. 2, without a base to compare with, counts as changed.
    let is_format_changed =
        Job::new("changed formats", &["tests/interop.sh", "changed"]).exit_code() != Some(1);
    let suite = Suite {
        tier,
        binaries,
        is_format_changed,
        first_seed,
    };
    // What mostly sleeps has many threads.
    let conformance = vec![
        vec![
            suite
                .tests("conformance", 128)
                .env("DISTLOCK_TEST_SCALE", "4"),
        ],
        vec![suite.prepare_interop()],
    ];
    // Two topologies at a time: all of them together take as long, and keep each other waiting.
    let mut topologies = vec![
        vec![
            suite.tests("standalone", 10).args(&["--skip", TURNS]),
            suite.tests("cluster", 10),
            suite.failovers_on_older_server(),
            suite.tests("lock_cluster", 8),
        ],
        vec![
            suite.tests("sentinel", 10),
            suite.tests("lock_redis", 8),
            suite.tests("quorum", 10),
            suite.binary("distlock", 4),
            suite.interop(),
            suite.tests("cli", 8),
            suite.tests("distlock-cli", 2),
            suite.tests("project", 8),
            suite.tests("lock_core", 8),
            suite.tests("lock_conformance", 8),
            suite.tests("distlock-benches", 4),
        ],
    ];
    let resources = vec![vec![suite.turns(), suite.tests("resources", 1)]];
    let virtual_time = suite.on_virtual_time();
    // All pairs of mutants and all states of the models take minutes of both processors, and would
    // make others late.
    let (background, long) = match tier {
        Tier::Default => (
            vec![
                suite.static_checks(),
                virtual_time.into_iter().flatten().collect(),
            ],
            Vec::new(),
        ),
        Tier::All => (vec![suite.static_checks()], virtual_time.into()),
    };
    let others = [&conformance, &topologies, &long, &resources, &background];
    let planned = others
        .into_iter()
        .flatten()
        .flatten()
        .map(|job| job.name.as_str());
    let unplanned = suite.unplanned(&planned.collect());
    topologies[1].extend(unplanned);
    let phases = [
        ("conformance", conformance),
        ("topologies and units", topologies),
        ("virtual time", long),
        ("alone", resources),
    ];
    let phases = phases.into_iter().filter(|(_, lanes)| !lanes.is_empty());
    Plan {
        background,
        phases: phases.map(|(name, lanes)| Phase { name, lanes }).collect(),
    }
}

struct Suite<'a> {
    tier: Tier,
    binaries: &'a Binaries,
    /// Whether the change that is tested touches a wire format, a script or the interop tests.
    is_format_changed: bool,
    /// Where the seeds of the schedules begin; where they always begin, if it is not given.
    first_seed: Option<u64>,
}

impl Suite<'_> {
    /// The tests of this binary, on so many threads. There must be one.
    fn tests(&self, name: &str, threads: usize) -> Job {
        self.binary(name, threads).with_tests()
    }

    /// Who has how many turns on a server at a distance.
    fn turns(&self) -> Job {
        self.tests("standalone", 1).named("turns").args(&[TURNS])
    }

    /// Failovers of a cluster of older servers, or why there are none.
    fn failovers_on_older_server(&self) -> Job {
        let name = format!("cluster on {OLDER}");
        match older_server() {
            Ok(server) => self
                .tests("cluster", 10)
                .named(&name)
                .args(&["failover::", "failover_safety::"])
                .env("REDIS_SERVER", &server),
            Err(why) => Job::new(&name, &["echo", &format!("skipped: {why}")]),
        }
    }

    /// The binaries that are not `planned`. Most have no tests; a new one is run all the same.
    fn unplanned(&self, planned: &HashSet<&str>) -> Vec<Job> {
        let names = self
            .binaries
            .keys()
            .filter(|name| !planned.contains(name.as_str()));
        let job = |name: &String| match name.as_str() {
            // The harness tests its own judge of lateness: what is late there is so on purpose.
            "distlock_tests" => self
                .binary(name, 4)
                .env("DISTLOCK_TEST_EXCUSES", "/dev/null"),
            name => self.binary(name, 4),
        };
        names.map(job).collect()
    }

    /// The binary with what all tests are told.
    fn job(&self, name: &str) -> Job {
        let binary = self.binaries.get(name);
        let binary = binary.unwrap_or_else(|| panic!("there is no test binary {name}"));
        Job::new(name, &[&binary.display().to_string()])
            .env("DISTLOCK_TEST_EXCUSES", &excuses())
            .env("DISTLOCK_TEST_BUILT", "1")
    }

    fn binary(&self, name: &str, threads: usize) -> Job {
        let mut job = self
            .job(name)
            .args(&["--test-threads", &threads.to_string()]);
        for name in std::env::var(SKIP).unwrap_or_default().split_whitespace() {
            job = job.args(&["--skip", name]);
        }
        match self.tier {
            Tier::Default => job,
            // Those need a server that is too old: `tests/servers.sh` runs them.
            Tier::All => job.args(&["--include-ignored", "--skip", "age::"]),
        }
    }

    /// Other libraries' locks beside ours. Its tests say themselves how many run at a time.
    fn interop(&self) -> Job {
        self.job("interop")
            .with_tests()
            .env("DISTLOCK_TIER", self.interop_tier())
    }

    /// Builds the programs around other libraries.
    fn prepare_interop(&self) -> Job {
        Job::new("prepare interop", &["tests/interop.sh", "prepare"])
            .env("DISTLOCK_TIER", self.interop_tier())
    }

    /// A change to what others read and write is judged by all libraries.
    fn interop_tier(&self) -> &'static str {
        match (self.tier, self.is_format_changed) {
            (Tier::Default, false) => "default",
            (Tier::All, _) | (_, true) => "all",
        }
    }

    /// What the compiler and its tools say.
    fn static_checks(&self) -> Vec<Job> {
        let clippy = "clippy --workspace --all-targets --all-features -- -D warnings";
        let minimal = "clippy --package distlock --no-default-features -- -D warnings";
        let mut jobs = vec![
            Job::cargo("style", "fmt --all --check"),
            Job::cargo("clippy", clippy),
            Job::cargo("clippy without features", minimal),
            // What an application builds that asks for nothing else.
            Job::cargo(
                "clippy with default features",
                "clippy --package distlock -- -D warnings",
            ),
            Job::cargo("documentation", "doc --no-deps --all-features")
                .env("RUSTDOCFLAGS", "-D warnings"),
            // Of the same packages and features as the build, so that nothing is built anew.
            Job::cargo(
                "documentation tests",
                "test --workspace --all-features --doc",
            ),
        ];
        if self.tier == Tier::All {
            jobs.push(Job::cargo(
                "default features",
                "test --package distlock --lib",
            ));
        }
        jobs
    }

    /// What no busy machine makes late.
    fn on_virtual_time(&self) -> [Vec<Job>; 2] {
        let mut schedules = self.tests("schedules", 2).args(&["--nocapture"]);
        if let Some(seed) = self.first_seed {
            schedules = schedules.env("DISTLOCK_FIRST_SEED", &seed.to_string());
        }
        let binaries = [
            ("in_memory", 32),
            ("own_store", 32),
            ("mutants", 1),
            ("signal", 1),
        ];
        let [memory, own_store, mutants, signal] =
            binaries.map(|(name, threads)| self.tests(name, threads));
        [
            vec![memory, own_store, mutants, signal, schedules],
            vec![self.tests("distlock_model", 2)],
        ]
    }
}
