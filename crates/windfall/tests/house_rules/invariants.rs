//! The rule that every module executes its invariants.
//!
//! Each sentence under the heading has a mark that names what refutes it: `(checked by PATH::FUNCTION)`, the function
//! with the assertion; `(test: NAME)`, the test that would fail; or `(by type)`, if a violation would not compile.
//! Names are in backticks. A sentence that begins with "So" or "Thus" follows from those before it, and needs none.
//!
//! What is checked is that there are marks, and that they name what exists. Whether a test or an assertion would
//! notice is a question for reviews.

use std::collections::HashSet;

use super::{
    rules::{Broken, Found},
    source::{Source, Token},
};

/// The beginnings of marks with names.
const TEST: [&str; 2] = ["test: ", "tests: "];
const CHECK: &str = "checked by ";

/// The beginnings of sentences that follow from those before them.
const CONSEQUENCES: [&str; 2] = ["So ", "Thus "];

const HEADING: &str = "**Invariants.**";

const ASSERTIONS: [&str; 6] =
    ["assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "debug_assert_ne"];

/// The names to which marks may refer.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Test functions.
    tests: HashSet<String>,
    /// Functions with an assertion, each after the path of its file, as in `log/space.rs::leave`.
    checks: HashSet<String>,
}

impl Names {
    /// Returns the names of all files.
    pub(crate) fn of(sources: &[Source]) -> Self {
        let mut names = Self::default();
        for source in sources {
            names.tests.extend(tests(&source.tokens));
            if !source.test {
                let checks = checks(&source.tokens).map(|function| format!("{}::{function}", source.path));
                names.checks.extend(checks);
            }
        }
        names
    }

    /// Returns what is wrong with a mark, which is given without its parentheses; `None` for other words.
    fn check(&self, mark: &str) -> Option<Result<(), String>> {
        let tests = TEST.iter().find_map(|begin| mark.strip_prefix(begin));
        let Some(list) = tests.or_else(|| mark.strip_prefix(CHECK)) else {
            return (mark == "by type").then_some(Ok(()));
        };
        let unknown = list.split(", ").find_map(|name| {
            let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
                return Some(format!("the mark `({mark})` has no name in backticks"));
            };
            if tests.is_some() {
                return (!self.tests.contains(name)).then(|| format!("there is no test `{name}`"));
            }
            let is_check = self.checks.iter().any(|known| {
                known.strip_suffix(name).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
            });
            (!is_check).then(|| format!("there is no function `{name}` with an assertion"))
        });
        Some(unknown.map_or(Ok(()), Err))
    }
}

/// Returns the violations of all files.
pub(crate) fn unexecuted(sources: &[Source]) -> Vec<Broken> {
    let names = Names::of(sources);
    let of = |source: &Source| {
        let path = source.path.clone();
        stated(source, &names).into_iter().map(move |(line, what)| Broken { path: path.clone(), line, what })
    };
    sources.iter().flat_map(of).collect()
}

/// Checks that each sentence of a module's invariants has a mark, and that its marks are right.
pub(crate) fn stated(source: &Source, names: &Names) -> Found {
    if source.test {
        return Vec::new();
    }
    let doc: Vec<&str> = source.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let Some(first) = doc.iter().position(|line| line.contains(HEADING)) else { return Vec::new() };
    let mut found = Vec::new();
    for sentence in sentences(&doc[first..]) {
        let mut is_marked = CONSEQUENCES.iter().any(|begin| sentence.starts_with(begin));
        let in_brackets = sentence.split('(').skip(1).filter_map(|rest| rest.split(')').next());
        for checked in in_brackets.filter_map(|words| names.check(words)) {
            is_marked = true;
            found.extend(checked.err().map(|what| (first + 1, what)));
        }
        if !is_marked {
            found.push((
                first + 1,
                format!("an invariant without a mark that says what refutes it: {sentence}"),
            ));
        }
    }
    found
}

/// Returns the sentences from the heading of the invariants to the next heading.
fn sentences(doc: &[&str]) -> Vec<String> {
    let mut text = String::new();
    for (at, line) in doc.iter().map(|line| line.trim()).enumerate() {
        let line =
            if at == 0 { line.split_once(HEADING).map_or(line, |(_, rest)| rest.trim()) } else { line };
        if at > 0 && (line.starts_with("**") || line.starts_with("# ")) {
            break;
        }
        text.push_str(line.strip_prefix("- ").unwrap_or(line));
        text.push(' ');
    }
    let mut sentences = vec![String::new()];
    for word in text.split_whitespace() {
        let begins = word.starts_with(|c: char| c.is_ascii_uppercase() || "`[*(".contains(c));
        if begins && sentences.last().is_some_and(|last| last.ends_with('.')) {
            sentences.push(String::new());
        }
        if let Some(last) = sentences.last_mut() {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

fn text(tokens: &[Token], at: usize) -> &str {
    tokens.get(at).map_or("", |token| token.text.as_str())
}

/// Returns whether an assertion begins at this token.
fn is_assertion(tokens: &[Token], at: usize) -> bool {
    ASSERTIONS.contains(&text(tokens, at)) && text(tokens, at + 1) == "!"
}

/// Returns the names of the functions with the attribute `test`, in macros, too.
fn tests(tokens: &[Token]) -> Vec<String> {
    let (mut found, mut is_test) = (Vec::new(), false);
    for at in 0..tokens.len() {
        match text(tokens, at) {
            "test" if text(tokens, at.wrapping_sub(1)) == "[" && text(tokens, at + 1) == "]" => {
                is_test = true;
            }
            "fn" if is_test => {
                found.push(text(tokens, at + 1).to_owned());
                is_test = false;
            }
            _ => {}
        }
    }
    found
}

/// Returns the names of the functions outside of tests that contain an assertion.
fn checks(tokens: &[Token]) -> impl Iterator<Item = String> {
    let functions = (0..tokens.len()).filter(|at| text(tokens, *at) == "fn" && !tokens[*at].test);
    let has_assertion = |at: &usize| body(tokens, *at).any(|at| is_assertion(tokens, at));
    functions.filter(has_assertion).map(|at| text(tokens, at + 1).to_owned())
}

/// Returns the tokens of the body of a function; none for a declaration without one.
fn body(tokens: &[Token], function: usize) -> std::ops::Range<usize> {
    let mut depth = 0;
    let mut begin = None;
    for at in function..tokens.len() {
        match text(tokens, at) {
            ";" if depth == 0 => return at..at,
            "{" if depth == 0 => begin = Some(at),
            "}" if depth == 1 && begin.is_some() => return begin.unwrap_or(at)..at,
            _ => {}
        }
        match text(tokens, at) {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()..tokens.len()
}
