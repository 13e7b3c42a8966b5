//! The tools that tests are made with. Nothing in here goes through the library, so that a test never asks the subject
//! whether the subject is right.

pub(crate) mod alone;
pub(crate) mod authority;
pub(crate) mod child;
pub(crate) mod claims;
pub(crate) mod cluster;
pub(crate) mod lifeline;
pub(crate) mod probe;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod redis;
pub(crate) mod replicas;
pub(crate) mod resp;
pub(crate) mod rights;
pub(crate) mod sentinel;
pub(crate) mod time;
pub(crate) mod time_of_day;
pub(crate) mod wall;
