//! Tests of the tracked keys: sequences of reports, replies and time.

use super::*;

fn at(milliseconds: u64) -> Moment {
    Moment::from_nanos(0) + Duration::from_millis(milliseconds)
}

/// All channels have watches.
fn all(_channel: &str) -> bool {
    true
}

fn key(name: &str) -> Arc<str> {
    name.into()
}

/// Returns the table of one watched key, on a connection that reports changes.
fn tracked() -> TrackedKeys {
    let mut keys = TrackedKeys::default();
    keys.set_support(TrackingSupport::Requested);
    assert!(keys.watch(&key("k"), &key("c"), None));
    assert_eq!(keys.take_due(all, at(0)).0, [key("k")]);
    keys.set_support(TrackingSupport::Confirmed);
    keys
}

fn read(keys: &mut TrackedKeys, state: KeyState, now: u64) -> bool {
    keys.answered(&key("k"), state, at(now))
        .iter()
        .any(|channel| &**channel == "c")
}

fn change(keys: &mut TrackedKeys, now: u64) {
    assert!(keys.changed("k", |_| true, at(now)), "it was tracked here");
    assert!(
        !keys.changed("k", |_| true, at(now)),
        "a second report is of another connection"
    );
}

#[test]
fn only_a_free_lock_wakes_waiters() {
    let mut keys = tracked();
    assert!(!read(&mut keys, KeyState::Held, 1));
    assert!(keys.is_tracked("k") && keys.take_due(all, at(100)).0.is_empty());
    change(&mut keys, 100);
    assert_eq!(keys.take_due(all, at(100)).0.len(), 1, "read at once");
    assert!(!read(&mut keys, KeyState::Held, 101), "it was renewed");
    change(&mut keys, 200);
    assert_eq!(keys.take_due(all, at(200)).0.len(), 1);
    assert!(read(&mut keys, KeyState::Free, 201));
}

#[test]
fn reads_of_a_key_keep_a_distance() {
    let mut keys = tracked();
    read(&mut keys, KeyState::Held, 1);
    change(&mut keys, 2);
    assert_eq!(keys.take_due(all, at(2)), (Vec::new(), Some(at(5))));
    assert_eq!(keys.take_due(all, at(5)).0.len(), 1);
    read(&mut keys, KeyState::Held, 6);
    keys.message("k", at(30));
    change(&mut keys, 30);
    assert_eq!(
        keys.take_due(all, at(30)),
        (Vec::new(), Some(at(50))),
        "the message woke the waiters"
    );
    assert!(keys.is_tracked("k"), "it will be read");
}

/// Returns the table of `tracked`, with a change at 30 ms whose read a later message has delayed to
/// 50 ms.
fn put_off() -> TrackedKeys {
    let mut keys = tracked();
    read(&mut keys, KeyState::Held, 1);
    change(&mut keys, 30);
    keys.message("k", at(30));
    assert_eq!(keys.take_due(all, at(30)), (Vec::new(), Some(at(50))));
    keys
}

#[test]
fn message_behind_the_report_puts_the_read_off() {
    let mut keys = put_off();
    // This message may concern another kind of lock, so waiters of this one rely on the read.
    keys.message("k", at(45));
    assert_eq!(keys.take_due(all, at(50)).0.len(), 1, "it is put off once");
    assert_eq!(keys.take_due(all, at(100)), (Vec::new(), None));
}

#[test]
fn key_whose_waiters_have_gone_is_not_read() {
    let mut keys = put_off();
    assert_eq!(keys.take_due(|_| false, at(50)), (Vec::new(), None));
    assert!(!keys.is_tracked("k"));
    assert!(keys.watch(&key("k"), &key("c"), None));
    assert_eq!(keys.take_due(all, at(60)).0.len(), 1);
}

#[test]
fn change_before_the_reply_leads_to_another_read() {
    let mut keys = tracked();
    let is_ours = keys.changed("k", |_| true, at(0));
    assert!(
        !is_ours,
        "the change may have come before the read, and be reported for another one"
    );
    assert!(!read(&mut keys, KeyState::Held, 1));
    assert_eq!(keys.take_due(all, at(5)).0.len(), 1);
}

#[test]
fn key_without_watches_is_read_when_it_is_watched_again() {
    let mut keys = tracked();
    read(&mut keys, KeyState::Held, 1);
    assert!(keys.changed("k", |_| false, at(10)));
    assert!(keys.take_due(all, at(100)).0.is_empty() && !keys.is_tracked("k"));
    assert!(keys.watch(&key("k"), &key("c"), None));
    assert_eq!(keys.take_due(all, at(100)).0.len(), 1);
    read(&mut keys, KeyState::Held, 101);
    assert!(!keys.watch(&key("k"), &key("c"), None), "it is tracked");
}

#[test]
fn unreadable_key_wakes_waiters_once_and_is_read_later() {
    let mut keys = tracked();
    assert!(
        read(&mut keys, KeyState::Unreadable, 1),
        "they must look for themselves"
    );
    assert!(!keys.is_tracked("k"));
    let (reads, next) = keys.take_due(all, at(2));
    assert!(
        reads.is_empty() && next.is_some_and(|next| next > at(400)),
        "{next:?}"
    );
    assert_eq!(keys.take_due(all, at(1_100)).0.len(), 1);
    assert!(!read(&mut keys, KeyState::Unreadable, 1_101));
    assert_eq!(keys.take_due(all, at(10_000)).0.len(), 1);
    read(&mut keys, KeyState::Held, 10_001);
    assert!(keys.is_tracked("k"));
}

#[test]
fn nothing_is_tracked_without_support() {
    let mut keys = tracked();
    read(&mut keys, KeyState::Held, 1);
    keys.set_support(TrackingSupport::None);
    assert!(!keys.is_tracked("k"));
    for count in 0..1_000 {
        keys.forget("k", "c");
        keys.watch(&key("k"), &key("c"), None);
        assert_eq!(keys.take_due(all, at(count)), (Vec::new(), None));
        assert!(keys.due.is_empty(), "nothing is queued up");
    }
    keys.disconnected();
    keys.set_support(TrackingSupport::Requested);
    assert_eq!(
        keys.take_due(all, at(2_000)).0.len(),
        1,
        "the next connection reads it anew"
    );
}

#[test]
fn reconnection_and_flush_read_all_keys() {
    let mut keys = tracked();
    for name in ["a", "b"] {
        keys.watch(&key(name), &key("c"), None);
    }
    let count = |keys: &mut TrackedKeys, now| {
        let reads = keys.take_due(all, at(now)).0;
        for key in &reads {
            keys.answered(key, KeyState::Held, at(now));
        }
        reads.len()
    };
    read(&mut keys, KeyState::Held, 0);
    assert_eq!(count(&mut keys, 0), 2);
    keys.all_changed(|_| true, at(100));
    assert_eq!(count(&mut keys, 100), 3);
    keys.disconnected();
    assert!(!keys.is_tracked("k"));
    keys.set_support(TrackingSupport::Confirmed);
    assert_eq!(count(&mut keys, 101), 3, "at once");
}

#[test]
fn reads_are_limited_when_every_read_reports_a_change() {
    let mut keys = tracked();
    read(&mut keys, KeyState::Held, 0);
    for number in 0..200 {
        keys.watch(&key(&number.to_string()), &key("c"), None);
    }
    let mut reads = 0;
    for now in 0..30_000 {
        for key in keys.take_due(all, at(now)).0 {
            reads += 1;
            keys.answered(&key, KeyState::Held, at(now));
            assert!(keys.changed(&key, |_| true, at(now)));
        }
    }
    assert!((39_000..=40_500).contains(&reads), "{reads}");
    assert!(keys.is_used_up());
    assert!(!keys.is_tracked("k"), "waiters look for themselves");
    // The burst of reports has ended.
    for now in 30_000..50_000 {
        for key in keys.take_due(all, at(now)).0 {
            keys.answered(&key, KeyState::Held, at(now));
        }
    }
    change(&mut keys, 50_000);
    assert_eq!(keys.take_due(all, at(50_000)).0.len(), 1);
    assert!(!keys.is_used_up() && keys.is_tracked("k"));
}

#[test]
fn report_wakes_at_once_where_other_clients_pass_the_lock_on() {
    let mut keys = tracked();
    read(&mut keys, KeyState::Held, 0);
    let woken = |keys: &mut TrackedKeys, now| {
        assert!(keys.changed("k", all, at(now)));
        let woken = keys.woken_by_report("k").len();
        assert_eq!(keys.take_due(all, at(now + 30)).0.len(), 1);
        read(keys, KeyState::Held, now + 30);
        woken
    };
    // The first change, and a renewal later: the read shows whether it is free.
    assert_eq!([100, 600].map(|now| woken(&mut keys, now)), [0, 0]);
    assert_eq!([640, 680].map(|now| woken(&mut keys, now)), [1, 1]);
    keys.message("k", at(700));
    assert_eq!(woken(&mut keys, 720), 0, "messages wake");
    assert_eq!(woken(&mut keys, 900), 0);
}
