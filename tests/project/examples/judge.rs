//! The proof that `batch_workers` makes of its sales detects every kind of error.

// The example's modules, of which the tests need only the proof.
#[path = "../../../examples/batch_workers/proof.rs"]
mod proof;
#[allow(dead_code, reason = "what runs the example is not needed")]
#[path = "../../../examples/batch_workers/report.rs"]
mod report;
#[allow(dead_code, reason = "what runs the example is not needed")]
#[path = "../../../examples/shared/mod.rs"]
mod shared;

use proof::{Proof, Run};
use report::{Report, Sale, Tally};
use std::time::Duration;

/// Returns the exit code and the summary for these sales. `file` is the counter before and after.
fn judge(sales: &[(u64, Option<u64>)], file: (u64, Option<u64>), alone: bool) -> (u8, String) {
    let mut tally = Tally::default();
    for &(number, token) in sales {
        tally.add(Report::Sold(Sale { number, token }));
    }
    judge_tally(tally, sales.len(), file, alone)
}

fn judge_tally(
    tally: Tally,
    jobs: usize,
    (first, last): (u64, Option<u64>),
    alone: bool,
) -> (u8, String) {
    let run = Run {
        jobs,
        first,
        last,
        took: Duration::from_secs(1),
    };
    let proof = Proof::of(tally, &run, alone);
    (proof.exit_code(), proof.to_string())
}

const EXACT: [(u64, Option<u64>); 3] = [(7, Some(40)), (6, Some(30)), (8, Some(50))];

#[test]
fn exact_sales_pass_in_any_order() {
    let (code, summary) = judge(&EXACT, (5, Some(8)), true);
    assert_eq!(code, 0, "{summary}");
    assert!(
        summary.contains("3 of 3 jobs, 6 to 8") && summary.contains("30 to 50"),
        "{summary}"
    );
}

#[test]
fn number_sold_twice_is_named() {
    let sales = [(6, Some(30)), (7, Some(40)), (7, Some(50))];
    for alone in [true, false] {
        let (code, summary) = judge(&sales, (5, Some(8)), alone);
        assert_eq!(code, 1);
        assert!(summary.contains("number 7 was sold 2 times"), "{summary}");
    }
}

#[test]
fn token_that_does_not_grow_is_named() {
    for second in [30, 29] {
        let sales = [(6, Some(30)), (7, Some(second)), (8, Some(50))];
        let (code, summary) = judge(&sales, (5, Some(8)), true);
        assert_eq!(code, 1);
        assert!(
            summary.contains("number 7 has a smaller or equal token than 6"),
            "{summary}"
        );
    }
}

#[test]
fn sales_without_tokens_are_judged_by_numbers() {
    let sales = EXACT.map(|(number, _)| (number, None));
    let (code, summary) = judge(&sales, (5, Some(8)), true);
    assert_eq!(code, 0);
    assert!(summary.contains("tokens   none"), "{summary}");
}

#[test]
fn counter_below_its_sales_fails() {
    for last in [Some(7), Some(4), None] {
        for alone in [true, false] {
            assert_eq!(judge(&EXACT, (5, last), alone).0, 1, "{last:?}");
        }
    }
}

#[test]
fn counter_above_its_sales_fails_unless_others_sell() {
    let (code, summary) = judge(&EXACT, (5, Some(10)), false);
    assert_eq!(code, 0);
    assert!(summary.contains("2 were sold by others"), "{summary}");
    assert_eq!(judge(&EXACT, (5, Some(10)), true).0, 1);
}

#[test]
fn number_from_before_the_run_fails() {
    let (code, summary) = judge(&EXACT, (6, Some(9)), true);
    assert_eq!(code, 1);
    assert!(
        summary.contains("number 6 was sold, but the file went from 6 to 9"),
        "{summary}"
    );
}

#[test]
fn number_beyond_counter_fails_also_where_others_sell() {
    let (code, summary) = judge(&[(9, Some(30))], (5, Some(7)), false);
    assert_eq!(code, 1);
    assert!(
        summary.contains("number 9 was sold, but the file went from 5 to 7"),
        "{summary}"
    );
}

#[test]
fn counter_that_fell_fails_without_sales() {
    assert_eq!(judge(&[], (5, Some(5)), false).0, 0);
    assert_eq!(judge(&[], (5, Some(4)), false).0, 1);
}

#[test]
fn missing_jobs_fail_unless_interrupted() {
    let tally = |reports: &[Report]| {
        let mut tally = Tally::default();
        for report in reports {
            tally.add(report.clone());
        }
        tally
    };
    let sold = Report::Sold(Sale {
        number: 1,
        token: Some(9),
    });
    let file = (0, Some(1));
    let missing = judge_tally(tally(std::slice::from_ref(&sold)), 2, file, true);
    assert!(
        missing.0 == 1 && missing.1.contains("1 jobs were not done"),
        "{}",
        missing.1
    );
    let unreadable = judge_tally(tally(&[sold.clone(), Report::Unreadable]), 2, file, true);
    assert!(
        unreadable.0 == 1 && unreadable.1.contains("half written"),
        "{}",
        unreadable.1
    );
    let interrupted = judge_tally(tally(&[sold, Report::Interrupted]), 2, file, true);
    assert_eq!(interrupted.0, 130, "{}", interrupted.1);
}

#[test]
fn reports_survive_the_pipe() {
    let trouble = shared::Trouble::new(69, "two\nlines of trouble");
    let reports = [
        Report::Sold(Sale {
            number: 3,
            token: Some(4),
        }),
        Report::Sold(Sale {
            number: 3,
            token: None,
        }),
        Report::Unreadable,
        Report::Interrupted,
        Report::Failed(trouble),
    ];
    for report in reports {
        let line = report.to_string();
        assert_eq!(line.lines().count(), 1);
        assert_eq!(
            format!("{:?}", line.parse::<Report>().unwrap()),
            format!("{report:?}")
        );
    }
    for line in [
        "",
        "sold",
        "sold x",
        "sold 1 x",
        "failed",
        "failed x y",
        "sung",
    ] {
        assert!(line.parse::<Report>().is_err(), "{line:?}");
    }
}
