//! [`HangingFile`]: a file whose reads do not end, as on a file system whose server is gone.

use super::probe::Probe;
use rustix::fs::{CWD, FileType, Mode, OFlags, link, mknodat, open, unlink};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Gives the server of this probe a password, which stands in a file in that folder.
pub fn password_file(probe: &mut Probe) -> (TempDir, PathBuf) {
    probe.command(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "s3cret\n").unwrap();
    (folder, file)
}

/// A FIFO that no process writes to. Reads of it end when it is dropped.
pub struct HangingFile {
    path: PathBuf,
    /// The FIFO under a name of its own: the path may be another file by now.
    fifo: PathBuf,
}

impl HangingFile {
    /// Puts it in the place of the file at this path, if there is one.
    pub fn at(path: &Path) -> Self {
        let fifo = path.with_extension("fifo");
        mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let _none_before = unlink(path);
        link(&fifo, path).unwrap();
        Self {
            path: path.to_owned(),
            fifo,
        }
    }

    /// Puts a file with this content in its place, and ends the reads that hang.
    pub fn replace(self, content: &str) {
        let new = self.path.with_extension("new");
        fs::write(&new, content).unwrap();
        fs::rename(&new, &self.path).unwrap();
    }
}

impl Drop for HangingFile {
    fn drop(&mut self) {
        // Fails where no process reads.
        let _read = open(&self.fifo, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        let _gone = unlink(&self.fifo);
    }
}
