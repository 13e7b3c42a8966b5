//! Settings from environment variables.

use super::definitions::names;
use super::option::{PREFIX, Source};
use super::{Config, similar};
use crate::error::Error;
use crate::observe::event::WarningKind;
use crate::observe::notices::Notices;
use std::ffi::OsString;

/// The variable that holds the URL.
pub(super) const URL: &str = "DISTLOCK_URL";

/// Variables of the command `distlock`, which are not settings: its subcommand `run` sets the first
/// three for the child process, and the last one names the configuration file.
const OF_THE_COMMAND: [&str; 4] = [
    "DISTLOCK_NAME",
    "DISTLOCK_TOKEN",
    "DISTLOCK_DEADLINE",
    "DISTLOCK_CONFIG",
];

impl Config {
    /// Reads the URL in the environment variable `DISTLOCK_URL`, and then all variables of
    /// [`with_env`](Self::with_env).
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] if `DISTLOCK_URL` is not set or empty, and those of
    /// [`with_env`](Self::with_env).
    pub fn from_env() -> Result<Self, Error> {
        if set_variable(URL).is_none() {
            return Err(Error::configuration(format!(
                "{URL} does not say which store to use: set it to a URL, as in \
                `redis://127.0.0.1:6379`"
            )));
        }
        Self::default().with_env()
    }

    /// Overrides the current settings with those of the environment.
    ///
    /// The URL in `DISTLOCK_URL`, if set, replaces the address, and its options replace the
    /// settings of the same names. Then each setting is read from the variable that is named after
    /// the setting, as in `DISTLOCK_WATCHDOG=10s`, if that variable is set. An empty variable
    /// counts as not set. The options of a scheme have no variables: write them in the URL.
    ///
    /// Any other variable that begins with `DISTLOCK_`, in capital or small letters, is reported
    /// when the client is created. A variable whose name resembles `DISTLOCK_URL` or the variable
    /// of a setting, or names an option of the scheme, is refused. The others cause a
    /// [warning](crate::WarningKind::UnknownVariable). Not reported are the variables of the
    /// command (`DISTLOCK_NAME`, `DISTLOCK_TOKEN`, `DISTLOCK_DEADLINE`, `DISTLOCK_CONFIG`), and
    /// those that Kubernetes sets for a service whose name begins with `distlock`
    /// (`DISTLOCK_SERVICE_HOST`, `DISTLOCK_REDIS_PORT_6379_TCP`).
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with the variable and the accepted values.
    pub fn with_env(self) -> Result<Self, Error> {
        let config = self.overlaid(set_variable)?;
        Ok(config.noting_unknown(std::env::vars_os().filter(is_set)))
    }

    /// Applies the values of the environment variables, which `variable` returns by name.
    pub(super) fn overlaid(
        mut self,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, Error> {
        let text = |name: &str| -> Result<Option<String>, Error> {
            let Some(value) = variable(name) else {
                return Ok(None);
            };
            let no_text = |_| Error::configuration(format!("{name} is not UTF-8"));
            value.into_string().map(Some).map_err(no_text)
        };
        if let Some(url) = text(URL)? {
            self.take_url(&url, &Source::Named(URL.to_owned()))?;
        }
        for option in names() {
            let name = variable_of(option);
            if let Some(value) = text(&name)? {
                self.take(option, &value, &Source::Named(name))?;
            }
        }
        Ok(self)
    }

    /// Records the variables that begin with [`PREFIX`] and are neither settings nor otherwise
    /// known.
    pub(super) fn noting_unknown(
        mut self,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Self {
        let is_known = |name: &str| {
            name == URL
                || OF_THE_COMMAND.contains(&name)
                || names().any(|option| variable_of(option) == name)
        };
        let has_prefix = |name: &str| {
            name.get(..PREFIX.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
        };
        let named = variables.filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        let unknown = named.filter(|(name, value)| {
            has_prefix(name) && !is_known(name) && !is_of_kubernetes(name, &value.to_string_lossy())
        });
        self.unknown_variables = unknown.map(|(name, _)| name).collect();
        self.unknown_variables.sort_unstable();
        self.reads_environment = true;
        self
    }

    /// Returns those environment variables of settings that have a value but were not read: only
    /// [`with_env`](Self::with_env) reads variables. `DISTLOCK_URL` is not listed.
    #[must_use]
    pub fn ignored_variables(&self) -> Vec<String> {
        if self.reads_environment {
            return Vec::new();
        }
        let variables = names().map(variable_of);
        variables
            .filter(|name| set_variable(name).is_some())
            .collect()
    }

    /// Removes the recorded variables and marks the environment as read, so that a further client
    /// of the program does not report variables again.
    pub(crate) fn without_unknown_variables(mut self) -> Self {
        self.unknown_variables.clear();
        self.reads_environment = true;
        self
    }

    /// Refuses recorded variables whose names resemble `DISTLOCK_URL` or the variable of a setting,
    /// or name an option of the scheme. `also` are the options of the scheme.
    pub(super) fn refuse_misspelt_variables(&self, also: &[&str]) -> Result<(), Error> {
        for name in &self.unknown_variables {
            let option = name[PREFIX.len()..].to_ascii_lowercase();
            if also.contains(&option.as_str()) {
                return Err(Error::configuration(format!(
                    "{name} is not read: `{option}` is an option of `{}://`, which stands in the \
                    URL",
                    self.scheme()
                )));
            }
            if let Some(meant) = similar(&option, names().chain(["url"])) {
                let meant = variable_of(meant);
                return Err(Error::configuration(format!(
                    "there is no variable {name}: did you mean {meant}?"
                )));
            }
        }
        Ok(())
    }

    /// Warns of the recorded variables, and of the [ignored](Self::ignored_variables) ones.
    pub(crate) fn warn_of_variables(&self, notices: &Notices) {
        let ignored = self.ignored_variables();
        if !ignored.is_empty() {
            notices.warn(WarningKind::UnknownVariable, || {
                format!(
                    "the settings do not come from the environment, so these variables are not \
                     read: {} (`Config::with_env` reads them)",
                    ignored.join(", ")
                )
            });
        }
        for name in &self.unknown_variables {
            notices.warn(WarningKind::UnknownVariable, || {
                format!("the environment variable {name} is not read: there is no such setting")
            });
        }
    }
}

/// Returns the value of an environment variable; `None` if the variable is empty or not set.
fn set_variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
}

/// Returns true unless the variable is empty, which counts as not set.
pub(super) fn is_set((_, value): &(OsString, OsString)) -> bool {
    !value.is_empty()
}

fn variable_of(option: &str) -> String {
    [PREFIX, &option.to_ascii_uppercase()].concat()
}

/// Returns whether the variable looks like one that Kubernetes sets for a service, such as
/// `DISTLOCK_REDIS_SERVICE_HOST` and `DISTLOCK_REDIS_PORT_6379_TCP_ADDR`.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    let is_url = || value.starts_with("tcp://") || value.starts_with("udp://");
    let is_port = |after: &str| {
        let mut parts = after.split('_');
        parts.next().is_some_and(|port| port.parse::<u16>().is_ok())
            && parts
                .next()
                .is_some_and(|protocol| PROTOCOLS.contains(&protocol))
    };
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_SERVICE_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.ends_with("_PORT") && is_url()
        || name.split("_PORT_").skip(1).any(is_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Event;
    use std::sync::Arc;
    use std::time::Duration;

    fn overlaid(config: Config, set: &[(&str, &str)]) -> Result<Config, Error> {
        let value = |name: &str| {
            set.iter()
                .find(|(set, _)| *set == name)
                .map(|(_, v)| v.into())
        };
        config.overlaid(value)
    }

    fn refusal(set: &[(&str, &str)]) -> String {
        let error = overlaid(Config::default(), set).unwrap_err();
        assert!(error.is_configuration(), "{error:?}");
        error.to_string()
    }

    #[test]
    fn environment_wins_over_settings_and_variables_over_its_url() {
        let before = Config::from_url("memory://x?pool=1&client_name=me&watchdog=1s").unwrap();
        let kept = overlaid(before.clone(), &[("DISTLOCK_SERVICE_HOST", "1.2.3.4")]).unwrap();
        assert_eq!((kept.pool(), kept.hosts()[0].name.as_str()), (1, "x"));
        let url = ("DISTLOCK_URL", "memory://y?pool=2&watchdog=2s");
        let config = overlaid(before, &[url, ("DISTLOCK_WATCHDOG", "3s")]).unwrap();
        assert_eq!(
            (config.hosts()[0].name.as_str(), &*config.client_name()),
            ("y", "me")
        );
        assert_eq!(
            (config.pool(), config.watchdog()),
            (2, Duration::from_secs(3))
        );
    }

    fn noting(names: &[&str]) -> Config {
        noting_values(names.iter().map(|name| (*name, "")))
    }

    fn noting_values<'a>(set: impl Iterator<Item = (&'a str, &'a str)>) -> Config {
        Config::default().noting_unknown(set.map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn misspelt_variable_is_refused() {
        for (name, says) in [
            (
                "DISTLOCK_WACHDOG",
                "no variable DISTLOCK_WACHDOG: did you mean DISTLOCK_WATCHDOG?",
            ),
            ("DISTLOCK_URI", "did you mean DISTLOCK_URL?"),
            ("distlock_pool", "did you mean DISTLOCK_POOL?"),
            (
                "DISTLOCK_COMMAND_TIME_OUT",
                "did you mean DISTLOCK_COMMAND_TIMEOUT?",
            ),
            (
                "DISTLOCK_FORMAT",
                "`format` is an option of `memory://`, which stands in the URL",
            ),
        ] {
            let refused = noting(&[name])
                .refuse_unknown_options(&["format"])
                .unwrap_err();
            assert!(
                refused.is_configuration() && refused.to_string().contains(says),
                "{refused}"
            );
        }
    }

    #[test]
    fn known_variables_are_not_noted_and_unknown_ones_are() {
        let others = ["DISTLOCK_URL", "DISTLOCK_POOL", "PATH"];
        let known = noting(&[&OF_THE_COMMAND[..], &others].concat());
        assert_eq!(known.unknown_variables, [""; 0]);
        let unknown = noting(&["DISTLOCK_GREETING", "PATH", "DISTLOCK_PORT_X"]);
        assert_eq!(
            unknown.unknown_variables,
            ["DISTLOCK_GREETING", "DISTLOCK_PORT_X"]
        );
        unknown.refuse_unknown_options(&[]).unwrap();
    }

    #[test]
    fn variables_of_kubernetes_services_are_not_noted() {
        let of_a_service = |service: &str| {
            [
                ("SERVICE_HOST", "10.0.0.11"),
                ("SERVICE_PORT", "6379"),
                ("SERVICE_PORT_REDIS", "6379"),
                ("PORT", "tcp://10.0.0.11:6379"),
                ("PORT_6379_TCP", "tcp://10.0.0.11:6379"),
                ("PORT_6379_TCP_PROTO", "tcp"),
                ("PORT_6379_TCP_PORT", "6379"),
                ("PORT_6379_TCP_ADDR", "10.0.0.11"),
                ("PORT_53_UDP", "udp://10.0.0.11:53"),
            ]
            .map(|(name, value)| (format!("{service}_{name}"), value))
        };
        for service in ["DISTLOCK", "DISTLOCK_REDIS", "DISTLOCK_PORT_REDIS"] {
            let set = of_a_service(service);
            let config = noting_values(set.iter().map(|(name, value)| (name.as_str(), *value)));
            assert_eq!(config.unknown_variables, [""; 0], "{service}");
        }
        let set = [
            ("DISTLOCK_REDIS_PORT", "6379"),
            ("DISTLOCK_REDIS_PORT_6379", "x"),
        ];
        let config = noting_values(set.into_iter());
        assert_eq!(config.unknown_variables, set.map(|(name, _)| name));
    }

    #[test]
    fn unknown_variable_is_warned_of_once_for_all_variants() {
        let (sender, warnings) = crossbeam_channel::unbounded();
        let handler = move |event: &Event| {
            if let Event::Warning {
                kind: WarningKind::UnknownVariable,
                message,
            } = event
            {
                sender.send(message.clone()).unwrap();
            }
        };
        let config = noting(&["DISTLOCK_GREETING"]);
        let client = crate::builder()
            .config(config)
            .events(Arc::new(handler))
            .connect()
            .unwrap();
        let variants = ["2s", "3s"].map(|lease| client.with_option("watchdog", lease).unwrap());
        drop((variants, client));
        // The threads of the event handlers end with their clients. The handlers, and with them the
        // sender, are dropped then.
        let next = || warnings.recv_timeout(Duration::from_secs(60));
        assert!(next().unwrap().contains("DISTLOCK_GREETING"));
        assert_eq!(
            next(),
            Err(crossbeam_channel::RecvTimeoutError::Disconnected)
        );
    }

    #[test]
    fn every_setting_has_a_variable() {
        let set = [
            ("DISTLOCK_PASSWORD_FILE", "/run/secrets/redis"),
            ("DISTLOCK_WATCHDOG", "1s"),
            ("DISTLOCK_LEASE", "8s"),
            ("DISTLOCK_OUTAGE_LIMIT", "2s"),
            ("DISTLOCK_HAND_OFF", "7ms"),
            ("DISTLOCK_ORDER", "fair"),
            ("DISTLOCK_FAIR_PRESENCE", "5s"),
            ("DISTLOCK_CONNECT_TIMEOUT", "3s"),
            ("DISTLOCK_COMMAND_TIMEOUT", "4s"),
            ("DISTLOCK_POOL", "5"),
            ("DISTLOCK_CLIENT_NAME", "six"),
            ("DISTLOCK_OWNER", "off"),
            ("DISTLOCK_PREFIX", "seven:"),
            ("DISTLOCK_WRITERS", "equal"),
            ("DISTLOCK_TOKENS", "off"),
            ("DISTLOCK_TOKEN_RETENTION", "2h"),
            ("DISTLOCK_REPLICAS", "all"),
            ("DISTLOCK_REPLICATION_TIMEOUT", "9s"),
            ("DISTLOCK_ON_INSUFFICIENT_REPLICAS", "fail"),
            ("DISTLOCK_UNCONFIRMED_RENEWALS", "keep"),
            ("DISTLOCK_RESTART_GRACE", "30s"),
        ];
        assert_eq!(set.len(), names().count());
        for one in set {
            let shown = |config: Config| format!("{config:?}");
            let changed = shown(overlaid(Config::default(), &[one]).unwrap());
            assert_ne!(changed, shown(Config::default()), "{one:?}");
        }
    }

    #[test]
    fn variable_with_invalid_value_is_named() {
        assert!(refusal(&[("DISTLOCK_POOL", "many")]).starts_with("DISTLOCK_POOL: `pool=many`"));
        assert!(refusal(&[("DISTLOCK_POOL", "0")]).starts_with("DISTLOCK_POOL: pool 0 is not"));
        assert!(refusal(&[("DISTLOCK_TOKENS", "")]).starts_with("DISTLOCK_TOKENS: `tokens=`"));
        assert!(refusal(&[("DISTLOCK_URL", "s3cret")]).starts_with("DISTLOCK_URL: the URL has"));
        assert!(!refusal(&[("DISTLOCK_URL", "s3cret")]).contains("s3cret"));
        if std::env::var_os(URL).is_none() {
            let unset = Config::from_env().unwrap_err().to_string();
            assert!(unset.contains("DISTLOCK_URL"), "{unset}");
        }
        #[cfg(unix)]
        {
            use std::os::unix::ffi::OsStringExt;
            let bytes = |_: &str| Some(OsString::from_vec(vec![0xff]));
            let refused = Config::default().overlaid(bytes).unwrap_err().to_string();
            assert_eq!(refused, "DISTLOCK_URL is not UTF-8");
        }
    }
}
