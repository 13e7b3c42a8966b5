//! The option `format=`: the name of a format, followed by that format's settings, as in
//! `format=token,poll=10ms`.

use super::owned::OwnedFormat;
use super::{Dialect, OPTION, REDISSON, TOKEN};
use crate::lua::foreign_client::ForeignClient;
use crate::wakeups::PollInterval;
use lock_core::{Config, Error};
use std::time::Duration;

/// The longest interval that `poll=` accepts, because a longer one is a mistake.
const LONGEST_POLL: Duration = Duration::from_secs(60 * 60);

/// The names of all formats, for messages.
const FORMATS: &str = "`redisson` (the default), `token`, `plain`, `timestamp` and `counter`";

/// Reads the format that `config` names. It must be a format with owners.
pub(super) fn read_owned_format(config: &Config) -> Result<OwnedFormat, Error> {
    let mut settings = Settings::of(config);
    match settings.name {
        "redisson" => {
            let format = owned(config, &mut settings, &REDISSON)?;
            settings.must_be_used_up("`poll=` and `jitter=`")?;
            Ok(format)
        }
        "token" => {
            let wakes = settings.one_of(&ForeignClient::WORDS)?;
            if let Some(complaint) = wakes.and_then(|wakes| wakes.complaint(config.prefix())) {
                return Err(settings.refuse(complaint));
            }
            let format = owned(
                config,
                &mut settings,
                wakes.map_or(&TOKEN, ForeignClient::dialect),
            )?;
            settings.must_be_used_up(
                "`poll=` and `jitter=`, `wakes=` with `python-redis-lock` or `spring-integration`",
            )?;
            Ok(format)
        }
        "plain" | "timestamp" | "counter" => Err(settings
            .refuse("it does not know who holds a lock: `format=redisson` and `format=token` do")),
        other => Err(Error::configuration(format!(
            "there is no format `{}`; there are {FORMATS}",
            other.escape_debug()
        ))),
    }
}

fn owned(
    config: &Config,
    settings: &mut Settings<'_>,
    dialect: &'static Dialect,
) -> Result<OwnedFormat, Error> {
    let usual = dialect.detects_silent_holders.then(|| {
        dialect
            .wakes()
            .map(ForeignClient::usual_polls)
            .unwrap_or_default()
    });
    if usual.is_none() && settings.has("jitter") && !settings.has("poll") {
        return Err(settings.refuse("`jitter` is what `poll` is made longer by, and there is none"));
    }
    let polls = settings.polls(usual.unwrap_or_default())?.or(usual);
    Ok(OwnedFormat::new(dialect, config, polls))
}

/// The name of a format, and those of its settings that have not been read yet.
pub(crate) struct Settings<'a> {
    pub(crate) name: &'a str,
    left: Vec<&'a str>,
}

impl<'a> Settings<'a> {
    pub(crate) fn of(config: &'a Config) -> Self {
        let text = config.scheme_option(OPTION).unwrap_or("redisson");
        let (name, settings) = text.split_once(',').unwrap_or((text, ""));
        Self {
            name,
            left: settings
                .split(',')
                .filter(|setting| !setting.is_empty())
                .collect(),
        }
    }

    /// Returns the value of the setting among `words` that is present; `None` if none is. More than
    /// one of these settings, or one of them twice, is refused.
    pub(crate) fn one_of<T: Copy>(&mut self, words: &[(&str, T)]) -> Result<Option<T>, Error> {
        let mut found = None;
        for (word, value) in words {
            while let Some(at) = self.left.iter().position(|setting| setting == word) {
                self.left.swap_remove(at);
                if found.replace(*value).is_some() {
                    let words: Vec<_> = words.iter().map(|(word, _)| format!("`{word}`")).collect();
                    return Err(
                        self.refuse(&format!("only one of {} is possible", words.join(", ")))
                    );
                }
            }
        }
        Ok(found)
    }

    fn has(&self, name: &str) -> bool {
        self.left
            .iter()
            .any(|setting| setting.split('=').next() == Some(name))
    }

    fn duration(&mut self, name: &str) -> Result<Option<Duration>, Error> {
        let is_it = |setting: &&str| {
            setting
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('='))
        };
        let Some(at) = self.left.iter().position(is_it) else {
            return Ok(None);
        };
        let setting = self.left.swap_remove(at);
        let read = Config::parse_duration(&setting[name.len() + 1..]);
        read.map(Some).map_err(|_| {
            self.refuse(&format!(
                "`{}` is not a duration, as in `{name}=100ms`",
                setting.escape_debug()
            ))
        })
    }

    /// Returns the interval at which a waiter polls, if `poll` or `jitter` is set. Without `poll`,
    /// the interval is that of `usual`.
    pub(crate) fn polls(&mut self, usual: PollInterval) -> Result<Option<PollInterval>, Error> {
        let (interval, jitter) = (self.duration("poll")?, self.duration("jitter")?);
        if interval.is_none() && jitter.is_none() {
            return Ok(None);
        }
        let polls = PollInterval::new(interval.unwrap_or(usual.interval), jitter);
        if polls.interval.is_zero() {
            return Err(self.refuse("`poll=0` would ask without a pause"));
        }
        if polls.interval > LONGEST_POLL {
            return Err(self.refuse("`poll` is longer than an hour"));
        }
        if polls.jitter > polls.interval {
            return Err(
                self.refuse("`jitter` is what `poll` is made longer by, and longer than that")
            );
        }
        Ok(Some(polls))
    }

    /// Refuses settings that have not been read. `known` lists the settings of this format, for the
    /// message.
    pub(crate) fn must_be_used_up(&self, known: &str) -> Result<(), Error> {
        match self.left.first() {
            None => Ok(()),
            Some(unknown) => Err(self.refuse(&format!(
                "there is no setting `{}`; there are {known}",
                unknown.escape_debug()
            ))),
        }
    }

    pub(crate) fn refuse(&self, complaint: &str) -> Error {
        Error::configuration(format!("`{OPTION}={}`: {complaint}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::backend::{Answer, ReplicaSupport, Waking};

    fn format(text: &str) -> Result<OwnedFormat, Error> {
        read_owned_format(&Config::from_url(&format!("redis://h?format={text}")).unwrap())
    }

    #[test]
    fn every_format_is_found_by_its_name_and_says_what_it_can() {
        let usual = read_owned_format(&Config::from_url("redis://h").unwrap()).unwrap();
        assert_eq!(usual.dialect.name, "redisson");
        for (text, name) in [
            ("redisson", "redisson"),
            ("redisson,poll=20ms", "redisson"),
            ("token", "token"),
            ("token,poll=50ms,jitter=0ms", "token"),
            ("token,wakes=python-redis-lock&prefix=lock:", "token"),
            (
                "token,wakes=spring-integration,poll=1s&prefix=registry:",
                "token",
            ),
        ] {
            let format = format(text).unwrap();
            assert_eq!(format.dialect.name, name, "{text}");
            let abilities = format.abilities(ReplicaSupport::Counted);
            assert!(abilities.renewable && abilities.tokens, "{text}");
            assert_eq!(abilities.waking, Waking::Publishes, "{text}");
            assert_eq!(abilities.replication, ReplicaSupport::Counted, "{text}");
        }
    }

    #[test]
    fn busy_pause_depends_on_the_foreign_client() {
        for (text, millis) in [
            ("redisson,poll=20ms", 20..=25),
            ("token", 100..=125),
            ("token,wakes=spring-integration&prefix=registry:", 100..=125),
            ("token,wakes=python-redis-lock&prefix=lock:", 10..=13),
            (
                "token,wakes=python-redis-lock,poll=40ms&prefix=lock:",
                40..=50,
            ),
            (
                "token,wakes=python-redis-lock,jitter=0ms&prefix=lock:",
                10..=10,
            ),
            ("token,jitter=0ms", 100..=100),
        ] {
            let format = format(text).unwrap();
            let Answer::Busy(Some(pause)) = format.busy(30_000, false, false) else {
                panic!("{text}")
            };
            assert!(millis.contains(&pause.as_millis()), "{text}: {pause:?}");
            if text.starts_with("redisson") {
                let told = format.busy(30_000, true, false);
                let is_short = |left: Duration| millis.contains(&left.as_millis());
                assert!(matches!(told, Answer::Busy(Some(left)) if is_short(left)));
            }
            let tracked = format.busy(30_000, false, true);
            assert!(
                matches!(tracked, Answer::Busy(Some(left)) if left.as_secs() == 30),
                "{text}"
            );
        }
    }

    #[test]
    fn unknown_format_or_setting_is_refused_by_name() {
        for (text, says) in [
            ("", "there is no format ``; there are `redisson`"),
            ("Redisson", "no format `Redisson`"),
            (
                "token,set",
                "`format=token`: there is no setting `set`; there are `poll=` and `jitter=`",
            ),
            (
                "token,wakes=redis-py",
                "no setting `wakes=redis-py`; there are `poll=` and `jitter=`, `wakes=` with \
                 `python-redis-lock` or `spring-integration`",
            ),
            (
                "redisson,wakes=spring-integration",
                "there are `poll=` and `jitter=`",
            ),
            ("token,wakes=python-redis-lock", "needs `prefix=lock:`"),
            (
                "token,wakes=python-redis-lock&prefix=registry:",
                "needs `prefix=lock:`",
            ),
            ("token,wakes=python-redis-lock&prefix=lock:app:", ""),
            (
                "token,wakes=spring-integration",
                "a prefix that ends with `:`",
            ),
            (
                "token,wakes=spring-integration&prefix=:",
                "a prefix that ends with `:`",
            ),
            (
                "token,wakes=spring-integration&prefix=registry",
                "a prefix that ends with `:`",
            ),
            (
                "token,wakes=spring-integration,wakes=python-redis-lock&prefix=lock:",
                "only one of `wakes=python-redis-lock`, `wakes=spring-integration`",
            ),
            ("redisson,poll=0s", "without a pause"),
            ("redisson,jitter=1ms", "and there is none"),
            ("token,jitter=1h", "longer than that"),
            ("plain", "does not know who holds a lock"),
            ("redisson,", ""),
            (
                "token,poll=500000000000y,jitter=500000000000y",
                "longer than an hour",
            ),
        ] {
            match format(text) {
                Ok(_) => assert_eq!(says, "", "{text}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(
                        error.is_configuration() && !says.is_empty(),
                        "{text}: {said}"
                    );
                    assert!(said.contains(says), "{text}: {said}");
                }
            }
        }
    }
}
