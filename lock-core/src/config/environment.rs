//! Settings from the environment.

use super::Config;
use super::option::{OPTIONS, Place};
use crate::error::Error;
use std::ffi::OsString;

/// The variable that the URL is in.
const URL: &str = "DISTLOCK_URL";

impl Config {
    /// Reads the URL in the environment variable `DISTLOCK_URL`, and then what [`with_env`](Self::with_env) reads.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if `DISTLOCK_URL` is not set, and those of [`with_env`](Self::with_env).
    pub fn from_env() -> Result<Self, Error> {
        Self::default().overlaid(|name| std::env::var_os(name), Needed::Yes)
    }

    /// Lets the environment win over what was set before: the URL in `DISTLOCK_URL`, if it is set, replaces the address,
    /// and its options the settings of the same names; then every setting is taken from the variable that is named
    /// after it, as in `DISTLOCK_WATCHDOG=10s`, if that is set. The options of a scheme have no variables of their own;
    /// they stand in the URL.
    ///
    /// Variables of other names are not looked at, not even if they begin with `DISTLOCK_`: a cluster sets some of that
    /// kind for every service (`DISTLOCK_SERVICE_HOST`), and they are nobody's mistake.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] names the variable, and says what would be accepted.
    pub fn with_env(self) -> Result<Self, Error> {
        self.overlaid(|name| std::env::var_os(name), Needed::No)
    }

    /// The same with other variables than this process's.
    fn overlaid(
        mut self,
        variable: impl Fn(&str) -> Option<OsString>,
        url: Needed,
    ) -> Result<Self, Error> {
        let text = |name: &str| -> Result<Option<String>, Error> {
            let Some(value) = variable(name) else { return Ok(None) };
            let no_text = |_| Error::configuration(format!("{name} is not UTF-8"));
            value.into_string().map(Some).map_err(no_text)
        };
        match (text(URL)?, url) {
            (Some(url), _) => self.take_url(&url, &Place::Named(URL.to_owned()))?,
            (None, Needed::No) => {}
            (None, Needed::Yes) => {
                return Err(Error::configuration(format!(
                    "{URL} does not say which store to use: set it to a URL, as in `redis://127.0.0.1:6379`"
                )));
            }
        }
        for option in OPTIONS {
            let name = format!("DISTLOCK_{}", option.to_ascii_uppercase());
            if let Some(value) = text(&name)? {
                self.take(option, &value, &Place::Named(name))?;
            }
        }
        Ok(self)
    }
}

/// Whether there must be a URL.
enum Needed {
    Yes,
    No,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn overlaid(config: Config, set: &[(&str, &str)]) -> Result<Config, Error> {
        let value = |name: &str| set.iter().find(|(set, _)| *set == name).map(|(_, v)| v.into());
        config.overlaid(value, Needed::No)
    }

    fn refusal(set: &[(&str, &str)]) -> String {
        let error = overlaid(Config::default(), set).unwrap_err();
        assert!(error.is_configuration(), "{error:?}");
        error.to_string()
    }

    #[test]
    fn the_environment_wins_over_what_was_set_before_and_its_variables_over_its_url() {
        let before = Config::from_url("memory://x?pool=1&client_name=me&watchdog=1s").unwrap();
        let kept = overlaid(before.clone(), &[("DISTLOCK_SERVICE_HOST", "1.2.3.4")]).unwrap();
        assert_eq!((kept.pool(), kept.hosts()[0].name.as_str()), (1, "x"));
        let url = ("DISTLOCK_URL", "memory://y?pool=2&watchdog=2s");
        let config = overlaid(before, &[url, ("DISTLOCK_WATCHDOG", "3s")]).unwrap();
        assert_eq!((config.hosts()[0].name.as_str(), config.client_name()), ("y", "me"));
        assert_eq!((config.pool(), config.watchdog()), (2, Duration::from_secs(3)));
    }

    #[test]
    fn every_setting_has_a_variable() {
        let set = [
            ("DISTLOCK_WATCHDOG", "1s"),
            ("DISTLOCK_LEASE", "8s"),
            ("DISTLOCK_OUTAGE_LIMIT", "2s"),
            ("DISTLOCK_HAND_OFF", "7ms"),
            ("DISTLOCK_CONNECT_TIMEOUT", "3s"),
            ("DISTLOCK_COMMAND_TIMEOUT", "4s"),
            ("DISTLOCK_POOL", "5"),
            ("DISTLOCK_CLIENT_NAME", "six"),
            ("DISTLOCK_PREFIX", "seven:"),
            ("DISTLOCK_TOKENS", "off"),
            ("DISTLOCK_KEEP", "2h"),
            ("DISTLOCK_REPLICAS", "all"),
            ("DISTLOCK_REPLICATION_TIMEOUT", "9s"),
            ("DISTLOCK_ON_SHORTFALL", "fail"),
            ("DISTLOCK_UNCONFIRMED_RENEWALS", "keep"),
        ];
        assert_eq!(set.len(), OPTIONS.len());
        for one in set {
            let shown = |config: Config| format!("{config:?}");
            let changed = shown(overlaid(Config::default(), &[one]).unwrap());
            assert_ne!(changed, shown(Config::default()), "{one:?}");
        }
    }

    #[test]
    fn a_variable_that_makes_no_sense_is_named() {
        assert!(refusal(&[("DISTLOCK_POOL", "many")]).starts_with("DISTLOCK_POOL: `pool=many`"));
        assert!(refusal(&[("DISTLOCK_POOL", "0")]).starts_with("DISTLOCK_POOL: pool 0 is not"));
        assert!(refusal(&[("DISTLOCK_TOKENS", "")]).starts_with("DISTLOCK_TOKENS: `tokens=`"));
        assert!(refusal(&[("DISTLOCK_URL", "s3cret")]).starts_with("DISTLOCK_URL: the URL has"));
        assert!(!refusal(&[("DISTLOCK_URL", "s3cret")]).contains("s3cret"));
        let unset = Config::default().overlaid(|_| None, Needed::Yes).unwrap_err().to_string();
        assert!(unset.contains("DISTLOCK_URL"), "{unset}");
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStringExt;
            let bytes = |_: &str| Some(OsString::from_vec(vec![0xff]));
            let refused = Config::default().overlaid(bytes, Needed::No).unwrap_err().to_string();
            assert_eq!(refused, "DISTLOCK_URL is not UTF-8");
        }
    }
}
