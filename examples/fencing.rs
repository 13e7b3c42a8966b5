//! Fencing tokens: no lock with a lease can stop a program that was paused and still relies on the
//! lock. The protected resource can: it refuses every token that is smaller than the largest it has
//! seen.
//!
//! ```sh
//! cargo run --example fencing                              # in this process's memory
//! cargo run --example fencing -- redis://127.0.0.1:6379    # on a server
//! ```

#![allow(
    clippy::disallowed_methods,
    reason = "the sleep stands for a pause of the machine"
)]

#[path = "shared/url.rs"]
mod url;

use distlock::{FencingToken, LockOptions};
use std::error::Error;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::thread;
use std::time::Duration;

fn main() -> Result<(), Box<dyn Error>> {
    let url = url::given_or("memory://");
    // Two clients, as two programs would have.
    let first = distlock::connect(&url)?.mutex("example:fencing")?;
    let second = distlock::connect(&url)?.mutex("example:fencing")?;
    let mut report = FencedFile::new(tempfile::tempfile()?);

    // The first client takes the lock, and is then paused for longer than the lease.
    let lease = LockOptions::new().lease(Duration::from_millis(300));
    let early = first.lock_with(&lease)?;
    let early_token = early.fencing_token().ok_or("this store has no tokens")?;
    println!("the first holds token {early_token}, and falls asleep");
    thread::sleep(Duration::from_millis(400));

    // Meanwhile the second client locks and writes. It need not know of the first one.
    let late = second.lock()?;
    let late_token = late.fencing_token().ok_or("this store has no tokens")?;
    assert!(
        late_token > early_token,
        "every grant's token is larger than all before"
    );
    report.write(late_token, "by the second")?;
    println!("the second wrote under token {late_token}");
    late.unlock()?;

    // The first client resumes. A check of the guard would stop it here ...
    assert!(!early.is_valid());
    // ... but it may be paused again between the check and the write. The file refuses the write.
    let refused = report
        .write(early_token, "by the first")
        .expect_err("a small token");
    println!("the first woke and was refused: {refused}");
    assert!(
        early.unlock().is_err_and(|error| error.is_lost()),
        "it is told at the latest here"
    );

    assert_eq!(report.read()?, (late_token, "by the second".to_owned()));
    println!("the report is still the second's");
    Ok(())
}

/// A file whose first line is the token of the last write.
struct FencedFile(fd_lock::RwLock<File>);

impl FencedFile {
    fn new(file: File) -> Self {
        Self(fd_lock::RwLock::new(file))
    }

    /// Writes `text`, unless a client with a larger token wrote before. Comparison and write must
    /// be one step: here by the system's lock on the file. The token belongs to everything that the
    /// lock protects, here the whole file. A database has one row of tokens for each lock, which
    /// `UPDATE .. WHERE token <= ?` raises in the transaction of the write: tokens in the rows that
    /// are written would not protect the rows that the successor has not touched.
    fn write(&mut self, token: FencingToken, text: &str) -> Result<(), Box<dyn Error>> {
        let mut file = self.0.write()?;
        if let Some((seen, _)) = parse(&mut file)?.filter(|(seen, _)| token < *seen) {
            return Err(format!("token {token} is older than {seen}").into());
        }
        file.rewind()?;
        file.set_len(0)?;
        Ok(write!(file, "{token}\n{text}")?)
    }

    fn read(&mut self) -> Result<(FencingToken, String), Box<dyn Error>> {
        parse(&mut *self.0.write()?)?.ok_or_else(|| "nothing was written".into())
    }
}

/// Returns the token and the text of the file; `None` while the file is empty.
fn parse(file: &mut File) -> Result<Option<(FencingToken, String)>, Box<dyn Error>> {
    let mut content = String::new();
    file.rewind()?;
    file.read_to_string(&mut content)?;
    let Some((token, text)) = content.split_once('\n') else {
        return Ok(None);
    };
    Ok(Some((FencingToken::new(token.parse()?), text.to_owned())))
}
