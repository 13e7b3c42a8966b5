//! A server in trouble: what each fault makes the client report, and how long that takes at most.

use super::scene::{
    Row, Scene, answered, client_of, command, lease, outage, refused, slow_to_load,
};
use super::table::Case;
use distlock::{Error, LossCause};
use distlock_tests::process::free_port;
use distlock_tests::time::{Stopwatch, eventually, late, let_pass};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

pub(super) const CASES: &[Case] = &[
    ("down at the start: try_lock", down_at_the_start),
    ("down at the start: lock", down_and_waited_for),
    ("dies while waiting", dies_while_waiting),
    ("dies while holding", || {
        Scene::new().lost(LossCause::Expired, |s| s.server.kill())
    }),
    ("restarts empty while holding", || {
        Scene::new().lost(LossCause::Gone, |s| s.server.restart())
    }),
    ("frozen: try_lock", frozen),
    ("frozen while holding", || {
        Scene::new().lost(LossCause::Expired, |s| s.server.pause())
    }),
    ("frozen for half a lease while holding", frozen_and_back),
    ("a replica", replica),
    ("made a replica while holding", || {
        Scene::new().lost(LossCause::Expired, |s| {
            s.tell(&["REPLICAOF", "127.0.0.1", "1"]);
        })
    }),
    ("LOADING", loading),
    ("OOM: try_lock", out_of_memory),
    ("OOM while holding", out_of_memory_while_holding),
    ("MISCONF", misconf),
    ("MISCONF while holding", misconf_while_holding),
    ("NOPERM", no_permission),
    ("NOPERM while holding", no_permission_while_holding),
    ("NOAUTH", no_password),
    ("WRONGPASS", wrong_password),
    ("SCRIPT FLUSH all the time", script_flush),
    ("BUSY with a script: try_lock", busy),
    (
        "BUSY with a script while holding, SCRIPT KILL",
        busy_while_holding,
    ),
    (
        "CLIENT KILL of subscriber, lane and callers, again and again",
        client_kill,
    ),
    ("CLIENT PAUSE: try_lock", client_pause),
    ("CLIENT PAUSE while holding", || {
        Scene::new().lost(LossCause::Expired, |s| s.pause_clients(lease() * 4))
    }),
    ("maxclients reached", max_clients),
    ("`timeout` closes idle links", idle_links),
    ("key deleted", || {
        Scene::new().lost(LossCause::Gone, |s| s.tell(&["DEL", "a"]))
    }),
    ("key of another type, holding", || {
        Scene::new().lost(LossCause::Gone, |s| s.tell(&["SET", "a", "text"]))
    }),
    ("key of another type, asking", another_type),
    ("key without TTL, holding", lost_expiry),
    ("key without TTL of a stranger", stranger_for_ever),
    ("another owner's hash", another_owner),
    ("FLUSHALL", || {
        Scene::new().lost(LossCause::Gone, |s| s.tell(&["FLUSHALL"]))
    }),
    ("eviction", eviction),
];

fn down_at_the_start() -> Row {
    let client = client_of(&format!("redis://127.0.0.1:{}", free_port()));
    refused(&client, Error::is_unavailable, "cannot connect")
}

fn down_and_waited_for() -> Row {
    let client = client_of(&format!("redis://127.0.0.1:{}", free_port()));
    let watch = Stopwatch::start();
    let error = client.mutex("a").unwrap().lock().unwrap_err();
    assert!(
        error.is_unavailable() && watch.elapsed() >= outage(),
        "{error:?}"
    );
    Row::new(error, watch.elapsed(), outage() + command())
}

fn dies_while_waiting() -> Row {
    let mut scene = Scene::new();
    let holder = client_of(&scene.server.url());
    let _guard = holder.mutex("a").unwrap().lock().unwrap();
    let client = scene.client.clone();
    let waiting = thread::spawn(move || client.mutex("a").unwrap().lock().map(|_| ()));
    let mut probe = scene.server.probe();
    eventually("it waits", LONG, || {
        if waiting.is_finished() {
            late(
                outage(),
                "it had no answer before it was seen to wait".to_owned(),
            );
        }
        !probe.command(&["PUBSUB", "CHANNELS"]).texts().is_empty()
    });
    let watch = Stopwatch::start();
    scene.server.kill();
    let error = waiting.join().unwrap().unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    // The waiter sleeps until the holder's lease may have ended, and learns of the outage by its
    // next attempt.
    Row::new(error, watch.elapsed(), lease() + outage() + command())
}

fn frozen() -> Row {
    let scene = Scene::new();
    scene.works("b");
    scene.server.pause();
    let row = scene.refused(Error::is_unavailable, "did not answer in time");
    scene.server.resume();
    scene.works("a");
    row
}

fn frozen_and_back() -> Row {
    Scene::new().kept(|scene| {
        scene.server.pause();
        let_pass(lease() / 2);
        scene.server.resume();
    })
}

fn replica() -> Row {
    let scene = Scene::new();
    scene.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    let row = scene.refused(Error::is_unavailable, "is a replica");
    scene.tell(&["REPLICAOF", "NO", "ONE"]);
    scene.works("a");
    row
}

fn loading() -> Row {
    let mut scene = Scene::with(slow_to_load("1600"));
    scene.tell(&["SAVE"]);
    let Scene { server, client } = &mut scene;
    let row = thread::scope(|scope| {
        let restarting = scope.spawn(|| server.restart());
        let row = eventually("it is loading", LONG, || {
            let watch = Stopwatch::start();
            let error = client.mutex("a").unwrap().try_lock().err()?;
            assert!(error.is_unavailable(), "{error:?}");
            let row = Row::new(&error, watch.elapsed(), command());
            row.said.contains("still reading its data").then_some(row)
        });
        restarting.join().unwrap();
        row
    });
    scene.works("a");
    row
}

fn out_of_memory() -> Row {
    let scene = Scene::new();
    scene.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    let row = scene.refused(Error::is_unavailable, "maxmemory");
    scene.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    scene.works("a");
    row
}

fn out_of_memory_while_holding() -> Row {
    // Neither a renewal nor a release needs memory.
    Scene::new().kept(|scene| scene.tell(&["CONFIG", "SET", "maxmemory", "1"]))
}

fn misconf() -> Row {
    let scene = Scene::new();
    let saves_again = cannot_save(&scene);
    let row = scene.refused(Error::is_unavailable, "cannot save");
    saves_again();
    scene.works("a");
    row
}

fn misconf_while_holding() -> Row {
    let mut scene = Scene::new();
    scene.lost(LossCause::Expired, |scene| drop(cannot_save(scene)))
}

/// Makes the server refuse writes because it cannot save; calling the returned function ends that.
fn cannot_save(scene: &Scene) -> impl FnOnce() {
    let directory = scene
        .server
        .probe()
        .command(&["CONFIG", "GET", "dir"])
        .texts()
        .remove(1);
    // A directory in the place of the dump, which the server cannot replace.
    let in_the_way = std::path::Path::new(&directory).join("dump.rdb");
    std::fs::create_dir(&in_the_way).unwrap();
    scene.tell(&["CONFIG", "SET", "save", "3600 1000000"]);
    scene.tell(&["BGSAVE"]);
    let mut probe = scene.server.probe();
    let mut saved = move |how: &str| {
        probe
            .info_field("persistence", "rdb_last_bgsave_status")
            .as_deref()
            == Some(how)
    };
    eventually("it could not save", LONG, || saved("err"));
    let mut probe = scene.server.probe();
    move || {
        std::fs::remove_dir(&in_the_way).unwrap();
        probe.command(&["BGSAVE"]);
        eventually("it saved", LONG, || saved("ok"));
    }
}

fn no_permission() -> Row {
    let scene = Scene::new();
    scene.tell(&[
        "ACL", "SETUSER", "me", "on", "nopass", "~*", "&*", "+@all", "-evalsha",
    ]);
    let client = client_of(&format!("redis://me@127.0.0.1:{}", scene.server.port()));
    refused(&client, Error::is_configuration, "ACL SETUSER me +evalsha")
}

fn no_permission_while_holding() -> Row {
    let scene = Scene::new();
    scene.tell(&["ACL", "SETUSER", "me", "on", "nopass", "~*", "&*", "+@all"]);
    let client = client_of(&format!("redis://me@127.0.0.1:{}", scene.server.port()));
    Scene { client, ..scene }.lost(LossCause::Expired, |scene| {
        scene.tell(&["ACL", "SETUSER", "me", "-pexpire"]);
    })
}

fn no_password() -> Row {
    let scene = Scene::new();
    scene.tell(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let client = client_of(&scene.server.url_as(""));
    refused(&client, Error::is_configuration, "asks for a password")
}

fn wrong_password() -> Row {
    let scene = Scene::new();
    scene.tell(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let client = client_of(&format!("redis://:wr0ng@127.0.0.1:{}", scene.server.port()));
    let row = refused(
        &client,
        Error::is_configuration,
        "does not accept the password",
    );
    assert!(!row.said.contains("wr0ng"));
    row
}

/// Causes `trouble` again and again while `work` runs.
fn beside(trouble: impl Fn() + Send + Sync, work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                trouble();
                let_pass(Duration::from_millis(5));
            }
        });
        let outcome = catch_unwind(AssertUnwindSafe(work));
        is_over.store(true, Ordering::SeqCst);
        outcome.unwrap_or_else(|panic| resume_unwind(panic));
    });
}

fn script_flush() -> Row {
    let scene = Scene::new();
    let mut longest = Duration::ZERO;
    beside(
        || scene.tell(&["SCRIPT", "FLUSH"]),
        || {
            for _ in 0..200 {
                let watch = Stopwatch::start();
                let guard = answered(scene.client.mutex("a").unwrap().lock());
                answered(guard.verify());
                answered(guard.extend(lease()));
                answered(guard.unlock());
                longest = longest.max(watch.elapsed());
            }
        },
    );
    Row::new("nothing: 200 cycles, the longest one", longest, command())
}

/// Runs an endless script on the server during `work`, and then kills the script.
fn with_a_long_script<T>(scene: &Scene, work: impl FnOnce() -> T) -> T {
    // Redis 7 calls this `busy-reply-threshold`, and still accepts the old name.
    scene.tell(&["CONFIG", "SET", "lua-time-limit", "50"]);
    let mut runs = scene.server.probe();
    thread::scope(|scope| {
        let running = scope.spawn(move || runs.try_command(&["EVAL", "while true do end", "0"]));
        let mut probe = scene.server.probe();
        eventually("it is busy", LONG, || {
            format!("{:?}", probe.try_command(&["PING"])).contains("BUSY")
        });
        let outcome = work();
        scene.tell(&["SCRIPT", "KILL"]);
        let _killed = running.join();
        outcome
    })
}

fn busy() -> Row {
    let scene = Scene::new();
    let row = with_a_long_script(&scene, || {
        scene.refused(Error::is_unavailable, "busy with a script")
    });
    scene.works("a");
    row
}

fn busy_while_holding() -> Row {
    Scene::new().kept(|scene| with_a_long_script(scene, || let_pass(lease() / 3)))
}

fn client_kill() -> Row {
    let scene = Scene::new();
    let other = client_of(&scene.server.url());
    let guard = scene.client.mutex("held").unwrap().lock().unwrap();
    let kill = || {
        for kind in ["normal", "pubsub"] {
            scene.tell(&["CLIENT", "KILL", "TYPE", kind]);
        }
        let_pass(Duration::from_millis(45));
    };
    let mut longest = Duration::ZERO;
    beside(kill, || {
        let (all, waited) = (Stopwatch::start(), &mut longest);
        while all.elapsed() < lease() * 2 {
            let mine = scene.client.mutex("passed on").unwrap().lock().unwrap();
            let theirs = thread::spawn({
                let other = other.clone();
                move || other.mutex("passed on").unwrap().lock().map(drop)
            });
            let_pass(Duration::from_millis(20));
            let watch = Stopwatch::start();
            drop(mine);
            if let Err(error) = theirs.join().unwrap() {
                assert!(error.is_unavailable(), "{error:?}");
                late(
                    outage(),
                    format!("none of its requests was quicker than the kills: {error}"),
                );
            }
            *waited = (*waited).max(watch.elapsed());
        }
    });
    assert!(guard.is_valid());
    guard.verify().or_else(|_| guard.verify()).unwrap();
    Row::new(
        "nothing: held on; the longest passing on",
        longest,
        lease() + command(),
    )
}

fn client_pause() -> Row {
    let scene = Scene::new();
    scene.works("b");
    scene.pause_clients(command() * 3);
    let row = scene.refused(Error::is_unavailable, "did not answer in time");
    scene.works("a");
    row
}

fn max_clients() -> Row {
    let scene = Scene::new();
    let mut only = scene.server.probe();
    only.command(&["CONFIG", "SET", "maxclients", "1"]);
    // The server closes the connection before it reads our greeting, so its reason may or may not
    // arrive.
    let row = scene.refused(Error::is_unavailable, "");
    only.command(&["CONFIG", "SET", "maxclients", "100"]);
    scene.works("a");
    row
}

fn idle_links() -> Row {
    let scene = Scene::new();
    scene.tell(&["CONFIG", "SET", "timeout", "1"]);
    scene.works("a");
    let mut probe = scene.server.probe();
    eventually("the idle link is closed", LONG, || probe.connections() == 0);
    let watch = Stopwatch::start();
    scene
        .client
        .mutex("a")
        .unwrap()
        .try_lock()
        .unwrap()
        .unwrap()
        .unlock()
        .unwrap();
    Row::new(
        "nothing: the next lock is taken",
        watch.elapsed(),
        command(),
    )
}

fn another_type() -> Row {
    let scene = Scene::new();
    scene.tell(&["SET", "a", "text"]);
    scene.refused(Error::is_foreign_format, "something that is not a lock")
}

fn lost_expiry() -> Row {
    let scene = Scene::new();
    let guard = scene.client.mutex("a").unwrap().lock().unwrap();
    scene.tell(&["PERSIST", "a"]);
    let (watch, mut probe) = (Stopwatch::start(), scene.server.probe());
    eventually("it has an end again", LONG, || probe.pttl("a").is_some());
    let took = watch.elapsed();
    guard.unlock().unwrap();
    Row::new(
        "nothing: it has an end again",
        took,
        lease() / 3 + command(),
    )
}

fn stranger_for_ever() -> Row {
    let scene = Scene::new();
    scene.tell(&["HSET", "a", "7b6d2f0e-5f55-4c05-9b3a-d3a6a3a8d1a1:1", "1"]);
    let watch = Stopwatch::start();
    let answer = scene
        .client
        .mutex("a")
        .unwrap()
        .try_lock_for(command())
        .unwrap();
    assert!(answer.is_none());
    Row::new("busy", watch.elapsed(), command() * 2)
}

fn another_owner() -> Row {
    let mut scene = Scene::new();
    let row = scene.lost(LossCause::Gone, |scene| {
        scene.tell(&[
            "EVAL",
            "redis.call('DEL', 'a') redis.call('HSET', 'a', 'x:1', '1')",
            "0",
        ]);
    });
    assert!(
        scene.server.probe().hgetall("a").contains_key("x:1"),
        "the stranger has it yet"
    );
    row
}

fn eviction() -> Row {
    Scene::new().lost(LossCause::Gone, |scene| {
        scene.tell(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
        scene.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    })
}
