//! [`HangingFile`]: a file whose reads hang, as on a network file system whose server is down.

use super::probe::Probe;
use rustix::fs::{CWD, FileType, Mode, OFlags, link, mknodat, open, unlink};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Sets a password on the server of this probe. Returns a folder, and the path of a file in it with
/// the password.
pub fn password_file(probe: &mut Probe) -> (TempDir, PathBuf) {
    probe.command(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    fs::write(&file, "s3cret\n").unwrap();
    (folder, file)
}

/// A FIFO that no process writes to. Hanging reads of it end when this value is dropped.
pub struct HangingFile {
    path: PathBuf,
    /// The FIFO under a second name, because after `replace` the path is another file.
    fifo: PathBuf,
}

impl HangingFile {
    /// Creates the FIFO at this path, and removes the file there, if any.
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

    /// Replaces the FIFO by a file with this content, and ends the hanging reads.
    pub fn replace(self, content: &str) {
        let new = self.path.with_extension("new");
        fs::write(&new, content).unwrap();
        fs::rename(&new, &self.path).unwrap();
    }
}

impl Drop for HangingFile {
    fn drop(&mut self) {
        // Opening and closing the FIFO ends the reads. Fails if no process reads.
        let _read = open(&self.fifo, OFlags::WRONLY | OFlags::NONBLOCK, Mode::empty());
        let _gone = unlink(&self.fifo);
    }
}
