//! Takes and holds a lock, driven by commands on standard input, and answers in JSON lines on
//! standard output.
//!
//! ```sh
//! cargo run --example hold -- --url redis://127.0.0.1:6379 --name orders:42
//! export DISTLOCK_URL=redis://127.0.0.1:6379
//! cargo run --example hold -- --name orders:42 --wait 3s --lease 10s     # gives up, and ends by itself
//! ```
//!
//! This is how scripts, and tests in other languages, drive the library.
//!
//! | command | answer |
//! |---|---|
//! | `check` | `{"event":"check","valid":true,"remaining_ms":29871}`, by a look at the local clock alone |
//! | `verify` | the same with `"event":"verify"`, from the store (`null` milliseconds: no end) |
//! | `release`, or end of input | `{"event":"released"}`, exit 0 |
//!
//! It begins with `{"event":"held","token":N}`, or with `{"event":"busy"}` (exit 1). When the lock
//! is lost it says `{"event":"lost","cause":".."}` at once, answers for another second what was
//! asked before that was read, and exits with 75. Ctrl-C and SIGTERM end the wait (exit 130) or
//! release. Everything else is one line on standard error: exit 69 if the store cannot be reached,
//! 78 if arguments are wrong, 70 otherwise.

#[path = "shared/mod.rs"]
mod shared;

use clap::Parser;
use crossbeam_channel::{Receiver, after, select, unbounded};
use distlock::{DistLock, Error, Interrupt, LockGuard, LockOptions, Loss};
use serde_json::Value as Json;
use shared::{Trouble, exit};
use std::io::{self, BufRead, Write};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

/// Holds a lock until it is told to release it.
#[derive(Parser)]
#[command(name = "hold")]
struct Arguments {
    /// The store [default: DISTLOCK_URL from the environment]
    #[arg(long)]
    url: Option<String>,
    /// What the lock is called
    #[arg(long)]
    name: String,
    /// How long to wait for it, as in `3s`; `0s` is one attempt [default: for ever]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
    /// Hold it for this long at most [default: the watchdog keeps it]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    lease: Option<Duration>,
}

impl Arguments {
    /// There is no default: a lock in this process's memory excludes no other process.
    fn url(&self) -> Result<String, Error> {
        let url = self.url.clone().or_else(|| std::env::var("DISTLOCK_URL").ok());
        url.ok_or_else(|| {
            Error::configuration(
                "which store? Say it by --url or DISTLOCK_URL, as in redis://127.0.0.1:6379 \
                 (memory:// excludes no other process)",
            )
        })
    }
}

/// For how long commands are still answered after a loss: they may have been sent before it was
/// told.
const LAST_WORDS: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    shared::main(run)
}

fn run(arguments: Arguments) -> Result<u8, Trouble> {
    let stop = Interrupt::on_ctrl_c()?;
    let client = distlock::connect(&arguments.url()?)?;
    let lock = client.mutex(&arguments.name)?;
    match take(&lock, &arguments, &stop) {
        Ok(Some(guard)) => hold(guard, &stop),
        Ok(None) => {
            say(r#"{"event":"busy"}"#)?;
            Ok(exit::NO)
        }
        Err(error) if error.is_interrupted() => Ok(exit::INTERRUPTED),
        Err(error) => Err(error.into()),
    }
}

/// `None` is the answer "busy", and only a wait that ends can have it.
fn take(
    lock: &dyn DistLock,
    arguments: &Arguments,
    stop: &Interrupt,
) -> Result<Option<LockGuard>, Error> {
    let mut options = LockOptions::new().interrupt(stop);
    if let Some(lease) = arguments.lease {
        options = options.lease(lease);
    }
    match arguments.wait {
        Some(wait) => lock.try_lock_with(&options.wait(wait)),
        None => lock.lock_with(&options).map(Some),
    }
}

/// Answers commands until the lock is given back or lost.
fn hold(guard: LockGuard, stop: &Interrupt) -> Result<u8, Trouble> {
    let token = guard.fencing_token().map(|token| token.get());
    say(&format!(r#"{{"event":"held","token":{}}}"#, Json::from(token)))?;
    let (commands, losses, stopped) = (commands(), guard.losses(), stop.fired());
    loop {
        select! {
            recv(commands) -> command => if answer(&guard, command.ok().as_deref())?.is_break() {
                return release(guard, &losses);
            },
            recv(losses) -> loss => return lost(&guard, loss.ok(), &commands),
            recv(stopped) -> _ => return release(guard, &losses),
        }
    }
}

type Flow = std::ops::ControlFlow<()>;

/// Does what a command asks for. `None` is the end of the input.
fn answer(guard: &LockGuard, command: Option<&str>) -> Result<Flow, Trouble> {
    match command {
        Some("check") => say_state("check", guard.is_valid(), guard.remaining())?,
        Some("verify") => match guard.verify() {
            Ok(remaining) => say_state("verify", true, remaining)?,
            Err(error) if error.is_lost() => say_state("verify", false, Duration::ZERO)?,
            // The store could not be asked, which is not a "no".
            Err(error) => return Err(error.into()),
        },
        Some("release") | None => return Ok(Flow::Break(())),
        Some("") => {}
        Some(unknown) => {
            eprintln!("hold: there is no command {unknown:?}; there are check, verify and release");
        }
    }
    Ok(Flow::Continue(()))
}

/// Ends with a release, which may find that the store has lost the lock.
fn release(guard: LockGuard, losses: &Receiver<Loss>) -> Result<u8, Trouble> {
    match guard.unlock() {
        Ok(()) => {
            say(r#"{"event":"released"}"#)?;
            Ok(0)
        }
        Err(error) if error.is_lost() => {
            say_lost(losses.try_recv().map_or_else(|_| error.to_string(), |loss| loss.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Ends after a loss.
fn lost(guard: &LockGuard, loss: Option<Loss>, commands: &Receiver<String>) -> Result<u8, Trouble> {
    let loss = loss.or_else(|| guard.loss());
    let code = say_lost(loss.map_or_else(|| "unknown".to_owned(), |loss| loss.to_string()))?;
    let silence = after(LAST_WORDS);
    loop {
        select! {
            recv(commands) -> command => if answer(guard, command.ok().as_deref())?.is_break() {
                return Ok(code);
            },
            recv(silence) -> _ => return Ok(code),
        }
    }
}

fn say_lost(cause: String) -> Result<u8, Trouble> {
    say(&format!(r#"{{"event":"lost","cause":{}}}"#, Json::from(cause)))?;
    Ok(exit::LOST)
}

fn say_state(event: &str, valid: bool, remaining: Duration) -> Result<(), Trouble> {
    // A lock without an end has `Duration::MAX` left, which is no number of milliseconds here.
    let remaining = Json::from(u64::try_from(remaining.as_millis()).ok());
    say(&format!(r#"{{"event":"{event}","valid":{valid},"remaining_ms":{remaining}}}"#))
}

/// Writes a line and flushes it: its reader is waiting for it.
fn say(line: &str) -> Result<(), Trouble> {
    let mut output = io::stdout().lock();
    writeln!(output, "{line}").and_then(|()| output.flush()).map_err(|error| {
        let what = format!("standard output is not read any more ({error}): keep the pipe open");
        Trouble::new(exit::SOFTWARE, what)
    })
}

/// The lines of standard input, read by a thread of its own, so that a loss is noticed between
/// lines.
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
