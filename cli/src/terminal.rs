//! The controlling terminal. The processes of its foreground process group read from the terminal
//! and get its signals.

use crate::processes::Group;
use rustix::process::{Pid, getpgid};
use rustix::termios::{tcgetpgrp, tcsetpgrp};
use std::fs::File;

/// The terminal of the job that the user started from a shell.
pub(crate) struct Terminal {
    tty: File,
    /// The process that the user started.
    front: Pid,
    /// The process group of the process that the user started.
    job: Group,
}

impl Terminal {
    /// Returns the controlling terminal. Returns `None` if there is no controlling terminal, as
    /// under cron, or if `front` has ended.
    pub(crate) fn of(front: Pid) -> Option<Self> {
        let tty = File::options()
            .read(true)
            .write(true)
            .open("/dev/tty")
            .ok()?;
        Some(Self {
            tty,
            front,
            job: Group(getpgid(Some(front)).ok()?),
        })
    }

    /// Makes `group` the foreground group if the job is in the foreground. Returns whether `group`
    /// is in the foreground.
    pub(crate) fn give_to(&self, group: Group) -> bool {
        let Ok(foreground) = tcgetpgrp(&self.tty) else {
            return false;
        };
        foreground == group.0 || foreground == self.job.0 && tcsetpgrp(&self.tty, group.0).is_ok()
    }

    /// Makes `group` the foreground group as [`give_to`](Self::give_to) does, unless other
    /// processes of the job may need the terminal, as in `distlock run x -- y | less`. Then the
    /// command's group becomes the foreground group when the command reads from the terminal.
    pub(crate) fn give_to_unless_shared(&self, group: Group) {
        if self.job.is_alone(self.front) {
            self.give_to(group);
        }
    }

    /// Makes the job's own group the foreground group again, if `group` is in the foreground.
    pub(crate) fn take_from(&self, group: Group) {
        if tcgetpgrp(&self.tty) == Ok(group.0) {
            // A failure is ignored, because the shell does the same when the job has ended.
            let _taken = tcsetpgrp(&self.tty, self.job.0);
        }
    }

    /// Makes the job's own group the foreground group again, if the present foreground group has
    /// ended.
    pub(crate) fn reclaim(&self) {
        if let Ok(foreground) = tcgetpgrp(&self.tty)
            && Group(foreground).is_empty()
        {
            self.take_from(Group(foreground));
        }
    }

    /// Returns the group that Ctrl-Z would stop if the command did not have a separate group.
    pub(crate) fn job(&self) -> Group {
        self.job
    }
}
