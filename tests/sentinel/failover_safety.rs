//! Threads of several processes contend for one lock while its master is killed repeatedly with
//! the lock held. Each thread records when it held the lock, and no two records may overlap.

use distlock_tests::contenders::kills::rounds;
use distlock_tests::sentinel::Group;
use distlock_tests::time::ms;

#[test]
fn three_master_kills_leave_one_valid_guard_at_a_time() {
    rounds(Group::start(), 3, ms(1_000));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn twenty_master_kills_leave_one_valid_guard_at_a_time() {
    rounds(Group::start(), 20, ms(1_000));
}
