//! The exam, mounted on every store; and the exam of the exam.

mod selfcheck;
mod subjects;

// The store in this process's memory.
mod memory {
    lock_core::conformance_tests!(super::subjects::MemorySubject::new());
}

// One Redis server, a new one for every case.
mod redis {
    lock_core::conformance_tests!(super::subjects::RedisSubject::start());
}

// The same over a socket in the file system.
mod redis_unix {
    lock_core::conformance_tests!(super::subjects::RedisSubject::on_a_socket());
}
