//! Signals are blocked and waited for: no handler interrupts anything, and a program that is started
//! gets the signals as this one got them.

use crate::exit::Failure;
use distlock::Interrupt;
use distlock::crossbeam_channel::{Receiver, unbounded};
use nix::sys::signal::{SigSet, Signal as Waited};
use rustix::process::Signal;
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

/// What the supervisor gets when the process that the user started has ended. Nothing else sends
/// it.
pub(crate) const FRONT_ENDED: Signal = Signal::URG;

/// The signals that a process waits for.
pub(crate) struct Signals(SigSet);

impl Signals {
    /// Blocks the forwarded signals in this thread and those that it starts, and with them SIGCONT,
    /// SIGCHLD, [`FRONT_ENDED`] and SIGTTOU, which would keep a background process from changing
    /// the terminal's foreground group.
    ///
    /// A forwarded signal that was ignored when the program started, as by `nohup`, stays ignored,
    /// also in the command.
    pub(crate) fn block_unless_ignored() -> Result<Self, Failure> {
        let ignored = ignored();
        let heard = FORWARDED.into_iter().filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0);
        Self::block(heard)
    }

    /// The same, also for signals that were ignored: for a program that has to end in order.
    pub(crate) fn block_all() -> Result<Self, Failure> {
        Self::block(FORWARDED.into_iter())
    }

    fn block(heard: impl Iterator<Item = Waited>) -> Result<Self, Failure> {
        let others = [Waited::SIGCONT, Waited::SIGCHLD, Waited::SIGURG];
        let waited_for: SigSet = heard.chain(others).collect();
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

    /// Sends the signals to a channel, from a thread of its own. Those that end a program fire
    /// `stop` first.
    pub(crate) fn listen(self, stop: &Interrupt) -> Receiver<Signal> {
        let (sender, receiver) = unbounded();
        let stop = stop.clone();
        thread::spawn(move || {
            while let Ok(signal) = self.wait() {
                if signal != Signal::CONT && signal != Signal::CHILD {
                    stop.fire();
                }
                if sender.send(signal).is_err() {
                    return;
                }
            }
        });
        receiver
    }
}

/// The signals that this process ignores, as a mask; none where the system does not tell.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}
