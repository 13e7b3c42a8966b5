//! When a holder learns of a loss: by the next renewal if the server answers, and at the local
//! deadline if it does not.

use super::scene::{Scene, lease};
use distlock::time::{Clock, Moment, SystemClock};
use distlock::{Loss, LossCause};
use distlock_tests::time::{late, let_pass, with_tolerance};
use parking_lot::Mutex;
use std::thread;
use std::time::Duration;

type Fault = fn(&mut Scene);

/// The points of time between two renewals at which a fault begins, in sixths.
const PHASES: [u32; 3] = [0, 2, 4];

/// What was observed of one loss.
struct Told {
    loss: Loss,
    began: Moment,
    at: Moment,
    /// The last local deadline that the guard knew.
    deadline: Moment,
    /// Renewals that the server carried out after the fault; `None` if the server does not answer.
    renewals: Option<u64>,
}

impl Told {
    /// Holds a lock, causes the fault at this phase, and watches the guard and its channel until
    /// the loss is reported.
    fn of(fault: Fault, phase: u32) -> Self {
        let mut scene = Scene::new();
        let guard = scene.client.mutex("a").unwrap().lock().unwrap();
        let losses = guard.losses();
        let_pass(lease() / 3 + lease() / 18 * phase);
        let mut deadline = SystemClock.now() + guard.remaining();
        fault(&mut scene);
        let began = SystemClock.now();
        loop {
            // The channel is read before the clock, so `at` is never earlier than the report.
            let told = losses.try_recv();
            let at = SystemClock.now();
            if let Ok(loss) = told {
                let renewals = (loss.cause() == LossCause::Gone)
                    .then(|| scene.server.probe().command_calls("hexists"));
                // A server that answers no client would not answer the harness either.
                scene.server.kill();
                return Self {
                    loss,
                    began,
                    at,
                    deadline,
                    renewals,
                };
            }
            if at.since(began) > lease() * 8 {
                late(lease() * 8, "nothing is told");
            }
            // `at` is before this read: a pause between the two makes the deadline too early, never
            // too late.
            let left = guard.remaining();
            if !left.is_zero() {
                deadline = deadline.max(at + left);
            }
            let_pass(Duration::from_millis(5));
        }
    }
}

/// Runs these commands on the server and resets its counters, in one transaction: the counters show
/// the renewals since then.
fn counted(scene: &Scene, commands: &[&[&str]]) {
    let mut probe = scene.server.probe();
    for words in [
        &[&["MULTI"][..], &["CONFIG", "RESETSTAT"]],
        commands,
        &[&["EXEC"]],
    ]
    .concat()
    {
        probe.command(words);
    }
}

/// Runs every fault at every phase, all at the same time.
fn observe(faults: &[(&'static str, Fault)]) -> Vec<(&'static str, Told)> {
    let seen = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for (what, fault) in faults {
            for phase in PHASES {
                let seen = &seen;
                scope.spawn(move || {
                    let told = Told::of(*fault, phase);
                    seen.lock().push((*what, told));
                });
            }
        }
    });
    seen.into_inner()
}

const RESTARTED: &str = "server restarted empty";

#[test]
fn loss_known_to_the_server_is_told_by_next_renewal() {
    let faults: [(&str, Fault); 5] = [
        ("key deleted", |scene| counted(scene, &[&["DEL", "a"]])),
        ("FLUSHALL", |scene| counted(scene, &[&["FLUSHALL"]])),
        ("key of another owner", |scene| {
            counted(scene, &[&["DEL", "a"], &["HSET", "a", "x", "1"]]);
        }),
        ("key of another type", |scene| {
            counted(scene, &[&["SET", "a", "text"]]);
        }),
        (RESTARTED, |scene| scene.server.restart()),
    ];
    for (what, told) in observe(&faults) {
        let took = told.at.since(told.began);
        println!(
            "{what}: told after {took:.1?}, renewals since: {:?}",
            told.renewals
        );
        assert_eq!(told.loss.cause(), LossCause::Gone, "{what}");
        // After a restart, the client's check of the new connection may find the loss before a
        // renewal does.
        let is_by_the_look = what == RESTARTED && told.renewals == Some(0);
        assert!(
            is_by_the_look || told.renewals == Some(1),
            "{what}: not by the next one"
        );
    }
}

#[test]
fn loss_on_unreachable_server_is_told_at_the_deadline() {
    let faults: [(&str, Fault); 3] = [
        ("killed", |scene| scene.server.kill()),
        ("frozen", |scene| scene.server.pause()),
        ("answers no client", |scene| {
            scene.pause_clients(lease() * 8);
        }),
    ];
    let (seen, tolerance) = with_tolerance(|| observe(&faults));
    for (what, told) in seen {
        assert_eq!(told.loss.cause(), LossCause::Expired, "{what}");
        assert!(told.at >= told.deadline, "{what}: told before the deadline");
        assert!(
            told.loss.last_failure().is_some(),
            "{what}: why it could not be renewed"
        );
        let after = told.at.since(told.deadline);
        println!(
            "{what}: told {:.1?} after it began, {after:.1?} after the deadline",
            told.at.since(told.began)
        );
        tolerance.must_cover(after, lease(), what);
    }
}
