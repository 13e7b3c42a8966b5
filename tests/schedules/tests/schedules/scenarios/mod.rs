//! What the clients do. Each scenario is explored in both kinds of schedules: those in which
//! nothing is late, where it must also be quick, and those in which time passes at any moment.

mod deadlines;
mod election;
mod fair;
mod holding;
mod leaving;
mod queueing;
mod read_write;
mod semaphore;
mod trouble;
mod waiting;
