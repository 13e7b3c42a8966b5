//! The libraries that we are compared with: which program each column has, in which version, and
//! how it is built. A column is there, or was left out on request, which the page then says; what
//! is missing or another version is an error.

use crate::build_directory;
use built::{SKIP, is_skipped};
use pins::Pin;
use std::path::{Path, PathBuf};
use std::process::Command;

// Both belong to the interop suite, which has the programs.
#[path = "../../tests/interop/built.rs"]
mod built;
#[allow(dead_code, reason = "the suite tests more libraries than are measured")]
#[path = "../../tests/interop/pins.rs"]
mod pins;

/// A library of another language, by the program that the interop suite has for it.
pub(crate) struct ForeignClient {
    /// As its column is called.
    pub(crate) name: &'static str,
    language: &'static str,
    pin: Pin,
    /// What the program is started with.
    pub(crate) arguments: &'static [&'static str],
    /// The lease that it asks for, in milliseconds: 0 where its watchdog sees to that, as ours
    /// does.
    pub(crate) lease: u64,
}

/// In the order of the columns.
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

/// The columns of the other crates. That of rlock is its asynchronous interface, the third its
/// blocking one.
pub(crate) const CRATES: [&str; 3] = ["rslock", "rlock", "rlock-sync"];

impl ForeignClient {
    /// The one whose column is called so.
    pub(crate) fn called(name: &str) -> Self {
        let named = FOREIGN_CLIENTS
            .into_iter()
            .find(|foreign_client| foreign_client.name == name);
        named.unwrap_or_else(|| panic!("no foreign client is called {name:?}"))
    }

    /// What its program must say when it is ready: another version would be measured under a wrong
    /// name.
    pub(crate) fn says(&self) -> String {
        format!("ready {}", self.pin.says())
    }

    /// The folder of its program. Of Redisson there is one for each version.
    fn folder(&self) -> String {
        match self.language {
            "java" => self.pin.says().replace(' ', "-"),
            other => other.to_owned(),
        }
    }
}

/// The programs, `None` for what was left out.
pub(crate) struct Peers {
    /// Drives the other crates.
    pub(crate) crates: Option<PathBuf>,
    /// In the order of [`FOREIGN_CLIENTS`].
    pub(crate) foreign_clients: [Option<PathBuf>; FOREIGN_CLIENTS.len()],
}

impl Peers {
    /// All of them are left out.
    pub(crate) const NONE: Self = Self {
        crates: None,
        foreign_clients: [const { None }; FOREIGN_CLIENTS.len()],
    };

    /// Builds all but what is to be skipped.
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

/// Whether this was left out on purpose, which is said.
fn left_out(columns: &str, language: &str) -> bool {
    let is_skipped = is_skipped(language);
    if is_skipped {
        eprintln!("without {columns}: {SKIP} names {language}");
    }
    is_skipped
}

/// Builds the interop suite's programs that are missing or old. It leaves out by itself what is to
/// be skipped.
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

/// Builds the program that drives the other crates, and says where it is.
fn build_crates() -> PathBuf {
    // With `--locked` and an exact version in the manifest, what is built is what is written there.
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
