//! The races of the gallery, each in both colours: seen with the format that has it, and not with the one that cures it.

#[path = "../../examples/race_gallery/races.rs"]
mod races;
#[path = "../../examples/race_gallery/stage.rs"]
mod stage;

/// The race of this title.
fn both_colours(title: &str) {
    let all = races::all();
    let race = all.iter().find(|race| race.title == title).expect("there is such a race");
    assert!((race.play)(&race.happens), "it does not happen with {}", race.happens.told());
    assert!(!(race.play)(&race.cured), "it happens with {}", race.cured.told());
}

/// A test for each of them, so that each has a name.
macro_rules! races {
    ($($test:ident: $title:literal,)*) => {
        $(
            #[test]
            fn $test() {
                both_colours($title);
            }
        )*

        #[test]
        fn every_race_has_a_test() {
            let titles: Vec<_> = races::all().iter().map(|race| race.title).collect();
            assert_eq!(titles, [$($title),*]);
        }
    };
}

races! {
    the_lease_ends_between_the_look_at_it_and_the_del: "The lease ends between the look at it and the DEL",
    the_del_of_a_successors_lock: "The DEL of a successor's lock",
    two_clients_delete_an_expired_lock: "Two clients delete an expired lock",
    two_clients_see_the_same_time_that_is_past: "Two clients see the same time that is past",
    getset_overwrites_the_winners_time: "GETSET overwrites the winner's time, so that its release is refused",
    clocks_that_differ: "Clocks that differ",
    two_clients_with_the_same_time_in_one_second: "Two clients with the same time in one second",
    a_crash_between_setnx_and_expire: "A crash between SETNX and EXPIRE",
    a_crash_between_incr_and_expire: "A crash between INCR and EXPIRE",
    an_expire_that_fails_in_a_script: "An EXPIRE that fails in a script does not undo what was written before it",
    whoever_loses_makes_the_winners_lease_longer: "Whoever loses makes the winner's lease longer",
    the_pause_that_outlives_the_lease: "The pause that outlives the lease",
    replication_loses_the_lock: "Replication loses the lock",
    redlock_and_a_node_that_was_started_again_empty: "RedLock, and a node that was started again empty",
}
