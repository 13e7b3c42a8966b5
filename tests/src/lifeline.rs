//! [`LifeLine`]: a process that must not outlive us, even when no thread is left to run a `Drop`.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Kills a process group when this test process ends in any way: a shell reads from our pipe until
/// it ends. (`PR_SET_PDEATHSIG` needs unsafe code, and fires when the starting *thread* ends.) Drop
/// it before the process is reaped, or its number may belong to another process by then.
pub struct LifeLine(Child);

impl LifeLine {
    /// Ties the group that `leader` leads to us.
    pub fn of(leader: &Child) -> Self {
        Self::tied(leader, "", Path::new(""))
    }

    /// The same, and its files: for what lives as long as we do, and so has no `Drop` of its own.
    pub fn with_files(leader: &Child, files: &Path) -> Self {
        Self::tied(leader, "; rm -rf -- \"$1\"", files)
    }

    fn tied(leader: &Child, then: &str, files: &Path) -> Self {
        let shell = Command::new("sh")
            .args(["-c", &format!("read -r _; kill -s KILL -- \"-$0\"{then}")])
            .arg(leader.id().to_string())
            .arg(files)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // A group of its own, or Ctrl-C would end the shell before it can do its work.
            .process_group(0)
            .spawn()
            .expect("`sh` starts");
        Self(shell)
    }
}

impl Drop for LifeLine {
    fn drop(&mut self) {
        // Killed before its pipe is closed, so it has no time to kill anything itself.
        let _already_gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
