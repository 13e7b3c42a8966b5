//! No modules of the libraries or of the command import each other in a circle.
//!
//! The rule: modules with the same parent, each taken with all modules below it, do not use each
//! other in a circle. A module and its own children may, because the children are its parts. A use
//! is a path (with `crate::` or `super::`, through a child, or through an imported name), followed
//! through re-exports to the module that defines the named item. Calls of methods on values are not
//! detected. Uses by tests or by links in documentation do not count.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

/// The path of a module from the crate's root. That of the root is empty.
type ModuleName = Vec<String>;

/// The children, the imports and the paths in a module's source.
#[derive(Default)]
struct Module {
    children: BTreeSet<String>,
    /// The names that the module imports or re-exports, and their paths.
    imports: BTreeMap<String, Vec<String>>,
    /// All paths in the source, including those of the imports.
    paths: Vec<Vec<String>>,
}

/// The modules of a crate.
struct Modules(BTreeMap<ModuleName, Module>);

impl Modules {
    fn read(root_file: &Path) -> Self {
        let mut modules = BTreeMap::new();
        let mut files = vec![(ModuleName::new(), root_file.to_owned())];
        while let Some((name, file)) = files.pop() {
            let source = fs::read_to_string(&file);
            let source = source.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            let tokens = without_tests(&tokens(&source));
            let module: &mut Module = modules.entry(name.clone()).or_default();
            for (child, path) in child_files(&tokens, &file) {
                module.children.insert(child.clone());
                files.push(([&name[..], &[child]].concat(), path));
            }
            read_paths(&tokens, module);
        }
        Self(modules)
    }

    /// Returns the module that defines what `path` names in the module `from`; `None` if another
    /// crate defines it.
    fn defining(&self, from: &[String], path: &[String]) -> Option<ModuleName> {
        let (first, mut rest) = path.split_first()?;
        let mut at = match first.as_str() {
            "crate" => Vec::new(),
            "self" => from.to_vec(),
            "super" => from.split_last()?.1.to_vec(),
            _ => {
                rest = path;
                from.to_vec()
            }
        };
        let is_relative = rest.len() == path.len();
        for (index, name) in rest.iter().enumerate() {
            let module = &self.0[&at];
            if name == "super" {
                at.pop()?;
            } else if module.children.contains(name) {
                at.push(name.clone());
            } else if module
                .imports
                .get(name)
                .is_some_and(|import| **import == [name.as_str()])
            {
                // A crate that the module re-exports by its name.
                return None;
            } else if let Some(import) = module.imports.get(name).filter(|import| import != &rest) {
                let whole = [&import[..], &rest[index + 1..]].concat();
                return self.defining(&at, &whole);
            } else if is_relative && index == 0 {
                return None;
            } else {
                break;
            }
        }
        Some(at)
    }

    /// Returns, for each parent, which of its children use which others, with the place of one such
    /// use.
    fn uses(&self) -> BTreeMap<ModuleName, Uses> {
        let mut uses: BTreeMap<_, Uses> = BTreeMap::new();
        for (from, module) in &self.0 {
            for path in &module.paths {
                let Some(to) = self.defining(from, path) else {
                    continue;
                };
                let common = from
                    .iter()
                    .zip(&to)
                    .take_while(|(left, right)| left == right)
                    .count();
                if let (Some(user), Some(used)) = (from.get(common), to.get(common)) {
                    let place = format!("{}: {}", from.join("::"), path.join("::"));
                    let siblings = uses.entry(to[..common].to_vec()).or_default();
                    siblings
                        .entry(user.clone())
                        .or_default()
                        .entry(used.clone())
                        .or_insert(place);
                }
            }
        }
        uses
    }

    /// Returns the shortest circle among each parent's children, as a text that lists the uses;
    /// empty if there is none.
    fn circles(&self) -> String {
        let mut text = String::new();
        for (parent, uses) in self.uses() {
            let circles = uses.keys().filter_map(|start| circle(&uses, start));
            let Some(circle) = circles.min_by_key(Vec::len) else {
                continue;
            };
            let place = [&["crate".to_owned()], &parent[..]].concat().join("::");
            writeln!(text, "a circle in `{place}`:").unwrap();
            for (index, user) in circle.iter().enumerate() {
                let used = &circle[(index + 1) % circle.len()];
                writeln!(text, "  {user} uses {used} ({})", uses[user][used]).unwrap();
            }
        }
        text
    }
}

/// For each module, the modules that it uses, and the place of one use.
type Uses = BTreeMap<String, BTreeMap<String, String>>;

/// Returns the shortest path of uses from a module back to itself, with each module named once.
fn circle(uses: &Uses, start: &str) -> Option<Vec<String>> {
    let mut ways = VecDeque::from([vec![start.to_owned()]]);
    let mut seen = BTreeSet::new();
    while let Some(way) = ways.pop_front() {
        for used in uses.get(way.last()?).into_iter().flat_map(BTreeMap::keys) {
            if used == start {
                return Some(way);
            }
            if seen.insert(used.clone()) {
                ways.push_back([&way[..], std::slice::from_ref(used)].concat());
            }
        }
    }
    None
}

/// Returns the tokens of a source: names, numbers, texts and signs, with `::` as one sign and
/// without comments.
fn tokens(source: &str) -> Vec<&str> {
    let (mut tokens, mut rest) = (Vec::new(), source);
    while let Some(first) = rest.chars().next() {
        let is_in_word = |c: char| c.is_alphanumeric() || c == '_';
        let until = |end: &str| rest.find(end).map_or(rest.len(), |at| at + end.len());
        let raw = rest
            .strip_prefix('r')
            .map(|text| text.trim_start_matches('#'));
        let length = if rest.starts_with("//") {
            until("\n")
        } else if let Some(text) = raw.filter(|text| text.starts_with('"')) {
            let end = format!("\"{}", "#".repeat(rest.len() - text.len() - 1));
            let begin = rest.len() - text.len() + 1;
            begin + text[1..].find(&end).expect("a raw text ends") + end.len()
        } else if first == '"' {
            let (mut is_escaped, mut closed) = (false, false);
            let inside = rest[1..].chars().take_while(|&c| {
                closed = c == '"' && !is_escaped;
                is_escaped = c == '\\' && !is_escaped;
                !closed
            });
            inside.map(char::len_utf8).sum::<usize>() + 2
        } else if first == '\'' && is_character(rest) {
            let skipped = if rest[1..].starts_with('\\') { 3 } else { 2 };
            skipped + rest[skipped..].find('\'').expect("a character ends") + 1
        } else if is_in_word(first) {
            rest.find(|c| !is_in_word(c)).unwrap_or(rest.len())
        } else if rest.starts_with("::") {
            2
        } else {
            first.len_utf8()
        };
        if !first.is_whitespace() && !rest.starts_with("//") {
            tokens.push(&rest[..length]);
        }
        rest = &rest[length..];
    }
    tokens
}

/// Returns whether a quotation mark begins a character, not a lifetime.
fn is_character(text: &str) -> bool {
    let mut next = text.chars().skip(1);
    next.next() == Some('\\') || next.next() == Some('\'')
}

/// Returns the tokens without the items that only tests or the documentation compile.
fn without_tests<'a>(tokens: &[&'a str]) -> Vec<&'a str> {
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let is_for = |what| tokens[at..].starts_with(&["#", "[", "cfg", "(", what, ")", "]"]);
        if is_for("test") || is_for("doc") {
            at += item_length(&tokens[at..]);
        } else {
            kept.push(tokens[at]);
            at += 1;
        }
    }
    kept
}

/// Returns the length of the first item: up to its `;`, or to the end of its block.
fn item_length(tokens: &[&str]) -> usize {
    let mut depth = 0;
    for (index, token) in tokens.iter().enumerate() {
        match *token {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            _ => {}
        }
        if depth == 0 && matches!(*token, ";" | "}") {
            return index + 1;
        }
    }
    tokens.len()
}

/// Returns the modules that these tokens declare, with their files.
fn child_files(tokens: &[&str], file: &Path) -> Vec<(String, PathBuf)> {
    let folder = match file.file_stem().and_then(|stem| stem.to_str()) {
        Some("mod" | "lib" | "main") => file.parent().unwrap().to_owned(),
        _ => file.with_extension(""),
    };
    let declared = |at: usize| tokens[at] == "mod" && tokens.get(at + 2) == Some(&";");
    let children = (0..tokens.len()).filter(|&at| declared(at)).map(|at| {
        let child = tokens[at + 1];
        let named = tokens[..at].iter().rev().take(9).collect::<Vec<_>>();
        let of_attribute = named.windows(4).take(3).find(|text| *text[3] == "path");
        let path = match of_attribute {
            Some(text) => file.with_file_name(text[1].trim_matches('"')),
            None => [format!("{child}.rs"), format!("{child}/mod.rs")]
                .map(|path| folder.join(path))
                .into_iter()
                .find(|path| path.exists())
                .unwrap_or_else(|| panic!("{} has no file of {child}", file.display())),
        };
        (child.to_owned(), path)
    });
    children.collect()
}

/// Collects a module's imports and paths.
fn read_paths(tokens: &[&str], module: &mut Module) {
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "use" && tokens.get(at + 1) != Some(&"<") {
            let length = tokens[at..]
                .iter()
                .position(|token| *token == ";")
                .expect("an import ends");
            let mut leaves = Vec::new();
            read_use(&tokens[at + 1..at + length], &[], &mut leaves);
            for (path, name) in leaves {
                module.imports.insert(name, path.clone());
                module.paths.push(path);
            }
            at += length;
        } else {
            let names = tokens[at..].iter().step_by(2);
            let signs = tokens[at + 1..].iter().step_by(2);
            let length = signs.take_while(|sign| **sign == "::").count() + 1;
            let path: Vec<_> = names.take(length).map(|name| (*name).to_owned()).collect();
            if length > 1 && path[0].starts_with(|c: char| c.is_alphabetic()) {
                module.paths.push(path);
            }
            at += 2 * length - 1;
        }
    }
}

/// Collects the paths of an import, each with the name under which it is imported.
fn read_use(tokens: &[&str], before: &[String], leaves: &mut Vec<(Vec<String>, String)>) {
    let mut path = before.to_vec();
    for (at, token) in tokens.iter().enumerate() {
        match *token {
            "::" => {}
            "{" => {
                let inside = &tokens[at + 1..tokens.len() - 1];
                return parts(inside)
                    .into_iter()
                    .for_each(|part| read_use(part, &path, leaves));
            }
            "as" => {
                let alias = tokens[at + 1].to_owned();
                return leaves.push((path, alias));
            }
            "self" if !path.is_empty() => {}
            name => path.push(name.to_owned()),
        }
    }
    let name = path.last().cloned().unwrap_or_default();
    leaves.push((path, name));
}

/// Returns the parts between the commas, ignoring commas inside braces.
fn parts<'t, 'a>(tokens: &'t [&'a str]) -> Vec<&'t [&'a str]> {
    let mut depth = 0;
    let parts = tokens.split(|token| {
        depth += i32::from(*token == "{") - i32::from(*token == "}");
        depth == 0 && *token == ","
    });
    parts.filter(|part| !part.is_empty()).collect()
}

#[test]
fn modules_import_each_other_in_no_circle() {
    let workspace = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let roots = [
        "lock-core/src/lib.rs",
        "lock-core/conformance/src/lib.rs",
        "lock-redis/src/lib.rs",
        "lock-cluster/src/lib.rs",
        "lock-postgres/src/lib.rs",
    ];
    for root in roots.into_iter().chain(["cli/src/main.rs"]) {
        let modules = Modules::read(&workspace.join(root));
        assert!(
            modules.uses().len() > 1,
            "the reader finds no uses in {root}"
        );
        let circles = modules.circles();
        assert!(circles.is_empty(), "{root}: {circles}");
    }
}

/// Returns the circles of a crate with these files.
fn circles_of(files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (file, source) in files {
        let path = folder.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, source).unwrap();
    }
    Modules::read(&folder.path().join("lib.rs")).circles()
}

#[test]
fn circle_is_found_through_reexports_and_inline_paths() {
    let lib = "mod a; mod b; #[path = \"other.rs\"] mod c; pub use b::inner::{self as x, B};";
    let inner = "pub struct B; fn f(s: &'static str) { crate::c::g('\"', r#\"\"\"#); }";
    let mut files = vec![
        ("lib.rs", lib),
        ("a.rs", "use crate::{B, fmt::{self}}; // crate::c"),
        ("b/mod.rs", "pub mod inner;"),
        ("b/inner.rs", inner),
        ("other.rs", "use super::a as other; fn g() { other::h() }"),
    ];
    let found = circles_of(&files);
    let expected = "a circle in `crate`:\n  a uses b (a: crate::B)\n  \
                    b uses c (b::inner: crate::c::g)\n  c uses a (c: super::a)\n";
    assert_eq!(found, expected);
    files[4].1 = "#[cfg(test)] mod tests { use super::super::a; } fn g() {}";
    assert_eq!(circles_of(&files), "");
}

#[test]
fn parent_and_children_may_use_each_other_but_not_siblings() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a.rs", "mod b; mod c; pub struct A; fn f() { b::f() }"),
        ("a/b.rs", "use super::A; pub fn f() {}"),
        (
            "a/c.rs",
            "use crate::a::b; fn f() -> &'static str { b::f(); \"super::b\" }",
        ),
    ];
    assert_eq!(circles_of(&files), "");
    let mut circular = files;
    circular[2].1 = "pub fn f() { super::c::f() }";
    let found = circles_of(&circular);
    assert!(
        found.contains("b uses c (a::b: super::c::f)\n  c uses b (a::c: "),
        "{found}"
    );
}
