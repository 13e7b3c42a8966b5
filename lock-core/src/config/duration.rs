//! Durations as text in settings, commands and messages.

use super::Config;
use std::time::Duration;

impl Config {
    /// Parses a duration in the format of settings: `30s`, `500ms`, `1m 30s`.
    ///
    /// # Errors
    ///
    /// A description of the expected format, to be put after the words "is not".
    ///
    /// # Examples
    ///
    /// ```
    /// # extern crate lock_core as distlock;
    /// use distlock::Config;
    /// use std::time::Duration;
    ///
    /// assert_eq!(Config::parse_duration("1m 30s"), Ok(Duration::from_secs(90)));
    /// assert!(Config::parse_duration("soon").unwrap_err().starts_with("a duration, as in `30s`"));
    /// ```
    pub fn parse_duration(text: &str) -> Result<Duration, String> {
        parse_duration(text)
    }
}

pub(super) fn parse_duration(text: &str) -> Result<Duration, String> {
    // `humantime` converts milliseconds to nanoseconds in 64 bits, too few for the longest lease.
    // So a text of whole milliseconds is parsed here.
    let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
    let milliseconds = text.strip_suffix("ms").filter(is_number);
    if let Some(Ok(milliseconds)) = milliseconds.map(str::parse) {
        return Ok(Duration::from_millis(milliseconds));
    }
    humantime::parse_duration(text)
        .map_err(|error| format!("a duration, as in `30s`, `500ms` or `1m 30s` ({error})"))
}

/// Formats a duration as in settings.
pub(super) fn shown(time: Duration) -> String {
    humantime::format_duration(time).to_string()
}
