//! Searches all states of the queue, with some kinds of trouble at a time, and shows the faults
//! that appear when a rule is left out.

use super::{ALL, Action, Budget, DIRECT_LEASE, Flaw, INTERVAL, Order, PRESENCE, Queue, Rules};
use crate::report::{fault, timed};
use stateright::{Checker, HasDiscoveries, Model};

const NONE: Budget = Budget {
    late: 0,
    repeats: 0,
    deaths: 0,
    freezes: 0,
    disconnects: 0,
    leaves: 0,
    tries: 0,
    errors: 0,
    pauses: 0,
    deletes: 0,
    foreign: 0,
    failovers: 0,
};

/// Returns a model of three clients, each with one acquisition. No tick may pass while a ready
/// waiter waits for a lock that is free or not used.
fn with(budget: Budget) -> Queue {
    Queue {
        rules: Rules {
            order: Order::Any,
            named: 0,
            flaw: Flaw::None,
        },
        clients: 3,
        rounds: 1,
        budget,
        waste: Some(0),
        idle: Some(0),
    }
}

/// Gives each client two acquisitions.
fn twice(model: Queue) -> Queue {
    Queue { rounds: 2, ..model }
}

fn fair(mut model: Queue) -> Queue {
    model.rules.order = Order::Fair;
    model
}

/// Makes releases only name these clients as next, instead of granting them the lock. A named
/// client that does not take the lock may block the others for as long as it counts as present.
fn naming(clients: u8, mut model: Queue) -> Queue {
    model.rules.named = clients;
    model.idle = Some(PRESENCE);
    model
}

/// Removes the limits on the time for which the lock may be wasted or free.
fn untimed(model: Queue) -> Queue {
    Queue {
        waste: None,
        idle: None,
        ..model
    }
}

/// Allows a lock that ends without a message to stay free until the next attempt.
fn found_by_attempts(model: Queue) -> Queue {
    Queue {
        idle: Some(INTERVAL),
        ..model
    }
}

fn freezing(freezes: u8) -> Queue {
    // A frozen waiter costs the lease of one grant.
    Queue {
        waste: Some(freezes * DIRECT_LEASE),
        ..with(Budget { freezes, ..NONE })
    }
}

fn late(late: u8) -> Queue {
    Queue {
        // One late or lost message costs the time until the next attempt. If both an attempt and
        // the release of one owner are late, the attempt may enter the queue first, which costs the
        // lease of one grant.
        waste: Some(if late == 1 { INTERVAL } else { DIRECT_LEASE }),
        // Each late attempt that would have found the lock free costs an interval, too.
        idle: Some(late * INTERVAL),
        ..with(Budget { late, ..NONE })
    }
}

fn holds(what: &str, model: Queue) {
    let order = model.rules.order;
    let (checker, time) = timed(|| model.checker().threads(2).spawn_dfs().join());
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{what}, {order:?}: {states} states, {depth} deep, {time:.1?}");
    if let Some((property, path)) = fault(&checker) {
        panic!("{what}: not so that {property}: {:#?}", path.into_actions());
    }
    let found = checker.discoveries().len();
    assert_eq!(found, 2, "{what}: each client can hold the lock");
}

fn holds_in_both_orders(what: &str, model: Queue) {
    holds(what, model.clone());
    holds(what, fair(model));
}

/// Prints the shortest path on which this flaw violates the property. Fails if there is none.
fn refuted(flaw: Flaw, property: &'static str, mut model: Queue) {
    model.rules.flaw = flaw;
    // The checker may find a longer path first, so the search is repeated for shorter ones. It
    // visits only states less deep than `depth`; the initial state is 1 deep.
    let shorter_than = |depth| {
        let only = HasDiscoveries::AnyOf([property].into());
        let checker = model.clone().checker().finish_when(only);
        let checker = checker.target_max_depth(depth).spawn_bfs().join();
        let path = checker.discovery(property)?;
        Some((path.into_actions(), checker.unique_state_count()))
    };
    let shortest = |mut found: (Vec<Action>, usize)| {
        while let Some(shorter) = shorter_than(found.0.len() + 1) {
            found = shorter;
        }
        found
    };
    let (found, time) = timed(|| shorter_than(usize::MAX).map(shortest));
    let Some((actions, states)) = found else {
        panic!("{flaw:?} was not found out");
    };
    let steps = actions.len();
    println!("{flaw:?}: not so that {property}; {steps} steps, {states} states, {time:.1?}");
    for (at, action) in actions.into_iter().enumerate() {
        println!("    {:2} {action:?}", at + 1);
    }
}

#[test]
fn waiters_take_turns() {
    holds_in_both_orders("no trouble", twice(with(NONE)));
    holds("no trouble, all named", twice(naming(ALL, with(NONE))));
    holds("no trouble, one named", twice(naming(1, with(NONE))));
}

#[test]
fn waiter_that_gives_up_costs_no_time() {
    let model = with(Budget { leaves: 1, ..NONE });
    holds_in_both_orders("gives up", twice(model.clone()));
    let in_time = Queue {
        idle: Some(0),
        ..naming(ALL, model)
    };
    holds("gives up, all named", in_time);
}

#[test]
fn attempt_that_does_not_wait_disturbs_no_turn() {
    let model = with(Budget { tries: 1, ..NONE });
    holds_in_both_orders("tries once", twice(model.clone()));
    holds("tries once, all named", fair(naming(ALL, model)));
}

#[test]
fn dead_waiter_costs_no_time() {
    let model = with(Budget { deaths: 1, ..NONE });
    holds("dies", twice(model.clone()));
    holds("dies, all named", naming(ALL, model));
    let two = with(Budget { deaths: 2, ..NONE });
    holds("two die", fair(two));
}

#[test]
fn disconnected_waiter_keeps_its_place() {
    let disconnects = |disconnects| {
        with(Budget {
            disconnects,
            ..NONE
        })
    };
    holds_in_both_orders("disconnects", twice(disconnects(1)));
    holds_in_both_orders("two disconnect", disconnects(2));
    holds("disconnects, all named", naming(ALL, disconnects(1)));
    let dies = Budget {
        deaths: 1,
        disconnects: 1,
        ..NONE
    };
    for client in 0..3 {
        holds("disconnects, one named", naming(1 << client, with(dies)));
    }
}

#[test]
fn frozen_waiter_costs_the_lease_of_one_grant() {
    holds("freezes", twice(freezing(1)));
    holds_in_both_orders("two freeze", freezing(2));
    holds("freezes, all named", naming(ALL, freezing(1)));
}

#[test]
fn late_requests_and_messages_grant_nothing() {
    holds("late", twice(late(1)));
    holds_in_both_orders("two are late", late(2));
    holds("two are late, all named", naming(ALL, late(2)));
    let freezes = Budget {
        freezes: 1,
        ..late(1).budget
    };
    holds("late, freezes", untimed(with(freezes)));
}

#[test]
fn repeated_requests_grant_nothing() {
    let repeats = |repeats| with(Budget { repeats, ..NONE });
    holds("repeated", twice(repeats(1)));
    holds_in_both_orders("two are repeated", repeats(2));
    holds("two are repeated, all named", naming(ALL, repeats(2)));
    let leaves = Budget {
        late: 1,
        repeats: 1,
        leaves: 1,
        ..NONE
    };
    holds("late, repeated, gives up", untimed(with(leaves)));
}

#[test]
fn failed_publish_leaves_the_lock_free() {
    let model = with(Budget { errors: 1, ..NONE });
    holds_in_both_orders("PUBLISH fails", found_by_attempts(twice(model)));
}

#[test]
fn other_libraries_and_operators_grant_nothing() {
    let pauses = with(Budget { pauses: 1, ..NONE });
    holds_in_both_orders("only names", twice(pauses));
    let foreign = with(Budget {
        foreign: 1,
        pauses: 1,
        ..NONE
    });
    holds("another library", found_by_attempts(twice(foreign)));
    let deletes = with(Budget { deletes: 1, ..NONE });
    holds("lock deleted", found_by_attempts(twice(deletes)));
}

#[test]
fn lost_queue_is_built_again() {
    let model = with(Budget {
        failovers: 1,
        ..NONE
    });
    holds_in_both_orders("queue lost", twice(model));
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn every_trouble_of_clients_together() {
    let budget = Budget {
        deaths: 1,
        freezes: 1,
        disconnects: 1,
        leaves: 1,
        tries: 1,
        ..NONE
    };
    holds("clients", untimed(with(budget)));
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn every_trouble_of_the_network_together() {
    let budget = Budget {
        late: 1,
        repeats: 1,
        disconnects: 1,
        leaves: 1,
        ..NONE
    };
    holds("network", untimed(with(budget)));
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn frozen_and_late_waiters_that_are_named() {
    holds("freezes, all named", twice(naming(ALL, freezing(1))));
    holds("late, all named", twice(naming(ALL, late(1))));
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn two_clients_with_all_their_trouble() {
    let budget = Budget {
        late: 1,
        repeats: 1,
        deaths: 1,
        freezes: 1,
        disconnects: 1,
        leaves: 1,
        tries: 1,
        errors: 1,
        ..NONE
    };
    let model = Queue {
        clients: 2,
        ..untimed(with(budget))
    };
    holds_in_both_orders("two clients", model);
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn two_clients_with_all_trouble_of_servers() {
    let budget = Budget {
        late: 1,
        repeats: 1,
        freezes: 1,
        errors: 1,
        pauses: 1,
        deletes: 1,
        foreign: 1,
        failovers: 1,
        ..NONE
    };
    let model = Queue {
        clients: 2,
        ..untimed(with(budget))
    };
    holds("two clients, servers", model);
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn late_messages_beside_other_libraries() {
    let budget = Budget {
        errors: 1,
        pauses: 1,
        deletes: 1,
        foreign: 1,
        ..late(1).budget
    };
    holds("late, others", untimed(with(budget)));
}

const ONE_HOLDER: &str = "one holder at a time";
const TOKENS: &str = "tokens grow";
const RELEASED: &str = "released owners stay so";
const TURNS: &str = "waiters take turns";
const NO_WASTE: &str = "no time is wasted";
const NOT_IDLE: &str = "a free lock is taken";

#[test]
fn every_rule_of_a_release_is_needed() {
    let disconnects = with(Budget {
        disconnects: 1,
        ..NONE
    });
    refuted(Flaw::KeepsUnreached, NO_WASTE, disconnects.clone());
    refuted(Flaw::RemovesUnreached, TURNS, twice(disconnects));
    let fails = with(Budget {
        errors: 1,
        tries: 1,
        ..NONE
    });
    refuted(Flaw::PublishesFirst, ONE_HOLDER, untimed(fails.clone()));
    refuted(Flaw::PublishesFirst, TOKENS, untimed(fails));
    let repeats = with(Budget { repeats: 1, ..NONE });
    refuted(Flaw::ReleasesAnyOwner, ONE_HOLDER, untimed(repeats.clone()));
    refuted(Flaw::NoTombstone, RELEASED, untimed(repeats));
}

#[test]
fn every_rule_of_an_attempt_is_needed() {
    refuted(Flaw::Barges, TURNS, with(NONE));
    let tries = with(Budget { tries: 1, ..NONE });
    refuted(Flaw::TriesBarge, TURNS, fair(tries));
    refuted(Flaw::OvertakesNamed, TURNS, naming(1, with(NONE)));
    let dies = with(Budget { deaths: 1, ..NONE });
    refuted(Flaw::NoPresence, NOT_IDLE, naming(ALL, dies));
}

#[test]
fn every_rule_of_a_waiter_is_needed() {
    let leaves = with(Budget { leaves: 1, ..NONE });
    refuted(Flaw::LeavesSilently, NO_WASTE, leaves);
    refuted(Flaw::ValidFromArrival, ONE_HOLDER, untimed(late(1)));
    refuted(Flaw::TrustsOldAttempt, ONE_HOLDER, untimed(late(2)));
    refuted(Flaw::TrustsOldAttempt, ONE_HOLDER, untimed(freezing(1)));
}
