//! Elections: campaigns and resignations in quick succession, losses, and dropped candidates.

use crate::explore::{explore, is_punctual};
use crate::world::{LEASE, NAME, in_time, ms, sleep, thread, threads, until};
use distlock_schedules::sync::channel::Receiver;
use distlock_schedules::sync::time;
use distlock_schedules::{Election, LeadershipChange, LossCause};
use std::sync::Arc;
use std::time::Duration;

/// Campaigns, and waits until the candidate leads.
fn lead(election: &Election) {
    election.campaign().expect("a thread");
    let leads = election.wait_for_leadership(LEASE * 20, None);
    // In a late schedule the wait may end without an answer.
    assert!(
        leads.as_ref().is_ok_and(|leads| *leads) || !is_punctual(),
        "{leads:?}"
    );
}

fn resign(election: &Election) {
    let resigned = election.resign();
    assert!(resigned.is_ok() || !is_punctual(), "{resigned:?}");
}

/// Returns the next change of leadership, which must arrive within this time.
fn next(changes: &Receiver<LeadershipChange>, within: Duration) -> LeadershipChange {
    let asked = time::peek();
    let change = changes.recv().expect("the election is there");
    in_time("the change", asked, within);
    change
}

/// Two candidates campaign and resign again and again: at most one leads, and each change is
/// reported.
#[test]
fn terms() {
    explore("terms", 1_000, |world| {
        let elections: [Election; 2] =
            std::array::from_fn(|_| world.client().election(NAME).expect("an election"));
        let changes: Vec<_> = elections.iter().map(Election::changes).collect();
        let shared = Arc::clone(world);
        threads(4, move |number| {
            let election = &elections[number % 2];
            for round in 0..3 {
                election.campaign().expect("a thread");
                if number < 2 && round == 1 {
                    sleep(ms(fastrand::u64(..3)));
                }
                for _ in 0..3 {
                    shared.judge.look_at_term(|| election.term());
                }
                if number < 2 || fastrand::bool() {
                    resign(election);
                }
            }
            resign(election);
        });
        for changes in changes {
            let mut leads = None;
            while let Ok(change) = changes.recv() {
                match change {
                    LeadershipChange::Gained { term } => {
                        assert!(leads.is_none() && term.is_some(), "{leads:?}, {term:?}");
                        leads = term;
                    }
                    _ => assert!(leads.take().is_some(), "{change:?} of no leader"),
                }
            }
            assert!(leads.is_none(), "its resignation was not told");
        }
    });
}

/// A candidate campaigns and resigns in quick succession before it leads. The next renewal then
/// finds that the leadership is lost, the loss is reported, and the candidate leads again.
#[test]
fn loss_after_resignations() {
    explore("loss_after_resignations", 1_500, |world| {
        let election = world.client().election(NAME).expect("an election");
        for _ in 0..2 {
            if fastrand::bool() {
                lead(&election);
            } else {
                election.campaign().expect("a thread");
            }
            resign(&election);
        }
        lead(&election);
        let changes = election.changes();
        let gained = next(&changes, LEASE);
        assert!(
            matches!(gained, LeadershipChange::Gained { .. }),
            "{gained:?}"
        );
        let start = time::peek();
        world.lose();
        let lost = next(&changes, LEASE);
        let is_lost = matches!(
            lost,
            LeadershipChange::Lost {
                cause: LossCause::Gone
            }
        );
        assert!(is_lost || !is_punctual(), "{lost:?}");
        // A renewal is due after a third of the lease.
        in_time("the news of the loss", start, LEASE / 3 + ms(10));
        let gained = next(&changes, LEASE);
        assert!(
            matches!(gained, LeadershipChange::Gained { .. }),
            "{gained:?}"
        );
        resign(&election);
    });
}

/// The last handle of a candidate is dropped at any moment of its campaign: another candidate then
/// leads at once, and does not wait for the lease to end.
#[test]
fn last_handle_of_an_election() {
    explore("last_handle_of_an_election", 1_000, |world| {
        let [leaving, staying] = std::array::from_fn(|_| {
            world
                .client_with(|config| config.with_watchdog(LEASE))
                .election(NAME)
                .expect("one")
        });
        let other = leaving.clone();
        leaving.campaign().expect("a thread");
        let campaigning = thread::spawn(move || {
            let leads = other.wait_for_leadership(ms(20), None);
            assert!(leads.is_ok() || !is_punctual(), "{leads:?}");
        });
        if fastrand::bool() {
            staying.campaign().expect("a thread");
        }
        if fastrand::bool() {
            sleep(ms(fastrand::u64(..3)));
        }
        drop(leaving);
        campaigning.join().expect("no panic");
        let start = time::peek();
        staying.campaign().expect("a thread");
        until("the other one leads", ms(60), || {
            staying.is_leader() || !is_punctual()
        });
        in_time("the turn of the other one", start, ms(60));
        drop(staying);
        until("the leadership is given up", ms(60), || {
            !world.is_held() || !is_punctual()
        });
    });
}
