//! [`Invariants`]: conditions on the keys of a lock that hold after every request.

use super::{Granted, Request, Side};
use distlock_tests::probe::{Probe, Value};
use std::collections::BTreeSet;

/// Reads all keys of a lock at one moment: the fields of the hash; the number of free permits, and
/// of those that are taken; the queue; the token counter; and keys without expiry.
const READ: &str = "
    local key, fields, free, endless = KEYS[1], {}, '', {}
    local kind = redis.call('TYPE', key).ok
    if kind == 'hash' then
      fields = redis.call('HGETALL', key)
      if redis.call('PTTL', key) == -1 then endless[1] = key end
    elseif kind == 'string' then
      free = redis.call('GET', key)
    end
    local taken = '{' .. key .. '}:timeout'
    for _, beside in ipairs(redis.call('KEYS', '*{' .. key .. '}*')) do
      if beside ~= taken and redis.call('PTTL', beside) == -1 then
        endless[#endless + 1] = beside
      end
    end
    local queue = redis.call('ZRANGE', 'distlock_queue:2:{' .. key .. '}', 0, -1, 'WITHSCORES')
    local counter = redis.call('GET', 'redisson_lock_token:{' .. key .. '}') or ''
    return {fields, free, redis.call('ZCARD', taken), queue, counter, endless}";

/// The state of a lock after the last request.
#[derive(Default)]
pub(super) struct Invariants {
    holders: Vec<String>,
    /// The holders before the last request.
    holders_before: Vec<String>,
    /// Whether the holders have changed since the last grant: then a release may have granted the
    /// lock.
    have_changed: bool,
    /// The value of `have_changed` before the last request.
    had_changed: bool,
    counter: Option<u64>,
    last_grant: Option<Granted>,
    /// The number of permits, free or taken, as far as it is stored.
    permits: Option<i64>,
}

impl Invariants {
    /// Checks the keys of this side's lock, if it is on a server.
    pub(super) fn check(&mut self, side: &Side, request: Request) -> Result<(), String> {
        let Some(mut probe) = side.store.probe() else {
            return Ok(());
        };
        let sets_permits = matches!(request, Request::SetPermits(_) | Request::AddPermits(..));
        self.check_keys(&mut probe, side.name.as_str(), sets_permits)?;
        let is_reader = matches!(request, Request::Acquire { kind, .. } if kind.is_reader());
        match side.granted.lock().take().filter(|_| !is_reader) {
            Some(granted) => self.check_grant(granted),
            None => Ok(()),
        }
    }

    /// Checks the keys of the lock with this key.
    pub(super) fn check_keys(
        &mut self,
        probe: &mut Probe,
        key: &str,
        sets_permits: bool,
    ) -> Result<(), String> {
        let Value::List(state) = probe.command(&["EVAL", READ, "1", key]) else {
            return Err("the keys cannot be read".to_owned());
        };
        let [fields, free, taken, queue, counter, endless] = <[Value; 6]>::try_from(state).unwrap();
        let endless = endless.texts();
        if !endless.is_empty() {
            return Err(format!("keys without expiry: {endless:?}"));
        }
        let fields = fields.texts();
        let fields: Vec<_> = fields
            .chunks(2)
            .map(|it| (it[0].as_str(), it[1].as_str()))
            .collect();
        check_holders(&fields)?;
        check_queue(&queue.texts(), &fields)?;
        self.check_counter(&counter.text())?;
        let holders = fields.iter().map(|(name, _)| (*name).to_owned()).collect();
        self.holders_before = std::mem::replace(&mut self.holders, holders);
        self.had_changed = self.have_changed;
        self.have_changed |= self.holders != self.holders_before;
        self.check_permits(&free.text(), taken.int(), sets_permits)
    }

    /// Returns the first holder after the last request.
    pub(super) fn holder(&self) -> Option<&str> {
        self.holders.first().map(String::as_str)
    }

    /// Checks that the token of a new grant is larger than the last one, and that a repeated
    /// request gets its own token.
    pub(super) fn check_grant(&mut self, granted: Granted) -> Result<(), String> {
        let holds = |owner: String| {
            self.holders_before
                .iter()
                .any(|it| it.trim_end_matches(":write") == owner)
        };
        let held_it = holds(granted.owner.to_string());
        let Some(last) = self.last_grant.replace(granted) else {
            return Ok(());
        };
        let is_sound = match (last.owner == granted.owner && held_it, self.had_changed) {
            (true, false) => last.token == granted.token,
            // A release may have granted the lock in between, with a larger token.
            (true, true) => last.token <= granted.token,
            (false, _) => last.token < granted.token,
        };
        self.have_changed = false;
        if is_sound {
            Ok(())
        } else {
            Err(format!("tokens: {last:?}, then {granted:?}"))
        }
    }

    fn check_counter(&mut self, counter: &str) -> Result<(), String> {
        let counter = counter.parse().ok();
        let goes_back = self
            .counter
            .zip(counter)
            .is_some_and(|(before, now)| now < before);
        let before = std::mem::replace(&mut self.counter, counter);
        if goes_back {
            Err(format!("the counter was {before:?}, and is {counter:?}"))
        } else {
            Ok(())
        }
    }

    /// Checks that each permit is counted once, as free or as taken.
    fn check_permits(&mut self, free: &str, taken: i64, are_set: bool) -> Result<(), String> {
        let all = free.parse::<i64>().ok().map(|free| free + taken);
        let before = std::mem::replace(&mut self.permits, all);
        match before.zip(all) {
            Some((before, all)) if before != all && !are_set => {
                Err(format!("there were {before} permits, and there are {all}"))
            }
            _ => Ok(()),
        }
    }
}

/// Checks that the holders are one owner of a mutex, or one writer, perhaps with readers, or
/// readers only.
fn check_holders(fields: &[(&str, &str)]) -> Result<(), String> {
    let mode = fields
        .iter()
        .find_map(|(name, value)| (*name == "mode").then_some(*value));
    let holders: Vec<_> = fields.iter().filter(|(name, _)| *name != "mode").collect();
    let writers = holders
        .iter()
        .filter(|(name, _)| name.ends_with(":write"))
        .count();
    let is_sound = match mode {
        None => holders.len() <= 1 && writers == 0,
        Some("write") => writers == 1,
        Some("read") => writers == 0 && !holders.is_empty(),
        Some(_) => false,
    };
    let are_ones = holders.iter().all(|(_, value)| *value == "1");
    if is_sound && are_ones {
        Ok(())
    } else {
        Err(format!("the holders are {fields:?}"))
    }
}

/// Checks that each waiter has a name and fields at one position, and does not hold the lock.
fn check_queue(queue: &[String], holders: &[(&str, &str)]) -> Result<(), String> {
    let entries = queue.chunks(2).map(|it| (it[0].as_str(), it[1].as_str()));
    let (fields, names): (Vec<_>, Vec<_>) = entries.partition(|(entry, _)| entry.contains(' '));
    let is_sound = fields.iter().all(|(entry, position)| {
        let words: Vec<_> = entry.split(' ').collect();
        let [name, owner] = [words[0], words[1]];
        words.len() == 9
            && words[7] == *position
            && names.contains(&(name, position))
            && holders.iter().all(|(holder, _)| *holder != owner)
    });
    let distinct: BTreeSet<_> = names.iter().map(|(name, _)| name).collect();
    if is_sound && names.len() == fields.len() && distinct.len() == names.len() {
        Ok(())
    } else {
        Err(format!("the queue is {queue:?}, the holders {holders:?}"))
    }
}
