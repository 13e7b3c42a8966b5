//! What `format=` says: the name of a format, and its own settings behind it, as in `format=timestamp,float,poll=10ms`.

use super::counter::Counter;
use super::owned::Owned;
use super::plain::Plain;
use super::polls::Polls;
use super::timestamp::{Rule, Spelling, Takeover, Timestamp};
use super::unowned::{Algorithm, Unowned};
use super::{Kind, OPTION, REDISSON, Shape, TOKEN};
use crate::keys::Keys;
use crate::neighbour::Neighbour;
use lock_core::{Config, Context, Error};
use std::sync::Arc;
use std::time::Duration;

/// Who asks less often than this does not wait, but forget.
const LONGEST_POLL: Duration = Duration::from_secs(60 * 60);

/// What there is, for messages.
const FORMATS: &str = "`redisson` (the default), `token`, `plain`, `timestamp` and `counter`";

pub(super) fn read(config: &Config, context: &Context) -> Result<Kind, Error> {
    let text = config.scheme_option(OPTION).unwrap_or("redisson");
    let (name, settings) = text.split_once(',').unwrap_or((text, ""));
    let mut settings = Settings { name, left: settings.split(',').collect() };
    settings.left.retain(|setting| !setting.is_empty());
    let kind = match name {
        "redisson" => owned(config, &mut settings, &REDISSON)?,
        "token" => {
            let wakes = settings.one_of(&Neighbour::WORDS)?;
            if let Some(complaint) = wakes.and_then(|wakes| wakes.complaint(config.prefix())) {
                return Err(settings.refuse(complaint));
            }
            owned(config, &mut settings, wakes.map_or(&TOKEN, Neighbour::shape))?
        }
        "plain" => {
            let forms = [("set", Plain::Set), ("commands", Plain::Commands)];
            let form = settings.one_of(&forms)?.unwrap_or(Plain::Set);
            unowned(config, &mut settings, Algorithm::Plain(form))?
        }
        "timestamp" => {
            let algorithm = Algorithm::Timestamp(timestamp(&mut settings, context)?);
            unowned(config, &mut settings, algorithm)?
        }
        "counter" => {
            let forms = [
                ("commands", Counter::Commands),
                ("multi", Counter::Transaction),
                ("lua", Counter::Script),
            ];
            let form = settings.one_of(&forms)?.unwrap_or(Counter::Commands);
            unowned(config, &mut settings, Algorithm::Counter(form))?
        }
        other => {
            return Err(Error::configuration(format!(
                "there is no format `{}`; there are {FORMATS}",
                other.escape_debug()
            )));
        }
    };
    settings.must_be_used_up()?;
    Ok(kind)
}

fn timestamp(settings: &mut Settings<'_>, context: &Context) -> Result<Timestamp, Error> {
    let spellings = [("seconds", Spelling::Seconds), ("float", Spelling::Float)];
    let spelling = settings.one_of(&spellings)?.unwrap_or(Spelling::Seconds);
    let rules = [
        ("release=delete", Rule::Delete),
        ("release=not-older", Rule::NotOlder),
        ("release=compare", Rule::Compare),
    ];
    let usual = match spelling {
        Spelling::Seconds => Rule::Delete,
        Spelling::Float => Rule::NotOlder,
    };
    let rule = settings.one_of(&rules)?.unwrap_or(usual);
    let takeovers = [("takeover=getset", Takeover::GetSet), ("takeover=delete", Takeover::Delete)];
    let takeover = settings.one_of(&takeovers)?.unwrap_or(Takeover::GetSet);
    Ok(Timestamp { spelling, takeover, rule, clock: Arc::clone(&context.clock) })
}

fn owned(
    config: &Config,
    settings: &mut Settings<'_>,
    shape: &'static Shape,
) -> Result<Kind, Error> {
    let usual =
        shape.tells_apart.then(|| shape.wakes().map(Neighbour::usual_polls).unwrap_or_default());
    if usual.is_none() && settings.has("jitter") && !settings.has("poll") {
        return Err(settings.refuse("`jitter` is what `poll` is made longer by, and there is none"));
    }
    let polls = settings.polls(usual.unwrap_or_default())?.or(usual);
    Ok(Kind::Owned(Owned::new(shape, config, polls)))
}

fn unowned(
    config: &Config,
    settings: &mut Settings<'_>,
    algorithm: Algorithm,
) -> Result<Kind, Error> {
    let usual = Polls::default();
    let polls = settings.polls(usual)?.unwrap_or(usual);
    // A lease that is asked for later is looked at then.
    if let Some(lease) = config.lease().filter(|lease| polls.interval >= *lease) {
        let interval = polls.interval;
        return Err(settings.refuse(&format!(
            "who waits asks every {interval:?}, and lease={lease:?} is no longer than that: set `poll` below it"
        )));
    }
    Ok(Kind::Unowned(Unowned { keys: Keys::new(config.prefix()), algorithm, polls, stops: None }))
}

/// What stands behind the name and was not read yet.
struct Settings<'a> {
    name: &'a str,
    left: Vec<&'a str>,
}

impl Settings<'_> {
    /// The one of these that is there; two are a contradiction.
    fn one_of<T: Copy>(&mut self, words: &[(&str, T)]) -> Result<Option<T>, Error> {
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
        self.left.iter().any(|setting| setting.split('=').next() == Some(name))
    }

    fn duration(&mut self, name: &str) -> Result<Option<Duration>, Error> {
        let is_it =
            |setting: &&str| setting.strip_prefix(name).is_some_and(|rest| rest.starts_with('='));
        let Some(at) = self.left.iter().position(is_it) else { return Ok(None) };
        let setting = self.left.swap_remove(at);
        let read = humantime::parse_duration(&setting[name.len() + 1..]);
        read.map(Some).map_err(|_| {
            self.refuse(&format!(
                "`{}` is not a duration, as in `{name}=100ms`",
                setting.escape_debug()
            ))
        })
    }

    /// How often who waits asks again, if anything is said of it; what is not said is as usual.
    fn polls(&mut self, usual: Polls) -> Result<Option<Polls>, Error> {
        let (interval, jitter) = (self.duration("poll")?, self.duration("jitter")?);
        if interval.is_none() && jitter.is_none() {
            return Ok(None);
        }
        let polls = Polls::new(interval.unwrap_or(usual.interval), jitter);
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

    fn must_be_used_up(&self) -> Result<(), Error> {
        match self.left.first() {
            None => Ok(()),
            Some(unknown) => Err(self.refuse(&format!(
                "there is no setting `{}`; {}",
                unknown.escape_debug(),
                match self.name {
                    "redisson" => "there are `poll=` and `jitter=`",
                    "token" => {
                        "there are `poll=` and `jitter=`, `wakes=` with `python-redis-lock` or `spring-integration`"
                    }
                    "timestamp" => {
                        "there are `seconds` and `float`, `takeover=` with `getset` or `delete`, `release=` with `delete`, `not-older` or `compare`, `poll=` and `jitter=`"
                    }
                    "counter" => "there are `commands`, `multi` and `lua`, `poll=` and `jitter=`",
                    _ => "there are `set` and `commands`, `poll=` and `jitter=`",
                }
            ))),
        }
    }

    fn refuse(&self, complaint: &str) -> Error {
        Error::configuration(format!("`{OPTION}={}`: {complaint}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::*;
    use lock_core::backend::{Answer, ReplicaSupport, Waking};
    use lock_core::{ClientId, SystemClock};

    fn format(text: &str) -> Result<Format, Error> {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url(&format!("redis://h?format={text}")).unwrap();
        Format::of(&config, &context)
    }

    #[test]
    fn every_format_is_found_by_its_name_and_says_what_it_can() {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let usual = Format::of(&Config::from_url("redis://h").unwrap(), &context).unwrap();
        assert_eq!(usual.name(), "redisson");
        for (text, name, owned) in [
            ("redisson", "redisson", true),
            ("redisson,poll=20ms", "redisson", true),
            ("token", "token", true),
            ("token,poll=50ms,jitter=0ms", "token", true),
            ("token,wakes=python-redis-lock&prefix=lock:", "token", true),
            ("token,wakes=spring-integration,poll=1s&prefix=registry:", "token", true),
            ("plain", "plain", false),
            ("plain,poll=10ms,jitter=0ms", "plain", false),
            ("plain,commands", "plain", false),
            ("timestamp,takeover=delete", "timestamp", false),
            ("timestamp", "timestamp", false),
            ("timestamp,seconds,release=not-older", "timestamp", false),
            ("timestamp,release=compare,float,poll=10ms", "timestamp", false),
            ("counter", "counter", false),
            ("counter,multi", "counter", false),
            ("counter,poll=1s,lua", "counter", false),
        ] {
            let format = format(text).unwrap();
            assert_eq!(format.name(), name, "{text}");
            let abilities = format.abilities(ReplicaSupport::Counted);
            assert_eq!(abilities.owned, owned, "{text}");
            assert_eq!(abilities.tokens, owned, "{text}");
            assert_eq!(abilities.waking == Waking::Publishes, owned, "{text}");
            assert_eq!(abilities.replication == ReplicaSupport::Counted, owned, "{text}");
        }
    }

    #[test]
    fn who_waits_for_a_neighbour_that_says_nothing_asks_sooner_than_for_one_that_does() {
        for (text, millis) in [
            ("token", 100..=125),
            ("token,wakes=spring-integration&prefix=registry:", 100..=125),
            ("token,wakes=python-redis-lock&prefix=lock:", 10..=13),
            ("token,wakes=python-redis-lock,poll=40ms&prefix=lock:", 40..=50),
            ("token,wakes=python-redis-lock,jitter=0ms&prefix=lock:", 10..=10),
            ("token,jitter=0ms", 100..=100),
        ] {
            let Format(Kind::Owned(format)) = format(text).unwrap() else { panic!("{text}") };
            let Answer::Busy(Some(pause)) = format.busy(30_000, false) else { panic!("{text}") };
            assert!(millis.contains(&pause.as_millis()), "{text}: {pause:?}");
        }
    }

    #[test]
    fn who_waits_asks_as_often_as_is_said_and_a_little_later_at_random() {
        for (text, times) in [
            ("plain,poll=40ms,jitter=7ms", [40_000, 7_000]),
            ("timestamp", [100_000, 25_000]),
            ("timestamp,poll=10ms", [10_000, 2_500]),
            ("counter,poll=1s", [1_000_000, 25_000]),
            ("counter,jitter=0ms", [100_000, 0]),
        ] {
            let [interval, jitter] = times.map(Duration::from_micros);
            let waking = format(text).unwrap().abilities(ReplicaSupport::Never).waking;
            assert_eq!(waking, Waking::Polls { interval, jitter }, "{text}");
        }
    }

    #[test]
    fn what_is_no_format_or_none_of_its_settings_is_refused_by_name() {
        for (text, says) in [
            ("", "there is no format ``; there are `redisson`"),
            ("Redisson", "no format `Redisson`"),
            ("plain,", ""),
            (
                "token,set",
                "`format=token`: there is no setting `set`; there are `poll=` and `jitter=`",
            ),
            (
                "token,wakes=redis-py",
                "no setting `wakes=redis-py`; there are `poll=` and `jitter=`, `wakes=` with `python-redis-lock` or `spring-integration`",
            ),
            ("redisson,wakes=spring-integration", "there are `poll=` and `jitter=`"),
            ("plain,wakes=python-redis-lock", "there are `set` and `commands`"),
            ("token,wakes=python-redis-lock", "needs `prefix=lock:`"),
            ("token,wakes=python-redis-lock&prefix=registry:", "needs `prefix=lock:`"),
            ("token,wakes=python-redis-lock&prefix=lock:app:", ""),
            ("token,wakes=spring-integration", "a prefix that ends with `:`"),
            ("token,wakes=spring-integration&prefix=:", "a prefix that ends with `:`"),
            ("token,wakes=spring-integration&prefix=registry", "a prefix that ends with `:`"),
            (
                "token,wakes=spring-integration,wakes=python-redis-lock&prefix=lock:",
                "only one of `wakes=python-redis-lock`, `wakes=spring-integration`",
            ),
            ("redisson,poll=0s", "without a pause"),
            ("redisson,jitter=1ms", "and there is none"),
            ("token,jitter=1h", "longer than that"),
            ("plain,poll=2h", "longer than an hour"),
            ("token,poll=500000000000y,jitter=500000000000y", "longer than an hour"),
            ("plain,lua", "no setting `lua`"),
            ("counter,float", "there are `commands`, `multi` and `lua`"),
            ("counter,lua,multi", "only one of `commands`, `multi`, `lua`"),
            ("timestamp,float,seconds", "only one of"),
            ("timestamp,release=never", "`release=` with `delete`"),
            ("plain,poll=soon", "`poll=soon` is not a duration"),
            ("plain,poll=0s", "without a pause"),
            ("plain,poll=1s,poll=2s", "no setting `poll="),
        ] {
            match format(text) {
                Ok(_) => assert_eq!(says, "", "{text}"),
                Err(error) => {
                    let said = error.to_string();
                    assert!(error.is_configuration() && !says.is_empty(), "{text}: {said}");
                    assert!(said.contains(says), "{text}: {said}");
                }
            }
        }
    }
}
