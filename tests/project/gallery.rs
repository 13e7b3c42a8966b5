//! The races of the gallery, each in both colours: seen with the format that has it, and not with the one that cures it.

#[path = "../../examples/race_gallery/races.rs"]
mod races;
#[path = "../../examples/race_gallery/stage.rs"]
pub(crate) mod stage;

use distlock_tests::probe::Probe;
use stage::Server;
use std::collections::BTreeSet;

/// The titles that have a test.
const TITLES: [&str; 16] = [
    "The lease ends between the look at it and the DEL",
    "The DEL of a successor's lock",
    "Two clients delete an expired lock",
    "Two clients see the same time that is past",
    "GETSET overwrites the winner's time, so that its release is refused",
    "Clocks that differ",
    "Two clients with the same time in one second",
    "A crash between SETNX and EXPIRE",
    "A crash between INCR and EXPIRE",
    "An EXPIRE that fails in a script does not undo what was written before it",
    "Whoever loses makes the winner's lease longer",
    "Whoever loses with a shorter lease ends the winner's",
    "A lock freed by force under its holder",
    "The pause that outlives the lease",
    "Replication loses the lock",
    "RedLock, and a node that was started again empty",
];

fn both_colours(title: &str) {
    let all = races::all();
    let race = all.iter().find(|race| race.title == title).expect("there is such a race");
    assert!((race.play)(&race.happens), "it does not happen with {}", race.happens.told());
    assert!(!(race.play)(&race.cured), "it happens with {}", race.cured.told());
}

#[test]
fn every_race_is_in_the_list_of_those_that_are_tested() {
    let all = races::all();
    let titles: BTreeSet<_> = all.iter().map(|race| race.title).collect();
    assert_eq!(titles, BTreeSet::from(TITLES));
    assert!(all.iter().all(|race| race.story.len() >= 2), "each is told step by step");
}

#[test]
fn the_lease_ends_between_the_look_at_it_and_the_del() {
    both_colours(TITLES[0]);
}

#[test]
fn the_del_of_a_successors_lock() {
    both_colours(TITLES[1]);
}

#[test]
fn two_clients_delete_an_expired_lock() {
    both_colours(TITLES[2]);
}

#[test]
fn two_clients_see_the_same_time_that_is_past() {
    both_colours(TITLES[3]);
}

#[test]
fn getset_overwrites_the_winners_time() {
    both_colours(TITLES[4]);
}

#[test]
fn clocks_that_differ_take_over() {
    both_colours(TITLES[5]);
}

#[test]
fn two_clients_with_the_same_time_in_one_second() {
    both_colours(TITLES[6]);
}

#[test]
fn a_crash_between_setnx_and_expire() {
    both_colours(TITLES[7]);
}

#[test]
fn a_crash_between_incr_and_expire() {
    both_colours(TITLES[8]);
}

#[test]
fn an_expire_that_fails_in_a_script() {
    both_colours(TITLES[9]);
}

#[test]
fn whoever_loses_makes_the_winners_lease_longer() {
    both_colours(TITLES[10]);
}

#[test]
fn whoever_loses_with_a_shorter_lease_ends_the_winners() {
    both_colours(TITLES[11]);
}

#[test]
fn a_lock_freed_by_force_under_its_holder() {
    both_colours(TITLES[12]);
}

#[test]
fn the_pause_that_outlives_the_lease() {
    both_colours(TITLES[13]);
}

#[test]
fn replication_loses_the_lock() {
    both_colours(TITLES[14]);
}

#[test]
fn redlock_and_a_node_that_was_started_again_empty() {
    both_colours(TITLES[15]);
}

/// A port may be taken in the moment before a server binds it, and who answers there then is somebody else. And what lies in
/// the folder that somebody plays this in is neither read nor written.
#[test]
fn a_server_of_the_gallery_is_a_new_one_in_a_folder_of_its_own() {
    let servers = [(); 2].map(|()| Server::start());
    assert!(Server::start_on(servers[0].port).is_none(), "it is the first one that answers there");
    let folder = |server: &Server| {
        Probe::connect(server.port).command(&["CONFIG", "GET", "dir"]).texts().remove(1)
    };
    let folders = servers.each_ref().map(folder);
    let here = std::env::current_dir().unwrap().display().to_string();
    assert!(folders[0] != folders[1] && !folders.contains(&here), "{folders:?} and {here:?}");
}
