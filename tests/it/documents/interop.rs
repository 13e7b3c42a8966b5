//! `docs/INTEROP.md` against the programs that the tests are run with.

use super::{read, root, table};
use std::fs;
use std::path::Path;

/// What pins versions, in the folders of the peers.
const MANIFESTS: [&str; 6] =
    ["build.sh", "pom.xml", "requirements.txt", "package.json", "go.mod", "Cargo.toml"];

/// The texts of all manifests below this folder.
fn manifests(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "node_modules" && name != "target" {
            text += &manifests(&path);
        } else if MANIFESTS.contains(&name.as_str()) {
            text += &fs::read_to_string(&path).unwrap();
        }
    }
    text
}

/// Whether this version stands there, and not as a part of another.
fn pins(manifests: &str, version: &str) -> bool {
    let parts = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '-' || c == '_';
    let mut words = manifests.split(|c| !parts(c));
    words.any(|word| word.trim_start_matches('v') == version)
}

#[test]
fn every_version_in_the_table_is_one_that_is_built() {
    let manifests = manifests(&root().join("tests/interop/peers"));
    let rows = table(&read("docs/INTEROP.md"), "Libraries");
    for row in &rows {
        let [library, _, lock, _, versions, ..] = row.as_slice() else { panic!("{row:?}") };
        for version in versions.split(", ") {
            assert!(pins(&manifests, version), "{library} {lock}: no manifest pins {version}");
        }
    }
    let build = read("tests/interop/peers/java/build.sh");
    let built = build.split("versions=\"").nth(1).expect("the script lists them");
    let built: Vec<_> = built.split('"').next().unwrap().split(' ').collect();
    assert_eq!(rows[0][4].split(", ").collect::<Vec<_>>(), built, "all versions of Redisson");
}
