//! What a store is let off: it must fail that. That every case fails on its mutant is tested in `lock-core/tests`.

use super::formats::{BARE_TOKEN, FormatSubject, PLAIN};
use super::subjects::{MemoryWithoutExcuse, SeveralSubject};
use lock_core::conformance::{NEEDS_REPLICAS, SINGLE_STORE_ONLY, Subject, run_case};
use std::panic::catch_unwind;
use std::thread;

/// A case is left out of a lock of several for one reason: it asks for the one store or client that those have not got. One that could be
/// sat would fail to fail.
#[test]
fn what_locks_of_several_are_let_off_they_could_not_do() {
    for (case, why) in SINGLE_STORE_ONLY {
        let sat = catch_unwind(|| run_case(case, SeveralSubject::all().sitting_all()));
        let panic = sat.expect_err(case);
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        let reasons = ["no one store", "a single client", "it has replicas"];
        let is_expected = reasons.iter().any(|reason| text.contains(reason));
        assert!(is_expected, "{case} ({why}) failed for another reason: {text}");
    }
}

/// A store without replicas is let off a case for one reason: it asks for replicas. One that could be sat would not fail.
#[test]
fn what_a_store_without_replicas_is_let_off_it_could_not_do() {
    for (case, why) in NEEDS_REPLICAS {
        let panic = catch_unwind(|| run_case(case, MemoryWithoutExcuse::new())).expect_err(case);
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        assert!(
            text.contains("it has replicas"),
            "{case} ({why}) failed for another reason: {text}"
        );
    }
}

/// A format is let off a case because of what it is, and sits all others: one that it could sit would not fail. The other formats
/// of the past are let off these, too, and some that hang on how much of a second is over.
#[test]
fn what_a_format_is_let_off_it_could_not_do() {
    for format in [BARE_TOKEN, PLAIN] {
        let of_format = FormatSubject::on_redis(format);
        let is_of_format = |case: &&(&str, &str)| !NEEDS_REPLICAS.contains(case);
        let cases: Vec<_> = of_format.cannot().iter().filter(is_of_format).collect();
        assert!(cases.len() >= 20, "{cases:?}");
        thread::scope(|scope| {
            for (case, why) in cases {
                let sits = move || {
                    let outcome = catch_unwind(|| {
                        run_case(case, FormatSubject::on_redis(format).sitting_all())
                    });
                    assert!(outcome.is_err(), "{case} could be sat, and is left out: {why}");
                };
                let named = thread::Builder::new().name((*case).to_owned());
                named.spawn_scoped(scope, sits).unwrap();
            }
        });
    }
}
