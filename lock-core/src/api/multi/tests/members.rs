//! Tests of the members of a composite lock: which are accepted, and the name and the state of the
//! composite.

use super::*;

#[test]
fn same_lock_twice_is_refused_at_any_depth() {
    let three = Three::new();
    let [a, b, c] = &three.locks;
    for refused in [
        MultiLock::new([a, b, a]).unwrap_err(),
        MajorityLock::new([a, b, b]).unwrap_err(),
        MultiLock::new([Arc::<dyn DistLock>::from(three.all()), b.into()]).unwrap_err(),
    ] {
        assert!(refused.is_misuse(), "{refused}");
        assert!(refused.to_string().contains("twice"), "{refused}");
    }
    let same = three.clients[0].mutex("a").unwrap();
    assert_eq!(
        MultiLock::new([a, &same]).unwrap_err().lock(),
        Some(a.name())
    );
    // The same name on another store is another lock.
    let elsewhere = three.clients[1].mutex("a").unwrap();
    assert!(MultiLock::new([a, &elsewhere, c]).is_ok());
}

#[test]
fn too_few_members_are_refused() {
    let three = Three::new();
    let [a, b, _] = &three.locks;
    assert!(MultiLock::new(Vec::<Mutex>::new()).unwrap_err().is_misuse());
    assert!(
        MajorityLock::new([a, b])
            .unwrap_err()
            .to_string()
            .contains("MultiLock")
    );
    let one = MultiLock::new([a]).unwrap();
    let guard = one.lock().unwrap();
    assert_eq!(three.held(), [true, false, false]);
    guard.unlock().unwrap();
    assert_eq!(three.held(), NONE);
}

#[test]
fn composite_name_lists_its_members() {
    let three = Three::new();
    assert_eq!(three.all().name().as_str(), "a + b + c");
    assert_eq!(three.majority().name().as_str(), "2 of 3 (a, b, c)");
    let other = three.clients[0].mutex("d{x}").unwrap();
    let members = || [Arc::<dyn DistLock>::from(&other), three.majority().into()];
    let nested = MultiLock::new(members()).unwrap();
    assert_eq!(nested.name().as_str(), "d{x} + 2 of 3 (a, b, c)");
    let third = Arc::<dyn DistLock>::from(three.clients[0].mutex("e").unwrap());
    let inner = MultiLock::new(members()).unwrap();
    let outer = MultiLock::new([inner.into(), third]).unwrap();
    assert_eq!(outer.name().as_str(), "(d{x} + 2 of 3 (a, b, c)) + e");
    // If the names of all members are too long, as many as fit are listed.
    let long = |n: usize| {
        three.clients[0]
            .mutex(format!("{n}{}", "x".repeat(200)))
            .unwrap()
    };
    let many = MultiLock::new((0..5).map(long)).unwrap();
    assert!(
        many.name().as_str().ends_with("x and 3 more"),
        "{}",
        many.name()
    );
    let longest = three.clients[0].mutex("y".repeat(512)).unwrap();
    assert_eq!(
        MultiLock::new([longest]).unwrap().name().as_str(),
        "1 locks"
    );
}

#[test]
fn composite_of_composites_is_one_lock() {
    let three = Three::new();
    let other = three.clients[0].mutex("d").unwrap();
    let lock = MultiLock::new([Arc::<dyn DistLock>::from(three.majority()), other.into()]).unwrap();
    let guard = lock.lock().unwrap();
    let tokens = guard.fencing_tokens();
    let names: Vec<_> = tokens.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c", "d"]);
    assert!(tokens.iter().all(|(_, token)| token.is_some()) && guard.fencing_token().is_none());
    let losses = guard.losses();
    three.stores[1].store.lose(three.locks[1].name());
    assert!(guard.verify().is_ok(), "two of three are left");
    three.stores[2].store.lose(three.locks[2].name());
    assert!(guard.verify().unwrap_err().is_lost());
    assert_eq!(
        losses.try_recv().unwrap().member(),
        Some(three.locks[2].name())
    );
    assert!(guard.unlock().unwrap_err().is_lost());
    assert_eq!(three.held(), NONE, "the remaining members are free");
    assert!(
        !three.stores[0]
            .client()
            .mutex("d")
            .unwrap()
            .is_locked()
            .unwrap()
    );
}

#[test]
fn multi_lock_has_all_methods_of_dist_lock() {
    let three = Three::new();
    let lock: Arc<dyn DistLock> = three.all().into();
    let interrupt = Interrupt::new();
    lock.lock().unwrap().unlock().unwrap();
    lock.try_lock().unwrap().unwrap().unlock().unwrap();
    lock.try_lock_for(SECOND)
        .unwrap()
        .unwrap()
        .unlock()
        .unwrap();
    lock.lock_interruptibly(&interrupt)
        .unwrap()
        .unlock()
        .unwrap();
    assert!(lock.run(|guard| guard.is_valid()).unwrap());
    assert_eq!(
        three.all().run(|guard| guard.name().clone()).unwrap(),
        *lock.name()
    );
    assert!(!lock.is_locked().unwrap() && lock.time_to_live().unwrap().is_none());
    assert_eq!(three.held(), NONE);
}

#[test]
fn composite_is_locked_if_not_takeable_and_force_frees_it() {
    let three = Three::new();
    let [a, b, _] = three.others_handles();
    let (all, majority) = (three.all(), three.majority());
    let short = a.lock_with(&LockOptions::new().lease(10 * SECOND)).unwrap();
    assert!(all.is_locked().unwrap() && !majority.is_locked().unwrap());
    let long = b.lock_with(&LockOptions::new().lease(20 * SECOND)).unwrap();
    assert_eq!(
        all.time_to_live().unwrap(),
        Some(20 * SECOND),
        "until both leases end"
    );
    assert_eq!(
        majority.time_to_live().unwrap(),
        Some(10 * SECOND),
        "until one lease ends"
    );
    assert!(all.force_unlock().unwrap() && !all.force_unlock().unwrap());
    assert_eq!(three.held(), NONE);
    assert!(short.unlock().is_err() && long.unlock().is_err());
}

#[test]
fn unavailable_member_is_ignored_if_others_decide() {
    let three = Three::new();
    let [a, b, _] = three.others_handles();
    let (all, majority) = (three.all(), three.majority());
    let cut = || three.stores[2].fail_next("inspect", Fault::NotSent);
    cut();
    assert!(!majority.is_locked().unwrap(), "two of three are free");
    let guard = a.lock().unwrap();
    cut();
    assert!(all.is_locked().unwrap(), "one held member is enough");
    cut();
    let error = majority.is_locked().unwrap_err();
    assert!(
        error.is_unavailable() && error.to_string().contains("\"c\" failed"),
        "{error}"
    );
    assert_eq!(letters(&error), "ddf");
    let other = b.lock().unwrap();
    cut();
    assert!(majority.is_locked().unwrap());
    drop((guard, other));
}

#[test]
fn owned_mutex_can_be_a_member() {
    let client = Three::new().stores[0].client();
    let [a, b] = ["a", "b"].map(|name| client.owned_mutex(name).unwrap());
    let both = MultiLock::new([&a, &b]).unwrap();
    let guard = both.lock().unwrap();
    assert!(a.try_lock().unwrap().is_none() && b.try_lock().unwrap().is_none());
    guard.unlock().unwrap();
    assert!(a.try_lock().unwrap().is_some());
}
