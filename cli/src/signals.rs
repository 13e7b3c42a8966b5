//! Blocked signals, for which a thread waits. So no handler interrupts other code, and no signal is
//! lost between two waits, or before a new process waits for the first time.

use crate::exit::Failure;
use distlock::Interrupt;
use distlock::crossbeam_channel::{Receiver, unbounded};
use nix::sys::signal::{SigSet, Signal as Waited};
use rustix::process::Signal;
use signal_hook::consts::SIGCHLD;
use std::sync::Arc;
use std::thread;

/// The signals that are passed to the command.
const FORWARDED: [Waited; 6] = [
    Waited::SIGHUP,
    Waited::SIGINT,
    Waited::SIGQUIT,
    Waited::SIGTERM,
    Waited::SIGUSR1,
    Waited::SIGUSR2,
];

/// Other signals that are waited for.
const OTHERS: [Waited; 3] = [Waited::SIGCONT, Waited::SIGCHLD, Waited::SIGURG];

/// The signal that the supervisor gets from the kernel when the process that the user started ends.
/// Usually no process sends this signal.
pub(crate) const FRONT_ENDED: Signal = Signal::URG;

/// Returns whether a signal ends a subcommand that runs no command.
pub(crate) fn ends(signal: Signal) -> bool {
    ![Signal::CONT, Signal::CHILD, FRONT_ENDED].contains(&signal)
}

/// Returns whether a signal is meant to end the command of `run` with all that it started. HUP is
/// not, because it may request a command to read its settings again.
pub(crate) fn ends_job(signal: Signal) -> bool {
    [Signal::INT, Signal::QUIT, Signal::TERM].contains(&signal)
}

/// The signals that a process waits for.
pub(crate) struct Signals(SigSet);

impl Signals {
    /// Blocks the forwarded signals in this thread and in threads that it starts. Also blocks
    /// SIGCONT, SIGCHLD, [`FRONT_ENDED`] and SIGTTOU. The last would stop a background process that
    /// changes the terminal's foreground group.
    ///
    /// A forwarded signal that was ignored when the program started, as by `nohup`, stays ignored,
    /// and the command ignores it, too.
    pub(crate) fn block_unless_ignored() -> Result<Self, Failure> {
        let ignored = ignored();
        let heard = FORWARDED
            .into_iter()
            .filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0);
        Self::block(heard)
    }

    /// Blocks the signals as [`block_unless_ignored`](Self::block_unless_ignored) does, including
    /// those that were ignored: for a program that must release its lock.
    pub(crate) fn block_all() -> Result<Self, Failure> {
        Self::block(FORWARDED.into_iter())
    }

    fn block(heard: impl Iterator<Item = Waited>) -> Result<Self, Failure> {
        // If the parent ignored SIGCHLD, the system would reap the children of this process. A
        // registered handler prevents that; it never runs, because the signal is blocked.
        signal_hook::flag::register(SIGCHLD, Arc::default())
            .map_err(|error| Failure::system("the end of processes cannot be heard of", error))?;
        let waited_for: SigSet = heard.chain(OTHERS).collect();
        let mut blocked = waited_for;
        blocked.add(Waited::SIGTTOU);
        let block = blocked.thread_block();
        block.map_err(|error| Failure::system("signals cannot be blocked", error))?;
        Ok(Self(waited_for))
    }

    /// Waits for the next signal.
    pub(crate) fn wait(&self) -> Result<Signal, Failure> {
        let unknown = |error| Failure::system("signals cannot be waited for", error);
        let signal = self.0.wait().map_err(unknown)?;
        // Every signal of the set has a name.
        Signal::from_named_raw(signal as i32).ok_or_else(|| unknown(nix::errno::Errno::EINVAL))
    }

    /// Sends the signals to a channel, from a separate thread. Each signal except SIGCONT and
    /// SIGCHLD then fires `stop`.
    pub(crate) fn listen(self, stop: &Interrupt) -> Receiver<Signal> {
        let (sender, receiver) = unbounded();
        let stop = stop.clone();
        thread::spawn(move || {
            while let Ok(signal) = self.wait() {
                // Sent before `fire` wakes the waiter, which reads the signal from the channel.
                if sender.send(signal).is_err() {
                    return;
                }
                if signal != Signal::CONT && signal != Signal::CHILD {
                    stop.fire();
                }
            }
        });
        receiver
    }
}

/// Unblocks the signals that the parent's [`Signals`] blocked, before another program is executed.
pub(crate) fn unblock() -> Result<(), Failure> {
    let blocked: SigSet = FORWARDED
        .into_iter()
        .chain(OTHERS)
        .chain([Waited::SIGTTOU])
        .collect();
    let unblock = blocked.thread_unblock();
    unblock.map_err(|error| Failure::system("signals cannot be unblocked", error))
}

/// Returns the signals that this process ignores, as a mask; zero if the system does not report it.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
