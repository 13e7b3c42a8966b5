//! [`Plan`]: the jobs of each tier, their order, and their numbers of threads.

use crate::build::Binaries;
use crate::job::{Job, LOGS};
use std::collections::HashSet;
use std::process::{Command, Stdio};

/// A selection of the tests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tier {
    /// The tests that every change must pass.
    Default,
    /// All tests.
    All,
}

/// Lanes that run concurrently. The jobs of each lane run one after the other.
pub(crate) struct Phase {
    pub(crate) name: &'static str,
    pub(crate) lanes: Vec<Vec<Job>>,
}

/// The phases in their order, and the jobs that run in the background. The last phase runs alone.
pub(crate) struct Plan {
    pub(crate) background: Vec<Vec<Job>>,
    pub(crate) phases: Vec<Phase>,
}

impl Plan {
    /// Removes all jobs that none of these texts selects. A text selects the job of that name, or
    /// if there is none, all jobs whose names contain it.
    ///
    /// # Errors
    ///
    /// If a text selects no job. The error lists the names of all jobs.
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

/// Returns the path of the file of excuses. A test that failed because the machine was late, and is
/// repeated, adds a line to it.
pub(crate) fn excuses() -> String {
    let folder = std::env::current_dir().expect("there is a current folder");
    folder.join(LOGS).join("excuses").display().to_string()
}

/// The module of the tests that measure how equally contenders share a lock. Tests that run at the
/// same time would change the shares.
const TURNS: &str = "turns::";

/// The name in `tests/servers.sh` of a server whose `CLUSTER SHARDS` omits the slots of a failed
/// master, as many versions do.
const OLDER: &str = "redis-7.2";

/// Returns the path of the binary of the [`OLDER`] server. Fetches it once on a machine, which
/// takes about ten seconds.
///
/// # Errors
///
/// The reason why the server cannot be fetched.
fn older_server() -> Result<String, String> {
    let fetch = ["60", "tests/servers.sh", "--fetch", OLDER];
    let output = Command::new("timeout")
        .args(fetch)
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| format!("{}: {error}", fetch[1]))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    // The script prints the path, and then the version in brackets.
    match text(&output.stdout).split_once(" (") {
        Some((path, _)) if output.status.success() => Ok(path.to_owned()),
        _ => {
            let why = text(&output.stderr);
            let why = why.lines().last().unwrap_or("it took longer than a minute");
            Err(format!("{OLDER} cannot be fetched: {why}"))
        }
    }
}

/// The environment variable with parts of the names of tests to skip, because they cannot pass on
/// the server in `REDIS_SERVER`.
const SKIP: &str = "LOCK_TEST_SKIP";

/// Returns the jobs of this tier.
pub(crate) fn plan(tier: Tier, binaries: &Binaries, first_seed: Option<u64>) -> Plan {
    // Exit code 1 means unchanged. Code 2 means that there is no base to compare with, and counts
    // as changed.
    let is_format_changed =
        Job::new("changed formats", &["tests/interop.sh", "changed"]).exit_code() != Some(1);
    let suite = Suite {
        tier,
        binaries,
        is_format_changed,
        first_seed,
    };
    // These tests mostly sleep, so they run on many threads.
    let conformance = vec![
        vec![suite.tests("conformance", 128).env("LOCK_TEST_SCALE", "4")],
        vec![suite.prepare_interop()],
    ];
    // Two topologies at a time: all of them at once would take as long, and make each other late.
    let mut topologies = vec![
        vec![
            suite.tests("standalone", 10).args(&["--skip", TURNS]),
            suite.tests("cluster", 10),
            suite.failovers_on_older_server(),
            suite.tests("lock_cluster", 8),
            suite.tests("postgres", 6),
            suite.tests("lock_postgres", 8),
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
    // make concurrent tests late.
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
    /// The first seed of the schedules; `None` for the same first seed in every run.
    first_seed: Option<u64>,
}

impl Suite<'_> {
    /// Returns the job of the tests of this binary on so many threads. It fails if no test ran.
    fn tests(&self, name: &str, threads: usize) -> Job {
        self.binary(name, threads).with_tests()
    }

    /// Returns the job of the tests that count the turns of contenders on a distant server.
    fn turns(&self) -> Job {
        self.tests("standalone", 1).named("turns").args(&[TURNS])
    }

    /// Returns the job of the failover tests on a cluster of [`OLDER`] servers, or a job that
    /// prints why they are skipped.
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

    /// Returns the jobs of the binaries that are not `planned`. Most have no tests, but a new test
    /// binary thus runs before it is planned.
    fn unplanned(&self, planned: &HashSet<&str>) -> Vec<Job> {
        let names = self
            .binaries
            .keys()
            .filter(|name| !planned.contains(name.as_str()));
        let job = |name: &String| match name.as_str() {
            // The harness's own tests are late on purpose, so their excuses do not count.
            "distlock_tests" => self.binary(name, 4).env("LOCK_TEST_EXCUSES", "/dev/null"),
            name => self.binary(name, 4),
        };
        names.map(job).collect()
    }

    /// Returns the job of this binary with the environment variables that all tests get.
    fn job(&self, name: &str) -> Job {
        let binary = self.binaries.get(name);
        let binary = binary.unwrap_or_else(|| panic!("there is no test binary {name}"));
        Job::new(name, &[&binary.display().to_string()])
            .env("LOCK_TEST_EXCUSES", &excuses())
            .env("LOCK_TEST_BUILT", "1")
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
            // The tests in modules `age` need a server that is too old: `tests/servers.sh` runs
            // them.
            Tier::All => job.args(&["--include-ignored", "--skip", "age::"]),
        }
    }

    /// Returns the job of the tests that share locks with other libraries. The tests limit
    /// themselves how many of them run at a time.
    fn interop(&self) -> Job {
        self.job("interop")
            .with_tests()
            .env("LOCK_TEST_TIER", self.interop_tier())
    }

    /// Returns the job that builds the programs that use other libraries.
    fn prepare_interop(&self) -> Job {
        Job::new("prepare interop", &["tests/interop.sh", "prepare"])
            .env("LOCK_TEST_TIER", self.interop_tier())
    }

    /// Returns the tier of the interop tests. A change of a wire format is tested with all
    /// libraries, even in the default tier.
    fn interop_tier(&self) -> &'static str {
        match (self.tier, self.is_format_changed) {
            (Tier::Default, false) => "default",
            (Tier::All, _) | (_, true) => "all",
        }
    }

    /// Returns the jobs of the formatter, the lints and the documentation.
    fn static_checks(&self) -> Vec<Job> {
        let clippy = "clippy --workspace --all-targets --all-features -- -D warnings";
        let minimal = "clippy --package distlock --no-default-features -- -D warnings";
        let mut jobs = vec![
            Job::cargo("style", "fmt --all --check"),
            Job::cargo("clippy", clippy),
            Job::cargo("clippy without features", minimal),
            // The features of an application that sets none.
            Job::cargo(
                "clippy with default features",
                "clippy --package distlock -- -D warnings",
            ),
            Job::cargo("documentation", "doc --no-deps --all-features")
                .env("RUSTDOCFLAGS", "-D warnings"),
            // With the same packages and features as the build, so that nothing is built again.
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

    /// Returns the lanes of the tests that a busy machine cannot make late.
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
