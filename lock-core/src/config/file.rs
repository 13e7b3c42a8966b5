//! Settings from a file in any format that serde reads.

use super::Config;
use super::option::Source;
use crate::error::Error;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The value of a setting in a file.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "a setting is a text, a whole number, or true or false"
)]
pub(super) enum Scalar {
    Text(String),
    Number(i64),
    Truth(bool),
}

pub(super) const NO_URL: &str = "there is no `url`, as in url = \"redis://127.0.0.1:6379\"";

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
            let file = Source::Direct("file");
            config
                .set(&option, &value, &file)
                .map_err(Error::configuration)?;
            config.note_origin(&option, &file);
        }
        Ok(config)
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
        let as_written = |config: Config| {
            assert_eq!(
                (config.pool(), config.watchdog()),
                (3, Duration::from_secs(7))
            );
            assert_eq!(config.tokens(), TokenPolicy::Keep);
        };
        as_written(toml::from_str(TEXT).unwrap());
        #[cfg(feature = "toml")]
        as_written(Config::from_toml(TEXT).unwrap());
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
            assert!(
                !format!("{error} {error:?}").contains("s3cret"),
                "{error:?}"
            );
            error
                .to_string()
                .replace(&path.display().to_string(), "FILE")
        };
        const URL: &str = "# locks\nurl = 'memory://u:s3cret@h'\n";
        for (lines, says) in [
            (
                "wachdog = '7s'",
                "FILE, line 3: there is no option `wachdog` for `memory://` (did you mean \
                `watchdog`?); there",
            ),
            (
                "\npool = 'many'",
                "FILE, line 4: `pool=many` is not a number of connections",
            ),
            (
                "pool = 0",
                "FILE, line 3: pool 0 is not between 1 and 10000",
            ),
            ("watchdog = '1ms'", "FILE, line 3: watchdog 1ms: "),
            (
                "watchdog = 1.5",
                "FILE, line 3: `watchdog` is a fraction: a setting is a text",
            ),
            (
                "watchdog = 30",
                "FILE, line 3: `watchdog=30` is not a duration, as in `30s`",
            ),
            (
                "pool = 0x10",
                "FILE, line 3: `pool` is a number that is not decimal",
            ),
            ("[tls]\nca = 'x'", "FILE, line 3: `tls` is a table"),
            (
                "pool = 1\npool = 2",
                "FILE, line 4: not TOML: duplicate key",
            ),
            ("pool = ", "FILE, line 3: not TOML: "),
            (
                "url = 'memory://u:s3cret@h'",
                "FILE, line 3: not TOML: duplicate key",
            ),
        ] {
            let refused = refusal(&format!("{URL}{lines}"));
            assert!(refused.starts_with(says), "{lines}: {refused}");
        }
        for (text, says) in [
            ("pool = 1", "FILE, there is no `url`"),
            ("url = 's3cret'", "FILE, line 1: the URL has no `scheme://`"),
            ("url = 'redis://u:s3cret@h", "FILE, line 1: not TOML: "),
            (
                "\nurl = 'memory://u:s3cret@h?pool=1&pool=1'",
                "FILE, line 2: the option `pool` is",
            ),
            ("url = 7", "FILE, line 1: the URL has no `scheme://`"),
        ] {
            let refused = refusal(text);
            assert!(refused.starts_with(says), "{text}: {refused}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        let missing = Config::from_file(&path).unwrap_err();
        assert!(missing.to_string().contains("locks.toml"), "{missing}");
        assert!(std::error::Error::source(&missing).is_some(), "{missing:?}");
        assert!(
            Config::from_toml("pool = 1")
                .unwrap_err()
                .to_string()
                .starts_with("there is no")
        );
    }
}
