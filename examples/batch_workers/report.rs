//! [`Report`]: a worker's report, which a child process sends to its parent as a line of text;
//! [`Tally`]: the sum of all reports.

use super::shared::{Trouble, exit};
use std::fmt;
use std::str::FromStr;

/// A number that was sold.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Sale {
    pub(crate) number: u64,
    /// The fencing token of the lock at the sale, if there was a lock and the store has tokens.
    pub(crate) token: Option<u64>,
}

/// A worker's report.
#[derive(Clone, Debug)]
pub(crate) enum Report {
    Sold(Sale),
    /// The file held no number, because another thread was writing it: nothing was sold.
    Unreadable,
    /// The wait for the lock was interrupted, and the worker has ended.
    Interrupted,
    /// The worker has failed, and has ended.
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
    /// The first failure; later ones are mostly its consequences.
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

    /// Returns the number of sales.
    pub(crate) fn sold(&self) -> u64 {
        self.sales.len() as u64
    }

    pub(crate) fn take_trouble(&mut self) -> Option<Trouble> {
        self.trouble.take()
    }
}
