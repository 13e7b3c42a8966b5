//! The races of the example `race_gallery`: each happens with the format that allows it, and not
//! with the format that prevents it.

#[path = "../../examples/race_gallery/races.rs"]
mod races;
#[path = "../../examples/race_gallery/stage.rs"]
pub(crate) mod stage;

use distlock_tests::probe::Probe;
use stage::Server;
use std::collections::BTreeSet;

/// The titles of the races that have a test.
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
    "A failed attempt extends the winner's lease",
    "A failed attempt with a shorter lease ends the winner's",
    "A lock freed by force under its holder",
    "The pause that outlives the lease",
    "Replication loses the lock",
    "RedLock, and a node that was started again empty",
];

fn happens_and_is_cured(title: &str) {
    let all = races::all();
    let race = all
        .iter()
        .find(|race| race.title == title)
        .expect("there is such a race");
    assert!(
        (race.play)(&race.happens),
        "it does not happen with {}",
        race.happens.told()
    );
    assert!(
        !(race.play)(&race.cured),
        "it happens with {}",
        race.cured.told()
    );
}

#[test]
fn every_race_has_a_test() {
    let all = races::all();
    let titles: BTreeSet<_> = all.iter().map(|race| race.title).collect();
    assert_eq!(titles, BTreeSet::from(TITLES));
    assert!(
        all.iter().all(|race| race.story.len() >= 2),
        "each has a story in steps"
    );
}

#[test]
fn lease_ends_between_check_and_del() {
    happens_and_is_cured(TITLES[0]);
}

#[test]
fn del_frees_successors_lock() {
    happens_and_is_cured(TITLES[1]);
}

#[test]
fn two_clients_delete_an_expired_lock() {
    happens_and_is_cured(TITLES[2]);
}

#[test]
fn two_clients_read_same_expired_time() {
    happens_and_is_cured(TITLES[3]);
}

#[test]
fn getset_overwrites_the_winners_time() {
    happens_and_is_cured(TITLES[4]);
}

#[test]
fn clocks_that_differ_take_over() {
    happens_and_is_cured(TITLES[5]);
}

#[test]
fn release_with_an_equal_time_frees_the_next_lock() {
    happens_and_is_cured(TITLES[6]);
}

#[test]
fn crash_between_setnx_and_expire_blocks_the_lock() {
    happens_and_is_cured(TITLES[7]);
}

#[test]
fn crash_between_incr_and_expire_blocks_the_lock() {
    happens_and_is_cured(TITLES[8]);
}

#[test]
fn failed_expire_in_script_leaves_key() {
    happens_and_is_cured(TITLES[9]);
}

#[test]
fn failed_attempt_extends_winners_lease() {
    happens_and_is_cured(TITLES[10]);
}

#[test]
fn failed_attempt_with_shorter_lease_ends_winners() {
    happens_and_is_cured(TITLES[11]);
}

#[test]
fn release_after_a_forced_unlock_frees_the_next_lock() {
    happens_and_is_cured(TITLES[12]);
}

#[test]
fn pause_longer_than_the_lease_lets_two_clients_write() {
    happens_and_is_cured(TITLES[13]);
}

#[test]
fn failover_loses_unreplicated_lock() {
    happens_and_is_cured(TITLES[14]);
}

#[test]
fn redlock_node_restarted_empty_grants_twice() {
    happens_and_is_cured(TITLES[15]);
}

/// The server must neither read nor write files in the user's folder, nor share the port of another
/// server, which may take it just before this one binds it.
#[test]
fn gallery_server_has_its_own_folder() {
    let servers = [(); 2].map(|()| Server::start());
    assert!(
        Server::start_on(servers[0].port).is_none(),
        "it is the first one that answers there"
    );
    let folder = |server: &Server| {
        Probe::connect(server.port)
            .command(&["CONFIG", "GET", "dir"])
            .texts()
            .remove(1)
    };
    let folders = servers.each_ref().map(folder);
    let here = std::env::current_dir().unwrap().display().to_string();
    assert!(
        folders[0] != folders[1] && !folders.contains(&here),
        "{folders:?} and {here:?}"
    );
}
