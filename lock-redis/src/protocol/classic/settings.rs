//! The settings of classic formats in `format=`, as in `format=timestamp,float,poll=10ms`.

use super::commands::StepHook;
use super::counter::Counter;
use super::plain::Plain;
use super::timestamp::{Rule, Spelling, Takeover, Timestamp};
use super::{Algorithm, ClassicFormat};
use crate::keys::Keys;
use crate::protocol::Settings;
use crate::wakeups::PollInterval;
use lock_core::{Config, Context, Error};
use parking_lot::Mutex;
use std::sync::Arc;

/// Reads the format that `config` names, if it is a classic one.
pub(crate) fn read_classic_format(
    config: &Config,
    context: &Context,
    hook: Option<Arc<dyn StepHook>>,
) -> Result<Option<ClassicFormat>, Error> {
    let mut settings = Settings::of(config);
    let (algorithm, known) = match settings.name {
        "plain" => {
            let forms = [("set", Plain::Set), ("commands", Plain::Commands)];
            let form = settings.one_of(&forms)?.unwrap_or(Plain::Set);
            (
                Algorithm::Plain(form),
                "`set` and `commands`, `poll=` and `jitter=`",
            )
        }
        "timestamp" => {
            let known = "`seconds` and `float`, `takeover=` with `getset` or `delete`, `release=` \
             with `delete`, `not-older` or `compare`, `poll=` and `jitter=`";
            (
                Algorithm::Timestamp(timestamp(&mut settings, context)?),
                known,
            )
        }
        "counter" => {
            let forms = [
                ("commands", Counter::Commands),
                ("multi", Counter::Transaction),
                ("lua", Counter::Script),
            ];
            let form = settings.one_of(&forms)?.unwrap_or(Counter::Commands);
            (
                Algorithm::Counter(form),
                "`commands`, `multi` and `lua`, `poll=` and `jitter=`",
            )
        }
        _ => return Ok(None),
    };
    let polls = settings.polls(PollInterval::default())?.unwrap_or_default();
    // The lease of a single attempt is checked by `ClassicFormat::acquire`.
    if let Some(lease) = config.lease().filter(|lease| polls.interval >= *lease) {
        let interval = polls.interval;
        return Err(settings.refuse(&format!(
            "a waiter asks every {interval:?}, and lease={lease:?} is no longer than that: set \
             `poll` below it"
        )));
    }
    settings.must_be_used_up(known)?;
    let keys = Keys::new(config.prefix());
    let attempts = config.scheme().ends_with("+cluster").then(Mutex::default);
    Ok(Some(ClassicFormat {
        keys,
        algorithm,
        polls,
        hook,
        attempts,
    }))
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
    let takeovers = [
        ("takeover=getset", Takeover::GetSet),
        ("takeover=delete", Takeover::Delete),
    ];
    let takeover = settings.one_of(&takeovers)?.unwrap_or(Takeover::GetSet);
    Ok(Timestamp {
        spelling,
        takeover,
        rule,
        clock: Arc::clone(&context.clock),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::backend::{ReplicaSupport, Waking};
    use lock_core::{ClientId, SystemClock};
    use std::time::Duration;

    fn format(text: &str) -> Result<Option<ClassicFormat>, Error> {
        let context = Context::new(Arc::new(SystemClock), ClientId::random());
        let config = Config::from_url(&format!("redis://h?format={text}")).unwrap();
        read_classic_format(&config, &context, None)
    }

    #[test]
    fn every_classic_format_is_found_by_its_name() {
        for (text, name) in [
            ("plain", "plain"),
            ("plain,poll=10ms,jitter=0ms", "plain"),
            ("plain,commands", "plain"),
            ("timestamp,takeover=delete", "timestamp"),
            ("timestamp", "timestamp"),
            ("timestamp,seconds,release=not-older", "timestamp"),
            ("timestamp,release=compare,float,poll=10ms", "timestamp"),
            ("counter", "counter"),
            ("counter,multi", "counter"),
            ("counter,poll=1s,lua", "counter"),
        ] {
            let format = format(text).unwrap().expect(text);
            assert_eq!(format.name(), name, "{text}");
            let abilities = format.abilities();
            assert!(!abilities.renewable && !abilities.tokens, "{text}");
            assert!(matches!(abilities.waking, Waking::Polls { .. }), "{text}");
            assert_eq!(abilities.replication, ReplicaSupport::Never, "{text}");
        }
        for text in ["redisson", "token,poll=50ms", ""] {
            assert!(format(text).unwrap().is_none(), "{text}");
        }
    }

    #[test]
    fn poll_interval_and_jitter_are_as_configured() {
        for (text, times) in [
            ("plain,poll=40ms,jitter=7ms", [40_000, 7_000]),
            ("timestamp", [100_000, 25_000]),
            ("timestamp,poll=10ms", [10_000, 2_500]),
            ("counter,poll=1s", [1_000_000, 25_000]),
            ("counter,jitter=0ms", [100_000, 0]),
        ] {
            let [interval, jitter] = times.map(Duration::from_micros);
            let waking = format(text).unwrap().unwrap().abilities().waking;
            assert_eq!(waking, Waking::Polls { interval, jitter }, "{text}");
        }
    }

    #[test]
    fn setting_that_a_format_does_not_have_is_refused_by_name() {
        for (text, says) in [
            ("plain,", ""),
            (
                "plain,wakes=python-redis-lock",
                "there are `set` and `commands`",
            ),
            ("plain,poll=2h", "longer than an hour"),
            ("plain,lua", "no setting `lua`"),
            ("counter,float", "there are `commands`, `multi` and `lua`"),
            (
                "counter,lua,multi",
                "only one of `commands`, `multi`, `lua`",
            ),
            ("timestamp,float,seconds", "only one of"),
            ("timestamp,release=never", "`release=` with `delete`"),
            ("plain,poll=soon", "`poll=soon` is not a duration"),
            ("plain,poll=0s", "without a pause"),
            ("plain,poll=1s,poll=2s", "no setting `poll="),
            ("plain,poll=1s&lease=1s", "set `poll` below it"),
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
