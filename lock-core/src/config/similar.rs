//! Spelling suggestions for unknown names.

/// Returns the known word that `word` resembles most, if it resembles any.
pub(crate) fn similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_ascii_lowercase();
    let near = known
        .into_iter()
        .map(|known| (distance(&word, known), known));
    let (distance, nearest) = near.min_by_key(|(distance, _)| *distance)?;
    // At most one edit in three letters.
    (distance * 3 <= word.len().max(nearest.len())).then_some(nearest)
}

/// Returns the edit distance, in which a swap of two neighbouring letters is one edit.
fn distance(one: &str, other: &str) -> usize {
    let (one, other) = (one.as_bytes(), other.as_bytes());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, there) in other.iter().enumerate() {
            let changed = last[j] + usize::from(letter != there);
            let mut least = changed.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == other[j - 1] && one[i - 1] == *there {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn similar_word_is_found_and_other_word_is_not() {
        let known = ["watchdog", "pool", "prefix", "command_timeout", "db"];
        for (word, meant) in [
            ("wachdog", Some("watchdog")),
            ("WATCHDOGG", Some("watchdog")),
            ("watchdgo", Some("watchdog")),
            ("poll", Some("pool")),
            ("command-timeout", Some("command_timeout")),
            ("timeout", None),
            ("service_host", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(similar(word, known), meant, "{word}");
        }
    }
}
