//! The exam, mounted on every store; and the exam of the exam.

mod selfcheck;
pub(crate) mod subjects;

// The store in this process's memory.
mod memory {
    lock_core::conformance_tests!(super::subjects::MemorySubject::new());
}

// One Redis server, a new one for every case.
mod redis {
    lock_core::conformance_tests!(super::subjects::RedisSubject::start());
}
