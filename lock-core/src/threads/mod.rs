//! The threads of the library, which exist while they have work, and what limits them.
//!
//! From the top down: tasks with a thread of their own (`background`), the start and the end of a
//! thread by its work (`on_demand`), the errors of a system that gives no thread or descriptor
//! (`limits`), and the process, whose forked children have none of the threads (`process`).

pub(crate) mod background;
pub(crate) mod limits;
pub(crate) mod on_demand;
pub(crate) mod process;
