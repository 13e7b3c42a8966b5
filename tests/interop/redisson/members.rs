//! Redisson's multi-lock and red lock, when one of their members becomes ours meanwhile.

use super::{NEWEST, REFUSED};
use crate::cases::holding::{RENEWED_AFTER, must_be_renewed};
use crate::held_key::HeldKey;
use crate::late::{self, retry_if_late, timely};
use crate::libraries::Library;
use crate::ours::Ours;
use crate::peer::BOUND;
use crate::pool::Lent;
use crate::scene::Scene;
use crate::suite::{Suite, case};
use distlock::{LockGuard, LossCause, Mutex};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{always, eventually};
use std::time::Duration;

/// More than two periods of their renewals.
const RENEWALS: Duration = Duration::from_millis(1_500);

pub(crate) fn mount(suite: &mut Suite) {
    let left = case!(member_left_by_redisson_unlock_is_waited_out_or_forced);
    suite.shared(&NEWEST, left);
    let renewed = case!(lease_set_on_our_key_by_a_red_lock_is_corrected);
    suite.shared(&NEWEST, renewed);
    let noticed = case!(lease_set_on_our_key_by_a_red_lock_is_noticed);
    let set_back = case!(reported_lease_of_a_red_lock_on_our_key_is_corrected);
    suite.shared(&NEWEST, noticed);
    suite.shared(&NEWEST, set_back);
}

/// One member is freed by force. Redisson's unlock fails at that member and leaves later members
/// locked, which are renewed for as long as its program lives. Our client waits for them, as for
/// any holder, and may free them by force. Redisson's renewals then leave our locks alone.
fn member_left_by_redisson_unlock_is_waited_out_or_forced(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Scene::with(library, "", &["kind=multi", "watchdog=1000"]);
        let members = ["a", "b", "c"].map(|name| scene.ours.mutex(name));
        scene.peer.ask("t", "lock a,b,c 0");
        assert!(members[0].force_unlock().unwrap());
        let said = scene.peer.refusal("t", "unlock a,b,c");
        assert!(said.contains(REFUSED), "{said}");
        let left: Vec<_> = members
            .iter()
            .filter(|it| it.is_locked().unwrap())
            .collect();
        say!(
            "after an unlock of three, the first of which was gone: {} are left",
            left.len()
        );
        assert!(!left.is_empty(), "docs/INTEROP.md says otherwise");
        let held = |member: &Mutex| HeldKey::of(scene.probe(), member.name().as_str());
        let waits = || left[0].try_lock_for(RENEWALS).unwrap().is_some();
        held(left[0]).must_refuse_all_along(waits);
        for member in &left {
            held(member).must_refuse(|| member.try_lock().unwrap().is_some());
            assert!(member.force_unlock().unwrap());
        }
        let guards = members.each_ref().map(|member| member.lock().unwrap());
        always("ours stay ours", RENEWALS, || {
            guards
                .iter()
                .all(|guard| guard.is_valid() && guard.verify().is_ok())
        });
    });
}

/// At its end RedissonRedLock sets the lease of all its members again, without a check of the
/// holder. Meanwhile its lease on one member had ended, and our client took that member. If our
/// watchdog renews before the lease that it set ends, our lock stays ours.
fn lease_set_on_our_key_by_a_red_lock_is_corrected(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Trampled::start(library, "watchdog=1s");
        let guard = scene.trample(&scene.ours.mutex("lock"));
        must_be_renewed(&guard, Trampled::LEASE * 3);
        guard.unlock().unwrap();
    });
}

/// The server reports the change if our lock has been held for more than a second, and the renewal
/// that follows sets our lease again.
fn reported_lease_of_a_red_lock_on_our_key_is_corrected(library: &'static Library) {
    let scene = Trampled::start(library, "");
    let lock = scene.ours.mutex("lock");
    let guard = scene.trample(&lock);
    let mut probe = scene.servers[0].probe();
    let ours = |left: Duration| left > Trampled::LEASE * 10;
    eventually("our lease is back", BOUND, || {
        probe.pttl("lock").is_some_and(ours)
    });
    guard.verify().unwrap();
    guard.unlock().unwrap();
}

/// With a watchdog that renews later, and no reports, our key expires. Our next renewal or `verify`
/// reports the loss, and the next holder's token is greater.
fn lease_set_on_our_key_by_a_red_lock_is_noticed(library: &'static Library) {
    retry_if_late(late::LEASE, || {
        let scene = Trampled::start(library, "tracking=off");
        let lock = scene.ours.mutex("lock");
        let guard = scene.trample(&lock);
        let mut probe = scene.servers[0].probe();
        let left = probe.pttl("lock").unwrap_or_default();
        assert!(left <= Trampled::LEASE, "they set it: {left:?}");
        eventually("our key runs out", BOUND, || !probe.exists("lock"));
        timely!(RENEWED_AFTER, guard.is_valid(), "a renewal was there first");
        assert!(guard.verify().unwrap_err().is_lost());
        assert_eq!(
            guard.loss().expect("verify told us").cause(),
            LossCause::Gone
        );
        let token = guard.fencing_token();
        drop(guard);
        assert!(
            lock.lock().unwrap().fencing_token() > token,
            "what it protects can tell"
        );
    });
}

/// Three independent servers, the last of which does not answer. This delays a red lock so long
/// that its lease on the first server ends, and the lock is ours before the red lock sets the lease
/// again.
struct Trampled {
    peer: Lent,
    ours: Ours,
    servers: [RedisServer; 3],
}

impl Trampled {
    const LEASE: Duration = Duration::from_millis(700);

    /// How long Redisson waits for the last server.
    const TIMEOUT: Duration = Duration::from_millis(1_500);

    fn start(library: &'static Library, settings: &str) -> Self {
        let servers = [(); 3].map(|()| RedisServer::start());
        let urls = servers.each_ref().map(|server| server.url_as("")).join(",");
        let timeout = format!("timeout={}", Self::TIMEOUT.as_millis());
        let arguments = ["kind=red", "topology=independent", &timeout];
        let peer = Lent::start(library, &urls, &arguments);
        let ours = Ours::connect(library, &servers[0].url(), settings, servers[0].port());
        Self {
            peer,
            ours,
            servers,
        }
    }

    /// Takes the lock after Redisson's lease has ended, and before Redisson sets the lease again.
    fn trample(&self, lock: &Mutex) -> LockGuard {
        self.servers[2].pause();
        let pending = self
            .peer
            .tell("t", &format!("try lock 0 {}", Self::LEASE.as_millis()));
        let mut probe = self.servers[0].probe();
        eventually("they have it", BOUND, || probe.exists("lock"));
        let guard = lock.try_lock_for(BOUND).unwrap().expect("their lease ends");
        timely!(
            Self::TIMEOUT - Self::LEASE,
            !pending.is_there(),
            "they wait for the last server"
        );
        let said = pending.answer(BOUND);
        say!("a red lock that took longer than its lease: {said:?}");
        self.servers[2].resume();
        guard
    }
}
