//! `hold`: acquires and holds a lock. Reads commands from standard input and writes JSON lines to
//! standard output, for scripts and for tests in other languages.

use crate::arguments::HoldArguments;
use crate::exit::{self, Failure};
use crate::output::{self, report};
use crate::signals::{self, Signals};
use crate::taking::Lock;
use distlock::crossbeam_channel::{Receiver, after, select, unbounded};
use distlock::{Error, Interrupt, LockOptions, Loss, OwnedGuard};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use serde_json::{Value as Json, json};
use std::io::{self, BufRead};
use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

/// The time after a loss in which commands are still answered: they may have been sent before the
/// loss was reported.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Acquires the lock, and holds it until it is lost or released: by a command, the end of standard
/// input, a signal, or the end of the watched process.
pub(crate) fn hold(arguments: &HoldArguments) -> Result<u8, Failure> {
    let stop = Interrupt::new();
    let heard = Signals::block_all()?.listen(&stop);
    end_with(arguments.with_pid, &stop)?;
    let lock = Lock::of(
        &arguments.store.clients()?,
        &arguments.name,
        &arguments.take,
    )?;
    match acquire(&lock, arguments, &stop) {
        Ok(Some(guard)) => serve(guard, &stop),
        Ok(None) => {
            output::line(r#"{"event":"busy"}"#)?;
            Ok(arguments.conflict.status)
        }
        Err(error) if error.is_interrupted() => {
            let ended_by = heard.try_iter().find(|signal| signals::ends(*signal));
            Ok(ended_by.map_or(exit::SOFTWARE, exit::of_signal))
        }
        Err(error) => Err(error.into()),
    }
}

/// Fires `stop` when `process` ends, or the parent if there is no `process`: standard input may
/// stay open for longer. A parent that is gone, or that the system cannot watch, is ignored.
fn end_with(process: Option<i32>, stop: &Interrupt) -> Result<(), Failure> {
    let refused = |error| Failure::new(exit::USAGE, format_args!("--with-pid: {error}"));
    let watched = match process {
        Some(id) => {
            let process = Pid::from_raw(id).filter(|process| process.as_raw_pid() > 0);
            let process = process.ok_or_else(|| refused(Errno::INVAL))?;
            Some(pidfd_open(process, PidfdFlags::empty()).map_err(refused)?)
        }
        // The parent's ID is read again, because the parent may have ended before it was watched.
        // Then the watched process may be another process with the same ID.
        None => getppid()
            .and_then(|parent| Some((parent, pidfd_open(parent, PidfdFlags::empty()).ok()?)))
            .filter(|(parent, _)| getppid() == Some(*parent))
            .map(|(_, watched)| watched),
    };
    let Some(watched) = watched else {
        return Ok(());
    };
    let stop = stop.clone();
    thread::spawn(move || {
        let mut ended = [PollFd::new(&watched, PollFlags::IN)];
        while let Err(Errno::INTR) = poll(&mut ended, None) {}
        report("the process that this hold belongs to has ended");
        stop.fire();
    });
    Ok(())
}

/// Acquires the lock; `None` if it was busy until the end of the wait.
fn acquire(
    lock: &Lock,
    arguments: &HoldArguments,
    stop: &Interrupt,
) -> Result<Option<OwnedGuard>, Error> {
    let mut options = LockOptions::new().interrupt(stop);
    if let Some(lease) = arguments.lease {
        options = options.watched(lease);
    }
    if let Some(time) = arguments.max_hold {
        options = options.lease(time);
    }
    lock.take(&options, arguments.patience.longest_wait())
}

/// Answers commands until the lock is released or lost.
fn serve(guard: OwnedGuard, stop: &Interrupt) -> Result<u8, Failure> {
    let token = guard.fencing_token().map(|token| token.get());
    output::line(&format!(
        r#"{{"event":"held","token":{}}}"#,
        Json::from(token)
    ))?;
    let (commands, losses, stopped) = (commands(), guard.losses(), stop.fired());
    loop {
        select! {
            recv(commands) -> command => {
                if answer(&guard, command.ok().as_deref())?.is_break() {
                    return release(guard, &losses);
                }
            }
            recv(losses) -> loss => return lost(&guard, loss.ok(), &commands),
            recv(stopped) -> _ => return release(guard, &losses),
        }
    }
}

/// Executes a command. `None` is the end of the input.
fn answer(guard: &OwnedGuard, command: Option<&str>) -> Result<ControlFlow<()>, Failure> {
    match command {
        Some("check") => say_state("check", guard.is_valid(), guard.remaining())?,
        Some("verify") => match guard.verify() {
            Ok(remaining) => say_state("verify", true, remaining)?,
            Err(error) if error.is_lost() => say_state("verify", false, Duration::ZERO)?,
            // Not reported as a loss: an unreachable store does not mean that the lock is lost.
            Err(error) => return Err(error.into()),
        },
        Some("release") | None => return Ok(ControlFlow::Break(())),
        Some("") => {}
        Some(unknown) => output::line(
            &json!({
                "event": "unknown",
                "command": unknown,
                "known": ["check", "verify", "release"],
            })
            .to_string(),
        )
        .map(drop)?,
    }
    Ok(ControlFlow::Continue(()))
}

/// Releases the lock, and returns the exit status. The release may reveal that the store has lost
/// the lock.
fn release(guard: OwnedGuard, losses: &Receiver<Loss>) -> Result<u8, Failure> {
    match guard.unlock() {
        Ok(()) => output::line(r#"{"event":"released"}"#),
        Err(error) if error.is_lost() => say_lost(
            losses
                .try_recv()
                .map_or_else(|_| error.to_string(), |loss| loss.to_string()),
        ),
        Err(error) => Err(error.into()),
    }
}

/// Reports a loss, answers commands for [`LAST_ANSWERS`], and returns the exit status.
fn lost(
    guard: &OwnedGuard,
    loss: Option<Loss>,
    commands: &Receiver<String>,
) -> Result<u8, Failure> {
    let loss = loss.or_else(|| guard.loss());
    let status = say_lost(loss.map_or_else(|| "unknown".to_owned(), |loss| loss.to_string()))?;
    let silence = after(LAST_ANSWERS);
    loop {
        select! {
            recv(commands) -> command => {
                if answer(guard, command.ok().as_deref())?.is_break() {
                    return Ok(status);
                }
            }
            recv(silence) -> _ => return Ok(status),
        }
    }
}

fn say_lost(cause: String) -> Result<u8, Failure> {
    output::line(&format!(
        r#"{{"event":"lost","cause":{}}}"#,
        Json::from(cause)
    ))?;
    Ok(exit::LOST)
}

fn say_state(event: &str, valid: bool, remaining: Duration) -> Result<(), Failure> {
    // A lock without an end has `Duration::MAX` left, which is shown as null.
    let remaining = Json::from(u64::try_from(remaining.as_millis()).ok());
    let answer = format!(r#"{{"event":"{event}","valid":{valid},"remaining_ms":{remaining}}}"#);
    output::line(&answer).map(drop)
}

/// Returns the lines of standard input. A separate thread reads them, so that a loss is noticed
/// between two lines.
fn commands() -> Receiver<String> {
    let (sender, receiver) = unbounded();
    thread::spawn(move || {
        for line in io::stdin().lock().split(b'\n').map_while(Result::ok) {
            let command = String::from_utf8_lossy(&line).trim().to_owned();
            if sender.send(command).is_err() {
                return;
            }
        }
    });
    receiver
}
