//! Permits of a semaphore, as Redisson's `RPermitExpirableSemaphore` stores them: the number of
//! free permits under the name, and a sorted set of the taken permits in a companion key.
//!
//! The ID of a permit is 16 bytes, which Redisson draws at random. Our IDs consist of the owner and
//! the permit's number, so that all requests of an acquisition name the same permits.

use super::{KindFormat, ScriptCall, owner_or_client};
use crate::connection::{Batch, Reply, Text};
use crate::keys;
use crate::lua::Script;
use crate::protocol::exchange::{Exchange, Received};
use crate::protocol::label::{self, Labels};
use crate::protocol::script_call::add_reads;
use crate::protocol::{OwnedFormat, busy_from_pttl, remaining};
use lock_core::backend::{
    AcquisitionId, Answer, Attempt, Failure, Grant, HolderInfo, LockInfo, PermitChange,
    PermitOutcome, Permits, ReleaseOptions,
};
use lock_core::{Error, ErrorKind, LockKind, LockName, OwnerId, OwnerText, PermitId, Semaphore};

/// The largest number of permits of one acquisition. A script that takes, renews or frees this many
/// permits occupies the server for one to two milliseconds.
pub(crate) const MOST_AT_ONCE: u32 = 1_000;

/// The count of an acquisition that takes all free permits.
const ALL_FREE: u32 = 0;

const CHANNEL: &str = "redisson_sc";

/// The format of semaphores. See the [module's text](self).
#[derive(Debug)]
pub(super) struct PermitFormat;

/// Creates a script that follows the functions of the wait queue. No release grants permits to a
/// waiter: the next waiter is notified, and then attempts. So these scripts do without the
/// functions that grant, and pass "free" as `turns` to a function that would otherwise grant.
macro_rules! queued {
    ($name:literal: $($file:literal),+) => {
        script!($name: "timestamp", "permits/counted", "tell", "queue_of", "queue", "let_next_in", "leave", "enter",
            "give_up", "permits/offer", $($file),+)
    };
}
static ACQUIRE: Script = queued!("acquire_permits":
    "permits/now", "permits/ids", "permits/acquire"
);
static RELEASE: Script = queued!("release_permits": "permits/ids", "permits/release");
static DRAIN: Script = queued!("acquire_permits":
    "permits/now", "permits/ids", "permits/drain", "permits/acquire"
);
static RELEASE_ONE: Script = queued!("release_permit": "permits/now", "permits/release_one");
static RENEW_ONE: Script = script!("renew_permits": "permits/now", "permits/one", "permits/renew");
static RENEW: Script = script!("renew_permits": "permits/now", "permits/ids", "permits/renew");
static INSPECT: Script = script!("inspect_permits":
    "permits/now", "permits/counted", "permits/ids", "permits/inspect"
);
static FORCE: Script = queued!("force_permits": "permits/now", "unlink", "permits/force");
static SET: Script = queued!("set_permits": "permits/limit");
static SCRIPTS: [&Script; 9] = [
    &ACQUIRE,
    &RELEASE,
    &RENEW,
    &INSPECT,
    &FORCE,
    &SET,
    &RELEASE_ONE,
    &RENEW_ONE,
    &DRAIN,
];

/// Returns the bytes with which all permits of an owner begin.
fn beginning(owner: OwnerId) -> Vec<u8> {
    PermitId::new(owner, 0).as_bytes()[..PermitId::COMMON_BYTES].to_vec()
}

/// Returns the owner of this many permits as inspections show it: by its last permit.
pub(super) fn shown_owner(owner: OwnerId, count: u32) -> String {
    PermitId::new(owner, count.saturating_sub(1)).to_string()
}

/// Returns the total number of permits that the name states, and how many of them an acquisition
/// takes.
fn numbers(name: &LockName) -> (u32, u32) {
    name.kind().permits().unwrap_or_default()
}

fn number(value: u64) -> Vec<u8> {
    Text::number(value).as_bytes().to_vec()
}

/// Returns this number of permits, or 0 if Redisson let it fall below zero.
fn at_least_none(value: i64) -> u32 {
    u32::try_from(value.max(0)).unwrap_or(u32::MAX)
}

impl PermitFormat {
    /// Returns the key of the semaphore, and the key of its taken permits.
    fn keys(format: &OwnedFormat, name: &LockName) -> Vec<String> {
        let key = format.keys.lock(name);
        let taken = keys::permits(&key);
        vec![key.into_owned(), taken]
    }

    /// Returns the call that takes permits. With a `queue`, the call takes none while another
    /// waiter in the queue is next.
    fn acquire_call(
        format: &OwnedFormat,
        attempt: &Attempt<'_>,
        queue: Option<String>,
    ) -> ScriptCall {
        let (limit, count) = numbers(attempt.name);
        let (mut keys, owner) = (Self::keys(format, attempt.name), Text::owner(attempt.owner));
        let wait = queue.as_ref().and_then(|_| format.wait(attempt, &owner));
        keys.push(keys::tombstone(&keys[0], &owner));
        let mut arguments = Self::named(attempt.name, attempt.owner).to_vec();
        arguments.extend([number(attempt.lease.as_millis()), number(limit.into())]);
        arguments.extend(Self.told(format, &keys[0]));
        arguments.push(owner.as_bytes().to_vec());
        arguments.extend(wait.map(String::into_bytes));
        keys.extend(queue);
        let script = match count {
            ALL_FREE => &DRAIN,
            _ => &ACQUIRE,
        };
        ScriptCall {
            script,
            keys,
            arguments,
        }
    }

    /// Returns the channel and the command that publishes.
    fn told(&self, format: &OwnedFormat, key: &str) -> [Vec<u8>; 2] {
        [self.channel(key).into_bytes(), format.publish().to_vec()]
    }

    /// Returns the beginning of the owner's permits, and their number; the largest possible number
    /// for an acquisition of all free permits.
    fn named(name: &LockName, owner: OwnerId) -> [Vec<u8>; 2] {
        let count = match numbers(name).1 {
            ALL_FREE => MOST_AT_ONCE,
            count => count,
        };
        [beginning(owner), number(count.into())]
    }
}

fn names_beside(key: &str) -> Vec<String> {
    vec![keys::permits(key), keys::queue(key)]
}

impl KindFormat for PermitFormat {
    fn channel(&self, key: &str) -> String {
        keys::channel(CHANNEL, key)
    }

    /// Refuses `{x}`: its expired permits would be returned to `x`, and those of `x` to `{x}`.
    fn refuse_shared_state(&self, key: &str) -> Result<(), Failure> {
        if !keys::is_one_tag(key) {
            return Ok(());
        }
        let plain = &key[1..key.len() - 1];
        Err(Failure::NotSent(Error::misuse(format!(
            "a semaphore cannot have the key {key:?}: Redisson's format keeps its permits and those \
             of {plain:?} under `{}`; name it `{plain}`, or add something to the hash tag, as in \
             `{key}:permits`, or use a prefix",
            keys::permits(key)
        ))))
    }

    fn waiter(&self, kind: LockKind, owner: &Text) -> String {
        let name = owner_or_client(kind, owner);
        match kind.permits() {
            // The client's threads that want equally many permits share one place in the queue.
            Some((_, count)) if !kind.is_queued() => format!("{name}:permits={count}"),
            _ => name.to_owned(),
        }
    }

    /// Returns false for a fair semaphore: a report would wake all waiters in the queue.
    fn is_tracked(&self, kind: LockKind) -> bool {
        !kind.is_queued()
    }

    fn scripts(&self) -> &'static [&'static Script] {
        &SCRIPTS
    }

    fn acquire<'a>(
        &'static self,
        format: &'a OwnedFormat,
        attempt: &'a Attempt<'a>,
        is_tracked: &'a dyn Fn(&str, bool) -> bool,
    ) -> Result<Exchange<'a, Answer>, Failure> {
        let (_, count) = numbers(attempt.name);
        if count > MOST_AT_ONCE {
            return Err(Failure::NotSent(Error::misuse(format!(
                "{count} permits cannot be taken at once: Redis takes {MOST_AT_ONCE} at most, \
                 because it serves no other client meanwhile; count in larger units"
            ))));
        }
        let call = Self::acquire_call(format, attempt, format.queue_before(attempt));
        let script = call.script;
        let read = move |received: &mut Received<'_>| {
            let (answer, is_first) = acquired(received, script)?;
            // A report of a changed key wakes only the first waiter of the queue.
            Ok(match attempt.direct {
                Some(_) if answer.is_busy() => {
                    let is_tracked = is_tracked(&format.keys.lock(attempt.name), is_first);
                    format.bounded(answer, true, is_first && is_tracked)
                }
                _ => answer,
            })
        };
        let again = move || {
            let call = Self::acquire_call(format, attempt, None);
            Exchange::call(call.batch(), read)
        };
        Ok(
            format.send_with_queue(call.batch(), again, move |received| {
                Exchange::Done(read(received))
            }),
        )
    }

    fn release(
        &self,
        format: &OwnedFormat,
        acquisition: &AcquisitionId,
        options: ReleaseOptions,
    ) -> ScriptCall {
        let AcquisitionId { name, owner, .. } = acquisition;
        let (mut keys, owner_text) = (Self::keys(format, name), Text::owner(*owner));
        let mut arguments = Self::named(name, *owner).to_vec();
        arguments.extend(self.told(format, &keys[0]));
        let (waiter, owner) = (self.waiter(name.kind(), &owner_text), owner_text.as_str());
        let stays = if options.keeps_place { " stay" } else { "" };
        arguments.push(format!("{waiter} {owner}{stays}").into_bytes());
        if let Some(lifetime) = format.tombstone_lifetime(acquisition, options) {
            keys.push(keys::tombstone(&keys[0], &owner_text));
            arguments.push(Text::millis(lifetime).as_bytes().to_vec());
        }
        ScriptCall {
            script: &RELEASE,
            keys,
            arguments,
        }
    }

    fn renew(&self, format: &OwnedFormat, acquisition: &AcquisitionId) -> ScriptCall {
        let taken = keys::permits(&format.keys.lock(&acquisition.name));
        let mut arguments = Self::named(&acquisition.name, acquisition.owner).to_vec();
        arguments.push(number(acquisition.lease.as_millis()));
        ScriptCall {
            script: &RENEW,
            keys: vec![taken],
            arguments,
        }
    }

    fn inspect<'a>(
        &'static self,
        format: &'a OwnedFormat,
        name: &LockName,
        labels: Labels,
    ) -> Exchange<'a, LockInfo> {
        let keys = Self::keys(format, name);
        let call = ScriptCall {
            script: &INSPECT,
            keys,
            arguments: Vec::new(),
        };
        let info = Exchange::call(call.batch(), |received| {
            let Some([limit, free, Reply::Int(taken), last @ ..]) = received.reply().as_array()
            else {
                return Err(received.unexpected(&INSPECT));
            };
            let info = match last {
                [Reply::Bulk(id), Reply::Int(left)] => {
                    let holder = HolderInfo::new(OwnerText::new(&hex(id)), remaining(*left), 1);
                    LockInfo::held(holder).holders(u64::try_from(*taken).unwrap_or(0))
                }
                _ => LockInfo::FREE,
            };
            Ok(match (limit, free) {
                (Reply::Int(limit), Reply::Int(free)) => {
                    info.permits(Permits::new(at_least_none(*limit), at_least_none(*free)))
                }
                _ => info,
            })
        });
        // Only the first reply shows which key the label has.
        info.then(move |mut info| {
            let label_keys = format.reads(labels, || label::keys_of(&call.keys[0], &info));
            if label_keys.is_empty() {
                return Exchange::done(info);
            }
            let mut batch = Batch::new();
            add_reads(&mut batch, &label_keys);
            Exchange::call(batch, move |received| {
                received.take_outcome()?;
                format.note_refusal(&received.replies);
                label::add(&mut info, &received.replies);
                Ok(info)
            })
        })
    }

    fn verify<'a>(
        &'static self,
        format: &'a OwnedFormat,
        acquisition: &'a AcquisitionId,
    ) -> Exchange<'a, Option<HolderInfo>> {
        let AcquisitionId { name, owner, .. } = acquisition;
        let arguments = Self::named(name, *owner).to_vec();
        let call = ScriptCall {
            script: &INSPECT,
            keys: Self::keys(format, name),
            arguments,
        };
        Exchange::call(call.batch(), move |received| {
            match received.reply().as_array() {
                Some([Reply::Int(left)]) => {
                    let owner = OwnerText::new(&owner.to_string());
                    Ok(Some(HolderInfo::new(
                        owner,
                        remaining(*left),
                        numbers(name).1.into(),
                    )))
                }
                Some([]) => Ok(None),
                _ => Err(received.unexpected(&INSPECT)),
            }
        })
    }

    fn force(&self, format: &OwnedFormat, name: &LockName) -> ScriptCall {
        let keys = Self::keys(format, name);
        let arguments = self.told(format, &keys[0]).to_vec();
        ScriptCall {
            script: &FORCE,
            keys,
            arguments,
        }
    }

    fn change_permits<'a>(
        &'static self,
        format: &'a OwnedFormat,
        name: &'a LockName,
        change: PermitChange,
    ) -> Result<Exchange<'a, PermitOutcome>, Failure> {
        let keys = Self::keys(format, name);
        let told = self.told(format, &keys[0]);
        let named = numbers(name).0;
        let (limit, more) = match change {
            PermitChange::SetLimit(limit) => (limit, None),
            PermitChange::AddLimit(more) => (named, Some(more)),
            PermitChange::Release(id) => {
                let arguments = [vec![id.as_bytes().to_vec()], told.to_vec()].concat();
                let call = ScriptCall {
                    script: &RELEASE_ONE,
                    keys,
                    arguments,
                };
                return Ok(outcome_of_one(&call));
            }
            PermitChange::Extend(id, lease) => {
                let lease = number(lease.as_millis());
                let arguments = vec![id.as_bytes().to_vec(), number(1), lease];
                let call = ScriptCall {
                    script: &RENEW_ONE,
                    keys: keys[1..2].to_vec(),
                    arguments,
                };
                return Ok(outcome_of_one(&call));
            }
            other => return Err(unknown_change(other)),
        };
        let mut arguments = vec![number(limit.into())];
        arguments.extend(told);
        arguments.extend(more.iter().map(|more| more.to_string().into_bytes()));
        arguments.extend(more.map(|_| number(Semaphore::MAX_LIMIT.into())));
        let call = ScriptCall {
            script: &SET,
            keys,
            arguments,
        };
        Ok(Exchange::call(call.batch(), move |received| {
            let (now, before) = match received.reply().as_array() {
                Some([Reply::Int(now)]) => (*now, None),
                Some([Reply::Int(now), Reply::Int(before)]) => (*now, Some(*before)),
                _ => return Err(received.unexpected(&SET)),
            };
            if let Some(more) = more.filter(|_| now == 0) {
                let before = before.unwrap_or(named.into());
                let refused = PermitChange::added(before, more).err();
                return Err(refused.map_or_else(|| received.unexpected(&SET), Failure::Refused));
            }
            Ok(PermitOutcome::Limit {
                before: before.map(at_least_none),
                now: at_least_none(now),
            })
        }))
    }
}

/// Reads the reply of the script that takes permits. Also returns whether the caller is the first
/// waiter.
fn acquired(
    received: &mut Received<'_>,
    script: &'static Script,
) -> Result<(Answer, bool), Failure> {
    match received.reply().as_array() {
        Some([Reply::Int(1), Reply::Int(limit), Reply::Int(count)]) => {
            let grant = Grant::new(None).limit(at_least_none(*limit));
            Ok((Answer::Granted(grant.count(at_least_none(*count))), false))
        }
        Some([Reply::Int(0), Reply::Int(left), rest @ ..]) => {
            Ok((busy_from_pttl(*left), !matches!(rest, [Reply::Int(0)])))
        }
        _ => Err(received.unexpected(script)),
    }
}

/// Returns the operation that runs a script about one permit. The script replies 0 if the permit is
/// not taken.
fn outcome_of_one<'a>(call: &ScriptCall) -> Exchange<'a, PermitOutcome> {
    let script = call.script;
    Exchange::call(call.batch(), move |received| match received.reply() {
        Reply::Int(0) => Ok(PermitOutcome::NotTaken),
        Reply::Int(_) | Reply::Array(_) => Ok(PermitOutcome::Changed),
        _ => Err(received.unexpected(script)),
    })
}

fn unknown_change(change: PermitChange) -> Failure {
    let why = format!("this store does not know how to do {change:?}");
    Failure::NotSent(Error::new(ErrorKind::Unsupported, why))
}

/// Returns a permit as Redisson shows it.
fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permit_is_shown_as_redisson_shows_it() {
        assert_eq!(hex(&[0, 1, 0xab, 0xff]), "0001abff");
    }
}
