//! The threads of the library, which exist while they have work, and the system's limits on them.
//!
//! From the top down: tasks with a thread each (`background`), a thread that starts and ends with
//! its work (`on_demand`), errors for lack of a thread or descriptor (`limits`), and the detection
//! of a forked child, which inherits no threads (`process`).

pub(crate) mod background;
pub(crate) mod limits;
pub(crate) mod on_demand;
pub(crate) mod process;
