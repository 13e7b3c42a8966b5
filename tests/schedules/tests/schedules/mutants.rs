//! Defects of the engine, each of which a scenario must find within a number of schedules.
//!
//! Each mutant is a file of the folder `mutants`. The scenario that must find a mutant runs in a
//! process of its own: this test's program with `DISTLOCK_MUTANT` set.

#[path = "../../build/patch.rs"]
mod patch;

use distlock_schedules::mutants;
use patch::{Change, Mutant, apply, without_head};
use std::env;
use std::process::Command;
use std::sync::Mutex;
use std::thread;

/// The number of schedules that a mutant has to survive to count as not found. The seeds are always
/// the same, so each mutant is found in the same schedule in every run.
const MOST: u64 = 4_000;

/// Returns the number of the schedule in which the scenario found the mutant, its seed, and the
/// beginning of the panic message; `None` if the mutant was not found.
fn found(mutant: &str, scenario: &str) -> Option<(u64, u64, String)> {
    let output = Command::new(env::current_exe().expect("this program"))
        .args([&format!("scenarios::{scenario}"), "--exact", "--nocapture"])
        .env("DISTLOCK_MUTANT", mutant)
        .env("DISTLOCK_SCHEDULES", MOST.to_string())
        .env("RUST_BACKTRACE", "0")
        .env_remove("DISTLOCK_FIRST_SEED")
        .output()
        .expect("the program runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut lines = text.lines().skip_while(|line| !line.starts_with("FAILED "));
    let seed = lines
        .next()?
        .split(" seed ")
        .nth(1)?
        .split(' ')
        .next()?
        .parse()
        .ok()?;
    let why = lines.next().unwrap_or_default().chars().take(60).collect();
    (!output.status.success()).then_some((seed + 1, seed, why))
}

#[test]
fn every_mutant_is_found() {
    if env::var_os("DISTLOCK_SEED").is_some() {
        return; // one schedule of one scenario is asked for
    }
    let left = Mutex::new(mutants::ALL.iter());
    let table = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let next = left.lock().expect("no panic").next();
                    let Some((mutant, scenario)) = next else {
                        break;
                    };
                    let found = found(mutant, scenario);
                    table
                        .lock()
                        .expect("no panic")
                        .push((mutant, scenario, found));
                }
            });
        }
    });
    let mut table = table.into_inner().expect("no panic");
    table.sort();
    println!("noted: | mutant | scenario | schedules | seed | what was seen |");
    for (mutant, scenario, found) in &table {
        match found {
            Some((count, seed, why)) => {
                println!("noted: | {mutant} | {scenario} | {count} | {seed} | {why} |");
            }
            None => println!("noted: | {mutant} | {scenario} | not found | | |"),
        }
    }
    let missed: Vec<_> = table
        .iter()
        .filter(|it| it.2.is_none())
        .map(|it| it.0)
        .collect();
    assert!(
        missed.is_empty(),
        "not found in {MOST} schedules: {missed:?}"
    );
}

/// Returns the source with the mutants of these files put in by `apply`, or the errors of `apply`.
fn changed(source: &str, files: &[(&str, &str)]) -> Result<String, Vec<(String, String)>> {
    let mutants: Vec<_> = files
        .iter()
        .map(|(name, text)| Mutant::parse(name, text).expect("it is a mutant"))
        .collect();
    let changes = mutants.iter().flat_map(|mutant| {
        let changes = mutant.changes.iter();
        changes.map(|change| (mutant.name.as_str(), change))
    });
    apply(source, changes)
}

const SOURCE: &str =
    "//! A file.\n\nfn f() {\n    a(\n        1,\n    );\n    b(); // why\n    c();\n}\n";
const ONE: &str =
    "It leaves it out.\n\nscenario: s\nfile: f\n\n-a( 1, );\n+if !MUTANT { a(1,); }\n";

#[test]
fn mutant_is_put_in_whatever_the_line_breaks_are() {
    let inserted = "It comes late.\n\nscenario: s\nfile: f\n\n+if MUTANT {\n+  d();\n+}\n c();\n";
    let found = changed(SOURCE, &[("one", ONE), ("two", inserted)]);
    let expected = "//! A file.\n\nfn f() {\n    \
                    if !crate::mutants::is_on(\"one\") { a(1,); }\n\n\n    b(); // why\n    \
                    if crate::mutants::is_on(\"two\") { d(); } c();\n}\n";
    assert_eq!(found.as_deref(), Ok(expected));
    assert_eq!(
        expected.lines().count(),
        SOURCE.lines().count(),
        "a line keeps its number"
    );
}

#[test]
fn mutant_without_its_one_place_is_refused() {
    let change = |old: &str, new: &str| {
        let text = format!("Text.\n\nscenario: s\nfile: f\n\n-{old}\n+{new}\n");
        changed(SOURCE, &[("it", &text)]).map_err(|errors| errors[0].clone())
    };
    let refused = |why: &str| Err(("it".to_owned(), why.to_owned()));
    assert!(change("b();", "MUTANT || b();").is_ok());
    assert_eq!(
        change("d();", "MUTANT;"),
        refused("this text occurs no more: d();")
    );
    assert_eq!(
        change("();", "MUTANT;"),
        refused("this text occurs more than once: ();")
    );
    let text = "Text.\n\nscenario: s\nfile: f\n\n-b(); // why\n+MUTANT;\n";
    let twice = changed(SOURCE, &[("one", text), ("two", text)]);
    assert_eq!(
        twice,
        Err(vec![(
            "two".to_owned(),
            "it changes what `one` changes".to_owned()
        )])
    );
}

#[test]
fn mutant_file_without_a_part_is_refused() {
    let text = "Text.\n\nscenario: s\nfile: f\n\n-a\n+MUTANT\n";
    let refused = |old: &str, new: &str| Mutant::parse("it", &text.replace(old, new)).err();
    assert_eq!(refused("Text", "Other text"), None);
    for (old, new, part) in [
        ("scenario: s\n", "", "no line `scenario: NAME`"),
        ("file: f\n", "", "no line `file: PATH`"),
        ("-a\n+MUTANT\n", "", "it changes nothing"),
        ("MUTANT", "b", "it applies always"),
        ("-a\n", "", "no line says where"),
        ("+MUTANT", "+MUTANT // b", "no room for a comment"),
        ("+MUTANT", "*MUTANT", "a line begins with none of"),
    ] {
        let why = refused(old, new).unwrap_or_default();
        assert!(why.contains(part), "{new:?}: {why:?}");
    }
}

#[test]
fn head_of_an_included_file_is_left_out() {
    assert_eq!(without_head("//! A\n#![forbid(x)]\n/// B\n"), "\n\n/// B\n");
    let removed = apply("mod a;\nmod b;\n", [("b", &Change::new("mod b;", ""))]);
    assert_eq!(removed.as_deref(), Ok("mod a;\n\n"));
}
