//! Semaphores on a real server: what is stored, and that no more than the limit are held.

mod contention;
mod stored;
