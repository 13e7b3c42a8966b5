//! Masters that die, freeze, fail over or come back.

use crate::scene::{LONG, Load, client, client_with, take, turn};
use distlock::LockName;
use distlock_tests::cluster::{Cluster, Failover, TAKEOVER, map_requests};
use distlock_tests::time::{Stopwatch, always, eventually, let_pass, ms};
use distlock_tests::version::skipped_before_7;
use std::thread;
use std::time::Duration;

/// Far longer than a notified waiter takes, so that a waiter that waits for the end of the lease is
/// found out.
const LEASE: Duration = Duration::from_secs(120);

/// The `redis` crate's cluster client never recovers from the death of a master: it sends its
/// requests to the dead node for ever.
#[test]
fn locks_of_a_dead_master_are_kept_by_its_successor() {
    let mut cluster = Cluster::start();
    let (dying, well) = (1, 0);
    let (mine, others) = (
        cluster.name_on(dying, "mine"),
        cluster.name_on(well, "others"),
    );
    let slot = cluster.slot(&mine);
    let settings = format!(
        "watchdog={}s&command_timeout=3s&connect_timeout=2s",
        LEASE.as_secs()
    );
    let [one, other] = [(); 2].map(|()| client_with(&cluster.url(), &settings));
    let (held, elsewhere) = (take(&one, &mine), take(&one, &others));
    let token = held.fencing_token();
    thread::scope(|scope| {
        let waits = scope.spawn(|| turn(&other, &mine));
        eventually("it waits", LONG, || {
            cluster.node(dying).probe().listeners() > 0
        });
        cluster.wait_for_replicas(dying);
        let replica = cluster.replica_of(dying);
        cluster.node_mut(dying).kill();
        cluster.wait_for_owner(slot, replica);
        let watch = Stopwatch::start();
        eventually("the successor is found", LONG, || held.verify().is_ok());
        println!(
            "{:.1?} from the takeover to its first answer",
            watch.elapsed()
        );
        assert!(elsewhere.is_valid());
        let watch = Stopwatch::start();
        held.unlock().unwrap();
        let next = waits.join().unwrap();
        println!(
            "{:.1?} from the release on the successor to the grant",
            watch.elapsed()
        );
        assert!(
            watch.elapsed() < LEASE / 3,
            "its watch has moved along: {:?}",
            watch.elapsed()
        );
        assert!(next > token);
    });
    elsewhere.unlock().unwrap();
}

/// A grant that was not replicated is lost with its master. A waiter is notified of the successor:
/// otherwise it would wait for the end of the lost lease.
#[test]
fn waiter_on_a_dead_node_is_woken_by_its_successor() {
    let mut cluster = Cluster::start();
    let (dying, replica) = (2, cluster.replica_of(2));
    let name = cluster.name_on(dying, "woken");
    let slot = cluster.slot(&name);
    let settings = format!(
        "watchdog={}s&command_timeout=3s&connect_timeout=2s",
        LEASE.as_secs()
    );
    let [one, other] = [(); 2].map(|()| client_with(&cluster.url(), &settings));
    // The grant never reaches the replica.
    cluster.node(replica).pause();
    cluster.cut_off_replicas(dying);
    let held = take(&one, &name);
    thread::scope(|scope| {
        let waits = scope.spawn(|| turn(&other, &name));
        eventually("it waits", LONG, || {
            cluster.node(dying).probe().listeners() > 0
        });
        cluster.node_mut(dying).kill();
        cluster.node(replica).resume();
        cluster.wait_for_owner(slot, replica);
        let watch = Stopwatch::start();
        let next = waits.join().unwrap();
        println!("{:.1?} from the takeover to the grant", watch.elapsed());
        assert!(
            watch.elapsed() < LEASE / 3,
            "not a lease later: {:?}",
            watch.elapsed()
        );
        assert!(next > held.fencing_token(), "and its token is larger");
    });
    drop(held);
}

/// A held lock survives `CLUSTER FAILOVER`, also with `FORCE` and `TAKEOVER`. These two may lose
/// writes that are not replicated yet, but only renewals are written here.
#[test]
fn graceful_failover_loses_no_lock() {
    let cluster = Cluster::steady();
    let name = cluster.name_on(0, "held");
    let slot = cluster.slot(&name);
    let client = client(&cluster.url());
    let held = take(&client, &name);
    for how in [Failover::Plain, Failover::Force, Failover::Takeover] {
        let master = cluster.owner(slot);
        cluster.wait_for_replicas(master);
        let watch = Stopwatch::start();
        cluster.fail_over(master, how);
        eventually("the successor is found", LONG, || held.verify().is_ok());
        println!(
            "{how:?}: asked and answered {:.1?} after it was begun",
            watch.elapsed()
        );
        cluster.wait_until_agreed(6);
    }
    held.unlock().unwrap();
    take(&client, &name).unlock().unwrap();
}

/// A plain `CLUSTER FAILOVER` loses no write, so no two threads hold the lock at once, whatever
/// requests are pending.
#[test]
fn failover_under_load_excludes_exactly() {
    let cluster = Cluster::steady();
    let name = cluster.name_on(0, "busy");
    let slot = cluster.slot(&name);
    let (load, clients) = (Load::default(), [(); 2].map(|()| client(&cluster.url())));
    thread::scope(|scope| {
        let _stop = load.until_dropped();
        for client in &clients {
            scope.spawn(|| load.work(client, &name));
            scope.spawn(|| load.work(client, &name));
        }
        for _ in 0..2 {
            let before = load.room.visits();
            eventually("they take turns", LONG, || load.room.visits() > before + 50);
            cluster.fail_over(cluster.owner(slot), Failover::Plain);
            cluster.wait_until_agreed(6);
        }
    });
    println!(
        "{} visits, {:?} times unavailable",
        load.room.visits(),
        load.unavailable
    );
    assert_eq!(load.room.collisions(), 0);
    assert_eq!(*load.wrong.lock(), [""; 0]);
}

#[test]
fn frozen_master_is_replaced_and_returns_as_a_replica() {
    let cluster = Cluster::start();
    let (frozen, well) = (0, 1);
    let (mine, others) = (
        cluster.name_on(frozen, "mine"),
        cluster.name_on(well, "others"),
    );
    let slot = cluster.slot(&mine);
    let client = client(&cluster.url());
    let (held, elsewhere) = (take(&client, &mine), take(&client, &others));
    cluster.wait_for_replicas(frozen);
    let replica = cluster.replica_of(frozen);
    let operator = client_with(&cluster.url(), "command_timeout=2s");
    let both = [&mine, &others].map(|name| LockName::new(name).unwrap());
    assert!(operator.inspect_all(&both).iter().all(Result::is_ok));
    cluster.node(frozen).pause();
    // The state from the other node arrives although the first node hangs.
    let states = operator.inspect_all(&both);
    assert!(
        states[1].as_ref().is_ok_and(|state| state.holder.is_some()),
        "{states:?}"
    );
    cluster.wait_for_owner(slot, replica);
    // The first requests may still wait for the frozen node and fail at their time-out.
    eventually("the successor is found", LONG, || held.verify().is_ok());
    // Locks on the other nodes are renewed meanwhile.
    assert!(elsewhere.verify().unwrap() > Duration::ZERO);
    cluster.node(frozen).resume();
    cluster.wait_until_agreed(6);
    assert_eq!(cluster.replica_of(replica), frozen);
    assert!(held.verify().unwrap() > Duration::ZERO);
    held.unlock().unwrap();
    elsewhere.unlock().unwrap();
    let writes = |node: usize| cluster.node(node).probe().command_calls("hset");
    let before = writes(frozen);
    take(&client, &mine).unlock().unwrap();
    // The returned node replicates from its successor.
    eventually("it replicates", LONG, || writes(frozen) > before);
}

#[test]
fn added_node_serves_and_removed_node_is_forgotten() {
    let mut cluster = Cluster::steady();
    let name = cluster.name_on(0, "guest");
    let slot = cluster.slot(&name);
    let [one, other] = [(); 2].map(|()| client(&cluster.url()));
    let held = take(&one, &name);
    let new = cluster.add();
    cluster.move_slot(slot, 0, new);
    assert!(held.verify().unwrap() > Duration::ZERO);
    thread::scope(|scope| {
        let waits = scope.spawn(|| turn(&other, &name));
        eventually("it waits there", LONG, || {
            cluster.node(new).probe().listeners() > 0
        });
        cluster.move_slot(slot, new, 2);
        cluster.remove(new);
        // The remaining nodes may not know yet where the slot has gone.
        eventually("the slot's node is found", LONG, || held.verify().is_ok());
        held.unlock().unwrap();
        waits.join().unwrap();
    });
    take(&one, &name).unlock().unwrap();
}

/// When a whole shard is gone, its locks are unavailable, and never reported as busy. All other
/// locks are served, if the cluster does not require full coverage.
#[test]
fn slots_without_a_node_are_unavailable_and_others_served() {
    let mut cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let (gone, well) = (1, 2);
    let (mine, others) = (
        cluster.name_on(gone, "mine"),
        cluster.name_on(well, "others"),
    );
    let client = client(&cluster.url());
    let elsewhere = take(&client, &others);
    let lost = take(&client, &mine);
    let replica = cluster.replica_of(gone);
    cluster.node_mut(replica).kill();
    cluster.node_mut(gone).kill();
    let lock = client.mutex(&mine).unwrap();
    drop(lost);
    eventually("it is unavailable", LONG, || {
        let outcome = lock.try_lock_for(Duration::from_millis(200));
        outcome.is_err_and(|error| error.is_unavailable())
    });
    assert!(elsewhere.verify().unwrap() > Duration::ZERO);
    elsewhere.unlock().unwrap();
    take(&client, &others).unlock().unwrap();
    cluster.node_mut(gone).restart();
    take(&client, &mine).unlock().unwrap();
}

/// When a shard is gone and the cluster requires full coverage, no node serves any slot. The nodes
/// answer that the cluster is down, which the client reports as unavailable.
#[test]
fn cluster_that_is_down_is_unavailable_until_it_is_up() {
    let mut cluster = Cluster::start();
    let (gone, well) = (1, 2);
    let others = cluster.name_on(well, "others");
    let client = client(&cluster.url());
    take(&client, &others).unlock().unwrap();
    let replica = cluster.replica_of(gone);
    cluster.node_mut(replica).kill();
    cluster.node_mut(gone).kill();
    let lock = client.mutex(&others).unwrap();
    eventually("it is down", TAKEOVER, || {
        let outcome = lock.try_lock_for(Duration::from_millis(100));
        outcome.is_err_and(|error| {
            assert!(error.is_unavailable(), "{error}");
            error.to_string().contains("cluster is down")
        })
    });
    // Failed attempts request the slot map anew, because another node may serve the slot by now.
    let asked = || {
        let running = (0..cluster.len())
            .map(|node| cluster.node(node))
            .filter(|it| it.is_running());
        running
            .map(|node| map_requests(&mut node.probe()))
            .sum::<u64>()
    };
    let before = asked();
    for _ in 0..20 {
        lock.try_lock_for(Duration::from_millis(100)).unwrap_err();
    }
    assert!(asked() > before + 4, "{} times more", asked() - before);
    cluster.node_mut(gone).restart();
    take(&client, &others).unlock().unwrap();
    let_pass(Duration::ZERO);
    always("it stays up", ms(300), || lock.is_locked().is_ok());
}

/// A master that is loading its data says so, which is no answer about the lock. Its successor may
/// serve the slot by now, so the client asks the other nodes.
#[test]
fn loading_master_is_unavailable_and_keeps_held_locks() {
    if skipped_before_7("a node that answers again and again while it loads") {
        return;
    }
    // The node time-out is so long that no replica is promoted while the master loads its data.
    let patient = ["--cluster-node-timeout", "60000", "--rdbcompression", "no"];
    let cluster =
        Cluster::start_with(&[&patient[..], &["--enable-debug-command", "local"]].concat());
    let name = cluster.name_on(0, "loading");
    let client = client_with(&cluster.url(), "watchdog=60s&command_timeout=1s");
    let held = take(&client, &name);
    let mut probe = cluster.node(0).probe();
    let many = "for i = 1, 1000 do redis.call('SET', KEYS[1] .. i, string.rep('x', 10000)) end";
    probe.command(&["EVAL", many, "1", &format!("{{{name}}}")]);
    // Loading takes five seconds, during which the master answers requests from time to time.
    for (name, value) in [
        ("key-load-delay", "5000"),
        ("loading-process-events-interval-bytes", "65536"),
    ] {
        assert_eq!(probe.command(&["CONFIG", "SET", name, value]).text(), "OK");
    }
    let free = client.mutex(format!("free:{{{name}}}")).unwrap();
    let try_it = || free.try_lock_for(Duration::from_millis(100));
    let asked = || -> u64 {
        (1..cluster.len())
            .map(|it| map_requests(&mut cluster.node(it).probe()))
            .sum()
    };
    thread::scope(|scope| {
        let loads = scope.spawn(|| probe.try_command(&["DEBUG", "RELOAD"]));
        eventually("it says that it is loading", LONG, || {
            let error = try_it().err()?;
            assert!(error.is_unavailable(), "{error:?}");
            error
                .to_string()
                .contains("still reading its data")
                .then_some(())
        });
        let before = asked();
        eventually("the others are asked each time", LONG, || {
            assert!(
                !loads.is_finished(),
                "{} times in all that time",
                asked() - before
            );
            try_it().is_err() && asked() > before + 4
        });
        assert!(held.is_valid());
        let mut probe = cluster.node(0).probe();
        assert_eq!(
            probe
                .command(&["CONFIG", "SET", "key-load-delay", "0"])
                .text(),
            "OK"
        );
    });
    free.try_lock_for(LONG)
        .unwrap()
        .expect("it is free")
        .unlock()
        .unwrap();
    assert!(held.verify().unwrap() > Duration::ZERO);
    held.unlock().unwrap();
}
