//! The public interface: the client, its locks, and their guards.
//!
//! From the top down: the client (`client`), an election (`election`), and the handles of locks:
//! `mutex`, `read_write`, `semaphore`, and several locks as one (`multi`). Macros define the
//! methods that all handles except semaphores have: in `lock` the methods that only call `acquire`
//! or `inspect`, in `verbs` the others. A held lock is a guard (`guard`). All handles call the
//! engine through `parts`, which defines the single locks that a lock consists of.

pub(crate) mod client;
pub(crate) mod election;
pub(crate) mod guard;
pub(crate) mod lock;
pub(crate) mod multi;
pub(crate) mod mutex;
pub(crate) mod parts;
pub(crate) mod read_write;
pub(crate) mod semaphore;
mod verbs;
