//! The rules, each a function from a file to its violations.

use std::{fmt, path::Path};

use super::{imports, source::Source};

/// The longest source file, in lines.
pub(crate) const LINES_MAX: usize = 800;

/// The widest line of a comment, in columns. For code, rustfmt decides.
const COLUMNS_MAX: usize = 120;

/// A violation of a rule.
#[derive(Debug)]
pub(crate) struct Broken {
    pub path: String,
    pub line: usize,
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// Returns the violations of the rules for every text file of the project.
pub(crate) fn text(path: &str, text: &str) -> Vec<Broken> {
    at(
        path,
        [
            length(path, text),
            width(path, text),
            private_words(path, text),
            left_over(text),
            lab(path, text),
            lab_boundary(path, text),
            testing(path, text),
        ],
    )
}

/// Returns the violations of the rules for every Rust file.
pub(crate) fn source(source: &Source) -> Vec<Broken> {
    at(&source.path, [module_doc, imports::upward, one_door, expects].map(|rule| rule(source)))
}

fn at<const N: usize>(path: &str, found: [Found; N]) -> Vec<Broken> {
    let all = found.into_iter().flatten();
    all.map(|(line, what)| Broken { path: path.into(), line, what }).collect()
}

/// The result of a rule: lines with messages.
pub(crate) type Found = Vec<(usize, String)>;

/// Checks that no comment of the crates has a word for which the field has a plainer one.
pub(crate) fn private_words(path: &str, text: &str) -> Found {
    const WORDS: [&str; 9] = ["who", "whoever", "told", "mend", "anew", "astray", "amid", "beside", "nobody"];
    let is_rust = Path::new(path).extension().is_some_and(|extension| extension == "rs");
    // The text of its own case has the words.
    if !is_rust || path.ends_with("tests/house_rules/cases.rs") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let Some((_, comment)) = line.split_once("//") else { continue };
        let comment = comment.to_lowercase();
        let words: Vec<&str> = comment.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        let private = WORDS.iter().filter(|word| words.contains(word));
        found.extend(private.map(|word| (n + 1, format!("`{word}` in a comment: use a plainer word"))));
    }
    found
}

/// Checks that no source file is longer than [`LINES_MAX`].
pub(crate) fn length(path: &str, text: &str) -> Found {
    let lines = text.lines().count();
    let is_code = Path::new(path)
        .extension()
        .and_then(|e| e.to_str())
        .is_some_and(|e| ["rs", "sh", "py", "c", "cc", "cpp", "h", "js"].contains(&e));
    if is_code && lines > LINES_MAX {
        return vec![(LINES_MAX + 1, format!("{lines} lines, more than {LINES_MAX}: split it by purpose"))];
    }
    Vec::new()
}

/// Checks that no line of a comment in Rust is wider than [`COLUMNS_MAX`], except rows of tables.
pub(crate) fn width(path: &str, text: &str) -> Found {
    if Path::new(path).extension().is_none_or(|ext| ext != "rs") {
        return Vec::new();
    }
    let is_row = |comment: &str| comment.trim_start_matches(['/', '!']).trim_start().starts_with('|');
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let columns = line.chars().count();
        let comment = line.trim_start();
        if columns > COLUMNS_MAX && comment.starts_with("//") && !is_row(comment) {
            found.push((n + 1, format!("a comment of {columns} columns, more than {COLUMNS_MAX}: wrap it")));
        }
    }
    found
}

/// Checks that nothing is left over from development. The words are concatenated here, so that this file keeps its own
/// rule.
pub(crate) fn left_over(text: &str) -> Found {
    let exact =
        [["TO", "DO"], ["FIX", "ME"], ["XX", "X"], ["dbg", "!"], ["todo", "!"], ["unimplemented", "!"]];
    let spoken = ["for", "now"].join(" ");
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        for word in exact.iter().map(|w| w.concat()) {
            if has_word(line, &word) {
                found.push((n + 1, format!("left over: `{word}`")));
            }
        }
        if has_word(&line.to_lowercase(), &spoken) {
            found.push((
                n + 1,
                format!("left over: \"{spoken}\" promises what nobody will keep: say what holds"),
            ));
        }
    }
    found
}

/// Checks that only tests ask for the points in the code at which a test can act.
pub(crate) fn testing(path: &str, text: &str) -> Found {
    let tests = text.find("[dev-dependencies]").map_or(usize::MAX, |at| text[..at].lines().count());
    let is_allowed = |n: usize, line: &str| match path {
        "crates/windfall-base/Cargo.toml" => line == "testing = []",
        "crates/windfall-engine/Cargo.toml" => {
            line == "testing = [\"windfall-base/testing\"]"
                || n > tests && line.starts_with("windfall-base = ")
        }
        "crates/windfall/Cargo.toml" => n > tests && line.starts_with("windfall-engine = "),
        _ => false,
    };
    let asks = |n, line: &str| has_word(line, "testing") && !is_allowed(n, line);
    in_manifest(path, text, asks, "asks for the feature `testing`, which is for tests alone")
}

/// Checks that the engine does not depend on the lab. Only the command-line program does, and a build may leave it out.
pub(crate) fn lab(path: &str, text: &str) -> Found {
    const ALLOWED: [(&str, &[&str]); 5] = [
        ("crates/windfall-btree/Cargo.toml", &["lab = []"]),
        ("crates/windfall-engine/Cargo.toml", &["lab = [\"windfall-btree/lab\"]"]),
        ("crates/windfall/Cargo.toml", &["lab = [\"windfall-engine/lab\"]"]),
        ("crates/windfall-lab/Cargo.toml", &["name = \"windfall-lab\"", "features = [\"lab\"]"]),
        (
            "crates/windfall-cli/Cargo.toml",
            &[
                "default = [\"lab\"]",
                "lab = [\"dep:windfall-lab\", \"windfall/lab\"]",
                "version = \"0.1.0\", optional = true }",
            ],
        ),
    ];
    let allowed = ALLOWED.iter().find(|(manifest, _)| *manifest == path).map_or(&[][..], |(_, lines)| lines);
    let is_allowed = |line: &str| allowed.iter().any(|part| line.contains(part));
    let asks = |_, line: &str| (has_word(line, "lab") || line.contains("windfall-lab")) && !is_allowed(line);
    in_manifest(path, text, asks, "asks for the lab, which is for the command alone, and may be left out")
}

/// Checks that the lab names no path of the engine but the module that was made for it, and takes what the base has
/// from the API.
pub(crate) fn lab_boundary(path: &str, text: &str) -> Found {
    if !path.starts_with("crates/windfall-lab/src/") {
        return Vec::new();
    }
    let is_other = |line: &str| {
        line.contains("windfall_base")
            || line.split("windfall_engine").skip(1).any(|rest| {
                let after = rest.strip_prefix("::lab").map(|after| after.chars().next());
                after.is_none_or(|next| next.is_some_and(|c| c.is_alphanumeric() || c == '_'))
            })
    };
    let lines = text.lines().enumerate().filter(|(_, line)| is_other(line));
    lines
        .map(|(n, _)| {
            (n + 1, "the lab uses the API and `windfall_engine::lab`, and no other path of the engine".into())
        })
        .collect()
}

/// Reports the lines of a manifest for which `asks` returns true; it gets the line's number, from 0, and the line
/// without its comment.
fn in_manifest(path: &str, text: &str, asks: impl Fn(usize, &str) -> bool, what: &str) -> Found {
    let is_manifest = Path::new(path).file_name().is_some_and(|name| name == "Cargo.toml");
    let lines = text.lines().enumerate().filter(|(_, line)| is_manifest && !line.starts_with('#'));
    lines.filter(|(n, line)| asks(*n, line)).map(|(n, _)| (n + 1, what.into())).collect()
}

/// Returns whether a line contains a word that is not part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let after = &line[at + word.len()..];
        !line[..at].ends_with(inside) && (!word.ends_with(inside) || !after.starts_with(inside))
    })
}

/// Checks that every module begins with its doc, under the same headings. A test needs only a doc.
pub(crate) fn module_doc(source: &Source) -> Found {
    let doc: Vec<&str> = source
        .text
        .lines()
        .skip_while(|l| l.trim().is_empty())
        .take_while(|l| l.starts_with("//!"))
        .collect();
    if doc.is_empty() {
        return vec![(1, "does not open with its doc (`//!`)".into())];
    }
    if source.test {
        return Vec::new();
    }
    let doc = doc.join("\n");
    let place = |heading: &str| doc.find(heading).ok_or_else(|| format!("its doc lacks {heading}"));
    let wrong = match (place("**Purpose.**"), place("**Invariants.**")) {
        (Err(lacks), _) => Some(lacks),
        // A measurement has a method instead.
        (Ok(_), Err(lacks)) => imports::is_engine(source).then_some(lacks),
        (Ok(purpose), Ok(invariants)) => {
            (invariants < purpose).then(|| "its doc states its invariants before its purpose".to_owned())
        }
    };
    wrong.map(|what| (1, what)).into_iter().collect()
}

/// Checks that the engine uses locks, atomics, threads and clocks only through `sync` and `env`, so that a model
/// checker and a simulation can replace them.
pub(crate) fn one_door(source: &Source) -> Found {
    let room = source.modules[0].first().map(String::as_str);
    if !imports::is_engine(source) || source.test || matches!(room, Some("sync" | "env")) {
        return Vec::new();
    }
    let mut found = Vec::new();
    let named = imports::paths(source);
    // A thread of a model must have thread-local variables, too: `sync` has the macro for both.
    let imported = named.iter().any(|n| n.path.iter().any(|part| part == "thread_local"));
    for (at, token) in source.tokens.iter().enumerate() {
        let is_call = source.tokens.get(at + 1).is_some_and(|next| next.text == "!");
        if token.text == "thread_local" && is_call && !token.test && !imported {
            found.push((token.line, "`thread_local!` comes only through `sync`".into()));
        }
    }
    for named in named.iter().filter(|n| !n.test) {
        let path: Vec<&str> = named.path.iter().map(String::as_str).collect();
        let door = match path[..] {
            ["std", "thread_local"]
            | ["std" | "core" | "alloc", "sync", ..]
            | ["parking_lot" | "parking_lot_core", ..] => "sync",
            // The module `time` gives access to the clock, and a renamed `std` to everything.
            ["std" | "core"]
            | ["std", "thread", ..]
            | ["std", "time"]
            | ["std", "time", "Instant" | "SystemTime" | "UNIX_EPOCH", ..]
            | ["rustix", "time" | "thread", ..] => "env",
            _ => continue,
        };
        found.push((named.line, format!("`{}` comes only through `{door}`", path.join("::"))));
    }
    found
}

/// Checks that every `expect` outside tests states its reason in two words or more, and that `unwrap` is not passed as
/// a function: Clippy finds its calls only.
pub(crate) fn expects(source: &Source) -> Found {
    if source.test {
        return Vec::new();
    }
    let mut found = Vec::new();
    for (at, token) in source.tokens.iter().enumerate().skip(1).filter(|(_, token)| !token.test) {
        match (source.tokens[at - 1].text.as_str(), token.text.as_str()) {
            (":", name @ ("unwrap" | "unwrap_err")) => {
                found.push((token.line, format!("`{name}`: return the error, or expect with the reason")));
            }
            (".", "expect") => {
                let argument = source.tokens.get(at + 2).map_or("", |t| t.text.as_str());
                if argument.starts_with('"') && argument.split_whitespace().count() < 2 {
                    found.push((token.line, "`expect` without a reason: say why it cannot fail".into()));
                }
            }
            _ => {}
        }
    }
    found
}
