//! The state of locks, made of the rows of the function `inspect`.

use crate::numbers::{duration, token, unsigned};
use lock_core::backend::{Failure, HolderInfo, LockInfo, Permits, Readers};
use lock_core::{Error, ErrorKind, LockName, OwnerId, OwnerLabel, OwnerText};
use postgres::Row;

/// The rows of one name.
#[derive(Default)]
pub(crate) struct Inspected {
    holder: Option<HolderInfo>,
    shares: Vec<HolderInfo>,
    is_writer: bool,
    token: Option<i64>,
    limit: Option<u32>,
    writer_waits: bool,
    waiters: Option<u64>,
}

/// Sorts the rows by the names that were asked for, of which there were `count`.
pub(crate) fn of_rows(rows: &[Row], count: usize) -> Vec<Inspected> {
    let mut all: Vec<_> = std::iter::repeat_with(Inspected::default)
        .take(count)
        .collect();
    for row in rows {
        let at = usize::try_from(row.get::<_, i32>(0)).unwrap_or_default();
        if let Some(inspected) = at.checked_sub(1).and_then(|at| all.get_mut(at)) {
            inspected.add(row);
        }
    }
    all
}

impl Inspected {
    fn add(&mut self, row: &Row) {
        self.is_writer = row.get(5);
        self.token = row.get(8);
        self.limit = row.get::<_, Option<i32>>(9).map(unsigned);
        self.writer_waits = row.get(10);
        let waiters: Option<i64> = row.get(11);
        self.waiters = waiters.and_then(|it| u64::try_from(it).ok());
        let Some(owner) = row.get::<_, Option<String>>(1) else {
            return;
        };
        let time = |at| duration(row.get(at));
        let label: Option<String> = row.get(6);
        let info = HolderInfo::new(
            OwnerText::new(&owner),
            Some(time(2)),
            u64::from(unsigned(row.get(3))),
        )
        .label(label.map(|text| OwnerLabel::new(text.into(), time(7))));
        match row.get(4) {
            true => self.shares.push(info),
            false => self.holder = Some(info),
        }
    }

    /// Fails if `name` is a lock and the stored one a semaphore, or the reverse.
    fn refuse_other_use(&self, name: &LockName) -> Result<(), Failure> {
        let is_used = self.holder.is_some() || !self.shares.is_empty();
        let found = match (name.kind().permits(), self.limit) {
            (None, Some(_)) => "a semaphore",
            (Some(_), None) if is_used => "a lock",
            _ => return Ok(()),
        };
        Err(Failure::Refused(Error::new(
            ErrorKind::ForeignFormat,
            format!("the name is in use for {found}: choose another one"),
        )))
    }

    /// Returns the state of the lock with its number of waiters and its largest token.
    pub(crate) fn whole_info(self, name: &LockName) -> Result<LockInfo, Failure> {
        let token = self.token.and_then(token);
        let waiters = self.waiters;
        let info = self.info(name)?.waiters(waiters);
        Ok(info.largest_token(token.filter(|_| name.kind().permits().is_none())))
    }

    /// Returns the state of the lock. The holder whose lease ends last comes first in the rows.
    pub(crate) fn info(self, name: &LockName) -> Result<LockInfo, Failure> {
        self.refuse_other_use(name)?;
        let kind = name.kind();
        if let Some(limit) = self.limit {
            let taken: u64 = self.shares.iter().map(|it| it.holds).sum();
            let held = self.shares.into_iter().next();
            let info = held.map_or(LockInfo::FREE, |mut holder| {
                holder.holds = 1;
                LockInfo::held(holder).holders(taken)
            });
            let free = limit.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
            return Ok(info.permits(Permits::new(limit, free)));
        }
        let has_readers = !self.shares.is_empty();
        Ok(match self.holder {
            Some(holder) if !kind.is_reader() => {
                let info = LockInfo::held(holder);
                match self.is_writer || kind.is_writer() {
                    true => info.readers(Readers::new(Vec::new(), self.writer_waits)),
                    false => info,
                }
            }
            _ => {
                let first = self.shares.first().cloned();
                let info = first.map_or(LockInfo::FREE, |holder| {
                    LockInfo::held(holder).holders(self.shares.len() as u64)
                });
                match kind.is_reader() || kind.is_writer() || has_readers {
                    true => info.readers(Readers::new(self.shares, self.writer_waits)),
                    false => info,
                }
            }
        })
    }

    /// Returns what this owner holds, if it holds all of it: `count` permits, or a reader's share.
    pub(crate) fn share_of(
        self,
        name: &LockName,
        owner: OwnerId,
        count: u32,
    ) -> Result<Option<HolderInfo>, Failure> {
        self.refuse_other_use(name)?;
        let own = self
            .shares
            .into_iter()
            .filter(|it| owner.matches(&it.owner));
        let own: Vec<_> = own.collect();
        let held: u64 = own.iter().map(|it| it.holds).sum();
        let first = own.into_iter().min_by_key(|it| it.remaining);
        Ok(first.filter(|_| held == u64::from(count)).map(|mut info| {
            info.holds = held;
            info
        }))
    }
}
