//! Answers that arrive only when another node serves the slot.

use crate::scene::{LONG, backend};
use distlock::LockName;
use distlock::backend::{LeaseTime, OwnerId};
use distlock_tests::cluster::Cluster;
use distlock_tests::proxy::{Fault, Plan, Proxy};
use distlock_tests::resp::Request;
use distlock_tests::time::eventually;
use distlock_tests::wall::Wall;
use lock_core::backend::{
    AcquisitionId, Attempt, Failure, Receipt, Release, ReleaseOptions, RenewalRequest,
};
use parking_lot::RwLock;
use std::sync::Arc;
use std::thread;

/// Holds back the answers to scripts while the test holds the write lock.
#[derive(Default)]
struct Answers(RwLock<()>);

impl Plan for Answers {
    fn fate(&self, _: &mut Request) -> Fault {
        Fault::Pass
    }

    fn answered(&self, request: &Request, _: &[u8], _: Fault) {
        if request.has("EVALSHA") || request.has("EVAL") {
            drop(self.0.read());
        }
    }
}

/// The effect of a request may be lost with its master, so a reply that arrives when there is a
/// successor does not count: the outcome is unknown. Reads and asynchronous releases are sent
/// again, to the successor.
#[test]
fn late_reply_of_a_replaced_master_is_not_believed() {
    let cluster = Cluster::steady();
    let (old, new) = (0, cluster.replica_of(0));
    let answers = Arc::<Answers>::default();
    let proxy = Proxy::new(cluster.node(old).port(), Arc::clone(&answers) as _);
    let walls: Vec<_> = (1..cluster.len())
        .map(|node| Wall::before(cluster.node(node).port()))
        .collect();
    let doors = std::iter::once(proxy.port()).chain(walls.iter().map(Wall::port));
    let map: Vec<_> = (0..cluster.len())
        .map(|node| cluster.node(node).port())
        .zip(doors)
        .map(|(port, door)| format!("127.0.0.1:{port}=127.0.0.1:{door}"))
        .collect();
    let url = format!(
        "{}?connect_timeout=500ms&address_map={}",
        cluster.url(),
        map.join(",")
    );
    let (backend, context) = backend(&url);

    let tag = cluster.name_on(old, "late");
    let name = |of: &str| LockName::new(&format!("{of}:{{{tag}}}")).unwrap();
    let slot = cluster.slot(&tag);
    let (owner, lease) = (
        OwnerId::new(context.client, 1),
        LeaseTime::new(LONG).unwrap(),
    );
    let by = context.clock.now() + LONG;
    let acquire = |of| backend.acquire(&Attempt::new(&name(of), owner, lease), by);
    let acquisition = |of| AcquisitionId::new(name(of), owner, lease, Receipt::default());
    let release = |of| backend.release(&acquisition(of), ReleaseOptions::WITHOUT_TOMBSTONE, by);
    let renew = |of| {
        backend.renew(
            backend.renewal_node(&name(of)),
            &[RenewalRequest::new(acquisition(of))],
            by,
        )
    };
    for held in ["renewed", "released", "submitted", "forced"] {
        acquire(held).unwrap();
    }
    // Loads each script on the node, and opens each connection.
    renew("renewed").remove(0).unwrap();
    acquire("free").unwrap();
    release("free").unwrap();
    backend.inspect(&name("free"), by).unwrap();
    backend
        .admin()
        .unwrap()
        .force_release(&name("free"), by)
        .unwrap();
    let lane = backend.renewal_node(&name("free"));
    let submitted = cluster
        .node(old)
        .probe()
        .hgetall(name("submitted").as_str());
    let mut probe = cluster.node(old).probe();
    let (before, looks) = (probe.command_calls("pexpire"), probe.command_calls("hkeys"));
    let held_back = answers.0.write();
    thread::scope(|scope| {
        let acquired = scope.spawn(|| acquire("free").map(drop));
        let released = scope.spawn(|| release("released"));
        let renewed = scope.spawn(|| renew("renewed").remove(0).map(drop));
        let forced = scope.spawn(|| {
            backend
                .admin()
                .unwrap()
                .force_release(&name("forced"), by)
                .map(drop)
        });
        let inspected = scope.spawn(|| backend.inspect(&name("renewed"), by));
        let (done, told) = crossbeam_channel::bounded(1);
        let tell = Box::new(move |outcome: Result<_, _>| done.send(outcome).unwrap());
        backend.submit_release(
            &acquisition("submitted"),
            ReleaseOptions::WITHOUT_TOMBSTONE,
            by,
            tell,
        );
        let mut exists = |of| probe.exists(name(of).as_str());
        eventually("it is acquired", LONG, || exists("free"));
        eventually("it is released", LONG, || !exists("released"));
        eventually("so is the other", LONG, || !exists("submitted"));
        eventually("one is made to be free", LONG, || !exists("forced"));
        eventually("it is looked at", LONG, || {
            probe.command_calls("hkeys") > looks
        });
        eventually("it is renewed", LONG, || {
            probe.command_calls("pexpire") > before + 1
        });

        // The client may notice the takeover only when the old master is a replica. Then it need
        // not close its connections to that node at once.
        walls.iter().for_each(|wall| wall.keep_out(None));
        assert_eq!(
            cluster
                .node(new)
                .probe()
                .command(&["CLUSTER", "FAILOVER", "TAKEOVER"])
                .text(),
            "OK"
        );
        cluster.wait_for_owner(slot, new);
        cluster.wait_until_agreed(cluster.len());
        // Simulates that the release did not reach the replica in time.
        let mut probe = cluster.node(new).probe();
        for (field, value) in &submitted {
            probe.command(&["HSET", name("submitted").as_str(), field, value]);
        }
        // Simulates that the lock has been freed since.
        probe.command(&["DEL", name("renewed").as_str()]);
        walls.iter().for_each(Wall::open);
        eventually("the map has learnt it", LONG, || {
            backend.renewal_node(&name("free")) != lane
        });
        assert!(!inspected.is_finished(), "its connections are as they were");
        for call in [&acquired, &renewed, &forced] {
            assert!(!call.is_finished(), "so are the others");
        }
        drop(held_back);
        let released = released.join().unwrap().map(drop);
        for outcome in [acquired, renewed, forced]
            .map(|call| call.join().unwrap())
            .into_iter()
            .chain([released])
        {
            let failure = outcome.unwrap_err();
            assert!(matches!(failure, Failure::Unknown(_)), "{failure:?}");
            let said = failure.error().to_string();
            assert!(said.contains("serves the slot no longer"), "{said}");
        }
        // A read changes nothing, so it is repeated on the new master.
        let info = inspected.join().unwrap().unwrap();
        assert!(info.holder.is_none(), "{info:?}");
        let outcome = told.recv_timeout(LONG).unwrap().unwrap();
        assert_ne!(outcome, Release::Gone);
        assert!(
            !probe.exists(name("submitted").as_str()),
            "freed where it counts"
        );
    });
}
