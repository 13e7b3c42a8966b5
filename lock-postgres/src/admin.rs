//! The requests of operators: listing, forced release, permits.

use crate::connection::Parameter;
use crate::diagnosis;
use crate::numbers::{micros, signed, unsigned};
use crate::store::{PostgresStore, shape};
use lock_core::backend::{
    Admin, Failure, LockInfo, LockPage, PagePosition, PermitChange, PermitOutcome,
};
use lock_core::{Error, Finding, LockName, Moment, PermitId};
use postgres::types::Type;

/// The largest number of locks on a page of a list.
const PAGE: i32 = 1000;

/// The largest number of permits of a semaphore.
const MOST_PERMITS: i32 = 1_000_000;

impl Admin for PostgresStore {
    fn force_release(&self, name: &LockName, by: Moment) -> Result<bool, Failure> {
        let stored = self.names.stored(name)?;
        let statement = self.settings().call("force_release($1, $2, $3)");
        let parameters: &[Parameter<'_>] = &[
            (&stored, Type::TEXT),
            (&shape(name.kind()), Type::TEXT),
            (&self.patience(by), Type::INT8),
        ];
        let rows = self.query(&statement, parameters, by)?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }

    fn change_permits(
        &self,
        name: &LockName,
        change: PermitChange,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        let Some((named, _)) = name.kind().permits() else {
            return Err(Failure::NotSent(Error::misuse(
                "only a semaphore has permits",
            )));
        };
        let (limit, more) = match change {
            PermitChange::SetLimit(limit) => (Some(signed(limit)), 0),
            PermitChange::AddLimit(more) => (None, more),
            PermitChange::Release(id) => return self.change_permit(name, id, None, by),
            PermitChange::Extend(id, lease) => {
                return self.change_permit(name, id, Some(micros(lease.duration())), by);
            }
            _ => return Err(Failure::NotSent(Error::misuse("an unknown change"))),
        };
        let stored = self.names.stored(name)?;
        let parameters: &[Parameter<'_>] = &[
            (&stored, Type::TEXT),
            (&limit, Type::INT4),
            (&more, Type::INT4),
            (&signed(named), Type::INT4),
            (&MOST_PERMITS, Type::INT4),
            (&self.patience(by), Type::INT8),
        ];
        let statement = self.settings().call("set_permits($1, $2, $3, $4, $5, $6)");
        let rows = self.query(&statement, parameters, by)?;
        let (before, now): (Option<i32>, Option<i32>) = rows
            .first()
            .map(|row| (row.get(0), row.get(1)))
            .unwrap_or_default();
        match now {
            Some(now) => Ok(PermitOutcome::Limit {
                before: before.map(unsigned),
                now: unsigned(now),
            }),
            None => {
                let before = before.unwrap_or_default().into();
                let refused = PermitChange::added(before, more).err();
                let refused = refused.unwrap_or_else(|| Error::misuse("an unknown limit"));
                Err(Failure::Refused(refused))
            }
        }
    }

    fn inspect_all(&self, names: &[LockName], by: Moment) -> Vec<Result<LockInfo, Failure>> {
        let stored: Vec<_> = names.iter().map(|name| self.names.stored(name)).collect();
        let good: Vec<_> = stored.iter().flatten().cloned().collect();
        let mut inspected = match self.inspected(&good, by) {
            Ok(all) => all.into_iter(),
            Err(failure) => return names.iter().map(|_| Err(failure.clone())).collect(),
        };
        let info = |(name, stored): (&LockName, Result<String, Failure>)| {
            stored?;
            inspected.next().unwrap_or_default().whole_info(name)
        };
        names.iter().zip(stored).map(info).collect()
    }

    fn list(&self, pattern: &str, from: &PagePosition, by: Moment) -> Result<LockPage, Failure> {
        let prefix = &self.names.prefix;
        let pattern = format!("^{}{}$", literal(prefix), regular_expression(pattern));
        let previous = [prefix, from.part.as_str()].concat();
        let parameters: &[Parameter<'_>] = &[
            (&pattern, Type::TEXT),
            (&previous, Type::TEXT),
            (&PAGE, Type::INT4),
        ];
        let statement = self.settings().call("held_names($1, $2, $3)");
        let rows = self.query(&statement, parameters, by)?;
        let names = rows.iter().filter_map(|row| {
            let stored: &str = row.get(0);
            LockName::new(stored.strip_prefix(prefix.as_str())?).ok()
        });
        let names: Vec<_> = names.collect();
        let is_full = rows.len() >= usize::try_from(PAGE).unwrap_or_default();
        let last = rows.last().filter(|_| is_full);
        let last = last.and_then(|row| row.get::<_, &str>(0).strip_prefix(prefix.as_str()));
        let next = last.map(|last| PagePosition::new(last, 0));
        let infos = self.inspect_all(&names, by);
        let mut locks = Vec::new();
        for (name, info) in names.into_iter().zip(infos) {
            match info {
                Ok(info) if info.holder.is_some() => locks.push((name, info)),
                Ok(_) => {}
                Err(Failure::Refused(error)) if error.is_foreign_format() => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(LockPage::new(locks, next))
    }

    fn diagnose(&self, by: Moment) -> Result<Vec<Finding>, Failure> {
        diagnosis::diagnose(self, by)
    }
}

impl PostgresStore {
    fn change_permit(
        &self,
        name: &LockName,
        id: PermitId,
        lease: Option<i64>,
        by: Moment,
    ) -> Result<PermitOutcome, Failure> {
        let stored = self.names.stored(name)?;
        let (identity, number) = id.as_bytes().split_at(PermitId::COMMON_BYTES);
        let number = number
            .iter()
            .fold(0, |all, byte| all << 8 | i32::from(*byte));
        let parameters: &[Parameter<'_>] = &[
            (&stored, Type::TEXT),
            (&identity, Type::BYTEA),
            (&number, Type::INT4),
            (&lease, Type::INT8),
            (&self.patience(by), Type::INT8),
        ];
        let statement = self.settings().call("change_permit($1, $2, $3, $4, $5)");
        let rows = self.query(&statement, parameters, by)?;
        Ok(match rows.first().is_some_and(|row| row.get(0)) {
            true => PermitOutcome::Changed,
            false => PermitOutcome::NotTaken,
        })
    }
}

/// Returns a regular expression that matches this text.
fn literal(text: &str) -> String {
    let escape = |c: char| match c.is_ascii_punctuation() {
        true => format!("\\{c}"),
        false => c.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Converts a glob, as in Redis' `SCAN .. MATCH`, into a regular expression of PostgreSQL.
fn regular_expression(glob: &str) -> String {
    let mut pattern = String::new();
    let mut characters = glob.chars().peekable();
    while let Some(c) = characters.next() {
        match c {
            '*' => pattern.push_str(".*"),
            '?' => pattern.push('.'),
            '\\' => pattern.push_str(&literal(&characters.next().unwrap_or('\\').to_string())),
            '[' => {
                pattern.push('[');
                if characters.next_if_eq(&'^').is_some() {
                    pattern.push('^');
                }
                while let Some(c) = characters.next().filter(|c| *c != ']') {
                    let c = match c {
                        '\\' => characters.next().unwrap_or('\\'),
                        c => c,
                    };
                    match c {
                        '-' => pattern.push('-'),
                        c => pattern.push_str(&literal(&c.to_string())),
                    }
                }
                pattern.push(']');
            }
            c => pattern.push_str(&literal(&c.to_string())),
        }
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_becomes_a_regular_expression() {
        for (glob, expression) in [
            ("*", ".*"),
            ("a?c", "a.c"),
            ("a.b", r"a\.b"),
            (r"a\*b", r"a\*b"),
            ("[a-c]x", "[a-c]x"),
            ("[^ab]", "[^ab]"),
            ("ä{1}", r"ä\{1\}"),
        ] {
            assert_eq!(regular_expression(glob), expression, "{glob}");
        }
    }
}
