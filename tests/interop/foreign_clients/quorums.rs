//! Redlock over independent servers, as published by Redis, in the libraries that implement it, and
//! our `redlock://` on the same servers.

use super::{REDLOCK_4, REDLOCK_5, REDSYNC, RSLOCK};
use crate::cases::exact::add_up;
use crate::cases::holding::unlock_is_refused;
use crate::cases::waking;
use crate::late::{self, retry_if_late};
use crate::libraries::Library;
use crate::scene::Independent;
use crate::suite::{Suite, case};

pub(crate) fn mount(suite: &mut Suite) {
    let redsync = case!(redsync_and_our_quorum_exclude_each_other);
    suite.shared(&REDSYNC, redsync);
    let redlock_4 = case!(redlock_4_and_our_quorum_exclude_each_other);
    suite.shared(&REDLOCK_4, redlock_4);
    let redlock_5 = case!(redlock_5_and_our_quorum_exclude_each_other);
    suite.shared(&REDLOCK_5_SELDOM, redlock_5);
    let rslock = case!(rslock_and_our_quorum_exclude_each_other);
    suite.shared(&RSLOCK, rslock);
}

const TIMES: u64 = 60;

/// Fewer increments with redlock 5, which loses the time of a lease to a split vote now and then.
const SOME_TIMES: u64 = 20;

/// We poll about as often as these libraries do, so that the two sides meet.
const SETTINGS: &str = "format=token,poll=20ms&max_lease=10m";

/// [`SETTINGS`] without our tokens.
const PLAIN: &str = "format=token,poll=20ms&max_lease=10m&tokens=off";

const LEASE: &str = "lease=1000";

/// redlock 5 with short leases and long pauses between its attempts. It keeps the votes of a split
/// vote until it gives up, also while it tries again, so no client gets the lock until the leases
/// of those votes are over. On a busy machine its own clients could keep each other out for
/// minutes.
static REDLOCK_5_SELDOM: Library = Library {
    eager: &["retry=100", "lease=500"],
    ..REDLOCK_5
};

fn redsync_and_our_quorum_exclude_each_other(library: &'static Library) {
    meet(library, SETTINGS, TIMES);
    meet(library, PLAIN, TIMES);
}

fn redlock_4_and_our_quorum_exclude_each_other(library: &'static Library) {
    meet(library, SETTINGS, TIMES);
}

fn redlock_5_and_our_quorum_exclude_each_other(library: &'static Library) {
    meet(library, SETTINGS, SOME_TIMES);
}

fn rslock_and_our_quorum_exclude_each_other(library: &'static Library) {
    meet(library, SETTINGS, TIMES);
}

/// Checks the sum under one lock, that neither side gets the lock of the other, and how soon each
/// side gets a released lock.
fn meet(library: &'static Library, settings: &str, times: u64) {
    let arguments = [&[LEASE], library.eager].concat();
    let scene = Independent::start(library, settings, &arguments);
    let (peer, client) = (&scene.peer, scene.servers.client());
    let lock = client.mutex("lock").unwrap();
    let what = format!("{} on three servers, {settings}", library.name);
    add_up(
        &what,
        peer,
        &lock,
        "lock",
        scene.data(),
        (times, library.crossings),
    );

    let guard = lock.lock().unwrap();
    assert!(peer.ask("t", "try lock 100 10000").starts_with("busy"));
    unlock_is_refused(peer, library.never_held);
    guard.verify().unwrap();
    guard.unlock().unwrap();
    assert!(peer.ask("t", "try lock 1000 10000").starts_with("held"));
    assert!(lock.try_lock().unwrap().is_none());
    peer.ask("t", "unlock lock");
    retry_if_late(late::TURN, || {
        waking::they_are_soon(&what, peer, &lock, "lock", library.theirs);
    });
    retry_if_late(late::TURN, || {
        waking::we_are_soon(&what, peer, &lock, "lock", library.ours);
    });
}
