//! A hashed timer wheel: schedules and cancels timers in constant time.
//!
//! The algorithm is scheme 6 of Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987),
//! as in Netty and therefore in Redisson. The wheel is a ring of slots, one for each tick. A timer
//! is in the slot of its tick modulo the size of the ring, and is skipped until its own round. A
//! slot is an array and not a list: with a hundred thousand timers, each step in a list would miss
//! the cache.

use crate::time::Moment;
use std::time::Duration;

/// The number of slots: more than the ticks in a third of the default lease, so that renewals of
/// this lease are due within one round. A power of two, and a multiple of 64, the number of bits in
/// a word of `occupied`.
const SLOTS: usize = 1024;

/// The number of timers for which a slot keeps memory when it becomes empty. The rest, which a
/// burst of timers may have needed, is freed. With a value of 256, the wheel used 63 bytes for each
/// of 100,000 locks.
const KEPT: usize = 16;

/// No position: the end of the list of free positions.
const NIL: u32 = u32::MAX;

/// The key of a timer. It matches nothing once the timer has fired or was cancelled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimerKey {
    slot: u32,
    index: u32,
    serial: u32,
}

/// A hashed timer wheel.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    start: Moment,
    /// The length of a tick in nanoseconds.
    tick: u64,
    /// The first tick that was not processed yet.
    cursor: u64,
    slots: Vec<Slot<T>>,
    /// One bit for each slot that has a timer.
    occupied: [u64; SLOTS / 64],
    /// The serial number of the last timer that was scheduled.
    serial: u32,
}

/// The timers whose ticks are equal modulo the size of the ring. Free positions are reused.
#[derive(Debug)]
struct Slot<T> {
    timers: Vec<Scheduled<T>>,
    /// The first free position; `next_free` links it to the next one.
    free: u32,
    taken: u32,
}

#[derive(Debug)]
struct Scheduled<T> {
    item: Option<T>,
    due: u64,
    serial: u32,
    next_free: u32,
}

impl<T> Wheel<T> {
    /// Makes an empty wheel that begins at `start`.
    pub(crate) fn new(start: Moment, tick: Duration) -> Self {
        let tick = u64::try_from(tick.as_nanos()).expect("a tick is short");
        let slots = (0..SLOTS).map(|_| Slot::new()).collect();
        Self {
            start,
            tick,
            cursor: 0,
            slots,
            occupied: [0; SLOTS / 64],
            serial: 0,
        }
    }

    /// Schedules `item` for the first tick that is not before `due` and was not processed yet.
    pub(crate) fn schedule(&mut self, due: Moment, item: T) -> TimerKey {
        let due = self.nanos_to(due).div_ceil(self.tick).max(self.cursor);
        self.serial = self.serial.wrapping_add(1);
        let (slot, serial) = (slot_of(due), self.serial);
        let index = self.slots[slot].put(Scheduled {
            item: Some(item),
            due,
            serial,
            next_free: NIL,
        });
        self.occupied[slot / 64] |= 1 << (slot % 64);
        TimerKey {
            slot: u32::try_from(slot).expect("smaller than the ring"),
            index,
            serial,
        }
    }

    /// Removes a timer and returns its item; `None` if it fired or was cancelled before.
    pub(crate) fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let slot = key.slot as usize;
        let timer = self.slots[slot].timers.get(key.index as usize)?;
        if timer.serial != key.serial {
            return None;
        }
        let item = self.slots[slot].take(key.index as usize)?;
        self.note_if_empty(slot);
        Some(item)
    }

    /// Moves all timers that are due at `now` into `expired`.
    pub(crate) fn expire(&mut self, now: Moment, expired: &mut Vec<T>) {
        let now = self.nanos_to(now) / self.tick;
        if now < self.cursor {
            return;
        }
        // After a long sleep each slot is visited once, and not once for each missed tick.
        let first = self.cursor.max((now + 1).saturating_sub(SLOTS as u64));
        for tick in first..=now {
            self.take_due(slot_of(tick), now, usize::MAX, expired);
        }
        self.cursor = now + 1;
    }

    /// Moves up to `most` timers that [`expire`](Self::expire) has not reached and that are due by
    /// `until` into `expired`, the soonest first. Looks at most one round ahead.
    pub(crate) fn expire_early(&mut self, until: Moment, most: usize, expired: &mut Vec<T>) {
        let enough = expired.len().saturating_add(most);
        let last = (self.nanos_to(until) / self.tick).min(self.cursor + SLOTS as u64 - 1);
        for tick in self.cursor..=last {
            if expired.len() == enough {
                break;
            }
            self.take_due(slot_of(tick), tick, enough - expired.len(), expired);
        }
    }

    /// Returns the time of the next tick whose slot is not empty, until which the caller may sleep.
    /// The timers of the slot may be due in a later round.
    pub(crate) fn next(&self) -> Option<Moment> {
        let here = slot_of(self.cursor);
        let ahead = (0..=SLOTS / 64).find_map(|step| {
            let word = (here / 64 + step) % (SLOTS / 64);
            let mut bits = self.occupied[word];
            if step == 0 {
                bits &= !0 << (here % 64);
            } else if step == SLOTS / 64 {
                bits &= !(!0 << (here % 64));
            }
            let slot = word * 64 + bits.trailing_zeros() as usize;
            (bits != 0).then_some((slot + SLOTS - here) % SLOTS)
        })?;
        let ticks = self.cursor + ahead as u64;
        Some(self.start + Duration::from_nanos(self.tick.saturating_mul(ticks)))
    }

    /// Returns all scheduled items, in no particular order.
    #[cfg(test)]
    pub(crate) fn items(&self) -> impl Iterator<Item = &T> {
        self.slots
            .iter()
            .flat_map(|slot| &slot.timers)
            .filter_map(|timer| timer.item.as_ref())
    }

    fn nanos_to(&self, moment: Moment) -> u64 {
        moment.as_nanos().saturating_sub(self.start.as_nanos())
    }

    /// Moves up to `most` timers of a slot that are due by tick `now` into `expired`.
    fn take_due(&mut self, at: usize, now: u64, most: usize, expired: &mut Vec<T>) {
        if self.occupied[at / 64] & (1 << (at % 64)) == 0 {
            return;
        }
        let slot = &mut self.slots[at];
        let enough = expired.len().saturating_add(most);
        for index in 0..slot.timers.len() {
            if expired.len() == enough {
                break;
            }
            if slot.timers[index].due <= now {
                expired.extend(slot.take(index));
            }
        }
        self.note_if_empty(at);
    }

    fn note_if_empty(&mut self, slot: usize) {
        if self.slots[slot].taken == 0 {
            self.slots[slot].clear();
            self.occupied[slot / 64] &= !(1 << (slot % 64));
        }
    }
}

impl<T> Slot<T> {
    fn new() -> Self {
        Self {
            timers: Vec::new(),
            free: NIL,
            taken: 0,
        }
    }

    fn put(&mut self, timer: Scheduled<T>) -> u32 {
        self.taken += 1;
        if self.free == NIL {
            let index = u32::try_from(self.timers.len()).expect("fewer than 2^32 locks are held");
            if self.timers.len() == self.timers.capacity() {
                // Grow less than a vector does by itself, because each held lock pays for unused
                // memory.
                self.timers.reserve_exact((self.timers.len() / 4).max(4));
            }
            self.timers.push(timer);
            return index;
        }
        let index = self.free;
        let free = &mut self.timers[index as usize];
        self.free = free.next_free;
        *free = timer;
        index
    }

    fn take(&mut self, index: usize) -> Option<T> {
        let timer = &mut self.timers[index];
        let item = timer.item.take()?;
        timer.next_free = self.free;
        self.free = u32::try_from(index).expect("fewer than 2^32 locks are held");
        self.taken -= 1;
        Some(item)
    }

    fn clear(&mut self) {
        self.timers.clear();
        self.timers.shrink_to(KEPT);
        self.free = NIL;
    }
}

fn slot_of(tick: u64) -> usize {
    usize::try_from(tick % SLOTS as u64).expect("smaller than the ring")
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(10);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000_000 + millis * 1_000_000)
    }

    fn wheel() -> Wheel<u32> {
        Wheel::new(at(0), TICK)
    }

    fn expired(wheel: &mut Wheel<u32>, millis: u64) -> Vec<u32> {
        let mut items = Vec::new();
        wheel.expire(at(millis), &mut items);
        items.sort_unstable();
        items
    }

    #[test]
    fn timers_fire_at_the_first_tick_after_they_are_due() {
        let mut wheel = wheel();
        wheel.schedule(at(25), 1);
        assert_eq!(expired(&mut wheel, 25), []);
        assert_eq!(expired(&mut wheel, 29), []);
        assert_eq!(expired(&mut wheel, 30), [1]);
        assert_eq!((wheel.items().count(), wheel.next()), (0, None));
    }

    #[test]
    fn timer_waits_for_its_own_round() {
        let mut wheel = wheel();
        wheel.schedule(at(20), 1);
        wheel.schedule(at(20 + 10 * SLOTS as u64), 2);
        assert_eq!(expired(&mut wheel, 5000), [1]);
        assert_eq!(expired(&mut wheel, 10_259), []);
        assert_eq!(expired(&mut wheel, 10_260), [2]);
    }

    #[test]
    fn expire_early_takes_what_is_due_by_then_the_soonest_first() {
        let mut wheel = wheel();
        assert_eq!(expired(&mut wheel, 20), []);
        for item in 0..3 {
            wheel.schedule(at(30), item);
        }
        wheel.schedule(at(30 + 10 * SLOTS as u64), 3); // in the same slot, a round later
        wheel.schedule(at(50), 4);
        wheel.schedule(at(60), 5);
        let mut items = Vec::new();
        wheel.expire_early(at(55), 2, &mut items);
        assert_eq!(items.len(), 2);
        wheel.expire_early(at(55), 1, &mut items);
        items.sort_unstable();
        assert_eq!(items, [0, 1, 2]);
        wheel.expire_early(at(55), 9, &mut items);
        assert_eq!(items, [0, 1, 2, 4]);
        assert_eq!(expired(&mut wheel, 50), []);
        assert_eq!(expired(&mut wheel, 60), [5]);
        wheel.expire_early(at(30 + 5 * SLOTS as u64), 9, &mut items);
        assert_eq!(items.len(), 4, "not before its own round");
        assert_eq!(expired(&mut wheel, 30 + 10 * SLOTS as u64), [3]);
    }

    #[test]
    fn emptied_slot_frees_the_memory_of_a_burst() {
        let mut wheel = wheel();
        for item in 0..10_000 {
            wheel.schedule(at(50), item);
        }
        assert_eq!(expired(&mut wheel, 50).len(), 10_000);
        assert!(
            wheel
                .slots
                .iter()
                .map(|slot| slot.timers.capacity())
                .max()
                .unwrap()
                <= KEPT
        );
    }

    #[test]
    fn cancelled_timers_do_not_fire_and_old_keys_match_nothing() {
        let mut wheel = wheel();
        let keys: Vec<_> = (0..3).map(|item| wheel.schedule(at(50), item)).collect();
        assert_eq!(wheel.cancel(keys[1]), Some(1));
        assert_eq!(wheel.cancel(keys[1]), None);
        let again = wheel.schedule(at(50), 9);
        assert_eq!(
            wheel.cancel(keys[1]),
            None,
            "the position is reused, the key is not"
        );
        assert_eq!(wheel.cancel(again), Some(9));
        assert_eq!(expired(&mut wheel, 50), [0, 2]);
    }

    #[test]
    fn due_timers_fire_at_once_after_a_long_sleep() {
        let mut wheel = wheel();
        for item in 0..2000 {
            wheel.schedule(at(u64::from(item) * 10), item);
        }
        assert_eq!(expired(&mut wheel, 15_000).len(), 1501);
        assert_eq!(expired(&mut wheel, 1_000_000).len(), 499);
    }

    #[test]
    fn overdue_timer_fires_at_the_next_tick() {
        let mut wheel = wheel();
        assert_eq!(expired(&mut wheel, 1000), []);
        wheel.schedule(at(10), 7);
        assert!(wheel.next().unwrap() <= at(1010));
        assert_eq!(expired(&mut wheel, 1010), [7]);
    }

    /// Compares the wheel with a simple implementation, which searches a list.
    #[test]
    fn wheel_agrees_with_a_plain_list() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut wheel, mut list) = (wheel(), Vec::new());
        let mut now = 0;
        for item in 0..20_000 {
            let due = now + random.u64(0..20_000);
            list.push((due, item, wheel.schedule(at(due), item)));
            if random.u8(0..4) == 0 {
                let (_, item, key) = list.swap_remove(random.usize(0..list.len()));
                assert_eq!(wheel.cancel(key), Some(item));
            }
            if random.u8(0..8) == 0 {
                let (until, most) = (now + random.u64(0..5_000), random.usize(0..20));
                let mut early = Vec::new();
                wheel.expire_early(at(until), most, &mut early);
                let tick_of = |due: u64| due.div_ceil(10);
                let taken = list.extract_if(.., |(_, item, _)| early.contains(item));
                let last = taken.map(|(due, ..)| tick_of(due)).max().unwrap_or(0);
                assert!(early.len() <= most && last <= until / 10);
                let next = list.iter().map(|(due, ..)| tick_of(*due)).min();
                assert!(early.len() == most || next.is_none_or(|next| next > until / 10));
                assert!(next.is_none_or(|next| next >= last), "the soonest first");
            }
            if random.u8(0..8) == 0 {
                if let Some(next) = wheel.next() {
                    let earliest = list
                        .iter()
                        .map(|(due, ..)| due.div_ceil(10) * 10)
                        .min()
                        .unwrap();
                    assert!(
                        next <= at(earliest.max(now / 10 * 10 + 10)),
                        "the wheel must not skip a timer"
                    );
                }
                now += random.u64(0..3_000);
                let mut due: Vec<u32> = Vec::new();
                list.retain(|(at, item, _)| {
                    let fires = at.div_ceil(10) <= now / 10;
                    if fires {
                        due.push(*item);
                    }
                    !fires
                });
                due.sort_unstable();
                assert_eq!(expired(&mut wheel, now), due);
            }
            assert_eq!(wheel.items().count(), list.len());
        }
    }
}
