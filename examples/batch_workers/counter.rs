//! [`Counter`]: the file that holds, in decimal, the number that was sold last.

use crate::shared::{Trouble, exit};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use tempfile::NamedTempFile;

/// How often the file is read until it holds a number: another program may be writing it.
/// `BETWEEN_LOOKS` is the pause between two reads.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// The file of a run.
pub(crate) enum Counter {
    /// Created by this run, known to no other program, and removed when this is dropped.
    Ours(NamedTempFile),
    /// Named on the command line: other programs may sell from it, too.
    Shared(PathBuf),
}

impl Counter {
    /// Opens the file of this name, and creates it if there is none. Without a name, creates a
    /// temporary file.
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, Trouble> {
        let Some(path) = path else {
            let file = NamedTempFile::with_prefix("batch_workers-").and_then(with_zero);
            return file
                .map(Self::Ours)
                .map_err(|error| cannot("make a temporary counter", &error));
        };
        if !path.exists() {
            make(path)
                .map_err(|error| cannot(&format!("make the counter {}", path.display()), &error))?;
        }
        Ok(Self::Shared(path.to_owned()))
    }

    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Ours(file) => file.path(),
            Self::Shared(path) => path,
        }
    }

    /// Returns whether no other program sells from the file.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Ours(_))
    }

    /// Returns the number in the file before the first job.
    pub(crate) fn first(&self) -> Result<u64, Trouble> {
        let path = self.path().display();
        let number = self
            .settled()
            .map_err(|e| cannot(&format!("read the counter {path}"), &e))?;
        number.ok_or_else(|| {
            let what = format!("{path} holds no number: write a 0 into it, or name another");
            Trouble::new(exit::CONFIGURATION, what)
        })
    }

    /// Returns the number in the file, read without the lock; `None` if the file holds no number.
    /// Used before the first and after the last job, where it does no harm that other programs sell
    /// meanwhile. Such a program may be writing the number at this moment, so the file is read more
    /// than once.
    pub(crate) fn settled(&self) -> io::Result<Option<u64>> {
        for _ in 0..LOOKS {
            if let Some(number) = read(self.path())? {
                return Ok(Some(number));
            }
            #[allow(clippy::disallowed_methods, reason = "nothing to wait for but time")]
            thread::sleep(BETWEEN_LOOKS);
        }
        Ok(None)
    }
}

/// Creates the file with its zero in one step. Otherwise another run that starts now could find the
/// file empty, or lose its sales when the zero is written.
fn make(path: &Path) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let file = NamedTempFile::new_in(directory.unwrap_or(Path::new("."))).and_then(with_zero)?;
    match file.persist_noclobber(path) {
        // Another run was faster, and its file is used.
        Err(refused) if refused.error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop).map_err(|refused| refused.error),
    }
}

fn with_zero(mut file: NamedTempFile) -> io::Result<NamedTempFile> {
    writeln!(file, "0")?;
    Ok(file)
}

/// Returns the number in the file; `None` if it holds no number, because a thread without the lock
/// is writing it.
pub(crate) fn read(path: &Path) -> io::Result<Option<u64>> {
    let bytes = fs::read(path)?;
    Ok(std::str::from_utf8(&bytes)
        .ok()
        .and_then(|text| text.trim().parse().ok()))
}

/// Writes the number in one step. If the file were emptied first and the program were killed then,
/// the number would be lost. The blanks overwrite the rest of the old number.
pub(crate) fn write(path: &Path, number: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(format!("{number:<20}\n").as_bytes())
}

/// Returns the error of a failed operation on a file.
pub(crate) fn cannot(do_what: &str, error: &io::Error) -> Trouble {
    let what = format!("cannot {do_what}: {error}; name another file with `--counter`");
    Trouble::new(exit::SOFTWARE, what)
}
