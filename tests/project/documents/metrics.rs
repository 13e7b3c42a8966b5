//! Compares `docs/METRICS.md`, the dashboard and the alert rules with the metrics that a client
//! registers.

use super::{read, tables};
use distlock_tests::metrics::Recorded;
use std::collections::{BTreeMap, BTreeSet};

/// A metric that a client registers: its type, unit and meaning, and the values of its labels.
struct Registered {
    description: [String; 3],
    labels: BTreeMap<String, BTreeSet<String>>,
}

fn registered() -> BTreeMap<String, Registered> {
    let (recorded, _client) = Recorded::of(|| distlock::connect("memory://").unwrap());
    let mut registered = BTreeMap::new();
    for series in recorded.all() {
        let unit = series
            .unit
            .unwrap_or_else(|| panic!("{} has no unit", series.name));
        let description = [
            format!("{:?}", series.kind),
            unit.as_str().to_owned(),
            series.meaning,
        ]
        .map(|text| text.trim().to_owned());
        let metric = registered.entry(series.name).or_insert_with(|| Registered {
            description: [
                description[0].to_lowercase(),
                description[1].clone(),
                description[2].clone(),
            ],
            labels: BTreeMap::new(),
        });
        for (label, value) in series.labels {
            metric.labels.entry(label).or_default().insert(value);
        }
    }
    registered
}

#[test]
fn metrics_document_lists_what_a_client_registers() {
    let mut registered = registered();
    for row in tables(&read("docs/METRICS.md"), "All metrics") {
        let [name, kind, unit, labels, meaning, _] = row.as_slice() else {
            panic!("{row:?}")
        };
        let name = name.trim_matches('`');
        let metric = registered.remove(name);
        let Registered {
            description,
            labels: mut known,
        } = metric.unwrap_or_else(|| panic!("no client registers `{name}`"));
        assert_eq!(
            description,
            [kind, unit, meaning].map(|cell| cell.as_str()),
            "{name}"
        );
        assert!(known.remove("backend").is_some(), "{name} has no backend");
        let mut quoted = labels.split('`').skip(1).step_by(2);
        let label = quoted.next();
        assert_eq!(
            known.keys().map(String::as_str).collect::<Vec<_>>(),
            Vec::from_iter(label)
        );
        let values: BTreeSet<_> = quoted.map(str::to_owned).collect();
        if let Some(known) = label.and_then(|label| known.get(label)) {
            assert!(
                values.is_empty() || values == *known,
                "{name}: {values:?}, not {known:?}"
            );
        }
    }
    let undocumented: Vec<_> = registered.keys().collect();
    assert!(
        undocumented.is_empty(),
        "docs/METRICS.md has not {undocumented:?}"
    );
}

/// Returns the names of the metrics in a text, as clients register them.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("distlock_"));
    names
        .map(|name| name.strip_suffix("_bucket").unwrap_or(name))
        .collect()
}

#[test]
fn dashboard_and_alerts_name_existing_metrics_and_events() {
    let registered = registered();
    let (dashboard, alerts) = (read("docs/grafana.json"), read("docs/alerts.yml"));
    let of_jobs = read("cli/src/metrics_file.rs");
    for (file, text) in [("grafana.json", &dashboard), ("alerts.yml", &alerts)] {
        let names = named(text);
        assert!(names.len() >= 5, "{file}: {names:?}");
        for name in names {
            assert!(
                registered.contains_key(name) || of_jobs.contains(&format!("\"{name}\",")),
                "{file}: neither a client nor `distlock run` has `{name}`"
            );
        }
    }
    let shown = named(&dashboard);
    let missing: Vec<_> = registered
        .keys()
        .filter(|name| !shown.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "no panel shows {missing:?}");
    // Values of labels in selectors such as `{event="lost"}`.
    let text = format!("{dashboard}{alerts}").replace("\\\"", "\"");
    let mut count = 0;
    for label in ["event", "result", "request"] {
        for value in text.split(&format!("{{{label}=\"")).skip(1) {
            let value = value.split('"').next().unwrap();
            let has = |metric: &Registered| {
                metric
                    .labels
                    .get(label)
                    .is_some_and(|values| values.contains(value))
            };
            assert!(
                registered.values().any(has),
                "there is no {label}=\"{value}\""
            );
            count += 1;
        }
    }
    assert!(count >= 2, "only {count} selectors were found");
}

#[test]
fn dashboard_has_what_grafana_requires() {
    let dashboard: serde_json::Value = serde_json::from_str(&read("docs/grafana.json")).unwrap();
    for field in [
        "title",
        "uid",
        "schemaVersion",
        "time",
        "templating",
        "panels",
    ] {
        assert!(!dashboard[field].is_null(), "{field}");
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "{} twice",
            panel["id"]
        );
        let position = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        assert!(
            position("x") + position("w") <= 24 && position("h") > 0,
            "{}",
            panel["title"]
        );
        for target in panel["targets"].as_array().unwrap() {
            assert!(!target["expr"].as_str().unwrap().is_empty());
            assert_eq!(target["datasource"]["type"], "prometheus");
        }
    }
    assert!(panels.len() >= 6);
}
