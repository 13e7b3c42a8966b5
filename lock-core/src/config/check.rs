//! The limits of each setting, regardless of its source.

use super::Config;
use super::definitions::{names, setting};
use crate::error::Error;

impl Config {
    /// Validates all settings, but not the options of a scheme.
    ///
    /// # Errors
    ///
    /// [`Error::is_configuration`] with every invalid setting, its value and its limits.
    pub fn check(&self) -> Result<(), Error> {
        let beyond_limits = names().filter_map(|option| self.complaint(option));
        let wrong: Vec<_> = self
            .unreadable
            .iter()
            .cloned()
            .chain(beyond_limits)
            .collect();
        if wrong.is_empty() {
            Ok(())
        } else {
            Err(Error::configuration(wrong.join("; ")))
        }
    }

    /// Describes what is wrong with one setting; `None` if nothing is. The value alone decides,
    /// except that the sources of a password can contradict each other. The scheme checks the
    /// options that depend on the store.
    pub(super) fn complaint(&self, option: &str) -> Option<String> {
        let setting = setting(option)?;
        (setting.complaint)(self, setting.name)
    }

    /// Describes what is wrong if the password has more than one source, or its file has an empty
    /// name.
    pub(super) fn complaint_about_passwords(&self) -> Option<String> {
        if self
            .password_file
            .as_ref()
            .is_some_and(|path| path.as_os_str().is_empty())
        {
            return Some("password_file names no file".to_owned());
        }
        let places = [
            (self.password().is_some(), "in the URL or in code"),
            (self.password_file.is_some(), "as `password_file`"),
            (self.credentials.is_some(), "by a provider of credentials"),
        ];
        let given: Vec<_> = places.iter().filter(|(is_given, _)| *is_given).collect();
        let [(_, one), .., (_, other)] = given[..] else {
            return None;
        };
        Some(format!(
            "the password is given {one} and {other}: leave one of them out"
        ))
    }
}
