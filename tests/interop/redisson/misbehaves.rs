//! Documented defects of Redisson on a lock that it shares with us: where it believes in a lock that it has not, or has one
//! that it does not know of, ours stays what it was.
//!
//! What is not here, because it does not show on a shared key or cannot be brought about from outside, stands with its reason
//! in `docs/INTEROP.md`.

use super::{NEWEST, OLDEST};
use crate::cases::steadily;
use crate::harness::probe::Probe;
use crate::harness::process::RedisServer;
use crate::harness::proxy::{Fault, Plan, Proxy};
use crate::harness::resp::Request;
use crate::harness::time::{always, eventually, let_pass, ms};
use crate::libraries::Library;
use crate::ours::Ours;
use crate::peer::{BOUND, Peer};
use crate::scene::{Scene, Turn};
use distlock::{DistLock, LockGuard, LossCause};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const REFUSED: &str = "IllegalMonitorStateException";

/// Our guard is good for the whole of this time, by the store's word, too.
#[track_caller]
fn must_stay_ours(guard: &LockGuard, time: Duration) {
    always("ours stays ours", time, || guard.is_valid() && guard.verify().is_ok());
}

/// `lock()`, and in it `lock(300 ms)`: the store has the shorter lease, and the next renewal comes later. It believes in two holds
/// and has none.
#[test]
fn a_lock_that_they_shortened_themselves_is_ours_and_their_renewals_leave_it_alone() {
    steadily(|| {
        for library in [&NEWEST, &OLDEST] {
            let Some(scene) = Scene::with(library, "", &["watchdog=3000"]) else { return };
            scene.peer.ask("t", "lock lock 0");
            scene.peer.ask("t", "lock lock 300");
            let lock = scene.ours.mutex("lock");
            let guard = lock.try_lock_for(ms(900)).unwrap().expect("their lease was 300 ms");
            // Over more than two of their renewals.
            must_stay_ours(&guard, Duration::from_millis(2_200));
            assert!(scene.peer.refusal("t", "unlock lock").contains(REFUSED));
            must_stay_ours(&guard, ms(100));
            guard.unlock().unwrap();
        }
    });
}

/// A thread is interrupted while its request is under way: it hears of an error, and the lock is taken all the same, and
/// renewed for ever. We wait, as for any holder; `force_unlock` ends it.
#[test]
fn a_lock_that_they_do_not_know_they_have_is_waited_for_until_somebody_frees_it() {
    steadily(|| {
        let Some(scene) = Scene::with(&NEWEST, "", &["watchdog=1000"]) else { return };
        scene.peer.ask("t", "try warm 0 1");
        scene.server.pause();
        let pending = scene.peer.tell("t", "lock lock 0");
        let_pass(ms(300));
        scene.peer.shout("t", "interrupt");
        let said = pending.answer(BOUND);
        scene.server.resume();
        let said = said.expect_err("the thread was interrupted");
        let lock = scene.ours.mutex("lock");
        eventually("it is locked nevertheless", BOUND, || lock.is_locked().unwrap());
        always("for nobody, and renewed", Duration::from_secs(3), || {
            lock.try_lock().unwrap().is_none()
        });
        say!("an orphan that is renewed for ever; its thread was told: {said}");
        assert!(lock.force_unlock().unwrap());
        let guard = lock.lock().unwrap();
        must_stay_ours(&guard, Duration::from_secs(3));
        guard.unlock().unwrap();
    });
}

/// What swallows one answer to a script when it is told to.
#[derive(Default)]
struct OneAnswer(AtomicBool);

impl Plan for OneAnswer {
    fn fate(&self, request: &mut Request) -> Fault {
        let is_script = request.is("EVAL") || request.is("EVALSHA");
        let strikes = is_script && self.0.swap(false, Ordering::SeqCst);
        if strikes { Fault::SwallowReply } else { Fault::Pass }
    }
}

/// A peer behind a network that can lose an answer, and we on the server itself.
struct Lossy {
    peer: Peer,
    plan: Arc<OneAnswer>,
    ours: Ours,
    _proxy: Proxy,
    server: RedisServer,
    _turn: Turn,
}

impl Lossy {
    fn start(library: &'static Library) -> Option<Self> {
        if library.is_skipped() {
            return None;
        }
        let turn = Turn::take();
        let server = RedisServer::start();
        let plan = Arc::<OneAnswer>::default();
        let proxy = Proxy::new(server.port(), Arc::clone(&plan) as _);
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let peer = Peer::start(library, &url, &["timeout=700"]);
        let ours = Ours::connect(library, &server.url(), "", server.port());
        // The first of a script may be by its hash, and asked again as a text.
        peer.ask("t", "lock warm 0");
        peer.ask("t", "unlock warm");
        Some(Self { peer, plan, ours, _proxy: proxy, server, _turn: turn })
    }

    fn lose_one_answer(&self) {
        self.plan.0.store(true, Ordering::SeqCst);
    }

    fn probe(&self) -> Probe {
        self.server.probe()
    }
}

/// The answer to their unlock is lost. Older ones send it again, and newer ones say that it timed out; we have the lock by then, and
/// keep it.
#[test]
fn an_unlock_that_they_send_again_does_not_free_ours() {
    steadily(|| {
        for library in [&NEWEST, &OLDEST] {
            let Some(scene) = Lossy::start(library) else { return };
            scene.peer.ask("t", "lock lock 0");
            scene.lose_one_answer();
            let pending = scene.peer.tell("t", "unlock lock");
            let guard =
                scene.ours.mutex("lock").try_lock_for(BOUND).unwrap().expect("it was freed");
            let said = pending.answer(BOUND);
            say!("{}: an unlock whose answer is lost: {said:?}", library.name);
            must_stay_ours(&guard, ms(500));
            guard.unlock().unwrap();
        }
    });
}

/// The answer to their acquire is lost. Newer ones say that it timed out, and have the lock for a lease; older ones ask again and
/// count themselves twice, so that their unlock does not free it. We wait for what is stored, and can free it.
#[test]
fn a_hold_too_many_of_theirs_is_waited_for_until_its_lease_or_somebody_ends_it() {
    steadily(|| {
        for (library, holds) in [(&NEWEST, 1), (&OLDEST, 2)] {
            let Some(scene) = Lossy::start(library) else { return };
            let lock = scene.ours.mutex("lock");
            scene.lose_one_answer();
            let said = scene.peer.tell("t", "lock lock 0").answer(BOUND);
            say!("{}: a lock whose answer is lost: {said:?}", library.name);
            assert_eq!(said.is_ok(), holds == 2, "{said:?}");
            assert_eq!(lock.inspect().unwrap().holder.expect("they have it").holds, holds);
            if holds == 2 {
                scene.peer.ask("t", "unlock lock");
            }
            assert!(lock.try_lock().unwrap().is_none(), "it is in the store");
            let left = scene.probe().pttl("lock").expect("and has an end");
            assert!(left <= Duration::from_secs(30));
            assert!(lock.force_unlock().unwrap());
            let guard = lock.lock().unwrap();
            scene.peer.refusal("t", "unlock lock");
            must_stay_ours(&guard, ms(200));
            guard.unlock().unwrap();
        }
    });
}

/// One of their locks was overwritten by something else: the newest renews what stands behind it in its batch no more, and loses
/// it without a word. We take what has lapsed and nothing else, and ours, overwritten likewise, costs no other of ours.
#[test]
fn locks_that_they_stop_renewing_are_ours_when_they_lapse_and_not_before() {
    steadily(|| {
        // Behind the first one in a Java hash map, whose order is that of their batch.
        const OTHERS: [&str; 4] = ["b", "c", "d", "e"];
        for (library, renews_the_others) in [(&NEWEST, false), (&OLDEST, true)] {
            let Some(scene) = Scene::with(library, "watchdog=1s", &["watchdog=1000"]) else {
                return;
            };
            let mut probe = scene.probe();
            scene.peer.ask("a", "lock a 0");
            OTHERS.iter().for_each(|name| drop(scene.peer.ask(name, &format!("lock {name} 0"))));
            let (hit, spared) = (
                scene.ours.mutex("hit").lock().unwrap(),
                scene.ours.mutex("spared").lock().unwrap(),
            );
            let losses = hit.losses();
            for name in ["a", "hit"] {
                probe.command(&["SET", name, "something else"]);
            }
            losses.recv_timeout(BOUND).expect("we are told");
            must_stay_ours(&spared, Duration::from_secs(3));
            let mut lapsed = 0;
            for name in OTHERS {
                let is_theirs = probe.exists(name);
                let taken = scene.ours.mutex(name).try_lock().unwrap();
                assert_eq!(taken.is_some(), !is_theirs, "{name}");
                if let Some(guard) = taken {
                    lapsed += 1;
                    assert!(scene.peer.refusal(name, &format!("unlock {name}")).contains(REFUSED));
                    must_stay_ours(&guard, ms(100));
                } else {
                    scene.peer.ask(name, &format!("unlock {name}"));
                }
            }
            say!(
                "{}: beside an overwritten lock {lapsed} of {} were renewed no more",
                library.name,
                OTHERS.len()
            );
            assert_eq!(lapsed == 0, renews_the_others);
            probe.command(&["DEL", "a", "hit"]);
        }
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
        if NEWEST.is_skipped() {
            return None;
        }
        let turn = Turn::take();
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
