//! Serves Prometheus the metrics of a few threads that lock and work.
//!
//! ```sh
//! cargo run -p distlock-metrics-example -- redis://127.0.0.1:6379 127.0.0.1:9464
//! curl http://127.0.0.1:9464/metrics
//! ```
//!
//! Without arguments the example uses `memory://` and the address above. `docs/METRICS.md` lists
//! the metrics, and `docs/grafana.json` and `docs/alerts.yml` use them.

#![allow(clippy::disallowed_methods, reason = "the sleeps stand for work")]

use distlock::{Client, Error};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

const WORKERS: usize = 4;

/// The limits of the histograms' buckets in seconds: from a request in memory to the longest wait.
const BUCKETS: [f64; 14] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.25, 1.0, 5.0, 30.0, 120.0,
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "memory://".to_owned());
    let address = arguments
        .next()
        .unwrap_or_else(|| "127.0.0.1:9464".to_owned());
    // Installed first, because a client registers its metrics when it is created.
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)?
        .install_recorder()?;
    let client = distlock::connect(&url)?;
    for _ in 0..WORKERS {
        let client = client.clone();
        thread::spawn(move || {
            loop {
                if let Err(error) = work(&client) {
                    eprintln!("{error}");
                    thread::sleep(Duration::from_millis(200));
                }
            }
        });
    }
    let listener = TcpListener::bind(&address)?;
    println!(
        "http://{}/metrics shows the metrics of {url}",
        listener.local_addr()?
    );
    for stream in listener.incoming() {
        // A scraper that closes its connection early loses only its own answer.
        let _served = stream.and_then(|stream| serve(&stream, &handle));
    }
    Ok(())
}

/// Holds one of three locks for some milliseconds, if the lock becomes free within 50 ms. One job
/// in a hundred is long: up to 3.5 seconds.
fn work(client: &Client) -> Result<(), Error> {
    let lock = client.mutex(format!("job:{}", fastrand::u8(0..3)))?;
    if let Some(guard) = lock.try_lock_for(Duration::from_millis(50))? {
        let is_long = fastrand::u8(0..100) == 0;
        thread::sleep(Duration::from_millis(
            fastrand::u64(1..60) * if is_long { 60 } else { 1 },
        ));
        guard.unlock()?;
    }
    thread::sleep(Duration::from_millis(fastrand::u64(1..10)));
    Ok(())
}

/// Answers one request, whatever it asks for, with the metrics.
fn serve(mut stream: &TcpStream, handle: &PrometheusHandle) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut lines = BufReader::new(stream).lines();
    while lines
        .next()
        .transpose()?
        .is_some_and(|line| !line.is_empty())
    {}
    // Histograms collect samples until they are rendered or this is called.
    handle.run_upkeep();
    let body = handle.render();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n{body}",
        body.len()
    )
}
