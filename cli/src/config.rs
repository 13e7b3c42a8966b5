//! `config check`: the effective settings, and the source of each.

use crate::arguments::{ConfigCheckArguments, FileArguments, StoreArguments};
use crate::exit::Failure;
use crate::output;
use distlock::config::{ConfigSet, Setting};
use serde_json::json;

/// The settings under one heading.
struct Part {
    heading: String,
    backend: Option<String>,
    /// The lock, or the section of locks.
    lock: Option<String>,
    settings: Vec<Setting>,
}

/// Checks all sections, and shows their settings, or those of one lock.
pub(crate) fn check(arguments: &ConfigCheckArguments) -> Result<u8, Failure> {
    let mut store = arguments.store.clone();
    if arguments.file.is_some() {
        store = StoreArguments {
            url: None,
            file: FileArguments {
                config: arguments.file.clone(),
            },
        };
    }
    let path = match store.url {
        Some(_) => None,
        None => store.file.path(),
    };
    let clients = store.clients()?;
    let settings = clients.settings();
    let parts = match &arguments.lock {
        Some(name) => vec![of_lock(settings, name)?],
        None => all(settings)?,
    };
    let mut lines = Vec::new();
    if arguments.json {
        lines.extend(parts.iter().flat_map(Part::json));
    } else {
        let path = path.map(|path| path.display().to_string());
        lines.extend(path.clone());
        let file = path.map_or_else(String::new, |path| format!("{path}, "));
        lines.extend(parts.iter().map(|part| part.table(&file)));
    }
    output::line(&lines.join("\n"))
}

impl Part {
    /// Returns the heading and the rows. The sources omit the name of the file, which is shown
    /// once.
    fn table(&self, file: &str) -> String {
        let rows = self.settings.iter().map(
            |Setting {
                 name,
                 value,
                 source,
                 ..
             }| {
                let value = match value.as_deref() {
                    None => "-".to_owned(),
                    Some("") => "\"\"".to_owned(),
                    Some(value) => value.escape_debug().to_string(),
                };
                let source = source.strip_prefix(file).unwrap_or(source);
                [format!("  {name}"), value, source.to_owned()]
            },
        );
        format!(
            "{}\n{}",
            self.heading,
            output::aligned(&rows.collect::<Vec<_>>())
        )
    }

    fn json(&self) -> impl Iterator<Item = String> {
        self.settings.iter().map(
            |Setting {
                 name,
                 value,
                 source,
                 ..
             }| {
                json!({
                    "backend": self.backend,
                    "lock": self.lock,
                    "setting": name,
                    "value": value,
                    "source": source,
                })
                .to_string()
            },
        )
    }
}

/// Returns all settings of a lock.
fn of_lock(configs: &ConfigSet, name: &str) -> Result<Part, Failure> {
    let settings = configs.config(name)?.settings();
    let (backend, section) = configs.choice(name)?;
    let section = section.map_or_else(|| "no section of its own".to_owned(), shown_lock);
    let heading = format!("lock {name:?}: {section}, on {}", shown_backend(backend));
    Ok(Part {
        heading,
        backend: backend.map(str::to_owned),
        lock: Some(name.to_owned()),
        settings,
    })
}

/// Returns all settings of each backend, and of each section of locks the settings that differ from
/// its backend's.
fn all(configs: &ConfigSet) -> Result<Vec<Part>, Failure> {
    let mut parts = Vec::new();
    for backend in configs.backends() {
        parts.push(Part {
            heading: shown_backend(backend),
            backend: backend.map(str::to_owned),
            lock: None,
            settings: configs.backend_config(backend)?.settings(),
        });
    }
    for section in configs.locks() {
        // The section's own text selects the section: a pattern matches itself, and longer patterns
        // do not match it.
        let mut part = of_lock(configs, section)?;
        let backend = parts
            .iter()
            .find(|it| it.lock.is_none() && it.backend == part.backend);
        let usual = backend.map_or(&[][..], |backend| &backend.settings);
        part.settings.retain(|setting| !usual.contains(setting));
        let on = shown_backend(part.backend.as_deref());
        part.heading = format!("{}, on {on}", shown_lock(section));
        parts.push(part);
    }
    Ok(parts)
}

fn shown_backend(name: Option<&str>) -> String {
    name.map_or_else(
        || "the default backend".to_owned(),
        |name| format!("[backends.{}]", key(name)),
    )
}

fn shown_lock(name: &str) -> String {
    format!("[locks.{}]", key(name))
}

/// Returns a name as a key in a file.
fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    if name.chars().all(is_bare) && !name.is_empty() {
        name.to_owned()
    } else {
        format!("{name:?}")
    }
}
