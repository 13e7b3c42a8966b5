//! [`Dialect`]: what tells the formats apart whose owner stands under the key.

use super::owner_text::looks_like_an_owner;
use crate::lua::Scripts;
use crate::lua::foreign_client::ForeignClient;
use crate::lua::join::Join;
use lock_core::backend::HolderInfo;

/// One of these formats.
#[derive(Debug)]
pub(crate) struct Dialect {
    pub(crate) name: &'static str,
    /// The type of the key, as `SCAN` calls it.
    pub(crate) key_type: &'static str,
    /// Whether what the scripts found is a lock, and not another program's data, as far as can be
    /// told.
    pub(crate) is_lock: fn(&HolderInfo) -> bool,
    /// The scripts, with the words for this dialect before each of them.
    pub(crate) scripts: Scripts,
    /// How several acquires, or several releases, become one request.
    pub(crate) joins: &'static [Join],
    /// Whether there are formats for all kinds of locks beside this one, in
    /// [`kinds`](super::kinds).
    pub(crate) has_all_kinds: bool,
    /// Whether [`token::take_by_set`](super::token::take_by_set) takes it where no token is to be
    /// made.
    pub(crate) takes_by_set: bool,
    /// Whether its scripts know by what is under the key whether the holder will tell of its
    /// release.
    pub(crate) detects_silent_holders: bool,
}

impl Dialect {
    /// `token`, with these scripts.
    pub(super) const fn token(scripts: Scripts, joins: &'static [Join]) -> Self {
        Self {
            name: "token",
            key_type: "string",
            is_lock: looks_like_an_owner,
            scripts,
            joins,
            has_all_kinds: false,
            takes_by_set: true,
            detects_silent_holders: true,
        }
    }

    /// Whose waiters its releases wake besides our own.
    pub(crate) fn wakes(&self) -> Option<ForeignClient> {
        self.scripts.release.wakes
    }
}
