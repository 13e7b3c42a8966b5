//! [`Dialect`]: the differences between the formats that store the owner under the key.

use super::owner_text::looks_like_an_owner;
use crate::lua::Scripts;
use crate::lua::foreign_client::ForeignClient;
use crate::lua::join::Join;
use lock_core::backend::HolderInfo;

/// A format that stores the owner under the key.
#[derive(Debug)]
pub(crate) struct Dialect {
    pub(crate) name: &'static str,
    /// The type of the key, as `SCAN` calls it.
    pub(crate) key_type: &'static str,
    /// Returns true if the value that the scripts found is a lock and not another program's data,
    /// as far as can be told.
    pub(crate) is_lock: fn(&HolderInfo) -> bool,
    /// The scripts, each preceded by the Lua functions of this dialect.
    pub(crate) scripts: Scripts,
    /// The rules by which several acquires, or several releases, become one request.
    pub(crate) joins: &'static [Join],
    /// True if the format has all kinds of locks, not only mutexes. The other kinds are in
    /// [`kinds`](super::kinds).
    pub(crate) has_all_kinds: bool,
    /// True if the scripts can tell from the value under the key whether the holder will publish
    /// the release.
    pub(crate) detects_silent_holders: bool,
}

impl Dialect {
    /// Returns the dialect `token` with these scripts.
    pub(super) const fn token(scripts: Scripts, joins: &'static [Join]) -> Self {
        Self {
            name: "token",
            key_type: "string",
            is_lock: looks_like_an_owner,
            scripts,
            joins,
            has_all_kinds: false,
            detects_silent_holders: true,
        }
    }

    /// Returns the library whose waiters a release wakes, as it wakes our own waiters.
    pub(crate) fn wakes(&self) -> Option<ForeignClient> {
        self.scripts.release.wakes
    }
}
