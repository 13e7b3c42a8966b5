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

/// How long they wait for an answer.
const TIMEOUT: Duration = Duration::from_millis(700);

static VERSIONS: [Library; 3] = [NEWEST, WITH_LATCH, OLDEST];

pub(crate) fn mount(suite: &mut Suite) {
    let unlock = case!(resent_redisson_unlock_does_not_free_our_lock);
    suite.each(Permit::Shared, &VERSIONS, unlock);
    let twice = case!(surplus_redisson_hold_is_waited_out_or_forced);
    suite.each(Permit::Shared, &VERSIONS, twice);
}

/// What swallows one answer to a script when it is told to.
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

/// A peer behind a network that can lose an answer, and we on the server itself.
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
        // The first of a script may be by its hash, and asked again as a text; and a JVM loads what
        // it needs for it, which may take longer than an answer may.
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

/// The answer to their unlock is lost. Older ones send it again, the oldest one as something new,
/// and newer ones say that it timed out; we have the lock by then, and keep it.
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
        // Another answer that is later than their time-out is lost to them, too.
        timely!(
            TIMEOUT,
            said.is_ok() == is_told,
            "docs/INTEROP.md says otherwise: {said:?}"
        );
        guard.unlock().unwrap();
    });
}

/// The answer to their acquire is lost. Newer ones say that it timed out, and have the lock for a
/// lease; older ones ask again and count themselves twice, so that their unlock does not free it.
/// We wait for what is stored, and can free it.
fn surplus_redisson_hold_is_waited_out_or_forced(library: &'static Library) {
    let holds = if library.id == NEWEST.id { 1 } else { 2 };
    retry_if_late(late::LEASE, || {
        let scene = Lossy::start(library);
        let lock = scene.ours.mutex("lock");
        scene.lose_one_answer();
        let said = scene.peer.tell("t", "lock lock 0").answer(BOUND);
        say!("{}: a lock whose answer is lost: {said:?}", library.name);
        let seen = lock.inspect().unwrap().holder.expect("they have it").holds;
        // Another answer that is later than their time-out is lost to them, too.
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
