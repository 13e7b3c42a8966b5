//! Build script: copies the sources of lock-core, with all mutants in them, for `src/lib.rs` and
//! `loom`.
//!
//! A copy keeps the line numbers of its source, so a compiler message about the copy names the line
//! in `lock-core/src`, too.

mod patch;

use patch::{Change, Mutant, apply, without_head};
use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const SOURCES: &str = "../../lock-core/src";
const MUTANTS: &str = "mutants";

/// The sources that are read by `include!`, and not as modules.
const INCLUDED: [&str; 2] = ["lib.rs", "time/clock.rs"];

/// The file and the line that declare the module which `src/sync` replaces.
const REPLACED: (&str, &str) = ("lib.rs", "mod sync;");

fn main() {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed={MUTANTS}");
    println!("cargo::rerun-if-changed={SOURCES}");
    // The sources name features of lock-core, which this package does not have.
    println!("cargo::rustc-check-cfg=cfg(feature, values(any()))");
    if let Err(error) = run() {
        println!("cargo::error={error}");
    }
}

fn run() -> io::Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let mutants = mutants()?;
    let sources = files(Path::new(SOURCES))?;
    let copy = out.join("lock-core/src");
    remove_others(&copy, &sources)?;
    for file in &sources {
        let text = copied(
            file,
            &fs::read_to_string(Path::new(SOURCES).join(file))?,
            &mutants,
        );
        write(&copy.join(file), &text)?;
    }
    for mutant in mutants.iter().filter(|it| !sources.contains(&it.file)) {
        refuse(
            &mutant.name,
            &format!("there is no lock-core/src/{}", mutant.file),
        );
    }
    let table = mutants
        .iter()
        .map(|it| format!("({:?}, {:?}),\n", it.name, it.scenario));
    write(
        &out.join("mutants.rs"),
        &format!("&[\n{}]\n", table.collect::<String>()),
    )
}

/// Returns all mutants, sorted by name.
fn mutants() -> io::Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for file in files(Path::new(MUTANTS))? {
        let text = fs::read_to_string(Path::new(MUTANTS).join(&file))?;
        let name = file.trim_end_matches(".diff");
        match Mutant::parse(name, &text) {
            Ok(mutant) => mutants.push(mutant),
            Err(why) => refuse(name, &why),
        }
    }
    Ok(mutants)
}

/// Returns the copy of this source, with its mutants.
fn copied(file: &str, text: &str, mutants: &[Mutant]) -> String {
    let here = mutants.iter().filter(|it| it.file == file);
    let changes = here.flat_map(|it| it.changes.iter().map(|change| (it.name.as_str(), change)));
    let mut changed = apply(text, changes).unwrap_or_else(|errors| {
        for (name, why) in errors {
            refuse(&name, &format!("lock-core/src/{file}: {why}"));
        }
        text.to_owned()
    });
    if file == REPLACED.0 {
        let without = Change::new(REPLACED.1, "");
        changed = apply(&changed, [("", &without)]).unwrap_or_else(|_| {
            println!(
                "cargo::error=lock-core/src/{file} has no line `{}`",
                REPLACED.1
            );
            changed
        });
    }
    match INCLUDED.contains(&file) {
        true => without_head(&changed),
        false => changed,
    }
}

/// Reports a mutant that does not fit the sources. The build fails after all mutants are read.
fn refuse(name: &str, why: &str) {
    println!(
        "cargo::error=tests/schedules/{MUTANTS}/{name}.diff is no mutant of the sources: {why}: \
         mend it, or remove it together with the code that it is a defect of"
    );
}

/// Returns the paths of all files in this folder, sorted.
fn files(folder: &Path) -> io::Result<Vec<String>> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(path) = path.strip_prefix(folder) {
                found.push(path.display().to_string());
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Removes the copies of sources that no longer exist.
fn remove_others(copy: &Path, sources: &[String]) -> io::Result<()> {
    fs::create_dir_all(copy)?;
    for file in files(copy)?.iter().filter(|it| !sources.contains(it)) {
        fs::remove_file(copy.join(file))?;
    }
    Ok(())
}

/// Writes a file only if its content changes, so that an incremental build compiles only what is
/// new.
fn write(path: &Path, text: &str) -> io::Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, text)
}
