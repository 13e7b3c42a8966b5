//! Many threads of several processes want one lock while its master is killed, again and again,
//! with it held. Each says when it had the lock, and a judge looks whether two had it at once.

use distlock_tests::contenders::kills::rounds;
use distlock_tests::sentinel::Group;
use distlock_tests::time::ms;

#[test]
fn over_three_kills_with_the_lock_held_nobody_else_has_it_while_a_guard_is_valid() {
    rounds(Group::start(), 3, ms(1_000));
}

#[test]
#[ignore = "long: tests/run.sh --all"]
fn nor_over_twenty_kills() {
    rounds(Group::start(), 20, ms(1_000));
}
