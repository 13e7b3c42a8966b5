//! What `lock-redis` offers to `lock-cluster`: few names, each described and each used.

use crate::documents::{read, sources};
use std::collections::HashSet;

/// The modules of the interface, and the number of names in each: a new name needs a reason.
const MODULES: [(&str, usize); 3] = [
    ("lock-redis/src/servers.rs", 14),
    ("lock-redis/src/topology.rs", 6),
    ("lock-redis/src/quorum.rs", 11),
];

/// The names that only tests and examples use.
const OF_TESTS: [&str; 1] = ["StepHook"];

/// Returns the types that a source exports or defines, sorted by name.
fn exported(source: &str) -> Vec<&str> {
    let exports = source
        .split("pub use ")
        .skip(1)
        .filter_map(|it| it.split(';').next());
    let words = exports.flat_map(|it| it.split(|c: char| !c.is_alphanumeric() && c != '_'));
    let defined = source.lines().filter_map(|line| {
        let words = line.strip_prefix("pub ")?;
        let (what, name) = words.split_once(' ')?;
        let is_type = ["enum", "struct", "trait", "type"].contains(&what);
        is_type.then(|| name.split(|c: char| !c.is_alphanumeric()).next())?
    });
    let is_type = |word: &&str| word.starts_with(|c: char| c.is_uppercase());
    let mut names: Vec<_> = words.filter(is_type).chain(defined).collect();
    names.sort_unstable();
    names
}

/// Returns the names that the module documentation of a source lists, sorted.
fn described(source: &str) -> Vec<&str> {
    let lines = source
        .lines()
        .filter_map(|line| line.strip_prefix("//! - [`"));
    let named = lines.filter_map(|line| line.split_once("`]: "));
    let mut names: Vec<_> = named.map(|(name, _)| name).collect();
    names.sort_unstable();
    names
}

#[test]
fn interface_of_lock_redis_is_described_and_used() {
    let users = sources(["lock-cluster/src"], "rs");
    let users: Vec<_> = users.iter().map(|file| read(file)).collect();
    for (file, count) in MODULES {
        let source = read(file);
        let names = exported(&source);
        assert_eq!(names, described(&source), "{file}");
        assert_eq!(names.len(), count, "{file}: {names:?}");
        let module = file.rsplit('/').next().unwrap().replace(".rs", "");
        let import = format!("use lock_redis::{module}::");
        let imports = users
            .iter()
            .flat_map(|user| user.split(&import).skip(1))
            .filter_map(|it| it.split(';').next());
        let used: HashSet<_> = imports
            .flat_map(|names| names.split(|c: char| !c.is_alphanumeric()))
            .collect();
        for name in names.iter().filter(|name| !OF_TESTS.contains(name)) {
            assert!(
                used.contains(name),
                "{file}: no file of lock-cluster uses {name}"
            );
        }
    }
}

#[test]
fn interface_of_lock_redis_is_not_hidden() {
    for file in sources(["lock-redis/src"], "rs") {
        assert!(!read(&file).contains("doc(hidden)"), "{file}");
    }
}
