//! Checks of all states of the model, with one kind of trouble at a time, and of the faults that
//! follow if a rule is left out. All states are searched depth first, which needs a tenth of the
//! memory of breadth first.

use crate::node::{Flaw, Rules};
use crate::quorum::{Column, Event, Outsider, Protocol, Quorum};
use crate::report::{fault, timed};
use crate::walk::Walk;
use stateright::{Checker, HasDiscoveries, Model};
use std::ops::Range;

/// The time for which a counter is kept that never expires.
const FOR_EVER: u8 = u8::MAX;

/// Two attempts of two rounds each, on nodes whose counters differ.
fn plain() -> Quorum {
    Quorum {
        rules: Rules {
            longest: None,
            keep: FOR_EVER,
            flaw: Flaw::None,
        },
        protocol: Protocol::Proposed,
        attempts: 2,
        rounds: 2,
        latest: 3,
        skew: 2,
        reserve: 0,
        resends: false,
        releases: false,
        clocks: 0,
        mortals: 0,
        restarts: 0,
        saves: false,
        is_symmetric: true,
        outsider: Outsider::None,
        replacements: 0,
        renews: 0,
        votes_again: false,
        has_one_clock: false,
        ahead: 0,
    }
}

fn resent() -> Quorum {
    Quorum {
        resends: true,
        latest: 2,
        skew: 1,
        ..plain()
    }
}

fn ranges() -> Quorum {
    Quorum {
        reserve: 1,
        releases: true,
        rounds: 1,
        ..plain()
    }
}

fn expiring() -> Quorum {
    let rules = Rules {
        longest: Some(1),
        keep: 1,
        flaw: Flaw::None,
    };
    Quorum {
        rules,
        clocks: 3,
        skew: 0,
        rounds: 1,
        ..plain()
    }
}

fn forgetful() -> Quorum {
    let rules = Rules {
        longest: Some(1),
        ..plain().rules
    };
    Quorum {
        rules,
        clocks: 3,
        latest: 4,
        skew: 0,
        mortals: 1,
        restarts: 1,
        rounds: 1,
        ..plain()
    }
}

/// An empty server takes the place of a node, which may continue to vote. Clients may be led to any
/// of the four servers.
fn replaced() -> Quorum {
    let rules = Rules {
        longest: Some(1),
        ..plain().rules
    };
    Quorum {
        rules,
        clocks: 1,
        has_one_clock: true,
        latest: 2,
        skew: 0,
        rounds: 1,
        is_symmetric: false,
        outsider: Outsider::Empty,
        replacements: 1,
        ..plain()
    }
}

/// Renewals ask nodes for a vote that they have lost, or never gave.
fn voting_again() -> Quorum {
    Quorum {
        renews: 2,
        votes_again: true,
        rounds: 1,
        latest: 2,
        skew: 0,
        ..plain()
    }
}

/// The clocks of two nodes are ahead of the third by more than the longest lease. One of the two is
/// replaced, and what both have granted lies beyond what the third node would grant.
fn ahead() -> Quorum {
    Quorum {
        ahead: 2,
        clocks: 4,
        latest: 3,
        ..replaced()
    }
}

/// Clients may be led to a node of another quorum.
fn foreign() -> Quorum {
    Quorum {
        outsider: Outsider::Foreign,
        replacements: 0,
        ..replaced()
    }
}

fn three() -> Quorum {
    Quorum {
        attempts: 3,
        rounds: 1,
        ..plain()
    }
}

fn holds(what: &str, model: Quorum) {
    let (checker, time) = timed(|| model.checker().threads(2).spawn_dfs().join());
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    println!("{what}: {states} states, {depth} deep, {time:.1?}");
    if let Some((property, path)) = fault(&checker) {
        panic!("{what}: not so that {property}: {:#?}", path.into_actions());
    }
    assert_eq!(
        checker.discoveries().len(),
        1,
        "{what}: every attempt can win"
    );
}

/// Checks that a fault is found in the model with each of these flaws, on any path.
fn finds(model: &Quorum, flaws: &[Flaw]) {
    for &flaw in flaws {
        let rules = Rules {
            flaw,
            ..model.rules
        };
        let checker = Quorum {
            rules,
            ..model.clone()
        }
        .checker()
        .threads(2);
        let checker = checker.finish_when(HasDiscoveries::AnyFailures);
        let (checker, time) = timed(|| checker.spawn_dfs().join());
        println!(
            "{flaw:?}: {} states, {time:.1?}",
            checker.unique_state_count()
        );
        assert!(fault(&checker).is_some(), "{flaw:?} was not found");
    }
}

/// Finds and prints the shortest path to a fault, which the model must have.
fn refuted(what: &str, model: Quorum) {
    let model = Quorum {
        is_symmetric: false,
        ..model
    };
    let checker = model
        .clone()
        .checker()
        .threads(1)
        .finish_when(HasDiscoveries::AnyFailures);
    let (checker, time) = timed(|| checker.spawn_bfs().join());
    let states = checker.unique_state_count();
    let Some((property, path)) = fault(&checker) else {
        panic!("{what} was not found out in {states} states")
    };
    println!("{what}: not so that {property}; {states} states, {time:.1?}");
    let steps = path.into_vec();
    let counter = |column: &Column| column.node.stored(&model.rules).unwrap_or_default();
    println!(
        "    the counters are {:?}",
        steps[0].0.columns.each_ref().map(counter)
    );
    for (at, (state, action)) in steps.into_iter().enumerate() {
        let Some(action) = action else { break };
        let answer = match model.apply(&state, action).1 {
            Some((_, Event::Asked(_, answer))) => format!(": {answer:?}"),
            _ => String::new(),
        };
        println!("    {:2} {action:?}{answer}", at + 1);
    }
}

#[test]
fn two_attempts_of_two_rounds() {
    holds("two attempts of two rounds", plain());
}

#[test]
fn two_attempts_with_resends() {
    holds("re-sends", resent());
}

#[test]
fn two_attempts_with_ranges() {
    holds("ranges", ranges());
}

#[test]
fn two_attempts_with_counters_that_expire() {
    holds("counters that expire", expiring());
}

#[test]
fn two_attempts_and_a_node_that_forgets() {
    holds("a node that forgets", forgetful());
}

#[test]
fn two_attempts_and_a_node_that_is_replaced() {
    holds("a node that is replaced", replaced());
}

#[test]
fn two_attempts_and_a_node_that_is_replaced_beside_renewals() {
    holds(
        "a node that is replaced, renewals",
        Quorum {
            renews: 1,
            ..replaced()
        },
    );
}

#[test]
fn two_attempts_and_a_node_that_is_replaced_beside_clocks_that_are_ahead() {
    holds("a node that is replaced, clocks ahead", ahead());
}

#[test]
fn two_attempts_and_nodes_whose_clocks_are_ahead() {
    holds(
        "clocks ahead",
        Quorum {
            skew: 0,
            clocks: 3,
            latest: 4,
            ahead: 2,
            ..expiring()
        },
    );
}

#[test]
fn two_attempts_and_a_node_of_a_foreign_quorum() {
    holds("a node of another quorum", foreign());
}

#[test]
fn every_rule_of_the_membership_is_needed() {
    finds(&foreign(), &[Flaw::CountsAddresses, Flaw::CountsStrangers]);
    finds(&replaced(), &[Flaw::Unrecorded]);
    finds(
        &Quorum {
            renews: 1,
            ..replaced()
        },
        &[Flaw::RenewsAnywhere],
    );
    finds(&ahead(), &[Flaw::EarliestClock]);
}

#[test]
fn two_attempts_whose_votes_are_given_again() {
    holds("votes given again", voting_again());
}

#[test]
fn two_attempts_that_release_what_was_voted_again() {
    holds(
        "votes given again, releases",
        Quorum {
            releases: true,
            renews: 1,
            ..voting_again()
        },
    );
}

#[test]
fn votes_given_again_and_a_node_that_forgets() {
    let model = Quorum {
        renews: 1,
        votes_again: true,
        latest: 2,
        clocks: 2,
        ..forgetful()
    };
    holds("votes given again, a node that forgets", model);
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn votes_given_again_and_a_node_that_is_replaced() {
    let model = Quorum {
        renews: 1,
        votes_again: true,
        ..replaced()
    };
    holds("votes given again, a node that is replaced", model);
}

#[test]
fn every_rule_of_a_vote_given_again_is_needed() {
    finds(&voting_again(), &[Flaw::CountsLapsed]);
    let releasing = Quorum {
        releases: true,
        ..voting_again()
    };
    finds(&releasing, &[Flaw::AgainClosed]);
    // With three attempts: one has had the lock, another has had it since, and a third one follows
    // a late vote for the first.
    let three = Quorum {
        attempts: 3,
        renews: 1,
        ..voting_again()
    };
    finds(&three, &[Flaw::AgainLowers]);
}

#[test]
fn three_attempts() {
    holds("three attempts", three());
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn two_rounds_with_counters_that_expire() {
    let model = Quorum {
        rounds: 2,
        clocks: 2,
        ..expiring()
    };
    finds(&model, &[Flaw::ExpiredIsNothing, Flaw::CountsOldRounds]);
    holds("counters that expire, two rounds", model);
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn two_rounds_with_a_node_that_forgets() {
    let model = Quorum {
        rounds: 2,
        ..forgetful()
    };
    finds(&model, &[Flaw::NoMarker]);
    holds("a node that forgets, two rounds", model);
}

/// The states include all those of `forgetful`, for which other tests find the faults.
#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn a_node_that_forgets_with_old_snapshots() {
    holds(
        "a node that forgets, old snapshots",
        Quorum {
            saves: true,
            ..forgetful()
        },
    );
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn two_attempts_with_resends_and_counters_further_apart() {
    let model = Quorum {
        latest: 3,
        skew: 2,
        ..resent()
    };
    finds(&model, &[Flaw::GrantsEqual, Flaw::OwnLowers]);
    holds("re-sends, counters further apart", model);
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn two_rounds_with_ranges() {
    let model = Quorum {
        rounds: 2,
        skew: 0,
        latest: 2,
        ..ranges()
    };
    finds(&model, &[Flaw::CountsFirst]);
    holds("ranges, two rounds", model);
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn three_attempts_to_a_depth() {
    to_depth(7);
}

#[test]
fn naive_protocol_is_refuted() {
    let naive = Quorum {
        protocol: Protocol::Naive,
        skew: 1,
        ..plain()
    };
    refuted("counters that are written back", naive);
}

#[test]
fn protocol_without_the_marker_is_refuted() {
    let rules = Rules {
        flaw: Flaw::NoMarker,
        ..forgetful().rules
    };
    refuted(
        "no marker",
        Quorum {
            rules,
            ..forgetful()
        },
    );
}

#[test]
fn every_rule_of_a_node_is_needed() {
    let once = Quorum {
        rounds: 1,
        latest: 2,
        skew: 0,
        ..plain()
    };
    finds(&once, &[Flaw::GrantsEqual]);
    finds(
        &Quorum {
            latest: 2,
            skew: 1,
            ..plain()
        },
        &[Flaw::OwnLowers],
    );
    finds(
        &Quorum {
            skew: 0,
            latest: 2,
            ..ranges()
        },
        &[Flaw::CountsFirst],
    );
    finds(&forgetful(), &[Flaw::NoFloor, Flaw::NoCeiling]);
    finds(&expiring(), &[Flaw::ExpiredIsNothing]);
}

/// Such a fault takes three attempts, and too many steps for a search of all states. So it is
/// looked for by random walks.
#[test]
fn late_release_lowers_no_token_of_the_next_owner() {
    let sound = Quorum {
        attempts: 3,
        ..ranges()
    };
    assert_eq!(
        walks(&sound, 0..20_000),
        None,
        "the seed of a walk that ends with a fault"
    );
    let rules = Rules {
        flaw: Flaw::GivesBackLate,
        ..sound.rules
    };
    let seed = walks(&Quorum { rules, ..sound }, 0..1_000_000);
    println!(
        "GivesBackLate: found by walk {}",
        seed.expect("it is found")
    );
}

#[test]
fn every_rule_of_a_client_is_needed() {
    let once = Quorum {
        rounds: 1,
        latest: 2,
        skew: 0,
        ..plain()
    };
    finds(&once, &[Flaw::Minority, Flaw::NoLeaseCheck]);
    finds(
        &Quorum {
            latest: 2,
            skew: 1,
            ..plain()
        },
        &[Flaw::CountsOldRounds],
    );
}

fn walks(model: &Quorum, seeds: Range<u64>) -> Option<u64> {
    let is_sound = |seed: &u64| {
        let mut walk = Walk::new(model, *seed);
        let mut steps = 0;
        while steps < 150 && walk.step().is_some() {
            steps += 1;
        }
        walk.state().is_sound()
    };
    seeds.into_iter().find(|seed| !is_sound(seed))
}

#[test]
fn all_features_together_at_random() {
    let model = Quorum::everything();
    const WALKS: u64 = 40_000;
    let (fault, time) = timed(|| walks(&model, 0..WALKS));
    assert_eq!(fault, None, "the seed of a walk that ends with a fault");
    println!("{WALKS} walks of 150 steps: {time:.1?}");
}

fn to_depth(depth: usize) {
    let model = Quorum {
        is_symmetric: true,
        ..Quorum::everything()
    };
    let checker = model.checker().threads(2).target_max_depth(depth);
    let (checker, time) = timed(|| checker.spawn_bfs().join());
    println!(
        "everything to {depth} steps: {} states, {time:.1?}",
        checker.unique_state_count()
    );
    assert!(fault(&checker).is_none());
}

#[test]
fn all_features_together_for_six_steps() {
    to_depth(6);
}
