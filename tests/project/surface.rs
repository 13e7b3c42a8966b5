//! The public interface: handles have their methods without an import of a trait, and the crate's
//! root has few names.
//!
//! `DistLock` is not imported here, so a call of a method that only the trait has would not
//! compile.

use distlock::{Client, Interrupt, LockOptions, MajorityLock, MultiLock};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

const MOMENT: Duration = Duration::from_millis(1);

fn client(store: &str) -> Client {
    distlock::connect(&format!("memory://{store}")).unwrap()
}

/// Calls each method that a free lock offers.
macro_rules! call_verbs {
    ($lock:expr) => {{
        let (lock, options) = ($lock, LockOptions::new().lease(Duration::from_secs(9)));
        let mut guards = 0;
        let mut end = |guard: Option<_>| {
            assert!(lock.is_locked().unwrap() && lock.time_to_live().unwrap().is_some());
            drop(guard.expect("it is free"));
            guards += 1;
        };
        end(Some(lock.lock().unwrap()));
        end(Some(lock.lock_with(&options).unwrap()));
        end(Some(lock.lock_interruptibly(&Interrupt::new()).unwrap()));
        end(lock.try_lock().unwrap());
        end(lock.try_lock_with(&options).unwrap());
        end(lock.try_lock_for(MOMENT).unwrap());
        end(lock.try_lock_for_with(MOMENT, &options).unwrap());
        end(lock.acquire(None, &options).unwrap());
        end(lock.acquire(Some(MOMENT), &options).unwrap());
        assert_eq!(guards, 9);
        let token = lock.run(|guard| guard.fencing_token()).unwrap();
        assert!(lock.inspect().unwrap().holder.is_none(), "{token:?}");
        let broken = catch_unwind(AssertUnwindSafe(|| lock.run(|_| panic!("on purpose"))));
        assert!(broken.is_err() && !lock.is_locked().unwrap());
        assert!(!lock.force_unlock().unwrap() && !lock.name().as_str().is_empty());
    }};
}

/// Calls each method that depends on the calling thread.
macro_rules! call_verbs_of_threads {
    ($lock:expr) => {{
        let lock = $lock;
        lock.lock().unwrap().detach();
        assert!(lock.hold_count() == 1 && lock.is_held_by_current_thread());
        lock.unlock().unwrap();
        assert!(lock.hold_count() == 0 && lock.unlock().unwrap_err().is_not_held());
    }};
}

#[test]
fn every_handle_has_its_verbs_without_an_import() {
    let client = client("verbs");
    let lock = |name: &str| client.mutex(name).unwrap();
    let both = client.rw_lock("read-write").unwrap();
    let several = MultiLock::new([lock("a"), lock("b")]).unwrap();
    let majority = MajorityLock::new([lock("c"), lock("d"), lock("e")]).unwrap();
    call_verbs!(&lock("mutex"));
    call_verbs!(&client.owned_mutex("owned").unwrap());
    call_verbs!(&client.fair_mutex("fair").unwrap());
    call_verbs!(both.read());
    call_verbs!(both.write());
    call_verbs!(&several);
    call_verbs!(&majority);
    call_verbs_of_threads!(&lock("mutex"));
    call_verbs_of_threads!(both.read());
    call_verbs_of_threads!(both.write());
    call_verbs_of_threads!(&several);
    call_verbs_of_threads!(&majority);
}

#[test]
fn wait_for_a_permit_ends_with_the_interrupt() {
    let client = client("interrupted-permit");
    for slots in [
        client.semaphore("slots", 1).unwrap(),
        client.fair_semaphore("fair-slots", 1).unwrap(),
    ] {
        let interrupt = Interrupt::new();
        let permit = slots.acquire_interruptibly(&interrupt).unwrap();
        interrupt.fire();
        let ended = slots.acquire_interruptibly(&interrupt);
        assert!(ended.unwrap_err().is_interrupted());
        permit.unlock().unwrap();
    }
}

#[test]
fn scheme_that_lock_core_lacks_is_refused_with_the_remedy() {
    let refused = |url: &str| lock_core::builder().url(url).unwrap().connect();
    let said = refused("redis://127.0.0.1").unwrap_err().to_string();
    assert!(said.contains("no scheme `redis://`"), "{said}");
    assert!(said.contains("`distlock::builder()`"), "{said}");
    let known = distlock::builder().url("nosuch://x").unwrap().connect();
    let said = known.unwrap_err().to_string();
    assert!(!said.contains("distlock::builder()"), "{said}");
}

#[test]
fn some_thirty_types_are_at_the_root() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../src/lib.rs");
    let source = fs::read_to_string(path).unwrap();
    let root = source.split("pub use lock_core::{").nth(1).unwrap();
    let types = root.split("};").next().unwrap().split(',');
    let types: Vec<_> = types.map(str::trim).filter(|it| !it.is_empty()).collect();
    assert!((20..=32).contains(&types.len()), "{types:?}");
    let modules = ["admin", "backend", "config", "time"];
    assert!(modules.iter().all(|it| source.contains(it)));
}
