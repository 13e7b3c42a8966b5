//! [`LifeLine`]: kills a child process when the test process ends, even if no `Drop` runs.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Kills a process group when this test process ends in any way: a shell reads from a pipe, whose
/// other end closes with the test process. (`PR_SET_PDEATHSIG` would need unsafe code, and acts
/// when the starting *thread* ends.) It must be dropped before the child is reaped. Otherwise it
/// may kill another process that has got the child's number.
pub struct LifeLine(Child);

impl LifeLine {
    /// Kills the group of `leader` when this test process ends.
    pub fn of(leader: &Child) -> Self {
        Self::tied(leader, "", Path::new(""))
    }

    /// Kills the group of `leader`, and deletes its `files`, when this test process ends: for
    /// servers in statics, which are never dropped.
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
            // In a group of its own: otherwise Ctrl-C would end the shell before it kills the
            // child.
            .process_group(0)
            .spawn()
            .expect("`sh` starts");
        Self(shell)
    }
}

impl Drop for LifeLine {
    fn drop(&mut self) {
        // The shell is killed before its pipe is closed. Otherwise it would kill the child.
        let _already_gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}
