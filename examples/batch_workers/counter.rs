//! [`Counter`]: the file that is sold from. It holds the decimal number that was sold last.

use crate::shared::{Trouble, exit};
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;
use tempfile::NamedTempFile;

/// How often, and how long apart, a number is read that other programs may be writing.
const LOOKS: u32 = 20;
const BETWEEN_LOOKS: Duration = Duration::from_millis(10);

/// The file of a run.
pub(crate) enum Counter {
    /// Made by this run, known to no other program, and removed when it is dropped.
    Ours(NamedTempFile),
    /// Named on the command line: others may sell from it, too.
    Shared(PathBuf),
}

impl Counter {
    /// The file of this name, made if there is none; without a name, a fresh one.
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

    /// Whether no other program sells from it.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self, Self::Ours(_))
    }

    /// The number in it before the first job.
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

    /// The number in it, read without the lock: for before the first and after the last job, where
    /// it does no harm that others go on selling. They may be writing it just now, so it is looked
    /// at more than once. `None`: there is none.
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

/// Makes a file that appears with its zero in it: another run that starts now must not find it
/// empty, nor write a zero over what was sold already.
fn make(path: &Path) -> io::Result<()> {
    let directory = path
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty());
    let file = NamedTempFile::new_in(directory.unwrap_or(Path::new("."))).and_then(with_zero)?;
    match file.persist_noclobber(path) {
        // Another run has created the file first.
        Err(refused) if refused.error.kind() == ErrorKind::AlreadyExists => Ok(()),
        made => made.map(drop).map_err(|refused| refused.error),
    }
}

fn with_zero(mut file: NamedTempFile) -> io::Result<NamedTempFile> {
    writeln!(file, "0")?;
    Ok(file)
}

/// The number in the file; `None` if there is none in it, because a thread without the lock is just
/// writing it.
pub(crate) fn read(path: &Path) -> io::Result<Option<u64>> {
    let bytes = fs::read(path)?;
    Ok(std::str::from_utf8(&bytes)
        .ok()
        .and_then(|text| text.trim().parse().ok()))
}

/// Writes the number, in one step. A file that is emptied first would stay empty if the program is
/// killed then, and the next run would sell everything again. The blanks overwrite the old number.
pub(crate) fn write(path: &Path, number: u64) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(format!("{number:<20}\n").as_bytes())
}

/// The error of a file.
pub(crate) fn cannot(do_what: &str, error: &io::Error) -> Trouble {
    let what = format!("cannot {do_what}: {error}; name another file with `--counter`");
    Trouble::new(exit::SOFTWARE, what)
}
