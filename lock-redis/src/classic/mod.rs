//! Formats of the time before `SET NX EX` and Lua, which do not say who holds a lock.
//!
//! - `format`: the three algorithms as a wire format
//! - `commands`: commands about one lock, one after the other
//! - [`plain`], [`timestamp`], [`counter`]: one algorithm each
//! - `progress`: how far an attempt of several commands has come
//! - `rules`: [`ClassicRules`], what a store must not do with such a lock
//! - `settings`: what `format=` says of them
//!
//! Each has the races that it is known for (`docs/ALGORITHMS.md`). They are here to meet programs
//! that still use them.

mod commands;
mod counter;
mod format;
mod plain;
mod progress;
mod rules;
mod settings;
#[cfg(test)]
mod tests;
mod timestamp;

pub use commands::StepHook;
pub(crate) use rules::ClassicRules;

use crate::format::Format;
use lock_core::{Config, Context, Error};
use std::sync::Arc;

impl Format {
    /// The format that `config` names, without `ClassicRules`: for showing what they
    /// are for. `hook` is told of the steps of a format of this module.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] where there is no such format.
    pub fn bare(
        config: &Config,
        context: &Context,
        hook: Arc<dyn StepHook>,
    ) -> Result<Self, Error> {
        match settings::read_classic_format(config, context, Some(hook))? {
            Some(format) => Ok(Self(Arc::new(format))),
            None => Self::of(config),
        }
    }
}
