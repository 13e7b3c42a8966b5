//! [`explore`]: runs a scenario under many schedules, each determined by one number, its seed.
//!
//! A seed decides the order of the tasks, how early time passes, and every random choice of the
//! engine and of the network. `DISTLOCK_SEED` replays one seed, `DISTLOCK_SCHEDULES` sets the
//! number of schedules, and `DISTLOCK_FIRST_SEED` sets the first seed (a number, or `random`).

use crate::world::{World, sleep};
use distlock_schedules::sync::time;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use shuttle::thread::JoinHandle;
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::cell::Cell;
use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, LazyLock, Once};
use std::time::{Duration, SystemTime};

/// The number of the keeper, the task that lets time pass. It is the first task that the main task
/// starts.
const KEEPER: usize = 1;

/// The longest virtual time of a punctual schedule; a thousand times that in the others. It is
/// bounded because a task that sleeps for ever must fail the test.
const LIMIT: Duration = Duration::from_secs(300);

/// The real time after which no more schedules of a scenario are run, so that a slow machine ends
/// in time. A tenth of the schedules, or all that `DISTLOCK_SCHEDULES` requests, run even if that
/// takes longer.
const LONGEST: Duration = Duration::from_secs(5);

/// The rule by which the scheduler chooses the next task in one execution.
enum Policy {
    /// Chooses any runnable task at each step.
    Uniform,
    /// Continues the running task with this probability, else chooses any runnable task.
    Sticky(f64),
    /// Chooses the runnable task of the highest priority (Burckhardt et al., 2010), and lowers the
    /// running task's priority at a few random steps. This finds defects that need few preemptions
    /// at the right places.
    Priorities { of: Vec<u64>, change: f64 },
}

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
    /// Whether time passes only when every other task is blocked.
    static IS_PUNCTUAL: Cell<bool> = const { Cell::new(true) };
    /// True after a task has panicked other than on purpose, even if the panic was caught.
    static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
    /// The task that `stop` has stopped, and the virtual time until which it does not run.
    static STOPPED: Cell<Option<(TaskId, Duration)>> = const { Cell::new(None) };
    static SCENARIO: Cell<&'static str> = const { Cell::new("") };
}

/// Returns whether time passes only when every other task is blocked in this execution, so that no
/// task is late.
pub(crate) fn is_punctual() -> bool {
    IS_PUNCTUAL.get()
}

/// Prints this text with the virtual time and the task if `DISTLOCK_TRACE` is set.
pub(crate) fn trace(what: impl FnOnce() -> String) {
    if *IS_TRACED {
        let task = shuttle::current::try_get_current_task();
        eprintln!("{:>12.3?} {task:?} {}", time::peek(), what());
    }
}

static IS_TRACED: LazyLock<bool> = LazyLock::new(|| env::var_os("DISTLOCK_TRACE").is_some());

/// Stops a task until this virtual time, as the operating system may stop a thread. Only one task
/// can be stopped at a time. Returns a task that sleeps until then, so that the time has a reason
/// to advance.
pub(crate) fn stop<T>(task: &JoinHandle<T>, until: Duration) -> JoinHandle<()> {
    STOPPED.set(Some((TaskId::from(usize::from(task.thread().id())), until)));
    shuttle::thread::spawn(move || sleep(until.saturating_sub(time::peek())))
}

struct Seeded {
    next: u64,
    left: u64,
    random: fastrand::Rng,
    policy: Policy,
    /// The probability at each step that time passes although a task could run.
    early: f64,
}

impl Seeded {
    fn from(first: u64, count: u64) -> Self {
        let random = fastrand::Rng::with_seed(0);
        Self {
            next: first,
            left: count,
            random,
            policy: Policy::Uniform,
            early: 0.0,
        }
    }

    fn choose(&mut self, tasks: &[&Task], current: Option<TaskId>) -> TaskId {
        let random = &mut self.random;
        match &mut self.policy {
            Policy::Uniform => tasks[random.usize(..tasks.len())].id(),
            Policy::Sticky(stay) => match current {
                Some(current) if random.f64() < *stay && has(tasks, current) => current,
                _ => tasks[random.usize(..tasks.len())].id(),
            },
            Policy::Priorities { of, change } => {
                if let Some(current) = current
                    && random.f64() < *change
                    && let Some(priority) = of.get_mut(usize::from(current))
                {
                    *priority = random.u64(..1 << 32);
                }
                let newest = tasks
                    .iter()
                    .map(|task| usize::from(task.id()))
                    .max()
                    .unwrap_or(0);
                while of.len() <= newest {
                    of.push(random.u64(1 << 32..));
                }
                let highest = tasks.iter().max_by_key(|task| of[usize::from(task.id())]);
                highest.expect("there is a task").id()
            }
        }
    }
}

fn has(tasks: &[&Task], id: TaskId) -> bool {
    tasks.iter().any(|task| task.id() == id)
}

impl Scheduler for Seeded {
    fn new_execution(&mut self) -> Option<Schedule> {
        self.left = self.left.checked_sub(1)?;
        let seed = self.next;
        self.next = self.next.wrapping_add(1);
        let mut random = fastrand::Rng::with_seed(seed);
        random.u64(..); // seeds that are neighbours begin alike
        self.policy = match random.u8(..4) {
            0 => Policy::Uniform,
            1 => Policy::Sticky(0.5 + random.f64() / 2.0),
            _ => {
                let change = 1.0 / f64::from(1 << random.u32(2..9));
                Policy::Priorities {
                    of: Vec::new(),
                    change,
                }
            }
        };
        self.early = if random.bool() {
            0.0
        } else {
            1.0 / f64::from(1 << random.u32(3..10))
        };
        IS_PUNCTUAL.set(self.early == 0.0);
        STOPPED.set(None);
        SEED.set(seed);
        self.random = random;
        Some(Schedule::new(seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let keeper = TaskId::from(KEEPER);
        if time::is_waking() {
            return Some(keeper);
        }
        let has_keeper = has(runnable, keeper);
        let stopped = STOPPED
            .get()
            .filter(|(_, until)| has_keeper && time::peek() < *until);
        let runs = |task: &&&Task| {
            task.id() != keeper && stopped.is_none_or(|(stopped, _)| task.id() != stopped)
        };
        let others: Vec<_> = runnable.iter().filter(runs).copied().collect();
        if others.is_empty() || has_keeper && self.random.f64() < self.early {
            return Some(keeper);
        }
        if is_yielding
            && let (Policy::Priorities { of, .. }, Some(current)) = (&mut self.policy, current)
            && let Some(priority) = of.get_mut(usize::from(current))
        {
            *priority = self.random.u64(..1 << 32);
        }
        Some(self.choose(&others, current))
    }

    fn next_u64(&mut self) -> u64 {
        self.random.u64(..)
    }
}

/// Runs `body` under as many schedules as are requested. Every panic is a failure, even if it is
/// caught. A test panics on purpose by `resume_unwind`, which does not call the panic hook.
pub(crate) fn explore(
    name: &'static str,
    schedules: u64,
    body: impl Fn(&Arc<World>) + Send + Sync + 'static,
) {
    watch_panics();
    SCENARIO.set(name);
    let number = |name: &str| env::var(name).ok().map(|it| it.parse::<u64>());
    let replayed = number("DISTLOCK_SEED").map(|seed| seed.expect("DISTLOCK_SEED is a number"));
    let first = match env::var("DISTLOCK_FIRST_SEED").as_deref() {
        Ok("random") => fastrand::u64(..) >> 16,
        Ok(first) => first.parse().expect("DISTLOCK_FIRST_SEED is a number"),
        Err(_) => 0,
    };
    let count = number("DISTLOCK_SCHEDULES")
        .map_or(schedules, |it| it.expect("DISTLOCK_SCHEDULES is a number"));
    let (first, count) = replayed.map_or((first, count), |seed| (seed, 1));
    // A slow machine runs fewer schedules, but at least a tenth. If `DISTLOCK_SCHEDULES` sets a
    // number, all of them run.
    let longest = env::var_os("DISTLOCK_SCHEDULES")
        .is_none()
        .then_some(LONGEST);
    let least = if longest.is_some() {
        count.div_ceil(10)
    } else {
        count
    };
    let body = Arc::new(body);
    let began = SystemTime::now();
    let run = |first, count, longest| {
        let mut config = Config::new();
        config.stack_size = 1 << 17;
        config.failure_persistence = FailurePersistence::None;
        config.max_steps = MaxSteps::FailAfter(200_000);
        config.silence_warnings = true;
        config.max_time = longest;
        let body = Arc::clone(&body);
        Runner::new(Seeded::from(first, count), config).run(move || {
            one(&*body);
            assert!(
                !HAS_FAILED.get(),
                "a task panicked, and the panic was caught"
            );
        })
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let rest = count - least;
        run(first, least, None)
            + if rest == 0 {
                0
            } else {
                run(first + least, rest, longest)
            }
    }));
    let seed = SEED.get();
    match outcome {
        Ok(runs) => {
            let a_minute = runs as f64 * 60.0 / began.elapsed().unwrap_or_default().as_secs_f64();
            println!("noted: {name}: {runs} schedules from seed {first}, {a_minute:.0} a minute");
        }
        Err(panic) => {
            eprintln!(
                "{0} failed in schedule {1}: replay it with DISTLOCK_SEED={seed} \
                 cargo test -p distlock-schedules {0}",
                name,
                seed - first + 1,
            );
            resume_unwind(panic);
        }
    }
}

/// Runs one execution of the scenario, with its keeper and its world.
fn one(body: &(impl Fn(&Arc<World>) + Send + Sync)) {
    time::begin();
    fastrand::seed(SEED.get());
    // If time passes at any moment, much of it may pass before a task has taken many steps.
    let limit = if is_punctual() { LIMIT } else { LIMIT * 1_000 };
    let keeper = shuttle::thread::spawn(move || time::keep(limit));
    let world = Arc::new(World::new());
    body(&world);
    world.end();
    time::end();
    keeper.join().expect("the keeper does not panic");
}

/// Installs a panic hook that records every panic not made on purpose, and prints its seed before
/// anything unwinds.
fn watch_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            HAS_FAILED.set(true);
            let kind = if is_punctual() { "punctual" } else { "late" };
            let at = time::peek();
            if SCENARIO.get().is_empty() {
                return hook(panic); // not in a scenario
            }
            eprintln!(
                "FAILED {} seed {} ({kind}) at {at:?}: {panic}",
                SCENARIO.get(),
                SEED.get()
            );
            hook(panic);
        }));
    });
}
