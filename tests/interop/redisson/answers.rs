//! An answer to one of Redisson's scripts is lost: it sends the script again, or believes the
//! opposite of what happened.

use super::{NEWEST, OLDEST};
use crate::cases::holding::must_stay_ours;
use crate::late::{self, retry_if_late, timely};
use crate::libraries::{Library, WITH_LATCH};
use crate::ours::Ours;
use crate::peer::BOUND;
use crate::pool::Lent;
use crate::suite::{Permit, Suite, case};
use distlock_tests::probe::Probe;
use distlock_tests::process::RedisServer;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::resp::Request;
use distlock_tests::time::{eventually, ms};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long Redisson waits for an answer.
const TIMEOUT: Duration = Duration::from_millis(700);

static VERSIONS: [Library; 3] = [NEWEST, WITH_LATCH, OLDEST];

pub(crate) fn mount(suite: &mut Suite) {
    let unlock = case!(resent_redisson_unlock_does_not_free_our_lock);
    suite.each(Permit::Shared, &VERSIONS, unlock);
    let twice = case!(surplus_redisson_hold_is_waited_out_or_forced);
    suite.each(Permit::Shared, &VERSIONS, twice);
}

/// A plan that swallows the answer to the next script once it is armed.
#[derive(Default)]
struct OneAnswer(AtomicBool);

impl Plan for OneAnswer {
    fn fate(&self, request: &mut Request) -> Fault {
        let is_script = request.is("EVAL") || request.is("EVALSHA");
        let strikes = is_script && self.0.swap(false, Ordering::SeqCst);
        if strikes {
            Fault::SwallowReply
        } else {
            Fault::Pass
        }
    }
}

/// A peer behind a proxy that can lose an answer, and our client, which connects to the server
/// directly.
struct Lossy {
    peer: Lent,
    plan: Arc<OneAnswer>,
    ours: Ours,
    _proxy: Proxy,
    server: RedisServer,
}

impl Lossy {
    fn start(library: &'static Library) -> Self {
        let server = RedisServer::start();
        let plan = Arc::<OneAnswer>::default();
        let proxy = Proxy::new(server.port(), Arc::clone(&plan) as _);
        let url = format!("redis://127.0.0.1:{}", proxy.port());
        let peer = Lent::start(
            library,
            &url,
            &[&format!("timeout={}", TIMEOUT.as_millis())],
        );
        let ours = Ours::connect(library, &server.url(), "", server.port());
        // The first use of a script may take two requests: by its hash, and then by its text. A JVM
        // also loads classes for it, which may take longer than the time-out.
        let is_warm = || {
            let said = peer.tell("t", "try warm 0 60000").answer(BOUND);
            let given_back = peer.tell("t", "unlock warm").answer(BOUND);
            said.is_ok_and(|it| it.starts_with("held")) && given_back.is_ok()
        };
        eventually("it is warm", BOUND, is_warm);
        Self {
            peer,
            plan,
            ours,
            _proxy: proxy,
            server,
        }
    }

    fn lose_one_answer(&self) {
        self.plan.0.store(true, Ordering::SeqCst);
    }

    fn probe(&self) -> Probe {
        self.server.probe()
    }
}

/// The answer to Redisson's unlock is lost. Older versions send the unlock again, the oldest as a
/// new request, and newer ones report a time-out. Our client has the lock by then, and keeps it.
fn resent_redisson_unlock_does_not_free_our_lock(library: &'static Library) {
    let is_told = library.id == WITH_LATCH.id;
    retry_if_late(late::LEASE, || {
        let scene = Lossy::start(library);
        scene.peer.ask("t", "lock lock 0");
        scene.lose_one_answer();
        let pending = scene.peer.tell("t", "unlock lock");
        let guard = scene
            .ours
            .mutex("lock")
            .try_lock_for(BOUND)
            .unwrap()
            .expect("it was freed");
        let said = pending.answer(BOUND);
        say!("{}: an unlock whose answer is lost: {said:?}", library.name);
        must_stay_ours(&guard, ms(500));
        // Any answer that takes longer than Redisson's time-out is lost, too.
        timely!(
            TIMEOUT,
            said.is_ok() == is_told,
            "docs/INTEROP.md says otherwise: {said:?}"
        );
        guard.unlock().unwrap();
    });
}

/// The answer to Redisson's attempt is lost. The newest version reports a time-out, and its lock is
/// held for a lease. Older versions try again and count two holds, so that one unlock does not free
/// the lock. Our client waits for what is stored, and may free it by force.
fn surplus_redisson_hold_is_waited_out_or_forced(library: &'static Library) {
    let holds = if library.id == NEWEST.id { 1 } else { 2 };
    retry_if_late(late::LEASE, || {
        let scene = Lossy::start(library);
        let lock = scene.ours.mutex("lock");
        scene.lose_one_answer();
        let said = scene.peer.tell("t", "lock lock 0").answer(BOUND);
        say!("{}: a lock whose answer is lost: {said:?}", library.name);
        let seen = lock.inspect().unwrap().holder.expect("they have it").holds;
        // Any answer that takes longer than Redisson's time-out is lost, too.
        timely!(
            TIMEOUT,
            (said.is_ok(), seen) == (holds == 2, holds),
            "{seen} holds: {said:?}"
        );
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
    });
}
