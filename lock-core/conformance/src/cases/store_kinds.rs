//! The contract of the [kinds](lock_core::LockKind) of locks besides the mutex, tested by direct
//! calls.

use crate::fixture::{
    DirectBackend, eventually, free_of, fresh_name, grant, let_pass, long, ms, patience, permits,
    prompt, read_write, short,
};
use crate::subject::Subject;
use lock_core::backend::{
    Answer, Grant, PermitChange, PermitOutcome, Release, ReleaseOptions, Renewal,
};
use lock_core::{LockKind, LockName, OwnerId};

const PLAIN: ReleaseOptions = ReleaseOptions::WITHOUT_TOMBSTONE;

fn token(grant: &Grant) -> Option<u64> {
    grant.tokens.map(|tokens| tokens.first().get())
}

/// Several readers hold the lock, and the writer is refused until the last reader has released.
pub(crate) fn readers_share_and_keep_the_writer_out(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(false);
    let first = direct.hold(&read, long());
    let second = other.hold(&read, long());
    assert_eq!(direct.inspect(&read).holders, 2);
    assert_eq!(direct.release(&read, first, PLAIN), Release::Freed);
    let writer = direct.owner();
    assert!(
        direct.acquire(&write, writer, long()).is_busy(),
        "one reader is left"
    );
    assert_eq!(other.release(&read, second, PLAIN), Release::Freed);
    direct.granted(&write, writer, long());
}

/// While the writer holds the lock, readers, other writers and mutexes of the name are refused.
pub(crate) fn writer_keeps_readers_out(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(false);
    let writer = direct.hold(&write, long());
    assert!(other.is_busy(&read) && direct.is_busy(&read));
    assert!(other.is_busy(&write) && other.is_busy(&read.of_kind(LockKind::Mutex)));
    assert_eq!(direct.release(&write, writer, PLAIN), Release::Freed);
    other.hold(&read, long());
}

/// Locks of different kinds with one name exclude each other. Pairs of read locks are not tested.
pub(crate) fn kinds_of_a_name_exclude_each_other(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let kinds = [
        LockKind::Mutex,
        LockKind::Fair,
        LockKind::Read,
        LockKind::Write,
        LockKind::FairRead,
        LockKind::FairWrite,
    ];
    let both_read = |kind: LockKind, other: LockKind| kind.is_reader() && other.is_reader();
    for held in kinds {
        let name = fresh_name();
        direct.hold(&name.of_kind(held), long());
        let others = kinds.into_iter().filter(|kind| *kind != held);
        for kind in others.filter(|kind| !both_read(*kind, held)) {
            assert!(
                direct.is_busy(&name.of_kind(kind)),
                "{kind:?} beside {held:?}"
            );
        }
    }
}

/// A thread that holds the write lock gets the read lock, and keeps it when it releases the write
/// lock.
pub(crate) fn writer_becomes_a_reader(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(false);
    let writer = direct.hold(&write, long());
    assert!(other.beside(&read, other.owner(), None).is_busy());
    assert!(
        other
            .beside(&read, other.owner(), Some(other.owner()))
            .is_busy(),
        "no writer's"
    );
    let reader = direct.owner();
    grant(direct.beside(&read, reader, Some(writer)));
    assert_eq!(direct.release(&write, writer, PLAIN), Release::Freed);
    let refused = other.owner();
    let answer = other.acquire(&write, refused, short());
    assert!(answer.is_busy(), "the reader is still there");
    // Otherwise the refused writer counts as waiting, and keeps new readers out.
    assert_eq!(other.release(&write, refused, PLAIN), Release::Gone);
    eventually("other readers enter", patience(), || !other.is_busy(&read));
    assert_eq!(direct.release(&read, reader, PLAIN), Release::Freed);
}

/// The hold of a dead reader ends with its own lease, whatever other readers renew.
pub(crate) fn each_reader_has_a_lease_of_its_own(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(false);
    let dead = other.hold(&read, short());
    let alive = direct.hold(&read, ms(10_000));
    assert_eq!(direct.renew(&read, alive, ms(10_000)), Renewal::Extended);
    let_pass(short() * 2);
    assert_eq!(other.renew(&read, dead, short()), Renewal::Gone);
    assert_eq!(direct.release(&read, alive, PLAIN), Release::Freed);
    let writer = direct.owner();
    eventually("the writer is granted", prompt(), || {
        !direct.acquire(&write, writer, long()).is_busy()
    });
}

/// A dead reader keeps the writer out only for its own lease: once that has ended, the writer
/// enters when the last live reader releases.
pub(crate) fn dead_reader_is_not_kept_alive_by_others(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(false);
    let alive = direct.hold(&read, ms(20_000));
    let _dead = other.hold(&read, short());
    let_pass(short() * 2);
    let writer = other.owner();
    assert!(
        other.acquire(&write, writer, long()).is_busy(),
        "one reader lives"
    );
    assert_eq!(direct.release(&read, alive, PLAIN), Release::Freed);
    eventually("the writer is granted", prompt(), || {
        !other.acquire(&write, writer, long()).is_busy()
    });
}

/// A waiting writer keeps new readers out. The present readers can still repeat an attempt, renew
/// and release.
pub(crate) fn waiting_writer_keeps_new_readers_out(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(false);
    let reader = direct.hold(&read, long());
    let writer = other.owner();
    assert!(other.wait(&write, writer, long()).is_busy());
    assert!(direct.is_busy(&read), "a writer waits");
    direct.granted(&read, reader, long());
    assert_eq!(direct.renew(&read, reader, long()), Renewal::Extended);
    assert_eq!(direct.release(&read, reader, PLAIN), Release::Freed);
    assert!(!other.wait(&write, writer, long()).is_busy());
    assert_eq!(other.release(&write, writer, PLAIN), Release::Freed);
    direct.hold(&read, long());
}

/// `inspect` of the read lock and of the write lock returns the readers, beginning with the lease
/// that ends last, and whether a writer waits.
pub(crate) fn readers_and_a_waiting_writer_are_told(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(false);
    let seen = |name: &LockName| {
        let info = direct.inspect(name);
        let readers = info.readers.expect("it is a read-write lock");
        let owners = readers
            .known
            .iter()
            .map(|reader| reader.owner.as_str().to_owned());
        (
            info.holders,
            owners.collect::<Vec<_>>(),
            readers.writer_waits,
        )
    };
    assert_eq!(seen(&write), (0, Vec::new(), false));
    let [first, last] =
        [(&direct, long()), (&other, long() * 2)].map(|(direct, lease)| direct.hold(&read, lease));
    for name in [&read, &write] {
        assert_eq!(
            seen(name),
            (2, vec![last.to_string(), first.to_string()], false)
        );
    }
    let writer = other.owner();
    assert!(other.wait(&write, writer, long()).is_busy());
    assert_eq!(direct.release(&read, first, PLAIN), Release::Freed);
    for name in [&read, &write] {
        assert_eq!(seen(name), (1, vec![last.to_string()], true));
    }
    assert_eq!(other.release(&read, last, PLAIN), Release::Freed);
    assert!(!other.wait(&write, writer, long()).is_busy());
    assert_eq!(seen(&write), (1, Vec::new(), false));
    assert_eq!(seen(&read), (0, Vec::new(), false));
}

/// When a waiting writer gives up, waiting readers are woken, and enter.
pub(crate) fn writer_that_gives_up_lets_readers_in(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(false);
    direct.hold(&read, long());
    let writer = other.owner();
    assert!(other.wait(&write, writer, long()).is_busy());
    let (wakes, _watch) = direct.watch(&read);
    let reader = direct.owner();
    assert!(direct.wait(&read, reader, long()).is_busy());
    let before = wakes.count();
    assert_eq!(other.release(&write, writer, PLAIN), Release::Gone);
    eventually("readers are woken", prompt(), || wakes.count() > before);
    direct.granted(&read, reader, long());
}

/// A writer that gives up ends its own wait, and not the wait of the writer before it.
pub(crate) fn writer_that_gives_up_leaves_the_first_waiting(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, write) = read_write(false);
    direct.hold(&read, long());
    let (first, second) = (other.owner(), direct.owner());
    assert!(other.wait(&write, first, long()).is_busy());
    assert!(direct.wait(&write, second, long()).is_busy());
    assert_eq!(direct.release(&write, second, PLAIN), Release::Gone);
    assert!(direct.is_busy(&read), "the first one waits");
    assert_eq!(other.release(&write, first, PLAIN), Release::Gone);
    direct.hold(&read, long());
}

/// Writers get growing tokens, and a reader gets the token of the last writer.
pub(crate) fn reader_gets_the_token_of_the_last_writer(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let (read, write) = read_write(false);
    let reader = direct.owner();
    assert_eq!(
        token(&direct.granted(&read, reader, long())),
        None,
        "there was no writer yet"
    );
    assert_eq!(direct.release(&read, reader, PLAIN), Release::Freed);
    let mut last = None;
    for _ in 0..3 {
        let (writer, reader) = (direct.owner(), direct.owner());
        let written = token(&direct.granted(&write, writer, long()));
        assert!(written > last, "{written:?} after {last:?}");
        assert_eq!(direct.release(&write, writer, PLAIN), Release::Freed);
        assert_eq!(token(&direct.granted(&read, reader, long())), written);
        assert_eq!(direct.release(&read, reader, PLAIN), Release::Freed);
        last = written;
    }
}

/// For each kind, a release by one client wakes a waiter of another client.
pub(crate) fn release_of_each_kind_wakes_its_waiters(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let (read, next_to_write) = read_write(false);
    let (next_to_read, write) = read_write(false);
    let semaphore = permits(&fresh_name(), 1, 1);
    let fair = fresh_name().of_kind(LockKind::Fair);
    let in_order = fresh_name().of_kind(LockKind::FairPermits { limit: 1, count: 1 });
    let same = [&semaphore, &fair, &in_order].map(|name| (name, name));
    let [fair_read, fair_write] = LockKind::of_read_write(true).map(|it| fresh_name().of_kind(it));
    let [next_read, next_write] = [
        fair_write.of_kind(LockKind::FairRead),
        fair_read.of_kind(LockKind::FairWrite),
    ];
    let read_write = [
        (&read, &next_to_write),
        (&write, &next_to_read),
        (&fair_read, &next_write),
        (&fair_write, &next_read),
    ];
    for (held, waits_for) in read_write.into_iter().chain(same) {
        let owner = direct.hold(held, long());
        // The watching client also queues, because a release may wake only the next waiter.
        let (wakes, _watch) = other.waits_for(waits_for);
        let before = wakes.count();
        assert_eq!(direct.release(held, owner, PLAIN), Release::Freed);
        eventually("the release wakes the watch", prompt(), || {
            wakes.count() > before
        });
    }
}

/// For each kind, an owner with a tombstone is refused, and other owners are not.
pub(crate) fn owner_with_tombstone_is_refused_for_each_kind(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    for kind in [
        LockKind::Fair,
        LockKind::Read,
        LockKind::Write,
        LockKind::FairRead,
        LockKind::FairWrite,
    ] {
        let name = fresh_name().of_kind(kind);
        let owner = direct.hold(&name, long());
        let release = direct.release_with_tombstone(&name, owner, ms(20_000));
        assert_eq!(release, Release::Freed, "{kind:?}");
        assert!(direct.acquire(&name, owner, long()).is_busy(), "{kind:?}");
        direct.hold(&name, long());
    }
    for kind in [
        LockKind::Permits { limit: 2, count: 1 },
        LockKind::FairPermits { limit: 2, count: 1 },
    ] {
        let semaphore = fresh_name().of_kind(kind);
        let owner = direct.hold(&semaphore, long());
        let release = direct.release_with_tombstone(&semaphore, owner, ms(20_000));
        assert_eq!(release, Release::Freed, "{kind:?}");
        assert!(
            direct.acquire(&semaphore, owner, long()).is_busy(),
            "{kind:?}"
        );
        assert_eq!(free_of(&direct, &semaphore), (2, 2), "{kind:?}");
        assert!(
            !direct.is_busy(&semaphore),
            "{kind:?}: it does not wait either"
        );
    }
}

/// Permits are granted up to the limit, and a released permit is free again.
pub(crate) fn permits_are_granted_up_to_the_limit(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let name = fresh_name();
    let (one, two) = (permits(&name, 3, 1), permits(&name, 3, 2));
    let pair = direct.hold(&two, long());
    assert!(other.is_busy(&two), "all of them or none");
    let single = other.hold(&one, long());
    assert!(direct.is_busy(&one) && other.is_busy(&one));
    assert_eq!(free_of(&direct, &one), (0, 3));
    assert_eq!(other.release(&one, single, PLAIN), Release::Freed);
    assert_eq!(free_of(&direct, &one), (1, 3));
    assert_eq!(direct.release(&two, pair, PLAIN), Release::Freed);
    assert_eq!(free_of(&other, &one), (3, 3));
}

/// The permits of a dead holder are free again when its lease ends. The permits of other holders
/// stay taken.
pub(crate) fn permits_of_a_dead_holder_come_back(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let name = permits(&fresh_name(), 2, 1);
    let alive = direct.hold(&name, ms(20_000));
    let dead = other.hold(&name, short());
    assert!(direct.is_busy(&name));
    let waiter = direct.owner();
    eventually("the permit is granted again", patience(), || {
        !direct.acquire(&name, waiter, long()).is_busy()
    });
    assert_eq!(other.renew(&name, dead, long()), Renewal::Gone);
    assert_eq!(direct.renew(&name, alive, long()), Renewal::Extended);
    assert!(direct.is_busy(&name), "both are taken");
}

/// A repeated attempt for permits counts once, and so does a repeated release.
pub(crate) fn repeated_requests_for_permits_count_once(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let name = permits(&fresh_name(), 5, 2);
    let owner = direct.owner();
    for _ in 0..3 {
        direct.granted(&name, owner, long());
        assert_eq!(free_of(&direct, &name), (3, 5));
    }
    let other = direct.hold(&name, long());
    assert_eq!(direct.release(&name, owner, PLAIN), Release::Freed);
    assert_eq!(direct.release(&name, owner, PLAIN), Release::Gone);
    assert_eq!(free_of(&direct, &name), (3, 5));
    assert_eq!(direct.release(&name, other, PLAIN), Release::Freed);
    assert_eq!(free_of(&direct, &name), (5, 5));
}

/// The stored limit applies, whatever limit a client names, and every grant returns it. A change of
/// the limit takes no permit from its holder.
pub(crate) fn stored_limit_counts_until_it_is_changed(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let name = fresh_name();
    let (two, nine) = (permits(&name, 2, 1), permits(&name, 9, 1));
    let first = direct.owner();
    assert_eq!(direct.granted(&two, first, long()).limit, Some(2));
    let second = other.owner();
    assert_eq!(other.granted(&nine, second, long()).limit, Some(2));
    assert!(other.is_busy(&nine), "the limit of the first client counts");
    let limit = |before, now| PermitOutcome::Limit {
        before: Some(before),
        now,
    };
    assert_eq!(other.change(&two, PermitChange::SetLimit(1)), limit(2, 1));
    assert_eq!(free_of(&direct, &two), (0, 1));
    assert_eq!(
        direct.renew(&two, first, long()),
        Renewal::Extended,
        "it stays"
    );
    assert_eq!(direct.release(&two, first, PLAIN), Release::Freed);
    assert!(direct.is_busy(&two), "one is held, and there is one");
    let (wakes, _watch) = direct.waits_for(&two);
    let before = wakes.count();
    assert_eq!(other.change(&two, PermitChange::SetLimit(3)), limit(1, 3));
    eventually("waiters are woken", prompt(), || wakes.count() > before);
    assert_eq!(free_of(&direct, &two), (2, 3));
}

/// A forced release ends the holds of all readers, or of all holders of permits.
pub(crate) fn force_release_ends_all_shares(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let (read, write) = read_write(false);
    let readers = [direct.hold(&read, long()), direct.hold(&read, long())];
    assert!(direct.force_release(&read) && !direct.force_release(&read));
    for reader in readers {
        assert_eq!(direct.renew(&read, reader, long()), Renewal::Gone);
    }
    direct.hold(&write, long());
    let semaphore = permits(&fresh_name(), 2, 1);
    let owner = direct.hold(&semaphore, long());
    assert!(direct.force_release(&semaphore) && !direct.force_release(&semaphore));
    assert_eq!(direct.renew(&semaphore, owner, long()), Renewal::Gone);
    assert_eq!(free_of(&direct, &semaphore), (2, 2));
}

/// A forced release of the read lock does not end the hold of the writer.
pub(crate) fn force_release_of_readers_leaves_the_writer(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let (read, write) = read_write(false);
    let writer = direct.hold(&write, long());
    assert!(!direct.force_release(&read), "there is no reader");
    assert_eq!(direct.renew(&write, writer, long()), Renewal::Extended);
    assert!(direct.is_busy(&read));
    assert!(direct.force_release(&write));
    assert_eq!(direct.renew(&write, writer, long()), Renewal::Gone);
}

/// `verify` checks the hold of the given owner, and not the hold of any other owner.
pub(crate) fn verify_is_about_the_owners_share(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let (read, _) = read_write(false);
    for name in [read, permits(&fresh_name(), 5, 1)] {
        let (first, second) = (direct.hold(&name, long()), direct.hold(&name, long()));
        assert!(direct.verifies(&name, first) && direct.verifies(&name, second));
        assert_eq!(direct.release(&name, first, PLAIN), Release::Freed);
        assert!(!direct.verifies(&name, first) && direct.verifies(&name, second));
    }
}

/// Attempts on a fair lock are granted in the order of arrival. A repeated attempt keeps its place.
pub(crate) fn fair_lock_is_granted_in_order(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let name = fresh_name().of_kind(LockKind::Fair);
    let mut holder = direct.hold(&name, long());
    let _watches = [&direct, &other].map(|it| it.watch(&name));
    let waiters: [OwnerId; 3] = std::array::from_fn(|n| [&direct, &other][n % 2].owner());
    for _ in 0..2 {
        for waiter in waiters {
            assert!(direct.acquire(&name, waiter, long()).is_busy());
        }
    }
    for waiter in waiters {
        assert_eq!(direct.release(&name, holder, PLAIN), Release::Freed);
        for later in waiters
            .into_iter()
            .rev()
            .take_while(|later| *later != waiter)
        {
            assert!(
                direct.acquire(&name, later, long()).is_busy(),
                "it came later"
            );
        }
        direct.granted(&name, waiter, long());
        holder = waiter;
    }
}

/// A waiter of a fair lock that gives up, or makes no attempt for some seconds, is skipped.
pub(crate) fn fair_waiter_that_is_gone_is_skipped(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let name = fresh_name().of_kind(LockKind::Fair);
    let holder = direct.hold(&name, long());
    let _watch = direct.watch(&name);
    let [quits, dies, stays]: [OwnerId; 3] = std::array::from_fn(|_| direct.owner());
    for waiter in [quits, dies, stays] {
        assert!(direct.acquire(&name, waiter, long()).is_busy());
    }
    assert_eq!(direct.release(&name, quits, PLAIN), Release::Gone);
    assert_eq!(direct.release(&name, holder, PLAIN), Release::Freed);
    assert!(
        direct.acquire(&name, stays, long()).is_busy(),
        "one is before it"
    );
    eventually("the dead waiter is skipped", ms(6_000), || {
        !direct.acquire(&name, stays, long()).is_busy()
    });
}

/// Permits of a fair semaphore are granted in the order of the requests. No request overtakes a
/// waiter for many permits, and a waiter that has given up delays no other waiter.
pub(crate) fn fair_permits_are_granted_in_order(subject: &dyn Subject) {
    let (direct, other) = (DirectBackend::open(subject), DirectBackend::open(subject));
    let name = fresh_name();
    let permits = |count| name.of_kind(LockKind::FairPermits { limit: 3, count });
    let [one, two, three] = [1, 2, 3].map(permits);
    let held = direct.hold(&two, long());
    let [many, quits, single] = [&direct, &other, &direct].map(DirectBackend::owner);
    for _ in 0..2 {
        assert!(direct.acquire(&three, many, long()).is_busy());
        assert!(
            other.acquire(&one, quits, long()).is_busy(),
            "one is free, and one is before it"
        );
        assert!(direct.acquire(&one, single, long()).is_busy());
    }
    assert_eq!(other.release(&one, quits, PLAIN), Release::Gone);
    assert_eq!(direct.release(&two, held, PLAIN), Release::Freed);
    assert!(
        direct.acquire(&one, single, long()).is_busy(),
        "three are free, and wanted before"
    );
    assert_eq!(free_of(&direct, &one), (3, 3));
    direct.granted(&three, many, long());
    assert!(direct.acquire(&one, single, long()).is_busy());
    assert_eq!(direct.release(&three, many, PLAIN), Release::Freed);
    direct.granted(&one, single, long());
    assert!(!other.is_busy(&one), "no one waits any longer");
}

/// A fair lock and a write lock can have a minimum hold, and stay busy after their release.
pub(crate) fn fair_and_write_locks_are_kept_after_release(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    for kind in [LockKind::Fair, LockKind::Write, LockKind::FairWrite] {
        let name = fresh_name().of_kind(kind);
        let owner = direct.hold(&name, long());
        assert_eq!(
            direct.keep(&name, owner, (direct.owner(), short())),
            Release::Freed
        );
        assert!(!direct.verifies(&name, owner), "{kind:?}");
        let next = direct.owner();
        assert!(
            direct.acquire(&name, next, long()).is_busy(),
            "{kind:?} is kept"
        );
        eventually("it is free again", patience(), || {
            !direct.acquire(&name, next, long()).is_busy()
        });
    }
}

/// A name that a semaphore uses cannot be used for a lock, and vice versa.
pub(crate) fn semaphore_and_lock_do_not_share_a_name(subject: &dyn Subject) {
    let direct = DirectBackend::open(subject);
    let (name, other) = (fresh_name(), fresh_name());
    direct.hold(&permits(&name, 1, 1), long());
    for kind in [
        LockKind::Mutex,
        LockKind::Read,
        LockKind::Write,
        LockKind::Fair,
        LockKind::FairRead,
        LockKind::FairWrite,
    ] {
        assert!(direct.is_foreign(&name.of_kind(kind)), "{kind:?}");
    }
    direct.hold(&other, long());
    assert!(direct.is_foreign(&permits(&other, 1, 1)));
    assert!(matches!(
        direct.acquire(&other, direct.owner(), long()),
        Answer::Busy(_)
    ));
}
