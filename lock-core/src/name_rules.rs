//! The rules for valid lock names. Separate from the file of [`LockName`], because [`Error`], which
//! these rules return, contains a name.

use crate::error::Error;
use crate::name::LockName;

impl LockName {
    /// Validates a name.
    ///
    /// # Errors
    ///
    /// [`Error::is_misuse`] if the name is empty, too long, or has braces without a hash tag: see
    /// [`LockName`].
    pub fn new(name: &str) -> Result<Self, Error> {
        if name.is_empty() {
            return Err(Error::misuse(
                "the lock name is empty: give it at least one character",
            ));
        }
        if name.len() > Self::MAX_BYTES {
            return Err(Error::misuse(format!(
                "the lock name has {} bytes, at most {} are allowed: hash the long part of it",
                name.len(),
                Self::MAX_BYTES
            )));
        }
        if !has_valid_braces(name) {
            return Err(Error::misuse(format!(
                "the lock name {name:?} has braces that are not a hash tag: write `{{tag}}` with \
                something inside, once, or no braces"
            )));
        }
        Ok(Self::of_valid(name))
    }
}

/// Returns whether keys derived as `prefix:{name}` (no brace in the name) or `prefix:name` (a tag
/// in it) share the name's slot.
///
/// Redis hashes the text between the first `{` and the first `}` after it. If this text is empty or
/// there are no such braces, Redis hashes the whole key (Redis Cluster specification, "Hash tags").
fn has_valid_braces(name: &str) -> bool {
    match name.find('{') {
        None => !name.contains('}'),
        Some(open) => name[open + 1..].find('}').is_some_and(|length| length > 0),
    }
}

impl TryFrom<&str> for LockName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self, Error> {
        Self::new(name)
    }
}

impl TryFrom<String> for LockName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self, Error> {
        Self::new(&name)
    }
}

impl TryFrom<&String> for LockName {
    type Error = Error;

    fn try_from(name: &String) -> Result<Self, Error> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_with_valid_tag_or_none_is_accepted() {
        for name in [
            "a",
            "orders:42",
            "stock:{7}:x",
            "{a}",
            "a}b{c}d",
            "{a}{",
            " ",
            "line\nbreak",
            "ü",
        ] {
            assert!(LockName::new(name).is_ok(), "{name}");
        }
    }

    #[test]
    fn name_that_would_span_slots_is_refused() {
        for name in ["{}x", "a{b", "a}b", "{", "}", "{}{a}"] {
            assert!(LockName::new(name).unwrap_err().is_misuse(), "{name}");
        }
    }

    #[test]
    fn too_long_name_is_refused_with_the_limit() {
        assert!(LockName::new(&"x".repeat(512)).is_ok());
        let error = LockName::new(&"x".repeat(513)).unwrap_err().to_string();
        assert!(error.contains("513") && error.contains("512"), "{error}");
    }

    #[test]
    fn control_characters_are_escaped_when_printed() {
        assert_eq!(LockName::new("a\nb").unwrap().to_string(), "a\\nb");
    }
}
