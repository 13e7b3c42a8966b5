//! [`Reader`]: a [`ConfigSet`] from the text of a TOML file.

use super::{Backend, ConfigSet, Line, Lock};
use crate::config::Config;
use crate::config::file::NO_URL;
use crate::config::option::{Source, did_you_mean};
use crate::error::Error;
use crate::name::LockName;
use std::borrow::Cow;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// The options that the section of a lock may set. The other options are those of a whole backend:
/// they concern its connections, or should be equal in all its clients.
const OF_A_LOCK: [&str; 11] = [
    "format",
    "hand_off",
    "lease",
    "on_insufficient_replicas",
    "outage_limit",
    "prefix",
    "replicas",
    "replication_timeout",
    "tokens",
    "unconfirmed_renewals",
    "watchdog",
];

pub(super) fn unknown_backend<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<_> = known.collect();
    let meant = did_you_mean(name, known.iter().copied());
    let listed = match known.as_slice() {
        [] => "the file has no [backends.NAME]".to_owned(),
        _ => format!("there are {}", quoted(known.iter().copied())),
    };
    let named = if name.contains([':', '/', '@']) {
        // A URL that was written in place of a name may contain a password.
        "of this name, which looks like a URL".to_owned()
    } else {
        format!("`{}`{meant}", name.escape_debug())
    };
    format!("there is no backend {named}; {listed}")
}

fn quoted<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words
        .map(|word| format!("`{}`", word.escape_debug()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// A reader of one TOML text.
pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    /// The beginning of each location in an error: the name of the file and a comma, or nothing.
    pub(super) file: String,
}

/// A table below `backends` or `locks`.
struct Section {
    name: String,
    place: Source,
    lines: Vec<Line>,
}

impl Reader<'_> {
    pub(super) fn read(self) -> Result<ConfigSet, Error> {
        // An error of `toml` quotes the whole line, which may contain a password, so only the
        // message of the error is used.
        let table = DeTable::parse(self.text).map_err(|error| {
            let at = error
                .span()
                .map_or(0, |span| span.start.min(self.text.len()));
            self.place(at)
                .refuse(&format!("not TOML: {}", error.message()))
        })?;
        let (mut backends, mut locks) = (Vec::new(), Vec::new());
        let mut above = Vec::new();
        for (key, value) in in_order(table.get_ref()) {
            match key.get_ref().as_ref() {
                "backends" => backends = self.sections("backends", value)?,
                "locks" => locks = self.sections("locks", value)?,
                _ => above.push(self.line(key, value)?),
            }
        }
        let default = take_line(&mut above, "default");
        let is_alone = backends.is_empty() && locks.is_empty();
        if let (None, false, false) = (find(&above, "url"), is_alone, above.is_empty()) {
            return Err(above[0].place.refuse(&format!(
                "`{}` stands above the sections, where without a `url` only `default` may stand: \
                 move it below [backends.NAME]",
                above[0].key.escape_debug()
            )));
        }
        let mut read = Vec::new();
        if find(&above, "url").is_some() {
            let place = above[0].place.clone();
            read.push(self.backend(None, place, above)?);
        } else if backends.is_empty() {
            return Err(Error::configuration(format!("{}{NO_URL}", self.file)));
        }
        for Section { name, place, lines } in backends {
            read.push(self.backend(Some(name), place, lines)?);
        }
        let default = match default {
            Some(line) if read[0].name.is_none() => {
                return Err(line.place.refuse(
                    "there are `default` and, above the sections, `url`: the default backend is \
                     one of the two, so leave the other out",
                ));
            }
            Some(line) => Some(named(&read, &line)?),
            None => read[0].name.is_none().then_some(0),
        };
        let locks = locks
            .into_iter()
            .map(|section| lock(section, &read, default));
        let locks = locks.collect::<Result<_, _>>()?;
        let (environment, change) = (None, None);
        ConfigSet {
            backends: read,
            default,
            locks,
            environment,
            change,
            file: self.file,
        }
        .checked()
    }

    /// Returns the location of the byte at this offset, as error messages name it.
    fn place(&self, at: usize) -> Source {
        let line = self.text.as_bytes()[..at]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        Source::Named(format!("{}line {}", self.file, line + 1))
    }

    fn line(
        &self,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Line, Error> {
        let place = self.place(key.span().start);
        let key = key.get_ref().as_ref().to_owned();
        let value = scalar(&key, value.get_ref(), &place)?;
        Ok(Line { key, value, place })
    }

    fn sections(&self, kind: &str, value: &Spanned<DeValue<'_>>) -> Result<Vec<Section>, Error> {
        let refuse = |name: &str, at: usize| {
            let name = name.escape_debug();
            self.place(at)
                .refuse(&format!("`{name}` is no table, as in [{kind}.NAME]"))
        };
        let DeValue::Table(tables) = value.get_ref() else {
            return Err(refuse(kind, value.span().start));
        };
        let section = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| {
            let name: &Cow<'_, str> = key.get_ref();
            let DeValue::Table(table) = value.get_ref() else {
                return Err(refuse(name, key.span().start));
            };
            let lines = in_order(table)
                .into_iter()
                .map(|(key, value)| self.line(key, value));
            Ok(Section {
                name: name.as_ref().to_owned(),
                place: self.place(key.span().start),
                lines: lines.collect::<Result<_, _>>()?,
            })
        };
        in_order(tables).into_iter().map(section).collect()
    }

    fn backend(
        &self,
        name: Option<String>,
        place: Source,
        mut lines: Vec<Line>,
    ) -> Result<Backend, Error> {
        let Some(url) = take_line(&mut lines, "url") else {
            return Err(place.refuse(NO_URL));
        };
        let mut config = Config::default();
        config.take_url(&url.value, &url.place)?;
        for Line { key, value, place } in lines {
            config.take(&key, &value, &place)?;
        }
        Ok(Backend {
            name,
            place: url.place,
            config,
        })
    }
}

/// Reads the section of a lock.
fn lock(mut section: Section, backends: &[Backend], default: Option<usize>) -> Result<Lock, Error> {
    let Section { name, place, lines } = &mut section;
    match name.strip_suffix('*') {
        Some("") => {}
        start => {
            let start = start.unwrap_or(name);
            if start.contains('*') {
                return Err(place.refuse(&format!(
                    "the lock `{}` has a `*` before its end: a pattern is the beginning of names \
                     and one `*`",
                    name.escape_debug()
                )));
            }
            // The beginning of a name may end inside a hash tag, so only whole names are checked.
            if start.len() == name.len() {
                LockName::new(name).map_err(|error| place.refuse(error.message()))?;
            }
        }
    }
    let backend = match take_line(lines, "backend") {
        Some(line) => named(backends, &line)?,
        None => default.ok_or_else(|| {
            place.refuse("the lock has no `backend`, and the file no `default` one: add either")
        })?,
    };
    if let Some(line) = lines
        .iter()
        .find(|line| !OF_A_LOCK.contains(&line.key.as_str()))
    {
        let known = || ["backend"].into_iter().chain(OF_A_LOCK);
        return Err(line.place.refuse(&format!(
            "a lock has no option `{}`{}; it has {}, and all others are of its backend",
            line.key.escape_debug(),
            did_you_mean(&line.key, known()),
            quoted(known())
        )));
    }
    let Section { name, place, lines } = section;
    Ok(Lock {
        name,
        place,
        backend,
        lines,
    })
}

/// Returns the index of the backend that this line names.
fn named(backends: &[Backend], line: &Line) -> Result<usize, Error> {
    let is_it = |backend: &Backend| backend.name.as_ref() == Some(&line.value);
    backends.iter().position(is_it).ok_or_else(|| {
        let known = backends
            .iter()
            .filter_map(|backend| backend.name.as_deref());
        line.place.refuse(&unknown_backend(&line.value, known))
    })
}

fn find<'a>(lines: &'a [Line], key: &str) -> Option<&'a Line> {
    lines.iter().find(|line| line.key == key)
}

fn take_line(lines: &mut Vec<Line>, key: &str) -> Option<Line> {
    let at = lines.iter().position(|line| line.key == key)?;
    Some(lines.remove(at))
}

/// Returns the keys and values of a table, in the order of the text.
fn in_order<'a, 'b>(
    table: &'a DeTable<'b>,
) -> Vec<(&'a Spanned<Cow<'b, str>>, &'a Spanned<DeValue<'b>>)> {
    let mut lines: Vec<_> = table.iter().collect();
    lines.sort_by_key(|(key, _)| key.span().start);
    lines
}

fn scalar(key: &str, value: &DeValue<'_>, place: &Source) -> Result<String, Error> {
    let kind = match value {
        DeValue::String(text) => return Ok(text.to_string()),
        DeValue::Boolean(truth) => return Ok(truth.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => {
            return Ok(number.as_str().to_owned());
        }
        DeValue::Integer(_) => "a number that is not decimal",
        DeValue::Float(_) => "a fraction",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table, and there are [backends.NAME] and [locks.NAME] only",
    };
    Err(place.refuse(&format!(
        "`{}` is {kind}: a setting is a text, a whole number, or true or false",
        key.escape_debug()
    )))
}
