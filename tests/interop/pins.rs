//! [`Pin`]: which version of a library is tested, and measured by the benchmarks. The version is
//! read from the manifests of `peers/`, and the library's program must report the same when it is
//! ready.

/// A library in the version that is pinned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pin {
    /// What the library's program calls it.
    pub(crate) library: &'static str,
    place: Place,
}

/// Where the version is written.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// At the end of the name of its program, which is one of `java/versions`.
    Program(&'static str),
    /// On the last line of `java/versions`.
    Newest,
    /// By this artifact in `spring/pom.xml`.
    Maven(&'static str),
    /// By this name in `python/requirements.txt`.
    Pip(&'static str),
    /// By this name in `node/package.json`, which may be one of ours for a second version.
    Npm(&'static str),
    /// By this module in `go/go.mod`.
    Go(&'static str),
    /// By this crate in `rust/Cargo.toml`.
    Cargo(&'static str),
}

pub(crate) const REDIS_PY: Pin = Pin::of("redis-py", Place::Pip("redis"));
pub(crate) const PYTHON_REDIS_LOCK: Pin =
    Pin::of("python-redis-lock", Place::Pip("python-redis-lock"));
pub(crate) const REDLOCK_4: Pin = Pin::of("redlock", Place::Npm("redlock4"));
pub(crate) const REDLOCK_5: Pin = Pin::of("redlock", Place::Npm("redlock"));
pub(crate) const REDSYNC: Pin = Pin::of("redsync", Place::Go("github.com/go-redsync/redsync/v4"));
pub(crate) const RSLOCK: Pin = Pin::of("rslock", Place::Cargo("rslock"));
pub(crate) const RLOCK: Pin = Pin::of("rlock", Place::Cargo("rlock"));
pub(crate) const SHEDLOCK: Pin =
    Pin::of("shedlock", Place::Maven("shedlock-provider-redis-spring"));
pub(crate) const SPRING: Pin = Pin::of(
    "spring-integration",
    Place::Maven("spring-integration-redis"),
);

/// Redisson in the newest version that is tested.
pub(crate) const NEWEST_REDISSON: Pin = Pin::of("redisson", Place::Newest);

/// The pins of all libraries but Redisson.
pub(crate) const FOREIGN_CLIENTS: [Pin; 9] = [
    REDIS_PY,
    PYTHON_REDIS_LOCK,
    REDLOCK_4,
    REDLOCK_5,
    REDSYNC,
    RSLOCK,
    RLOCK,
    SHEDLOCK,
    SPRING,
];

/// Redisson in the version that the name of its program ends with.
pub(crate) const fn redisson(program: &'static str) -> Pin {
    Pin::of("redisson", Place::Program(program))
}

impl Pin {
    const fn of(library: &'static str, place: Place) -> Self {
        Self { library, place }
    }

    /// What its program must say when it is ready.
    pub(crate) fn says(self) -> String {
        format!("{} {}", self.library, self.version())
    }

    pub(crate) fn version(self) -> String {
        let (manifest, before) = match self.place {
            Place::Program(name) => {
                let named = redissons().find(|version| name == format!("redisson-{version}"));
                return named
                    .unwrap_or_else(|| panic!("{name} is not in peers/java/versions"))
                    .to_owned();
            }
            Place::Newest => return redissons().last().expect("there is one").to_owned(),
            Place::Maven(artifact) => (
                include_str!("peers/spring/pom.xml"),
                format!("<artifactId>{artifact}</artifactId> <version>"),
            ),
            Place::Pip(name) => (
                include_str!("peers/python/requirements.txt"),
                format!(" {name}=="),
            ),
            Place::Npm(name) => (
                include_str!("peers/node/package.json"),
                format!(" \"{name}\": \""),
            ),
            Place::Go(module) => (include_str!("peers/go/go.mod"), format!(" {module} v")),
            Place::Cargo(name) => (
                include_str!("peers/rust/Cargo.toml"),
                format!(" {name} = {{ version = \"="),
            ),
        };
        // The manifest on one line, with one space between two words.
        let words: Vec<_> = manifest.split_whitespace().collect();
        let manifest = format!(" {} ", words.join(" "));
        let pinned = manifest
            .split_once(&before)
            .and_then(|(_, it)| it.split([' ', '"', '<']).next());
        let pinned = pinned.unwrap_or_else(|| panic!("no manifest of the peers has `{before}`"));
        // In a value such as "npm:redlock@4.2.0" the version follows the name.
        pinned.rsplit('@').next().unwrap_or(pinned).to_owned()
    }
}

/// Returns the versions of Redisson, each of which has a program.
pub(crate) fn redissons() -> impl Iterator<Item = &'static str> {
    let lines = include_str!("peers/java/versions").lines();
    lines.filter_map(|line| line.split_whitespace().next())
}
