//! Recognizes texts that are owners of locks.

use lock_core::backend::HolderInfo;

/// Returns true if the text under a key looks like the owner of a lock, and not like any other
/// value: a UUID; a UUID and a number, as this library writes it; 16 to 64 hexadecimal digits, with
/// at least one letter and one decimal digit; 22 to 64 characters of base 64, with at least one
/// lowercase and one uppercase letter; or the text of ShedLock. The key must have an expiry,
/// because a value without one is rarely a lock.
pub(super) fn looks_like_an_owner(holder: &HolderInfo) -> bool {
    let text = holder.owner.as_str();
    let (random, number) = text.split_once(':').unwrap_or((text, "0"));
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    let is_of_shedlock = text.starts_with("ADDED:") && text.contains('@');
    let is_owner = (is_uuid(random) && is_number)
        || is_hexadecimal(text)
        || is_base_64(text)
        || is_of_shedlock;
    holder.remaining.is_some() && is_owner
}

fn is_uuid(text: &str) -> bool {
    let mut parts = text.split('-').map(|part| (part.len(), part));
    let has_form = parts.clone().map(|(length, _)| length).eq([8, 4, 4, 4, 12]);
    has_form && parts.all(|(_, part)| part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn is_hexadecimal(text: &str) -> bool {
    (16..=64).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        // Digits alone may be a time or another number.
        && text.bytes().any(|byte| byte.is_ascii_alphabetic())
        && text.bytes().any(|byte| byte.is_ascii_digit())
}

fn is_base_64(text: &str) -> bool {
    (22..=64).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte))
        && text.bytes().any(|byte| byte.is_ascii_lowercase())
        && text.bytes().any(|byte| byte.is_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lock_core::{ClientId, OwnerId, OwnerText};
    use std::time::Duration;

    #[test]
    fn owners_of_other_libraries_are_told_from_other_texts() {
        let looks = |text: &str, lease: Option<Duration>| {
            looks_like_an_owner(&HolderInfo::new(OwnerText::new(text), lease, 1))
        };
        let lease = Some(Duration::from_secs(1));
        let ours = OwnerId::new(ClientId::random(), 7).to_string();
        assert!(looks(&ours, lease) && !looks(&ours, None));
        for owner in [
            &ours[..36],                                // Spring Integration
            "5ab1cc98e2a311ef8b7d0242ac120002",         // redis-py
            "9d2a0f6c1be4473880a1b2c3d4e5f60718293a4b", // redlock for Node
            "3q2+7wAAq83vEjRWeJq83g==",                 // redsync, python-redis-lock
            "ADDED:2026-11-24T12:00:00.000Z@host",      // ShedLock
        ] {
            assert!(looks(owner, lease), "{owner}");
        }
        for value in [
            "",
            "1",
            "1795492573889651",
            "true",
            "{\"user\": 42, \"name\": \"x\"}",
            "a sentence of 3 words",
            "a-slug-of-an-article-2024",
            "c0ffee",
            "AWordInCamelCase",
            "ADDED: a page",
            "01234567-89ab-cdef-0123-456789abcdef:x",
            "https://example.com/1234",
            "short1:2",
            "aaaaaaaaaaaaaaaa1:x",
        ] {
            assert!(!looks(value, lease), "{value}");
        }
    }
}
