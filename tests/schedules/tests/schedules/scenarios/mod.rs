//! The scenarios, by what the clients do. Each scenario runs in both kinds of schedules: in
//! punctual ones, where it must also be quick, and in late ones, where time passes at any moment.

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
