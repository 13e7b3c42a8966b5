//! A hashed timer wheel: what is due when, with scheduling and cancelling in constant time.
//!
//! Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 6, the one that Netty and so Redisson
//! use: a ring of slots, one for each tick; a timer hangs in the slot of its tick modulo the size of the ring and is
//! passed over until its own round has come.

use crate::clock::Moment;
use std::time::Duration;

/// How many slots the ring has. A power of two, so that 64 of them fit a word of the occupancy map.
const SLOTS: usize = 512;

/// "No node": the end of a list.
const NIL: u32 = u32::MAX;

/// Which timer. Keys of timers that fired or were cancelled match nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TimerKey {
    index: u32,
    generation: u32,
}

/// The wheel. Timers of one slot form a list through `nodes`; nodes are used again.
#[derive(Debug)]
pub(crate) struct Wheel<T> {
    start: Moment,
    tick: Duration,
    /// The first tick that was not processed yet.
    cursor: u64,
    heads: [u32; SLOTS],
    /// One bit for each slot that has a timer.
    occupied: [u64; SLOTS / 64],
    nodes: Vec<Node<T>>,
    free: u32,
}

#[derive(Debug)]
struct Node<T> {
    item: Option<T>,
    due: u64,
    generation: u32,
    previous: u32,
    next: u32,
}

impl<T> Wheel<T> {
    /// An empty wheel that begins at `start`.
    pub(crate) fn new(start: Moment, tick: Duration) -> Self {
        Self {
            start,
            tick,
            cursor: 0,
            heads: [NIL; SLOTS],
            occupied: [0; SLOTS / 64],
            nodes: Vec::new(),
            free: NIL,
        }
    }

    /// Hands `item` out at the first tick that is not before `due`.
    pub(crate) fn schedule(&mut self, due: Moment, item: T) -> TimerKey {
        let ticks = due.since(self.start).as_nanos().div_ceil(self.tick.as_nanos());
        let due = u64::try_from(ticks).unwrap_or(u64::MAX).max(self.cursor);
        let index = self.free_node();
        let slot = slot_of(due);
        let head = self.heads[slot];
        let node = &mut self.nodes[index as usize];
        node.item = Some(item);
        node.due = due;
        node.previous = NIL;
        node.next = head;
        let key = TimerKey { index, generation: node.generation };
        if head != NIL {
            self.nodes[head as usize].previous = index;
        }
        self.heads[slot] = index;
        self.occupied[slot / 64] |= 1 << (slot % 64);
        key
    }

    /// Takes a timer out; `None` if it is not there any more.
    pub(crate) fn cancel(&mut self, key: TimerKey) -> Option<T> {
        let node = self.nodes.get(key.index as usize)?;
        if node.generation != key.generation || node.item.is_none() {
            return None;
        }
        self.remove(key.index)
    }

    /// Moves everything that is due at `now` into `expired`.
    pub(crate) fn expire(&mut self, now: Moment, expired: &mut Vec<T>) {
        let Ok(now) = u64::try_from(now.since(self.start).as_nanos() / self.tick.as_nanos()) else {
            return;
        };
        if now < self.cursor {
            return;
        }
        // After a long sleep every slot is looked at once, not once for each tick that was slept through.
        let first = self.cursor.max((now + 1).saturating_sub(SLOTS as u64));
        for tick in first..=now {
            let mut index = self.heads[slot_of(tick)];
            while index != NIL {
                let node = &self.nodes[index as usize];
                let next = node.next;
                if node.due <= now {
                    expired.extend(self.remove(index));
                }
                index = next;
            }
        }
        self.cursor = now + 1;
    }

    /// Until when one may sleep: the next tick whose slot is not empty. What hangs there may be due rounds later.
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
        let nanos = self.tick.as_nanos().saturating_mul(u128::from(ticks));
        Some(self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Everything that is scheduled, in no order.
    #[cfg(test)]
    fn items(&self) -> impl Iterator<Item = &T> {
        self.nodes.iter().filter_map(|node| node.item.as_ref())
    }

    fn free_node(&mut self) -> u32 {
        if self.free == NIL {
            let index = u32::try_from(self.nodes.len()).expect("fewer than 2^32 locks are held");
            self.nodes.push(Node { item: None, due: 0, generation: 0, previous: NIL, next: NIL });
            return index;
        }
        let index = self.free;
        self.free = self.nodes[index as usize].next;
        index
    }

    fn remove(&mut self, index: u32) -> Option<T> {
        let node = &mut self.nodes[index as usize];
        let item = node.item.take()?;
        let (previous, next, slot) = (node.previous, node.next, slot_of(node.due));
        node.generation = node.generation.wrapping_add(1);
        node.next = self.free;
        self.free = index;
        if next != NIL {
            self.nodes[next as usize].previous = previous;
        }
        if previous != NIL {
            self.nodes[previous as usize].next = next;
        } else {
            self.heads[slot] = next;
            if next == NIL {
                self.occupied[slot / 64] &= !(1 << (slot % 64));
            }
        }
        Some(item)
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
    fn nothing_fires_early_and_everything_within_a_tick() {
        let mut wheel = wheel();
        wheel.schedule(at(25), 1);
        assert_eq!(expired(&mut wheel, 25), []);
        assert_eq!(expired(&mut wheel, 29), []);
        assert_eq!(expired(&mut wheel, 30), [1]);
        assert_eq!((wheel.items().count(), wheel.next()), (0, None));
    }

    #[test]
    fn a_timer_waits_for_its_own_round() {
        let mut wheel = wheel();
        wheel.schedule(at(20), 1);
        wheel.schedule(at(20 + 5120), 2);
        assert_eq!(expired(&mut wheel, 5000), [1]);
        assert_eq!(expired(&mut wheel, 5139), []);
        assert_eq!(expired(&mut wheel, 5140), [2]);
    }

    #[test]
    fn cancelled_timers_do_not_fire_and_old_keys_match_nothing() {
        let mut wheel = wheel();
        let keys: Vec<_> = (0..3).map(|item| wheel.schedule(at(50), item)).collect();
        assert_eq!(wheel.cancel(keys[1]), Some(1));
        assert_eq!(wheel.cancel(keys[1]), None);
        let again = wheel.schedule(at(50), 9);
        assert_eq!(wheel.cancel(keys[1]), None, "the node is used again, the key is not");
        assert_eq!(wheel.cancel(again), Some(9));
        assert_eq!(expired(&mut wheel, 50), [0, 2]);
    }

    #[test]
    fn after_a_long_sleep_everything_that_is_due_fires_at_once() {
        let mut wheel = wheel();
        for item in 0..2000 {
            wheel.schedule(at(u64::from(item) * 10), item);
        }
        assert_eq!(expired(&mut wheel, 15_000).len(), 1501);
        assert_eq!(expired(&mut wheel, 1_000_000).len(), 499);
    }

    #[test]
    fn what_is_overdue_when_it_is_scheduled_fires_next() {
        let mut wheel = wheel();
        assert_eq!(expired(&mut wheel, 1000), []);
        wheel.schedule(at(10), 7);
        assert!(wheel.next().unwrap() <= at(1010));
        assert_eq!(expired(&mut wheel, 1010), [7]);
    }

    /// The wheel against the obvious implementation: a list that is searched.
    #[test]
    fn it_agrees_with_a_plain_list() {
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
                if let Some(next) = wheel.next() {
                    let earliest =
                        list.iter().map(|(due, ..)| due.div_ceil(10) * 10).min().unwrap();
                    assert!(
                        next <= at(earliest.max(now / 10 * 10 + 10)),
                        "must not sleep through a timer"
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
