//! Sends the queries of the dashboard and the alert rules to a real Prometheus, which scrapes the
//! metrics example.

use super::{read, root};
use distlock_tests::child::{Example, metrics_example};
use distlock_tests::process::{RedisServer, free_port};
use distlock_tests::time::eventually;
use serde_json::Value as Json;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Returns what Prometheus answers to a request for this path; `None` while it does not listen.
fn get(port: u16, path: &str) -> Option<Json> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(LONG)).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// Returns the present values of a query.
fn values(port: u16, query: &str) -> Vec<f64> {
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer = get(port, &format!("/api/v1/query?query={escaped}")).expect("it listens");
    assert_eq!(answer["status"], "success", "{query}: {answer}");
    let series = answer["data"]["result"].as_array().unwrap();
    series
        .iter()
        .map(|one| one["value"][1].as_str().unwrap().parse().unwrap())
        .collect()
}

/// Returns the name, the health and the state of each alert rule.
fn rules(port: u16) -> Vec<[String; 3]> {
    let answer = get(port, "/api/v1/rules").expect("it listens");
    let rules = answer["data"]["groups"][0]["rules"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let text = |rule: &Json, field: &str| rule[field].as_str().unwrap_or_default().to_owned();
    rules
        .iter()
        .map(|rule| ["name", "health", "state"].map(|field| text(rule, field)))
        .collect()
}

/// Returns the queries of all panels, with values in place of Grafana's variables.
fn queries() -> Vec<String> {
    let dashboard: Json = serde_json::from_str(&read("docs/grafana.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().unwrap());
    let query = |target: &Json| {
        let query = target["expr"]
            .as_str()
            .unwrap()
            .replace("$__rate_interval", "10s");
        query.replace("$job", ".*").replace("$instance", ".*")
    };
    targets.map(query).collect()
}

#[test]
#[ignore = "long: run by `tests/run.sh --all`"]
fn prometheus_answers_each_panel_and_alert_rule() {
    if Command::new("prometheus")
        .arg("--version")
        .output()
        .is_err()
    {
        println!("skipped: there is no Prometheus: apt-get install prometheus");
        return;
    }
    let alerts = root().join("docs/alerts.yml").canonicalize().unwrap();
    let checked = Command::new("promtool")
        .args(["check", "rules"])
        .arg(&alerts)
        .output()
        .unwrap();
    assert!(
        checked.status.success(),
        "{}",
        String::from_utf8_lossy(&checked.stderr)
    );

    let mut server = RedisServer::start();
    let [scraped, port] = [free_port(), free_port()];
    let address = format!("127.0.0.1:{scraped}");
    let url = format!(
        "{}?command_timeout=200ms&connect_timeout=200ms",
        server.url()
    );
    let _example = Example::program(metrics_example())
        .args(&[&url, &address])
        .spawn();
    let folder = tempfile::tempdir().unwrap();
    let settings = folder.path().join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 250ms, evaluation_interval: 250ms}}\n\
         rule_files: ['{}']\n\
         scrape_configs: [{{job_name: it, static_configs: [{{targets: ['{address}']}}]}}]\n",
        alerts.display()
    );
    fs::write(&settings, text).unwrap();
    let arguments = [
        format!("--config.file={}", settings.display()),
        format!(
            "--storage.tsdb.path={}",
            folder.path().join("data").display()
        ),
        format!("--web.listen-address=127.0.0.1:{port}"),
        "--log.level=warn".to_owned(),
    ];
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let _prometheus = Example::program("prometheus").args(&arguments).spawn();
    eventually("Prometheus listens", LONG, || {
        get(port, "/api/v1/rules").is_some()
    });

    let queries = queries();
    assert!(queries.len() > 10, "{queries:?}");
    for query in queries {
        // A quantile is NaN until there is a sample.
        let has_value = || values(port, &query).iter().any(|value| value.is_finite());
        eventually(&format!("{query} has a value"), LONG, has_value);
    }
    let count = read("docs/alerts.yml").matches("- alert:").count();
    let all_well = |[_, health, state]: &[String; 3]| health == "ok" && state == "inactive";
    eventually("all rules are evaluated, and none fires", LONG, || {
        let rules = rules(port);
        rules.len() == count && rules.iter().all(all_well)
    });
    server.kill();
    eventually("an outage is alerted of", LONG, || {
        let is_it =
            |[name, _, state]: &[String; 3]| name.contains("Unavailable") && state != "inactive";
        rules(port).iter().any(is_it)
    });
}
