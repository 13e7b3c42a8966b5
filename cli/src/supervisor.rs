//! The process of `run` that holds the lock: acquires it, starts the command, and stops the command
//! before another holder can get the lock.

use crate::arguments::{OnLost, ReleaseAt, RunArguments};
use crate::exit::{self, Failure};
use crate::launch;
use crate::metrics_file::{self, Outcome, Tally};
use crate::output::report;
use crate::processes::{Change, Group, LOOK_AGAIN, Scope, adopt_orphans, is_stopped, watch};
use crate::run::OWN_PROGRAM;
use crate::signals::{self, FRONT_ENDED, Signals};
use crate::store::rounded;
use crate::taking::Lock;
use crate::terminal::Terminal;
use distlock::admin::WarningKind;
use distlock::backend::LeaseTime;
use distlock::crossbeam_channel::{Receiver, after, never, select};
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Config, Error, Event, Interrupt, LockOptions, Loss, LossCause, OwnedGuard};
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The longest wait before the clock and the parent are checked again. The clock jumps when a
/// suspended machine resumes.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

/// If the validity has fallen by this much more than the time that has passed, the time of day was
/// probably set ahead. The delay between the two clock reads of one check is usually shorter.
const LEAP: Duration = Duration::from_millis(100);

/// The time from the end of a command to the report of processes that it left. Most of them end
/// within that time, and need no report.
const REPORTED: Duration = Duration::from_secs(1);

/// The interval of the checks for processes that an ended command left.
const LEFT_BEHIND: Duration = Duration::from_millis(50);

/// The time after KILL from which the remaining processes are checked less often.
const KILL_TIME: Duration = Duration::from_secs(2);

/// The time within which the front must stop after the command was stopped. If the front is still
/// running then, no shell can continue the job, and the command is continued.
const STOP_TIME: Duration = Duration::from_millis(200);

/// The search path for programs if `PATH` is not set.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Acquires the lock, runs the command, counts the run, and returns the exit status.
pub(crate) fn supervise(front: i32, arguments: &RunArguments) -> Result<u8, Failure> {
    let mut tally = Tally::default();
    let status = run_under_lock(front, arguments, &mut tally);
    if let Some(file) = &arguments.metrics_file
        && let Err(error) = metrics_file::add(file, &arguments.name, &tally)
    {
        report(format_args!(
            "the metrics cannot be written to {}: {error}",
            file.display()
        ));
    }
    status
}

/// Acquires the lock, runs the command, and returns the exit status.
fn run_under_lock(front: i32, arguments: &RunArguments, tally: &mut Tally) -> Result<u8, Failure> {
    let signals = Signals::block_unless_ignored()?;
    let front = Front::watch(front)?;
    adopt_orphans()?;
    let stop_waiting = Interrupt::new();
    let signals = signals.listen(&stop_waiting);
    let verbose = arguments.verbose;
    let clients = arguments.store.clients_with(tell)?;
    let plan = Plan::of(arguments, &clients.config_of(&arguments.name)?)?;
    let longest = clients.of_lock(&arguments.name)?.abilities().longest_lease;
    if let (Some(time), Some(longest)) = (arguments.at_least, longest)
        && time > longest
    {
        // Refused here, because the minimum hold begins only when the command has been started.
        let what = format!(
            "--at-least {time:?} is too long: this store keeps a lock for at most {longest:?}"
        );
        return Err(Failure::new(exit::USAGE, what));
    }
    let lock = Lock::of(&clients, &arguments.name, &arguments.take)?;
    let options = LockOptions::new()
        .watched(plan.lease)
        .interrupt(&stop_waiting);
    let called = SystemClock.now();
    let acquired = acquire(&lock, arguments, &options);
    tally.waited = SystemClock.now().since(called);
    let guard = match acquired {
        Ok(Some(guard)) => guard,
        Ok(None) => {
            tally.outcome = Outcome::Skipped;
            if !arguments.quiet {
                report(format_args!(
                    "lock {:?} is held by another client, or is kept after its release by \
                     --at-least: the command was not run",
                    arguments.name
                ));
            }
            return Ok(arguments.conflict.status);
        }
        Err(error) if error.is_interrupted() => return Ok(interrupted(&signals)),
        Err(error) => return Err(error.into()),
    };
    // After Ctrl-Z during the wait, the command starts when the job is continued.
    while is_stopped(front.0) && !stop_waiting.is_fired() && guard.is_valid() {
        let _due = after(LOOK_AGAIN).recv();
    }
    // A signal that has arrived by now ends the run. A later signal is passed to the command.
    if stop_waiting.is_fired() {
        guard.unlock()?;
        return Ok(interrupted(&signals));
    }
    // The command needs this validity. If it is missing because the clock was set ahead, a request
    // to the store may restore it.
    let least = plan.least_validity();
    // `seen` is recorded before the check, so that `left` notices a later drop of the validity.
    let seen = (SystemClock.now(), guard.remaining());
    guard
        .ensure(least)
        .or_else(|_| guard.verify().and_then(|_| guard.ensure(least)))?;
    if verbose {
        report(format_args!(
            "lock {:?} was taken after {}",
            arguments.name,
            rounded(SystemClock.now().since(called))
        ));
    }
    // Checked before the minimum hold begins: another host, which may have the command, can then
    // acquire the lock at once.
    refuse_missing(arguments)?;
    let command = Job::start(arguments, &plan, &guard, &front)?;
    // The minimum hold begins after the start: if the start fails, another host can run the
    // command. `Job::run` handles a loss.
    if let Some(Err(refusal)) = arguments.at_least.map(|time| guard.keep_at_least(time))
        && !refusal.is_lost()
    {
        Group(command).signal(Signal::KILL);
        return Err(refusal.into());
    }
    let mut job = Job {
        group: Group(command),
        changes: watch(command),
        terminal: Terminal::of(front.0),
        signals,
        front,
        guard,
        plan,
        started: SystemClock.now(),
        kill_at: None,
        suspended: None,
        status: None,
        ended_at: None,
        ended_by: None,
        has_ended_rest: false,
        has_warned: false,
        has_reported_rest: false,
        seen,
    };
    job.run();
    job.finish(verbose, tally)
}

/// Acquires the lock; `None` if it is held by another client.
fn acquire(
    lock: &Lock,
    arguments: &RunArguments,
    options: &LockOptions,
) -> Result<Option<OwnedGuard>, Error> {
    // A wait without a limit begins with one attempt, which fails at once if the store is
    // unreachable: the wait itself would tolerate that for `outage_limit`.
    let longest = arguments.patience.longest_wait();
    let guard = lock.take(options, Some(longest.unwrap_or_default()))?;
    if guard.is_some() || longest.is_some() {
        return Ok(guard);
    }
    if arguments.verbose {
        report(format_args!(
            "lock {:?} is held by another client: waiting",
            arguments.name
        ));
    }
    lock.take(options, None)
}

/// Refuses a command that does not exist, as the launcher would.
fn refuse_missing(arguments: &RunArguments) -> Result<(), Failure> {
    let Some(program) = arguments
        .command
        .first()
        .filter(|_| arguments.line.is_none())
    else {
        return Ok(());
    };
    let is_there = |path: &Path| path.try_exists().unwrap_or(true);
    let is_found = match program.as_bytes().contains(&b'/') {
        true => is_there(Path::new(program)),
        false => {
            let path = std::env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
            std::env::split_paths(&path).any(|folder| is_there(&folder.join(program)))
        }
    };
    if is_found {
        return Ok(()); // whether it can be executed, the launcher finds out
    }
    Err(launch::cannot_start(
        program,
        &io::ErrorKind::NotFound.into(),
    ))
}

/// Returns the exit status after a signal that arrived before the command was started.
fn interrupted(signals: &Receiver<Signal>) -> u8 {
    let ends = |signal: &Signal| ![Signal::CONT, Signal::CHILD, FRONT_ENDED].contains(signal);
    signals
        .try_iter()
        .find(ends)
        .map_or(exit::SOFTWARE, exit::of_signal)
}

/// Reports failed renewals and warnings to the operator.
fn tell(event: &Event) {
    match event {
        Event::RenewalFailed { error, left, .. } => report(format_args!(
            "{}; not renewed, valid for {}",
            exit::with_sources(error),
            rounded(*left)
        )),
        // The error of the call says this, too.
        Event::Warning {
            kind: WarningKind::Refused,
            ..
        } => {}
        Event::Warning { message, .. } => report(message),
        _ => {}
    }
}

/// The process that the user started.
struct Front(Pid);

impl Front {
    /// Requests [`FRONT_ENDED`] for the end of the process that the user started, which is the
    /// parent of this process.
    fn watch(front: i32) -> Result<Self, Failure> {
        let only_run = || {
            Failure::new(
                exit::USAGE,
                "`supervise` is what `distlock run` starts: call that",
            )
        };
        let front = Self(Pid::from_raw(front).ok_or_else(only_run)?);
        set_parent_process_death_signal(Some(FRONT_ENDED))
            .map_err(|error| Failure::system("the parent process cannot be watched", error))?;
        // The process may have ended before the request.
        if front.has_ended() {
            Err(only_run())
        } else {
            Ok(front)
        }
    }

    fn has_ended(&self) -> bool {
        getppid() != Some(self.0)
    }
}

/// The times of a run, and the reactions to its events.
struct Plan {
    /// The lease that is renewed.
    lease: Duration,
    /// The time between TERM and KILL.
    grace: Duration,
    /// The time between KILL and the end of the validity, in which the system ends the process.
    margin: Duration,
    max_hold: Option<Duration>,
    on_lost: OnLost,
    release: ReleaseAt,
    is_quiet: bool,
}

impl Plan {
    const LONGEST_DEFAULT_GRACE: Duration = Duration::from_secs(5);
    const LONGEST_MARGIN: Duration = Duration::from_secs(1);

    fn of(arguments: &RunArguments, config: &Config) -> Result<Self, Failure> {
        if let Some(Err(refusal)) = arguments.at_least.map(LeaseTime::new) {
            return Err(Failure::new(
                exit::USAGE,
                format_args!("--at-least: {refusal}"),
            ));
        }
        let lease = arguments.lease.unwrap_or(config.watchdog());
        let margin = (lease / 10).min(Self::LONGEST_MARGIN);
        let default = (lease / 6).min(Self::LONGEST_DEFAULT_GRACE);
        let grace = arguments.kill_after.unwrap_or(default);
        // A renewal is due when two thirds of the lease are left, and needs time for a second
        // attempt.
        let longest = (lease / 2).saturating_sub(margin);
        if grace > longest {
            let what = format!(
                "--kill-after {grace:?} is too long for a lease of {lease:?}: a renewal that fails \
                 must have time to be repeated; say at most {longest:?}, or a longer --lease"
            );
            return Err(Failure::new(exit::USAGE, what));
        }
        Ok(Self {
            lease,
            grace,
            margin,
            max_hold: arguments.max_hold,
            on_lost: arguments.on_lost,
            release: arguments.release,
            is_quiet: arguments.quiet,
        })
    }

    /// Returns the validity at which the command is stopped, or the operator is warned.
    fn least_validity(&self) -> Duration {
        match self.on_lost {
            OnLost::Term => self.grace + self.margin,
            OnLost::Kill => self.margin,
            OnLost::Warn => Duration::ZERO,
        }
    }
}

/// The reason to stop the command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Lost,
    MaxHold,
    FrontEnded,
}

/// A command under its lock.
struct Job {
    guard: OwnedGuard,
    plan: Plan,
    /// The process group that the command leads.
    group: Group,
    changes: Receiver<Change>,
    signals: Receiver<Signal>,
    front: Front,
    terminal: Option<Terminal>,
    started: Moment,
    /// The time at which KILL is sent, once the command is being stopped.
    kill_at: Option<Moment>,
    /// The time at which the command was stopped, as by Ctrl-Z, and a signal to stop was sent to
    /// the front.
    suspended: Option<Moment>,
    /// The exit status of the command, once it has ended.
    status: Option<u8>,
    /// The time at which the command ended. Stays `None` if its end was not observed.
    ended_at: Option<Moment>,
    /// The last signal of INT, QUIT and TERM that was passed to the command.
    ended_by: Option<Signal>,
    /// True once `ended_by` was passed to the processes that the ended command left.
    has_ended_rest: bool,
    has_warned: bool,
    has_reported_rest: bool,
    /// The time of the last check of the validity, and the validity then.
    seen: (Moment, Duration),
}

impl Job {
    /// Starts the command in a separate process group.
    fn start(
        arguments: &RunArguments,
        plan: &Plan,
        guard: &OwnedGuard,
        front: &Front,
    ) -> Result<Pid, Failure> {
        let mut command = Command::new(OWN_PROGRAM);
        let supervisor = getpid().as_raw_pid().to_string();
        command
            .arg0("distlock")
            .args(["launch", &front.0.as_raw_pid().to_string(), &supervisor]);
        match &arguments.line {
            Some(line) => {
                let shell = std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into());
                command.args([OsStr::new("--"), &shell, OsStr::new("-c"), line]);
            }
            None => {
                command.arg("--").args(&arguments.command);
            }
        }
        command
            .env("DISTLOCK_NAME", &arguments.name)
            .process_group(0);
        let deadline = plan.max_hold.map(|time| {
            let since_1970 = SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default();
            since_1970.saturating_add(time).as_secs()
        });
        let token = guard.fencing_token().map(|token| token.get());
        // Removed if not set: a value of an outer `distlock run` does not belong to this lock.
        for (name, value) in [("DISTLOCK_TOKEN", token), ("DISTLOCK_DEADLINE", deadline)] {
            match value {
                Some(value) => command.env(name, value.to_string()),
                None => command.env_remove(name),
            };
        }
        let started = command.spawn().map(|child| Pid::from_child(&child));
        started.map_err(|error| Failure::system("the command cannot be launched", error))
    }

    /// Supervises the command until all processes that the lock protects have ended.
    fn run(&mut self) {
        let mut losses: Receiver<Loss> = Receiver::from(self.guard.losses());
        loop {
            self.stop_if_due();
            if self.is_over() {
                break;
            }
            self.end_rest();
            self.report_left_behind();
            self.resume_if_not_stopped();
            let wait = self.time_to_next_look();
            select! {
                recv(self.changes) -> change => match change {
                    Ok(change) => self.changed(change),
                    Err(_no_child_left) => {
                        self.changes = never();
                        // The command was reaped elsewhere: it has ended with an unknown status.
                        self.status.get_or_insert(exit::SOFTWARE);
                    }
                },
                recv(self.signals) -> signal => match signal {
                    Ok(Signal::CONT) => self.resume(),
                    Ok(FRONT_ENDED | Signal::CHILD) => {}
                    Ok(signal) => self.pass_on(signal),
                    Err(_thread_ended) => self.signals = never(),
                },
                // `stop_if_due` handles the loss. The channel delivers only one.
                recv(losses) -> _loss => losses = never(),
                default(wait) => {}
            }
        }
        if let Some(terminal) = &self.terminal {
            terminal.take_from(self.group);
        }
    }

    /// Returns whether no process is left that the lock protects.
    fn is_over(&self) -> bool {
        let has_ended = self.status.is_some();
        if self.kill_at.is_some() {
            return has_ended && self.group.is_empty() && Scope::All.is_empty();
        }
        has_ended
            && (self.plan.release == ReleaseAt::Command
                || self.group.is_empty() && (self.ended_by.is_none() || Scope::Session.is_empty()))
    }

    /// Passes a signal to the command. After INT, QUIT or TERM, the lock is also held for processes
    /// of this session that have left the group.
    fn pass_on(&mut self, signal: Signal) {
        if signals::ends_job(signal) {
            self.ended_by = Some(signal);
        }
        self.group.signal(signal);
    }

    /// Once the command has ended, passes `ended_by` to the processes that it left in this session.
    /// Not earlier, because a running command ends its own processes, in its own order.
    fn end_rest(&mut self) {
        if self.status.is_some()
            && let Some(signal) = self.ended_by
            && !std::mem::replace(&mut self.has_ended_rest, true)
        {
            self.group.signal_with(Scope::Session, signal);
            // A stopped process handles the signal only once it is continued.
            self.group.signal_with(Scope::Session, Signal::CONT);
        }
    }

    /// Reports once for which processes of the ended command the lock is still held.
    fn report_left_behind(&mut self) {
        let Some(ended) = self.ended_at else {
            return;
        };
        let is_early = SystemClock.now().since(ended) < REPORTED;
        if self.has_reported_rest || is_early || self.kill_at.is_some() || self.plan.is_quiet {
            return;
        }
        let scope = self.ended_by.map(|_| Scope::Session);
        let members = self.group.members(scope).join(", ");
        if !members.is_empty() {
            self.has_reported_rest = true;
            self.say_of_lock(format_args!(
                "the command has ended, and the lock is held for processes that it left: \
                 {members} (see --release)"
            ));
        }
    }

    /// Sends TERM if there is a cause to stop the command, and KILL at the end of the grace or
    /// before the validity ends. After a loss with `--on-lost=kill`, sends KILL at once.
    fn stop_if_due(&mut self) {
        let left = self.left();
        let now = SystemClock.now();
        if self.kill_at.is_none()
            && let Some(cause) = self.cause_to_stop(now, left)
        {
            self.report_stop(cause);
            let at_once = cause == Cause::Lost && self.plan.on_lost == OnLost::Kill;
            let grace = if at_once {
                Duration::ZERO
            } else {
                self.plan.grace
            };
            if !at_once {
                self.group.signal_with(Scope::All, Signal::TERM);
                // A suspended process handles TERM only once it is continued.
                self.group.signal_with(Scope::All, Signal::CONT);
            }
            self.kill_at = Some(now + grace);
        }
        let Some(kill_at) = &mut self.kill_at else {
            return;
        };
        if !left.is_zero() && self.plan.on_lost != OnLost::Warn {
            // The lock may be lost during the grace: KILL is then sent before the validity ends.
            let latest = now + left.saturating_sub(self.plan.margin);
            *kill_at = latest.min(*kill_at);
        }
        if now >= *kill_at {
            self.group.signal_with(Scope::All, Signal::KILL);
        }
    }

    /// Returns the validity that is left. If the validity has dropped by [`LEAP`] more than the
    /// elapsed time, the time of day was probably set ahead. The lock may still be held, so the
    /// store is queried before the command is stopped.
    fn left(&mut self) -> Duration {
        let (now, mut left) = (SystemClock.now(), self.guard.remaining());
        let (seen_at, was_left) = self.seen;
        if was_left.saturating_sub(now.since(seen_at)) > left + LEAP {
            let _asked = self.guard.verify();
            left = self.guard.remaining();
        }
        self.seen = (SystemClock.now(), left);
        left
    }

    fn cause_to_stop(&mut self, now: Moment, left: Duration) -> Option<Cause> {
        if self.front.has_ended() {
            return Some(Cause::FrontEnded);
        }
        if self
            .plan
            .max_hold
            .is_some_and(|time| now.since(self.started) >= time)
        {
            return Some(Cause::MaxHold);
        }
        if left > self.plan.least_validity() {
            return None;
        }
        if self.plan.on_lost != OnLost::Warn {
            return Some(Cause::Lost);
        }
        if !self.has_warned {
            self.has_warned = true;
            self.say_of_lock(format_args!(
                "{}; the command goes on without it",
                self.loss()
            ));
        }
        None
    }

    fn report_stop(&self, cause: Cause) {
        let grace = rounded(self.plan.grace);
        match cause {
            Cause::Lost if self.plan.on_lost == OnLost::Kill => {
                self.say_of_lock(format_args!("{}: killing the command", self.loss()));
            }
            Cause::Lost => self.say_of_lock(format_args!(
                "{}: stopping the command, with TERM and after {grace} with KILL",
                self.loss()
            )),
            Cause::MaxHold => self.say_of_lock(format_args!(
                "--max-hold is over: stopping the command, with TERM and after {grace} with KILL"
            )),
            Cause::FrontEnded => {
                self.say_of_lock(format_args!("distlock was killed: stopping the command"));
            }
        }
    }

    fn say_of_lock(&self, what: impl std::fmt::Display) {
        report(format_args!("lock \"{}\": {what}", self.guard.name()));
    }

    /// Describes the loss, or the validity that is left before it.
    fn loss(&self) -> String {
        match self.guard.loss() {
            Some(loss) => loss.to_string(),
            None => format!(
                "it could not be renewed and is valid for {} only",
                rounded(self.guard.remaining())
            ),
        }
    }

    fn time_to_next_look(&self) -> Duration {
        let now = SystemClock.now();
        let until_stop = match self.kill_at {
            // The remaining processes may belong to another user, and run for long.
            Some(kill_at) if now.since(kill_at) > KILL_TIME => LONGEST_WAIT,
            Some(_) if self.status.is_some() => LOOK_AGAIN,
            Some(kill_at) => kill_at.since(now).max(LOOK_AGAIN),
            None if self.status.is_some() => LEFT_BEHIND,
            None => {
                let validity = self
                    .guard
                    .remaining()
                    .saturating_sub(self.plan.least_validity());
                let max_hold = self.plan.max_hold.unwrap_or(Duration::MAX);
                let hold = max_hold.saturating_sub(now.since(self.started));
                // With `--on-lost=warn` the command outlives the validity. Then there is no end to
                // wait for.
                if validity.is_zero() {
                    hold
                } else {
                    validity.min(hold)
                }
            }
        };
        let until_resumed = self.suspended.map_or(Duration::MAX, |_| STOP_TIME);
        until_stop.min(until_resumed).min(LONGEST_WAIT)
    }

    fn changed(&mut self, change: Change) {
        match change {
            Change::Ended(status) => {
                self.status = Some(exit::of_process(status));
                self.ended_at = Some(SystemClock.now());
            }
            Change::Stopped(signal) => self.suspend(signal),
            Change::Continued => {
                if self.suspended.is_some() {
                    // The command was continued by a process other than the shell: the front is
                    // continued, too.
                    let _sent = kill_process(self.front.0, Signal::CONT);
                }
            }
        }
    }

    /// Stops the front's job after the command was stopped, as by Ctrl-Z.
    fn suspend(&mut self, signal: Signal) {
        let Some(terminal) = &self.terminal else {
            return;
        };
        // The command may have used the terminal before its group was in the foreground, or after
        // `fg`. Then it is continued in the foreground, if the job is there.
        let wants_terminal = [Signal::TTIN, Signal::TTOU].contains(&signal);
        if wants_terminal && terminal.give_to(self.group) {
            self.group.signal(Signal::CONT);
            return;
        }
        self.suspended = Some(SystemClock.now());
        // Not SIGSTOP: the system ignores SIGTSTP if no shell could continue the job.
        terminal.job().signal(Signal::TSTP);
    }

    /// Continues a command that was stopped, if the front was not stopped within [`STOP_TIME`].
    fn resume_if_not_stopped(&mut self) {
        let is_due = self
            .suspended
            .is_some_and(|since| SystemClock.now().since(since) > STOP_TIME);
        if is_due && !is_stopped(self.front.0) {
            self.resume();
        }
    }

    /// Continues the command. Its group becomes the foreground group if the shell has put this job
    /// there, unless other processes of the job may need the terminal.
    fn resume(&mut self) {
        self.suspended = None;
        if let Some(terminal) = &self.terminal {
            terminal.give_to_unless_shared(self.group);
        }
        self.group.signal(Signal::CONT);
    }

    /// Releases the lock, and returns the exit status.
    fn finish(self, verbose: bool, tally: &mut Tally) -> Result<u8, Failure> {
        let status = self.status.unwrap_or(exit::SOFTWARE);
        let name = self.guard.name().clone();
        let time = SystemClock.now().since(self.started);
        let (held, mut lost) = (rounded(time), self.guard.loss().map(|loss| loss.cause()));
        let released = self.guard.unlock();
        if released.as_ref().is_err_and(Error::is_lost) {
            lost.get_or_insert(LossCause::Gone);
        }
        let is_lost = self.kill_at.is_some()
            || released.as_ref().is_err_and(Error::is_lost) && self.plan.on_lost != OnLost::Warn;
        tally.outcome = Outcome::Ran {
            status: if is_lost { exit::LOST } else { status },
            held: time,
            lost,
        };
        if self.kill_at.is_some() {
            return Ok(exit::LOST);
        }
        match released {
            Ok(()) if verbose => {
                report(format_args!(
                    "lock \"{name}\" was released after {held}, status {status}"
                ));
                Ok(status)
            }
            Ok(()) => Ok(status),
            Err(error) if error.is_lost() && self.plan.on_lost == OnLost::Warn => Ok(status),
            Err(error) if error.is_lost() => Err(error.into()),
            Err(error) => {
                // The command has ended, and the lock ends with its lease.
                report(format_args!(
                    "{}; its lease ends",
                    exit::with_sources(&error)
                ));
                Ok(status)
            }
        }
    }
}
