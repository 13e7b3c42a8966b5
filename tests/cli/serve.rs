//! `serve`: its page, metrics and JSON, over HTTP.

use crate::SOON;
use distlock_tests::child::{Child, Example};
use distlock_tests::process::RedisServer;
use distlock_tests::redis::{builder, client};
use distlock_tests::time::{Stopwatch, eventually, let_pass, ms};
use serde_json::Value as Json;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// The program, and the port at which it serves.
struct Served {
    child: Child,
    port: u16,
}

impl Served {
    fn start(url: &str, words: &[&str]) -> Self {
        let words = [&["serve", "--listen", "127.0.0.1:0", "-i", "0.2"], words].concat();
        let mut child = Example::distlock(&words).env("DISTLOCK_URL", url).spawn();
        let mut port = None;
        eventually("it serves", SOON, || {
            assert!(child.is_running(), "{}", child.errors());
            let errors = child.errors();
            let start = errors.split("http://127.0.0.1:").nth(1);
            port = start.and_then(|it| it.split('/').next()?.parse().ok());
            port.is_some()
        });
        let port = port.unwrap();
        Self { child, port }
    }

    /// Returns the whole answer to a request.
    fn answer(&self, head: &str) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let request = format!("{head} HTTP/1.1\r\nHost: it\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, path: &str) -> String {
        self.answer(&format!("GET {path}"))
    }

    /// Returns the JSON of the last sample.
    fn sample(&self) -> Json {
        let answer = self.get("/api/locks");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap()
    }
}

#[test]
fn held_locks_are_shown_in_each_form() {
    let server = RedisServer::start();
    let evil = "<script>alert(1)</script>\"\\";
    let mallory = builder(&server, "").owner(evil).connect().unwrap();
    let _held = mallory.mutex("orders:<b>").unwrap().lock().unwrap();
    let _permit = client(&server, "")
        .semaphore("slots", 3)
        .unwrap()
        .acquire()
        .unwrap();
    let _reads = client(&server, "")
        .rw_lock("docs")
        .unwrap()
        .read()
        .lock()
        .unwrap();
    let served = Served::start(&server.url(), &[]);
    eventually("the label is there", SOON, || {
        let text = served.get("/metrics");
        text.contains("distlock_lock_held{name=\"orders:<b>\"} 1") && text.contains("alert(1)")
    });
    let metrics = served.get("/metrics");
    for line in [
        "distlock_store_up 1",
        "distlock_lock_readers{name=\"docs\"} 1",
        "# TYPE distlock_lock_lease_seconds gauge",
        "distlock_lock_last_token{name=\"orders:<b>\"}",
        "distlock_lock_holds_ended_total{name=\"orders:<b>\"} 0",
    ] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
    let page = served.get("/");
    assert!(page.contains("<td>orders:&lt;b&gt;</td>"), "{page}");
    assert!(page.contains("&lt;script&gt;alert(1)"), "{page}");
    assert!(!page.contains("<script>alert"), "{page}");
    assert!(page.contains("Content-Security-Policy"), "{page}");
    let sample = served.sample();
    assert_eq!(sample["failed"], false);
    let lock = &sample["locks"][1]["lock"];
    assert_eq!(
        (&lock["name"], &lock["held"]),
        (&"orders:<b>".into(), &true.into())
    );
    assert!(served.get("/healthz").starts_with("HTTP/1.1 200"));
    assert!(served.get("/nothing").starts_with("HTTP/1.1 404"));
    assert!(served.answer("POST /").starts_with("HTTP/1.1 405"));
}

/// The strip of a lock has its holders one after the other, and a lease that ran out is counted.
#[test]
fn holders_follow_each_other_in_the_strip() {
    const DEAD: &str = "deadbeef-0000-4000-8000-000000000000:1";
    let server = RedisServer::start();
    let served = Served::start(&server.url(), &["job"]);
    let seen = |holder: &str| {
        eventually("the holder is seen", SOON, || {
            served.sample().to_string().contains(holder)
        });
    };
    for holder in ["first", "second"] {
        let client = builder(&server, "").owner(holder).connect().unwrap();
        let guard = client.mutex("job").unwrap().lock().unwrap();
        seen(holder);
        let_pass(ms(500));
        guard.unlock().unwrap();
        let_pass(ms(500));
    }
    // A holder that dies: its lease runs out.
    server.probe().command(&["HSET", "job", DEAD, "1"]);
    server.probe().command(&["PEXPIRE", "job", "1500"]);
    seen("deadbeef");
    eventually("the end of the lease is seen", SOON, || {
        served
            .get("/metrics")
            .contains("distlock_lock_holds_expired_total{name=\"job\"} 1")
    });
    let sample = served.sample();
    let holds = sample["locks"][0]["holds"].as_array().unwrap();
    let holders: Vec<_> = holds.iter().map(|it| it[0].as_str().unwrap()).collect();
    assert_eq!(holders.len(), 3, "{holders:?}");
    assert_eq!(holders[..2], ["first", "second"]);
    let times: Vec<_> = holds
        .iter()
        .map(|it| (it[1].as_f64(), it[2].as_f64()))
        .collect();
    assert!(
        times.windows(2).all(|two| two[0].1 >= two[1].0),
        "{times:?}"
    );
    assert!(
        served
            .get("/metrics")
            .contains("distlock_lock_holds_ended_total{name=\"job\"} 3")
    );
}

/// A store that hangs delays no answer, and each says so.
#[test]
fn store_that_hangs_is_named_with_the_age_of_the_sample() {
    let server = RedisServer::start();
    let _held = client(&server, "").mutex("it").unwrap().lock().unwrap();
    let mut served = Served::start(&format!("{}?command_timeout=500ms", server.url()), &[]);
    eventually("a sample", SOON, || {
        served.get("/healthz").starts_with("HTTP/1.1 200")
    });
    server.pause();
    eventually("it is noticed", SOON, || {
        served.get("/healthz").starts_with("HTTP/1.1 503")
    });
    for path in ["/", "/metrics", "/api/locks", "/healthz"] {
        let watch = Stopwatch::start();
        let answer = served.get(path);
        assert!(watch.elapsed() < ms(500), "{path}: {:?}", watch.elapsed());
        assert!(
            answer.contains("it"),
            "the last sample is still shown: {answer}"
        );
    }
    eventually("the failure is named", SOON, || {
        served.get("/metrics").contains("distlock_store_up 0")
    });
    assert!(served.get("/").contains("the store fails"));
    server.resume();
    eventually("it is well again", SOON, || {
        served.get("/metrics").contains("distlock_store_up 1")
    });
    served.child.terminate();
    assert_eq!(served.child.wait_exit(SOON), 143);
}

/// An open page gets each sample, and a lock that another process takes appears soon.
#[test]
fn change_is_sent_to_an_open_page() {
    let server = RedisServer::start();
    let served = Served::start(&server.url(), &[]);
    let mut stream = TcpStream::connect(("127.0.0.1", served.port)).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    stream
        .write_all(b"GET /changes HTTP/1.1\r\nHost: it\r\n\r\n")
        .unwrap();
    let mut read = move |wanted: &str| {
        let (mut text, mut bytes) = (String::new(), [0; 4096]);
        while !text.contains(wanted) {
            let count = stream.read(&mut bytes).unwrap();
            assert!(count > 0, "it ended: {text}");
            text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        }
    };
    read("data: {");
    let mut other = Example::distlock(&["hold", "elsewhere"])
        .env("DISTLOCK_URL", &server.url())
        .spawn();
    let watch = Stopwatch::start();
    read("elsewhere");
    assert!(watch.elapsed() < ms(3_000), "{:?}", watch.elapsed());
    other.kill();
}

#[test]
fn other_machines_are_refused() {
    let server = RedisServer::start();
    let mut child = Example::distlock(&["serve", "--listen", "0.0.0.0:0"])
        .env("DISTLOCK_URL", &server.url())
        .spawn();
    assert_eq!(child.wait_exit(SOON), 64);
    assert!(child.errors().contains("proxy"), "{}", child.errors());
}
