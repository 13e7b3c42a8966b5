//! The libraries that distlock is compared with: the program of each column, its version, and how
//! it is built. A column can be left out on request, which its tables then say. Any other missing
//! library is an error, and so is another version.

use crate::build_directory;
use built::{SKIP, is_skipped};
use pins::Pin;
use std::path::{Path, PathBuf};
use std::process::Command;

// Both modules belong to the interop suite, which has the programs.
#[path = "../../tests/interop/built.rs"]
mod built;
#[allow(dead_code, reason = "the suite tests more libraries than are measured")]
#[path = "../../tests/interop/pins.rs"]
mod pins;

/// A library of another language, and the program of the interop suite that uses it.
pub(crate) struct ForeignClient {
    /// The name of the library's column.
    pub(crate) name: &'static str,
    language: &'static str,
    pin: Pin,
    /// The arguments of the program.
    pub(crate) arguments: &'static [&'static str],
    /// The lease that the program requests, in milliseconds; 0 if the library's watchdog sets the
    /// lease.
    pub(crate) lease: u64,
}

/// The libraries of other languages, in the order of the columns.
pub(crate) const FOREIGN_CLIENTS: [ForeignClient; 4] = [
    ForeignClient {
        name: "redisson",
        language: "java",
        pin: pins::NEWEST_REDISSON,
        arguments: &["usual=yes"],
        lease: 0,
    },
    ForeignClient {
        name: "redis-py",
        language: "python",
        pin: pins::REDIS_PY,
        arguments: &["kind=redis-py"],
        lease: 30_000,
    },
    ForeignClient {
        name: "redlock",
        language: "node",
        pin: pins::REDLOCK_5,
        arguments: &["kind=redlock"],
        lease: 30_000,
    },
    ForeignClient {
        name: "redsync",
        language: "go",
        pin: pins::REDSYNC,
        arguments: &[],
        lease: 30_000,
    },
];

/// The columns of the other Rust crates. `rlock` is that crate's asynchronous interface,
/// `rlock-sync` its blocking one.
pub(crate) const CRATES: [&str; 3] = ["rslock", "rlock", "rlock-sync"];

impl ForeignClient {
    /// Returns the library whose column has this name.
    pub(crate) fn called(name: &str) -> Self {
        let named = FOREIGN_CLIENTS
            .into_iter()
            .find(|foreign_client| foreign_client.name == name);
        named.unwrap_or_else(|| panic!("no foreign client is called {name:?}"))
    }

    /// Returns the line that the program must print when it is ready. It contains the version:
    /// otherwise another version would be measured under this name.
    pub(crate) fn says(&self) -> String {
        format!("ready {}", self.pin.says())
    }

    /// Returns the name of the program's folder. There is one for each version of Redisson.
    fn folder(&self) -> String {
        match self.language {
            "java" => self.pin.says().replace(' ', "-"),
            other => other.to_owned(),
        }
    }
}

/// The programs of the other libraries; `None` for a library that was left out.
pub(crate) struct Peers {
    /// The program that uses the other Rust crates.
    pub(crate) crates: Option<PathBuf>,
    /// The programs of the libraries of other languages, in the order of [`FOREIGN_CLIENTS`].
    pub(crate) foreign_clients: [Option<PathBuf>; FOREIGN_CLIENTS.len()],
}

impl Peers {
    /// No programs: all other libraries are left out.
    pub(crate) const NONE: Self = Self {
        crates: None,
        foreign_clients: [const { None }; FOREIGN_CLIENTS.len()],
    };

    /// Builds the programs of all libraries that are not to be skipped.
    pub(crate) fn build() -> Self {
        let directory = build_directory();
        let target = directory.parent().expect("target/release");
        prepare(target);
        let program = |foreign_client: &ForeignClient| {
            (!left_out(foreign_client.name, foreign_client.language))
                .then(|| built::program(target, &foreign_client.folder(), foreign_client.language))
        };
        let crates = (!left_out(&CRATES.join(", "), "rust")).then(build_crates);
        Self {
            crates,
            foreign_clients: FOREIGN_CLIENTS.each_ref().map(program),
        }
    }
}

/// Returns whether this language is left out on request, and prints a line if so.
fn left_out(columns: &str, language: &str) -> bool {
    let is_skipped = is_skipped(language);
    if is_skipped {
        eprintln!("without {columns}: {SKIP} names {language}");
    }
    is_skipped
}

/// Builds the programs of the interop suite that are missing or out of date. The script itself
/// skips the languages that are to be left out.
fn prepare(target: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/interop.sh");
    let status = Command::new(script)
        .arg("prepare")
        .args(
            FOREIGN_CLIENTS
                .each_ref()
                .map(|foreign_client| foreign_client.language),
        )
        .env("CARGO_TARGET_DIR", target)
        .status()
        .expect("there is a shell");
    assert!(
        status.success(),
        "the foreign clients do not build; `--no-peers` goes without them"
    );
}

/// Builds the program that uses the other Rust crates, and returns its path.
fn build_crates() -> PathBuf {
    // The manifest must require exactly the versions that the interop suite tests: otherwise a
    // different version would be measured.
    let manifest = include_str!("../heavy/Cargo.toml");
    for pin in [pins::RSLOCK, pins::RLOCK] {
        let line = format!("\n{} = {{ version = \"={}\"", pin.library, pin.version());
        assert!(
            manifest.contains(&line),
            "heavy/Cargo.toml has not {}, which is tested",
            pin.says()
        );
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("heavy/Cargo.toml");
    let target = build_directory().join("heavy");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args([
            "build",
            "--quiet",
            "--release",
            "--bin",
            "peers",
            "--manifest-path",
        ])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .status()
        .expect("cargo starts");
    assert!(
        status.success(),
        "the peers do not build; `--no-peers` goes without them"
    );
    target.join("release/peers")
}
