//! A server as a node of a cluster: the slots that it lists, and its redirects.

mod redirect;
mod shards;

pub use redirect::Redirect;
pub use shards::Shards;

pub(crate) use shards::{Port, ask};
