//! [`Facts`]: a server's own description: `INFO`, and settings that `INFO` does not contain.

use super::Asking;
use crate::connection::{Reply, info_field};
use lock_core::backend::Failure;
use std::collections::HashMap;

/// The settings that `INFO` does not contain.
const SETTINGS: [&str; 4] = [
    "appendfsync",
    "save",
    "min-replicas-to-write",
    "min-replicas-max-lag",
];

/// The reply to `INFO`, and some settings.
#[derive(Default)]
pub(super) struct Facts {
    /// The reply to `INFO`; empty if the request was refused.
    info: String,
    settings: HashMap<&'static str, String>,
}

impl Facts {
    pub(super) fn ask(asking: &mut Asking<'_>) -> Result<Self, Failure> {
        let info = asking.ask(&[b"INFO"])?;
        let info = info
            .as_bytes()
            .map(|it| String::from_utf8_lossy(it).into_owned());
        let mut settings = HashMap::new();
        for name in SETTINGS {
            // One setting in each request, because Redis before 7 accepts no more. A server that
            // refuses the first request refuses all.
            let Reply::Array(pair) = asking.ask(&[b"CONFIG", b"GET", name.as_bytes()])? else {
                break;
            };
            if let Some(value) = pair.get(1).and_then(Reply::as_bytes) {
                settings.insert(name, String::from_utf8_lossy(value).into_owned());
            }
        }
        Ok(Self {
            info: info.unwrap_or_default(),
            settings,
        })
    }

    /// Returns a field of `INFO`.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        info_field(&self.info, name).map(str::trim)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.field(name)?.parse().ok()
    }

    /// Returns a setting; `None` if the user may not read it, or the server does not have it.
    pub(super) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.get(name).map(String::as_str)
    }

    pub(super) fn info(&self) -> &str {
        &self.info
    }

    #[cfg(test)]
    pub(super) fn of(info: &str) -> Self {
        Self {
            info: info.to_owned(),
            ..Self::default()
        }
    }

    /// Returns the version of Redis as three numbers. Other servers state the version that they are
    /// compatible with.
    pub(super) fn version(&self) -> Option<[u32; 3]> {
        let mut parts = self
            .field("redis_version")?
            .split('.')
            .map(|part| part.parse().ok());
        Some([
            parts.next()??,
            parts.next()??,
            parts.next().flatten().unwrap_or(0),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_three_numbers() {
        let version = |text: &str| Facts::of(&format!("redis_version:{text}\r\n")).version();
        assert_eq!(version("7.0.15"), Some([7, 0, 15]));
        assert_eq!(version("7.2"), Some([7, 2, 0]));
        assert_eq!(
            [version("x"), version("7"), Facts::of("").version()],
            [None; 3]
        );
    }
}
