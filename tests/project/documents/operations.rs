//! Compares the alerts of `docs/OPERATIONS.md` with the code. Its list of rights is tested by every
//! test, because all tests run as a user with these rights.

use super::{read, tables};
use distlock::admin::Counters;

#[test]
fn alerts_are_on_counters_that_exist() {
    let known: Vec<_> = Counters::new().all().map(|(name, _)| name).collect();
    for row in tables(&read("docs/OPERATIONS.md"), "Alerts") {
        let name = row[0].trim_matches('`');
        assert!(
            known.contains(&name),
            "there is no counter `{name}`, only {known:?}"
        );
    }
}
