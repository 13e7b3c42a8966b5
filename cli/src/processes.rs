//! The processes of a command: its process group, and all its descendants.
//!
//! A descendant may leave the group, as `timeout` and interactive shells do, and its parent may end
//! before it. As a subreaper, the supervisor remains the ancestor of all descendants.

use crate::exit::Failure;
use distlock::crossbeam_channel::{Receiver, after, unbounded};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, kill_process_group,
    set_child_subreaper, test_kill_process_group, wait,
};
use std::collections::HashMap;
use std::fs;
use std::thread;
use std::time::Duration;

/// The interval of checks for a change that is expected soon, such as the end of a process.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The longest pause between two rounds that kill processes which do not end.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Makes this process the parent of descendants whose parents end.
pub(crate) fn adopt_orphans() -> Result<(), Failure> {
    set_child_subreaper(Some(getpid()))
        .map_err(|error| Failure::system("this process cannot adopt its descendants", error))
}

/// A process group.
#[derive(Clone, Copy)]
pub(crate) struct Group(pub(crate) Pid);

impl Group {
    /// Sends a signal to all processes of the group.
    pub(crate) fn signal(self, signal: Signal) {
        // The group may have ended, or run as another user.
        let _sent = kill_process_group(self.0, signal);
    }

    /// Returns whether `process` is the only one in the group.
    pub(crate) fn is_alone(self, process: Pid) -> bool {
        running().all(|other| other.group != self.0 || other.id == process)
    }

    /// Returns whether the group has no process.
    pub(crate) fn is_empty(self) -> bool {
        test_kill_process_group(self.0) == Err(Errno::SRCH)
    }

    /// Returns the running processes of the group, and the other descendants of this process that
    /// are in `scope`: their IDs, with their names.
    pub(crate) fn members(self, scope: Option<Scope>) -> Vec<String> {
        let members = running().filter(|process| process.group == self.0);
        let others = scope.into_iter().flat_map(Scope::descendants);
        let others = others.filter(|process| process.group != self.0);
        let named = |process: Process| format!("{} ({})", process.id.as_raw_pid(), process.name);
        members.chain(others).map(named).collect()
    }

    /// Sends a signal to all processes of the group, and to the other descendants of this process
    /// that are in `scope`.
    pub(crate) fn signal_with(self, scope: Scope, signal: Signal) {
        self.signal(signal);
        for process in scope
            .descendants()
            .filter(|process| process.group != self.0)
        {
            process.signal(signal);
        }
    }
}

/// The set of descendants of this process to which an operation applies.
#[derive(Clone, Copy)]
pub(crate) enum Scope {
    /// The descendants in this session. Processes in a new group, such as that of `timeout`, are
    /// still in the session. A daemon is not: it has left the session.
    Session,
    /// All descendants.
    All,
}

impl Scope {
    fn descendants(self) -> impl Iterator<Item = Process> {
        let own = || fs::read_to_string("/proc/self/stat").ok();
        let session = match self {
            Self::Session => own().and_then(|stat| Some(Process::from_stat(&stat)?.session)),
            Self::All => None,
        };
        let is_in = move |process: &Process| session.is_none_or(|it| process.session == it);
        descendants().into_iter().filter(is_in)
    }

    /// Returns whether no descendant is running.
    pub(crate) fn is_empty(self) -> bool {
        self.descendants().next().is_none()
    }
}

/// A process, as `/proc` lists it.
struct Process {
    id: Pid,
    name: String,
    parent: Pid,
    group: Pid,
    /// 0 if the session was begun by a process outside of this PID namespace.
    session: i32,
}

impl Process {
    fn signal(&self, signal: Signal) {
        let _sent = kill_process(self.id, signal);
    }

    /// Parses `12 (name, with any characters) S 11 10 9 ..`. Returns `None` for an ended process,
    /// and for a process without a parent or a group in this PID namespace.
    fn from_stat(stat: &str) -> Option<Self> {
        let pid = |text: &str| text.parse().ok().and_then(Pid::from_raw);
        let (id, _) = stat.split_once(' ')?;
        let mut after_name = stat.rsplit(')').next()?.split_whitespace();
        let state = after_name.next()?;
        let mut next = || after_name.next();
        let (parent, group) = (pid(next()?)?, pid(next()?)?);
        let session = next()?.parse().ok()?;
        let (before_end, _) = stat.rsplit_once(')')?;
        let (_, name) = before_end.split_once('(')?;
        (!["Z", "X"].contains(&state)).then_some(Self {
            id: pid(id)?,
            name: name.to_owned(),
            parent,
            group,
            session,
        })
    }
}

/// Returns all running processes that have a parent and a group in this PID namespace.
fn running() -> impl Iterator<Item = Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbered = entries.filter(|entry| {
        entry
            .file_name()
            .as_encoded_bytes()
            .first()
            .is_some_and(u8::is_ascii_digit)
    });
    let stats = numbered.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    stats.filter_map(|stat| Process::from_stat(&stat))
}

/// Returns the running descendants of this process.
fn descendants() -> Vec<Process> {
    let mut children: HashMap<Pid, Vec<Process>> = HashMap::new();
    for process in running() {
        children.entry(process.parent).or_default().push(process);
    }
    let mut found = children.remove(&getpid()).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(&process.id).unwrap_or_default());
        next += 1;
    }
    found
}

/// Kills all descendants of this process, and returns when all have ended.
pub(crate) fn kill_descendants() {
    let mut pause = LOOK_AGAIN;
    loop {
        // Each round finds the processes that were started during the previous one.
        let left = descendants();
        left.iter().for_each(|process| process.signal(Signal::KILL));
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        if left.is_empty() {
            return;
        }
        let _due = after(pause).recv();
        // The pause grows, because a process of another user cannot be killed.
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Returns whether a process is stopped.
pub(crate) fn is_stopped(process: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_pid()));
    stat.unwrap_or_default()
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .starts_with(" T")
}

/// A change of a child's state.
pub(crate) enum Change {
    Stopped(Signal),
    Continued,
    Ended(WaitStatus),
}

/// Reports changes of this child, and reaps every child, on a separate thread.
pub(crate) fn watch(child: Pid) -> Receiver<Change> {
    let (sender, receiver) = unbounded();
    thread::spawn(move || {
        let options = WaitOptions::UNTRACED | WaitOptions::CONTINUED;
        loop {
            let (process, status) = match wait(options) {
                Ok(Some(found)) => found,
                Ok(None) | Err(Errno::INTR) => continue,
                Err(_no_child_left) => return,
            };
            if process == child && sender.send(change(status)).is_err() {
                return;
            }
        }
    });
    receiver
}

fn change(status: WaitStatus) -> Change {
    match status.stopping_signal().and_then(Signal::from_named_raw) {
        Some(signal) => Change::Stopped(signal),
        None if status.continued() => Change::Continued,
        None => Change::Ended(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_is_read_whatever_its_name_is() {
        let process = Process::from_stat("12 (a) Z 1 (b) S 11 10 9 0").unwrap();
        let Process {
            id,
            name,
            parent,
            group,
            session,
        } = process;
        let numbers = [id, parent, group].map(Pid::as_raw_pid);
        assert_eq!((numbers, session, &*name), ([12, 11, 10], 9, "a) Z 1 (b"));
        // As in a namespace without a session of its own.
        let process = Process::from_stat("12 (a) S 11 10 0 0").unwrap();
        assert_eq!(process.session, 0);
        for ended in [
            "12 (a) Z 11 10",
            "12 (a) X 11 10",
            "12 (a) S 0 0",
            "12 (a)",
            "",
        ] {
            assert!(Process::from_stat(ended).is_none(), "{ended:?}");
        }
    }
}
