//! Several locks of Redisson as one, where a member of them becomes ours meanwhile.

use super::{NEWEST, REFUSED};
use crate::cases::holding::must_stay_ours;
use crate::cases::steadily;
use crate::ours::Ours;
use crate::peer::{BOUND, Peer};
use crate::scene::{Scene, Turn};
use distlock::{DistLock, LockGuard, LossCause};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{always, eventually};
use std::time::Duration;

/// A member is freed by force. Their unlock is an error at it, and leaves what stands behind it, which is renewed for as long as
/// they live. We wait for that, as for any holder, and may free it by force; then their renewals leave it alone.
#[test]
fn what_their_unlock_of_several_leaves_behind_is_waited_for_until_somebody_frees_it() {
    steadily(|| {
        let Some(scene) = Scene::with(&NEWEST, "", &["kind=multi", "watchdog=1000"]) else {
            return;
        };
        let members = ["a", "b", "c"].map(|name| scene.ours.mutex(name));
        scene.peer.ask("t", "lock a,b,c 0");
        assert!(members[0].force_unlock().unwrap());
        let said = scene.peer.refusal("t", "unlock a,b,c");
        assert!(said.contains(REFUSED), "{said}");
        let left: Vec<_> = members.iter().filter(|it| it.is_locked().unwrap()).collect();
        say!("after an unlock of three, the first of which was gone: {} are left", left.len());
        assert!(!left.is_empty(), "docs/INTEROP.md says otherwise");
        always("they are renewed, and not ours", Duration::from_secs(3), || {
            left.iter().all(|member| member.try_lock().unwrap().is_none())
        });
        for member in left {
            assert!(member.force_unlock().unwrap());
        }
        let guards = members.each_ref().map(|member| member.lock().unwrap());
        always("ours stay ours", Duration::from_secs(3), || {
            guards.iter().all(|guard| guard.is_valid() && guard.verify().is_ok())
        });
    });
}

/// RedissonRedLock sets the lease of all that it took once more at the end, without looking whose it is by then.
///
/// Ours was taken in between, when theirs had run out. With a watchdog that renews sooner than the lease it sets ours stays ours;
/// otherwise it runs out, our next renewal or `verify` says so, and the next holder's token is greater.
#[test]
fn a_lease_that_a_red_lock_of_theirs_sets_on_our_key_is_put_right_or_noticed() {
    steadily(|| {
        for (settings, is_kept) in [("watchdog=1s", true), ("", false)] {
            let Some(scene) = Trampled::start(settings) else { return };
            let lock = scene.ours.mutex("lock");
            let guard = scene.trample(&lock);
            if is_kept {
                must_stay_ours(&guard, Trampled::LEASE * 3);
                guard.unlock().unwrap();
                continue;
            }
            let left = scene.servers[0].probe().pttl("lock").expect("it is there yet");
            assert!(left <= Trampled::LEASE, "they set it: {left:?}");
            eventually("our key runs out", BOUND, || !scene.servers[0].probe().exists("lock"));
            assert!(guard.is_valid(), "nobody has told us yet");
            assert!(guard.verify().unwrap_err().is_lost());
            assert_eq!(guard.loss().expect("verify told us").cause(), LossCause::Gone);
            let token = guard.fencing_token();
            drop(guard);
            assert!(lock.lock().unwrap().fencing_token() > token, "what it protects can tell");
        }
    });
}

/// Three independent servers, the last of which does not answer: so long does a red lock take that what it had on the first
/// is ours before it sets the lease.
struct Trampled {
    servers: [RedisServer; 3],
    peer: Peer,
    ours: Ours,
    _turn: Turn,
}

impl Trampled {
    const LEASE: Duration = Duration::from_millis(700);

    fn start(settings: &str) -> Option<Self> {
        let turn = Turn::of(&NEWEST)?;
        let servers = [(); 3].map(|()| RedisServer::start());
        let urls = servers.each_ref().map(|server| server.url_as("")).join(",");
        let arguments = ["kind=red", "topology=independent", "timeout=1500"];
        let peer = Peer::start(&NEWEST, &urls, &arguments);
        let ours = Ours::connect(&NEWEST, &servers[0].url(), settings, servers[0].port());
        Some(Self { servers, peer, ours, _turn: turn })
    }

    /// Takes our lock between theirs and the moment when they set its lease.
    fn trample(&self, lock: &distlock::Mutex) -> LockGuard {
        self.servers[2].pause();
        let pending = self.peer.tell("t", &format!("try lock 0 {}", Self::LEASE.as_millis()));
        let mut probe = self.servers[0].probe();
        eventually("they have it", BOUND, || probe.exists("lock"));
        let guard = lock.try_lock_for(BOUND).unwrap().expect("their lease ends");
        assert!(!pending.is_there(), "they wait for the last server");
        let said = pending.answer(BOUND);
        say!("a red lock that took longer than its lease: {said:?}");
        self.servers[2].resume();
        guard
    }
}
