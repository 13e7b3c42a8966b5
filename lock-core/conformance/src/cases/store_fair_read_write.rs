//! The contract of a fair read-write lock, which readers and writers enter in the order of arrival,
//! tested by direct calls.

use crate::fixture::{
    DirectBackend, eventually, grant, long, ms, patience, prompt, read_write, short,
};
use crate::subject::Subject;
use lock_core::backend::{OwnerId, Release, ReleaseOptions};

const PLAIN: ReleaseOptions = ReleaseOptions::WITHOUT_TOMBSTONE;

/// Readers and writers enter in the order of arrival. Readers that are next to each other in the
/// queue hold the lock together. No reader enters before a writer that arrived earlier.
pub(crate) fn fair_readers_and_writers_enter_in_order(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(true);
    let reading = direct.hold(&read, long());
    let _watches = [&direct, &other].map(|it| it.watch(&read));
    let [writer, second, third]: [OwnerId; 3] = std::array::from_fn(|_| other.owner());
    let [first_reader, next_reader, last_reader]: [OwnerId; 3] =
        std::array::from_fn(|_| direct.owner());
    for _ in 0..2 {
        assert!(other.acquire(&write, writer, long()).is_busy());
        let reader = direct.acquire(&read, first_reader, long());
        assert!(reader.is_busy(), "a writer waits before it");
        assert!(direct.acquire(&read, next_reader, long()).is_busy());
        assert!(other.acquire(&write, second, long()).is_busy());
        assert!(direct.acquire(&read, last_reader, long()).is_busy());
        assert!(other.acquire(&write, third, long()).is_busy());
    }
    assert_eq!(other.release(&write, third, PLAIN), Release::Gone);
    assert_eq!(direct.release(&read, reading, PLAIN), Release::Freed);
    assert!(direct.acquire(&read, first_reader, long()).is_busy());
    assert!(other.acquire(&write, second, long()).is_busy());
    assert!(!direct.acquire(&write, writer, long()).is_busy());
    assert!(direct.acquire(&read, first_reader, long()).is_busy());
    assert_eq!(other.release(&write, writer, PLAIN), Release::Freed);
    assert!(other.acquire(&write, second, long()).is_busy());
    direct.granted(&read, first_reader, long());
    let reader = direct.acquire(&read, last_reader, long());
    assert!(reader.is_busy(), "others are before it");
    direct.granted(&read, next_reader, long());
    let reader = direct.acquire(&read, last_reader, long());
    assert!(reader.is_busy(), "a writer is before it");
    assert_eq!(direct.inspect(&read).holders, 2);
    assert_eq!(direct.release(&read, first_reader, PLAIN), Release::Freed);
    assert!(other.acquire(&write, second, long()).is_busy());
    assert_eq!(direct.release(&read, next_reader, PLAIN), Release::Freed);
    other.granted(&write, second, long());
    assert!(direct.acquire(&read, last_reader, long()).is_busy());
    assert_eq!(other.release(&write, second, PLAIN), Release::Freed);
    direct.granted(&read, last_reader, long());
    assert!(!other.is_busy(&read), "no other waits any longer");
}

/// When a waiting writer gives up, or makes no attempt for some seconds, the readers behind it in
/// the queue join the present readers.
pub(crate) fn readers_behind_a_gone_fair_writer_enter(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(true);
    direct.hold(&read, long());
    let [quits, dies]: [OwnerId; 2] = std::array::from_fn(|_| other.owner());
    assert!(other.acquire(&write, quits, long()).is_busy());
    let reader = direct.owner();
    assert!(direct.acquire(&read, reader, long()).is_busy());
    let (wakes, _watch) = direct.watch(&read);
    let before = wakes.count();
    assert_eq!(other.release(&write, quits, PLAIN), Release::Gone);
    eventually("the reader behind it is woken", prompt(), || {
        wakes.count() > before
    });
    direct.granted(&read, reader, long());
    assert!(other.acquire(&write, dies, long()).is_busy());
    let reader = direct.owner();
    assert!(direct.acquire(&read, reader, long()).is_busy());
    eventually("the dead writer is skipped", ms(6_000), || {
        !direct.acquire(&read, reader, long()).is_busy()
    });
}

/// A thread that holds the write lock gets the read lock at once, although others wait. It keeps
/// the read lock when it releases the write lock. The next readers enter only after that release.
pub(crate) fn fair_writer_becomes_a_reader(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(true);
    let writer = direct.hold(&write, long());
    let [next, last]: [OwnerId; 2] = std::array::from_fn(|_| other.owner());
    assert!(other.acquire(&read, next, long()).is_busy());
    assert!(other.acquire(&write, last, long()).is_busy());
    let reader = direct.owner();
    grant(direct.beside(&read, reader, Some(writer)));
    assert!(
        other.acquire(&read, next, long()).is_busy(),
        "it writes yet"
    );
    assert_eq!(direct.release(&write, writer, PLAIN), Release::Freed);
    assert!(other.acquire(&write, last, long()).is_busy());
    other.granted(&read, next, long());
    assert_eq!(direct.release(&read, reader, PLAIN), Release::Freed);
    assert!(other.acquire(&write, last, long()).is_busy());
    assert_eq!(other.release(&read, next, PLAIN), Release::Freed);
    other.granted(&write, last, long());
}

/// The hold of a dead writer or reader ends with its own lease.
pub(crate) fn dead_holders_of_a_fair_lock_are_over(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(true);
    other.hold(&write, short());
    let reader = direct.owner();
    eventually("the dead writer is over", patience(), || {
        !direct.acquire(&read, reader, long()).is_busy()
    });
    other.hold(&read, short());
    assert_eq!(direct.release(&read, reader, PLAIN), Release::Freed);
    let writer = direct.owner();
    eventually("the dead reader is over", patience(), || {
        !direct.acquire(&write, writer, long()).is_busy()
    });
}
