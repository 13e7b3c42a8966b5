//! Sentinels that cannot reach each other.

use crate::scene::{SOON, await_usable, client, take};
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::resp::Request;
use distlock_tests::sentinel::{DOWN_AFTER, Group};
use distlock_tests::time::{Stopwatch, always, eventually, within};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Cuts every connection through its proxies at the next request, while the flag is set.
#[derive(Default)]
pub(crate) struct Wall(pub(crate) AtomicBool);

impl Plan for Wall {
    fn fate(&self, _: &mut Request) -> Fault {
        if self.0.load(Ordering::SeqCst) {
            Fault::Cut
        } else {
            Fault::Pass
        }
    }
}

/// Puts a proxy in front of each sentinel, through which the other sentinels reach it. Clients
/// bypass the proxies.
fn behind(group: &Group, wall: &Arc<Wall>) -> Vec<Proxy> {
    let proxies: Vec<_> = group
        .sentinels
        .iter()
        .map(|it| Proxy::new(it.port(), Arc::clone(wall) as _))
        .collect();
    for (sentinel, proxy) in group.sentinels.iter().zip(&proxies) {
        let mut probe = sentinel.probe();
        for (name, value) in [
            ("announce-ip", "127.0.0.1"),
            ("announce-port", &proxy.port().to_string()),
        ] {
            assert_eq!(
                probe
                    .command(&["SENTINEL", "CONFIG", "SET", name, value])
                    .text(),
                "OK"
            );
        }
    }
    eventually("they know each other by the proxies", SOON, || {
        group.sentinels.iter().enumerate().all(|(at, sentinel)| {
            let others = sentinel
                .probe()
                .command(&["SENTINEL", "SENTINELS", group.name()]);
            let others = format!("{others:?}");
            let known = |other: usize| others.contains(&format!("{}\"", proxies[other].port()));
            (0..proxies.len()).all(|other| other == at || known(other))
        })
    });
    group.await_quiet(2);
    proxies
}

#[test]
fn isolated_sentinels_replace_no_master_until_reconnected() {
    let mut group = Group::start();
    let wall = Arc::new(Wall::default());
    let proxies = behind(&group, &wall);
    let patient = client(&group, "").mutex("meanwhile").unwrap();
    let client = client(&group, "command_timeout=500ms&watchdog=60s");
    let lock = client.mutex("apart").unwrap();
    let held = take(&client.mutex("held").unwrap());
    take(&lock).unlock().unwrap();
    take(&patient).unlock().unwrap();

    wall.0.store(true, Ordering::SeqCst);
    proxies.iter().for_each(Proxy::cut_all);
    // The master is up, and each sentinel still names it.
    always("locks are taken", DOWN_AFTER * 3, || {
        patient
            .try_lock()
            .unwrap()
            .is_some_and(|guard| guard.unlock().is_ok())
    });
    group.servers[0].kill();
    let start = Stopwatch::start();
    while start.elapsed() < DOWN_AFTER * 4 {
        let error = within(Duration::from_millis(1_500), || lock.try_lock()).unwrap_err();
        assert!(error.is_unavailable(), "{error:?}");
    }
    let old = group.servers[0].port();
    assert_eq!(group.named(), [old; 3]);
    assert!(held.is_valid());

    wall.0.store(false, Ordering::SeqCst);
    let new = group.await_other_than(0);
    await_usable(&lock);
    assert!(group.servers[new].probe().exists("held"));
    held.ensure(Duration::from_secs(1)).unwrap();
    held.unlock().unwrap();
}
