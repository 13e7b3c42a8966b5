//! Textual changes of sources, as the files in the folder `mutants` describe them.

use std::ops::Range;

/// The word in the new text of a change that stands for "the mutant is switched on".
const SWITCH: &str = "MUTANT";

/// A defect that a scenario must find, as read from its file.
#[derive(Debug)]
pub(crate) struct Mutant {
    /// The name of the file, without its extension.
    pub(crate) name: String,
    /// The scenario that finds the defect.
    pub(crate) scenario: String,
    /// The source that the mutant changes, as a path in `lock-core/src`.
    pub(crate) file: String,
    pub(crate) changes: Vec<Change>,
}

/// A text that occurs once in a source, and what replaces it.
#[derive(Debug)]
pub(crate) struct Change {
    /// Words with single spaces between them, so that the line breaks of the source do not matter.
    old: String,
    new: String,
}

impl Mutant {
    /// Reads a file: a text about the defect, `scenario: NAME`, `file: PATH`, and then changes with
    /// empty lines between them, whose lines begin with `-` (taken out), `+` (put in) or a space.
    pub(crate) fn parse(name: &str, text: &str) -> Result<Self, String> {
        let mut mutant = Self {
            name: name.to_owned(),
            scenario: String::new(),
            file: String::new(),
            changes: Vec::new(),
        };
        for block in text.trim_end().split("\n\n") {
            if block.starts_with(['-', '+', ' ']) {
                mutant.changes.push(Change::parse(name, block)?);
                continue;
            }
            for line in block.lines() {
                match line.split_once(": ") {
                    Some(("scenario", scenario)) => mutant.scenario = scenario.to_owned(),
                    Some(("file", file)) => mutant.file = file.to_owned(),
                    _ => {}
                }
            }
        }
        match &mutant {
            it if it.scenario.is_empty() => Err("it has no line `scenario: NAME`".to_owned()),
            it if it.file.is_empty() => Err("it has no line `file: PATH`".to_owned()),
            it if it.changes.is_empty() => Err("it changes nothing".to_owned()),
            _ if !text.contains(SWITCH) => {
                Err(format!("it applies always: no line asks for {SWITCH}"))
            }
            _ => Ok(mutant),
        }
    }
}

impl Change {
    /// Returns the replacement of one text by another.
    pub(crate) fn new(old: &str, new: &str) -> Self {
        Self {
            old: words(old),
            new: words(new),
        }
    }

    fn parse(name: &str, block: &str) -> Result<Self, String> {
        let (mut old, mut new) = (String::new(), String::new());
        for line in block.lines() {
            let (sign, text) = line.split_at_checked(1).unwrap_or_default();
            match sign {
                "-" => old += text,
                "+" => new += text,
                " " => [&mut old, &mut new].iter_mut().for_each(|it| **it += text),
                _ => return Err(format!("a line begins with none of -, + and space: {line}")),
            }
            old.push('\n');
            new.push('\n');
        }
        if old.trim().is_empty() {
            return Err("no line says where the change is".to_owned());
        }
        if new.contains("//") {
            return Err("its lines become one: there is no room for a comment".to_owned());
        }
        let switch = format!("crate::mutants::is_on(\"{name}\")");
        Ok(Self::new(&old, &new.replace(SWITCH, &switch)))
    }

    /// Returns the place of the old text in a source.
    fn find(&self, source: &Source<'_>) -> Result<Range<usize>, String> {
        let mut found = source.words.match_indices(&self.old);
        match (found.next(), found.next()) {
            (Some((at, _)), None) => Ok(source.place(at, self.old.len())),
            (None, _) => Err(format!("this text occurs no more: {}", self.old)),
            (Some(_), Some(_)) => Err(format!("this text occurs more than once: {}", self.old)),
        }
    }
}

/// A text, and its words with single spaces between them.
struct Source<'a> {
    text: &'a str,
    words: String,
    /// Where each byte of `words` is in `text`.
    places: Vec<usize>,
}

impl<'a> Source<'a> {
    fn new(text: &'a str) -> Self {
        let (mut words, mut places) = (String::new(), Vec::new());
        for word in text.split_whitespace() {
            let begin = word.as_ptr() as usize - text.as_ptr() as usize;
            if !words.is_empty() {
                words.push(' ');
                places.push(begin);
            }
            words += word;
            places.extend(begin..begin + word.len());
        }
        Self {
            text,
            words,
            places,
        }
    }

    fn place(&self, at: usize, length: usize) -> Range<usize> {
        self.places[at]..self.places[at + length - 1] + 1
    }
}

fn words(text: &str) -> String {
    Source::new(text).words
}

/// Makes changes in one source, each given with its name. Each line keeps its number.
///
/// # Errors
///
/// Each change that cannot be made, with its name.
pub(crate) fn apply<'a>(
    text: &str,
    changes: impl IntoIterator<Item = (&'a str, &'a Change)>,
) -> Result<String, Vec<(String, String)>> {
    let source = Source::new(text);
    let (mut places, mut errors) = (Vec::new(), Vec::new());
    for (name, change) in changes {
        match change.find(&source) {
            Ok(place) => places.push((place, name, &change.new)),
            Err(why) => errors.push((name.to_owned(), why)),
        }
    }
    places.sort_by_key(|(place, ..)| place.start);
    for pair in places.windows(2) {
        let [(first, other, _), (second, name, _)] = pair else {
            continue;
        };
        if second.start < first.end {
            errors.push((
                (*name).to_owned(),
                format!("it changes what `{other}` changes"),
            ));
        }
    }
    if !errors.is_empty() {
        return Err(errors);
    }
    let (mut changed, mut end) = (String::new(), 0);
    for (place, _, new) in places {
        changed += &source.text[end..place.start];
        changed += new;
        let lines = source.text[place.clone()].matches('\n').count();
        changed += &"\n".repeat(lines);
        end = place.end;
    }
    changed += &source.text[end..];
    Ok(changed)
}

/// Empties the lines that only the head of a file may have, and that `include!` cannot read: its
/// documentation and attributes. Each line keeps its number.
pub(crate) fn without_head(text: &str) -> String {
    let is_of_head = |line: &str| line.starts_with("//!") || line.starts_with("#![");
    let lines = text
        .lines()
        .map(|line| if is_of_head(line) { "" } else { line });
    lines.flat_map(|line| [line, "\n"]).collect()
}
