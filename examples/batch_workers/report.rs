//! [`Report`]: a worker's report, inside its process a value and to the parent process a line; and
//! [`Tally`]: the sum of all reports.

use super::shared::{Trouble, exit};
use std::fmt;
use std::str::FromStr;

/// One number sold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Sale {
    pub(crate) number: u64,
    /// The fencing token that it was sold under, if there was a lock and the store has tokens.
    pub(crate) token: Option<u64>,
}

/// A worker's report.
#[derive(Clone, Debug)]
pub(crate) enum Report {
    Sold(Sale),
    /// No number stood in the file, because another thread was just writing it: nothing was sold.
    Unreadable,
    /// The wait for the lock was interrupted, and the worker has ended.
    Interrupted,
    /// The worker cannot go on.
    Failed(Trouble),
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sold(Sale {
                number,
                token: Some(token),
            }) => write!(f, "sold {number} {token}"),
            Self::Sold(Sale {
                number,
                token: None,
            }) => write!(f, "sold {number}"),
            Self::Unreadable => f.write_str("unreadable"),
            Self::Interrupted => f.write_str("interrupted"),
            Self::Failed(trouble) => write!(f, "failed {} {trouble}", trouble.code),
        }
    }
}

impl FromStr for Report {
    type Err = Trouble;

    fn from_str(line: &str) -> Result<Self, Trouble> {
        let strange = || Trouble::new(exit::SOFTWARE, format_args!("a process said {line:?}"));
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        match what {
            "sold" => {
                let mut numbers = rest
                    .split(' ')
                    .map(|word| word.parse().map_err(|_| strange()));
                let number = numbers.next().ok_or_else(strange)??;
                Ok(Self::Sold(Sale {
                    number,
                    token: numbers.next().transpose()?,
                }))
            }
            "unreadable" => Ok(Self::Unreadable),
            "interrupted" => Ok(Self::Interrupted),
            "failed" => {
                let (code, why) = rest.split_once(' ').ok_or_else(strange)?;
                Ok(Self::Failed(Trouble::new(
                    code.parse().map_err(|_| strange())?,
                    why,
                )))
            }
            _ => Err(strange()),
        }
    }
}

/// The reports of all workers of a run.
#[derive(Default, Debug)]
pub(crate) struct Tally {
    pub(crate) sales: Vec<Sale>,
    pub(crate) unreadable: usize,
    pub(crate) interrupted: bool,
    /// The first trouble; later ones mostly follow from it.
    trouble: Option<Trouble>,
}

impl Tally {
    pub(crate) fn add(&mut self, report: Report) {
        match report {
            Report::Sold(sale) => self.sales.push(sale),
            Report::Unreadable => self.unreadable += 1,
            Report::Interrupted => self.interrupted = true,
            Report::Failed(trouble) => {
                self.trouble.get_or_insert(trouble);
            }
        }
    }

    /// How many sales there were.
    pub(crate) fn sold(&self) -> u64 {
        self.sales.len() as u64
    }

    pub(crate) fn take_trouble(&mut self) -> Option<Trouble> {
        self.trouble.take()
    }
}
