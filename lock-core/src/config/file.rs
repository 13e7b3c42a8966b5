//! Settings from a file: through serde in any format, or from a TOML file (feature `toml`).

use super::Config;
use super::option::Source;
use crate::error::Error;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A value in a file.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a setting is a text, a whole number, or true or false")]
pub(super) enum Scalar {
    Text(String),
    Number(i64),
    Truth(bool),
}

const NO_URL: &str = "there is no `url`, as in url = \"redis://127.0.0.1:6379\"";

impl TryFrom<BTreeMap<String, Scalar>> for Config {
    type Error = Error;

    fn try_from(mut fields: BTreeMap<String, Scalar>) -> Result<Self, Error> {
        let Some(Scalar::Text(url)) = fields.remove("url") else {
            return Err(Error::configuration(NO_URL));
        };
        let mut config = Self::from_url(&url)?;
        for (option, value) in fields {
            let value = match value {
                Scalar::Text(text) => text,
                Scalar::Number(number) => number.to_string(),
                Scalar::Truth(truth) => truth.to_string(),
            };
            config.set(&option, &value, &Source::Direct).map_err(Error::configuration)?;
        }
        Ok(config)
    }
}

#[cfg(feature = "toml")]
mod own {
    use super::{Config, Error, NO_URL, Source};
    use std::path::Path;
    use toml::de::{DeTable, DeValue};

    impl Config {
        /// Reads a TOML file: `url`, and a line for each setting that differs from the URL and the
        /// defaults.
        ///
        /// ```toml
        /// url = "redis://127.0.0.1:6379"
        /// watchdog = "10s"
        /// pool = 4
        /// ```
        ///
        /// # Errors
        ///
        /// [`Error::is_configuration`] with the file, the line, the key and the accepted values.
        /// Nothing is quoted that may be a password. A key that the scheme does not know is refused
        /// by [`ClientBuilder::connect`](crate::ClientBuilder::connect), with the file and the
        /// line.
        pub fn from_file(path: impl AsRef<Path>) -> Result<Self, Error> {
            let path = path.as_ref();
            let text = std::fs::read_to_string(path).map_err(|source| {
                Error::configuration(format!("cannot read the settings in {}", path.display()))
                    .with_source(source)
            })?;
            read(&text, &format!("{}, ", path.display()))
        }

        /// Reads the text of such a file.
        ///
        /// # Errors
        ///
        /// Those of [`from_file`](Self::from_file), without the file.
        pub fn from_toml(text: &str) -> Result<Self, Error> {
            read(text, "")
        }
    }

    fn read(text: &str, file: &str) -> Result<Config, Error> {
        let line = |at: usize| text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count();
        let place = |at: usize| Source::Named(format!("{file}line {}", line(at) + 1));
        // The error of `toml` quotes the whole line, password included, so only its message is
        // used.
        let table = DeTable::parse(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            place(at).refuse(&format!("not TOML: {}", error.message()))
        })?;
        let table = table.into_inner();
        let mut config = Config::default();
        match table.get("url") {
            Some(url) => {
                let place = place(url.span().start);
                config.take_url(&scalar("url", url.get_ref(), &place)?, &place)?;
            }
            None => return Err(Error::configuration(format!("{file}{NO_URL}"))),
        }
        for (key, value) in table.iter().filter(|(key, _)| key.get_ref() != "url") {
            let place = place(key.span().start);
            let value = scalar(key.get_ref(), value.get_ref(), &place)?;
            config.take(key.get_ref(), &value, &place)?;
        }
        Ok(config)
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
            DeValue::Table(_) => "a table",
        };
        Err(place.refuse(&format!(
            "`{}` is {kind}: a setting is a text, a whole number, or true or false",
            key.escape_debug()
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::super::TokenPolicy;
    use super::*;
    use std::time::Duration;

    #[test]
    fn settings_of_a_file_win_over_options_of_its_url() {
        const TEXT: &str =
            "url = 'memory://x?pool=3&watchdog=5s'\nwatchdog = '7s'\ntokens = 'keep'";
        let by_serde: Config = toml::from_str(TEXT).unwrap();
        for config in [
            by_serde,
            #[cfg(feature = "toml")]
            Config::from_toml(TEXT).unwrap(),
        ] {
            assert_eq!((config.pool(), config.watchdog()), (3, Duration::from_secs(7)));
            assert_eq!(config.tokens(), TokenPolicy::Keep);
        }
    }

    #[test]
    fn file_without_url_or_with_table_is_refused_by_serde() {
        let refusal = |text| toml::from_str::<Config>(text).unwrap_err().to_string();
        assert!(refusal("watchdog = '7s'").contains("url"));
        let nested = refusal("url = 'memory://'\n[a]\nb = 1");
        assert!(nested.contains("a text, a whole number"), "{nested}");
    }

    #[cfg(feature = "toml")]
    #[test]
    fn invalid_file_is_refused_with_name_line_and_key() {
        let folder = std::env::temp_dir().join(format!("distlock-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("locks.toml");
        let refusal = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let error = Config::from_file(&path)
                .and_then(|config| config.refuse_unknown_options(&[]))
                .unwrap_err();
            assert!(error.is_configuration(), "{error:?}");
            assert!(!format!("{error} {error:?}").contains("s3cret"), "{error:?}");
            error.to_string().replace(&path.display().to_string(), "FILE")
        };
        const URL: &str = "# locks\nurl = 'memory://u:s3cret@h'\n";
        for (lines, says) in [
            (
                "wachdog = '7s'",
                "FILE, line 3: there is no option `wachdog` for `memory://` (did you mean \
                `watchdog`?); there",
            ),
            ("\npool = 'many'", "FILE, line 4: `pool=many` is not a number of connections"),
            ("pool = 0", "FILE, line 3: pool 0 is not between 1 and 10000"),
            ("watchdog = '1ms'", "FILE, line 3: watchdog 1ms: "),
            ("watchdog = 1.5", "FILE, line 3: `watchdog` is a fraction: a setting is a text"),
            ("watchdog = 30", "FILE, line 3: `watchdog=30` is not a duration, as in `30s`"),
            ("pool = 0x10", "FILE, line 3: `pool` is a number that is not decimal"),
            ("[tls]\nca = 'x'", "FILE, line 3: `tls` is a table"),
            ("pool = 1\npool = 2", "FILE, line 4: not TOML: duplicate key"),
            ("pool = ", "FILE, line 3: not TOML: "),
            ("url = 'memory://u:s3cret@h'", "FILE, line 3: not TOML: duplicate key"),
        ] {
            let refused = refusal(&format!("{URL}{lines}"));
            assert!(refused.starts_with(says), "{lines}: {refused}");
        }
        for (text, says) in [
            ("pool = 1", "FILE, there is no `url`"),
            ("url = 's3cret'", "FILE, line 1: the URL has no `scheme://`"),
            ("url = 'redis://u:s3cret@h", "FILE, line 1: not TOML: "),
            ("\nurl = 'memory://u:s3cret@h?pool=1&pool=1'", "FILE, line 2: the option `pool` is"),
            ("url = 7", "FILE, line 1: the URL has no `scheme://`"),
        ] {
            let refused = refusal(text);
            assert!(refused.starts_with(says), "{text}: {refused}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        let missing = Config::from_file(&path).unwrap_err();
        assert!(missing.to_string().contains("locks.toml"), "{missing}");
        assert!(std::error::Error::source(&missing).is_some(), "{missing:?}");
        assert!(Config::from_toml("pool = 1").unwrap_err().to_string().starts_with("there is no"));
    }
}
