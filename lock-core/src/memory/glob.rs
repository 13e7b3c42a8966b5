//! [`matches`](fn@matches): glob patterns with the syntax of Redis' `MATCH` option.

/// Returns whether the glob matches the whole of `text`. `*` matches any text, `?` any character,
/// and `[abc]`, `[a-c]` and `[^a]` a set; `\` escapes the next character. Compares characters,
/// where Redis compares bytes.
pub(crate) fn matches(glob: &str, text: &str) -> bool {
    let (glob, text): (Vec<_>, Vec<_>) = (glob.chars().collect(), text.chars().collect());
    let (mut at, mut glob_at) = (0, 0);
    // The position in the glob behind its last `*`, and the position in `text` up to which that `*`
    // matches. After a mismatch the `*` matches one more character, and the comparison continues
    // behind that character.
    let mut star: Option<(usize, usize)> = None;
    while at < text.len() {
        if glob.get(glob_at) == Some(&'*') {
            star = Some((glob_at + 1, at));
            glob_at += 1;
        } else if let Some(length) = matches_one(&glob[glob_at..], text[at]) {
            glob_at += length;
            at += 1;
        } else if let Some((behind, taken)) = star {
            star = Some((behind, taken + 1));
            (glob_at, at) = (behind, taken + 1);
        } else {
            return false;
        }
    }
    glob[glob_at..].iter().all(|rest| *rest == '*')
}

/// Returns the length of the glob's first element, if that element matches the character.
fn matches_one(glob: &[char], character: char) -> Option<usize> {
    match glob {
        ['?', ..] => Some(1),
        ['[', set @ ..] => {
            let (is_negated, set, before) = match set {
                ['^', set @ ..] => (true, set, 2),
                set => (false, set, 1),
            };
            let (is_in, length) = is_in_set(set, character);
            (is_in != is_negated).then_some(before + length)
        }
        ['\\', escaped, ..] => (*escaped == character).then_some(2),
        [plain, ..] => (*plain == character).then_some(1),
        [] => None,
    }
}

/// Returns whether a set contains the character, and the length of the set including its closing
/// bracket.
fn is_in_set(set: &[char], character: char) -> (bool, usize) {
    let (mut at, mut is_in) = (0, false);
    loop {
        match &set[at..] {
            [] => return (is_in, at),
            [']', ..] => return (is_in, at + 1),
            ['\\', escaped, ..] => {
                is_in |= *escaped == character;
                at += 2;
            }
            [from, '-', to, ..] => {
                is_in |= (*from.min(to)..=*from.max(to)).contains(&character);
                at += 3;
            }
            [one, ..] => {
                is_in |= *one == character;
                at += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn globs_match_as_those_of_redis() {
        let yes = [
            ("*", ""),
            ("*", "a:b"),
            ("a:*", "a:b"),
            ("a*c*e", "abcbcde"),
            ("h?llo", "h\u{fc}llo"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[b-a]llo", "hallo"),
            ("h[a\\]]llo", "h]llo"),
            ("a\\*", "a*"),
            ("a**", "a"),
        ];
        let no = [
            ("", "a"),
            ("a", ""),
            ("a?", "a"),
            ("a*c", "abcd"),
            ("h[^a]llo", "hallo"),
            ("a\\*", "ab"),
            ("A", "a"),
        ];
        assert!(yes.iter().all(|(glob, text)| matches(glob, text)));
        assert!(no.iter().all(|(glob, text)| !matches(glob, text)));
    }
}
