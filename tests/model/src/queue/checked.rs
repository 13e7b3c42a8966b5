//! All states of the queue, some kinds of trouble at a time; and the faults found where a rule is
//! left out.

use super::{Action, Budget, Flaw, Order, Queue, Rules, State};
use crate::report::{fault, timed};
use stateright::{Checker, HasDiscoveries, Model};

/// Three clients, each of which waits for the lock once.
fn plain() -> Queue {
    Queue {
        rules: Rules {
            order: Order::Any,
            direct: true,
            flaw: Flaw::None,
        },
        clients: 3,
        rounds: 1,
        budget: Budget::default(),
        waste: 0,
        idle: 0,
    }
}

fn holds(what: &str, model: Queue) {
    let (checker, time) = timed(|| model.checker().threads(2).spawn_dfs().join());
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{what}: {states} states, {depth} deep, {time:.1?}");
    if let Some((property, path)) = fault(&checker) {
        panic!("{what}: not so that {property}: {:#?}", path.into_actions());
    }
    assert_eq!(checker.discoveries().len(), 2, "{what}: all can happen");
}

/// The shortest way to a fault.
fn refuted(property: &str, model: Queue) {
    let flaw = model.rules.flaw;
    let checker = model.clone().checker().threads(1);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures);
    let (checker, time) = timed(|| checker.spawn_bfs().join());
    let states = checker.unique_state_count();
    let Some((found, path)) = fault(&checker) else {
        panic!("{flaw:?} was not found out in {states} states")
    };
    let actions = path.into_actions();
    let steps = actions.len();
    println!("{flaw:?}: not so that {found}: {steps} steps, {states} states, {time:.1?}");
    for (at, action) in actions.into_iter().enumerate() {
        println!("    {:2} {action:?}", at + 1);
    }
    assert_eq!(found, property, "{flaw:?}");
}

#[test]
fn try_out() {
    let b = Budget::default();
    let k: u8 = std::env::var("K").map_or(1, |k| k.parse().unwrap());
    let only = std::env::var("ONLY").unwrap_or_default();
    for (what, budget, waste, idle) in [
        ("plain", b, 0, 0),
        ("leaves", Budget { leaves: k, ..b }, 0, 0),
        ("tries", Budget { tries: k, ..b }, 0, 0),
        ("deaths", Budget { deaths: k, ..b }, 0, 0),
        (
            "disconnects",
            Budget {
                disconnects: k,
                ..b
            },
            0,
            0,
        ),
        ("freezes", Budget { freezes: k, ..b }, 3 * k, 0),
        ("late", Budget { late: k, ..b }, 3 * k, k),
        ("repeats", Budget { repeats: k, ..b }, 0, 0),
        ("errors", Budget { errors: k, ..b }, 0, 0),
        ("pauses", Budget { pauses: k, ..b }, 0, 0),
        ("deletes", Budget { deletes: k, ..b }, 0, 1),
        ("foreign", Budget { foreign: k, ..b }, 0, 1),
        ("failovers", Budget { failovers: k, ..b }, 0, 0),
    ] {
        if !what.contains(&only) {
            continue;
        }
        for order in [Order::Any, Order::Fair] {
            for direct in [true, false] {
                for rounds in [1, 2] {
                    let mut model = Queue {
                        rounds,
                        budget,
                        waste,
                        idle,
                        ..plain()
                    };
                    model.rules.order = order;
                    model.rules.direct = direct;
                    if !direct {
                        model.idle += 3;
                    }
                    let (checker, time) = timed(|| {
                        model
                            .clone()
                            .checker()
                            .threads(2)
                            .finish_when(HasDiscoveries::AnyFailures)
                            .spawn_dfs()
                            .join()
                    });
                    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
                    print!(
                        "{what} {order:?} {direct} {rounds}: {states} states, {depth} deep, {time:.1?} {}",
                        checker.discoveries().len()
                    );
                    if let Some((property, _)) = fault(&checker) {
                        println!(" NOT {property}");
                        let checker = model
                            .clone()
                            .checker()
                            .threads(2)
                            .finish_when(HasDiscoveries::AnyFailures)
                            .spawn_bfs()
                            .join();
                        if let Some((property, path)) = fault(&checker) {
                            println!(" NOT {property}");
                            for a in path.into_actions() {
                                println!("    {a:?}");
                            }
                        }
                    } else {
                        println!();
                    }
                }
            }
        }
    }
}

#[test]
fn flaws() {
    let b = Budget::default();
    let with = |flaw, model: Queue| Queue { rules: Rules { flaw, ..model.rules }, ..model };
    let budget = |budget| Queue { budget, ..plain() };
    let late = |model: Queue| Queue { waste: 3 * model.budget.late + 3 * model.budget.freezes, idle: 1 + model.budget.late, ..model };
    refuted("no time is wasted", with(Flaw::KeepsUnreached, budget(Budget { disconnects: 1, ..b })));
    refuted("waiters take turns", with(Flaw::Barges, plain()));
    refuted("no time is wasted", with(Flaw::LeavesSilently, budget(Budget { leaves: 1, ..b })));
    refuted("waiters take turns", with(Flaw::RemovesUnreached, Queue { rounds: 2, ..budget(Budget { disconnects: 1, ..b }) }));
    refuted("one holder at a time", with(Flaw::PublishesFirst, budget(Budget { errors: 1, ..b })));
    refuted("one holder at a time", with(Flaw::ReleasesAnyOwner, budget(Budget { repeats: 1, ..b })));
    refuted("one holder at a time", with(Flaw::ValidFromArrival, late(budget(Budget { late: 1, ..b }))));
    refuted("one holder at a time", with(Flaw::TrustsOldAttempt, late(budget(Budget { freezes: 1, ..b }))));
    refuted("one holder at a time", with(Flaw::TrustsOldAttempt, late(budget(Budget { late: 2, ..b }))));
    refuted("released owners stay so", with(Flaw::NoTombstone, late(budget(Budget { repeats: 1, ..b }))));
    refuted("released owners stay so", with(Flaw::NoTombstone, late(budget(Budget { late: 1, leaves: 1, ..b }))));
    let mut named = Queue { idle: 3, ..budget(Budget { deaths: 1, ..b }) };
    named.rules.direct = false;
    refuted("a free lock is taken", with(Flaw::NoPresence, named));
}
