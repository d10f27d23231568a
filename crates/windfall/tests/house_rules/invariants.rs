//! The rule that every module executes its invariants.
//!
//! A module states its invariants in its doc, and has an assertion. A sentence that no assertion of the module refutes
//! ends with a mark: `(by type)`, if a violation would not compile; `(test: NAME)`, the test that would fail; or
//! `(checked by PATH::FUNCTION)`, the function with the assertion. Names are in backticks.
//!
//! What is checked is that there is an assertion or a mark, and that marks name what exists. Whether each sentence is
//! covered is a question for reviews.

use std::collections::HashSet;

use super::{
    imports,
    rules::{Broken, Found},
    source::{Source, Token},
};

/// The beginnings of marks with a name.
const TEST: &str = "test: ";
const CHECK: &str = "checked by ";

const HEADING: &str = "**Invariants.**";

const ASSERTIONS: [&str; 6] =
    ["assert", "assert_eq", "assert_ne", "debug_assert", "debug_assert_eq", "debug_assert_ne"];

/// Parts of the engine that only tests have, besides those that are marked as tests.
const APPARATUS: [&str; 5] = ["fuzz", "fuzz_input", "model", "failpoint", "interleavings"];

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
            if imports::is_engine(source) && !source.test {
                let checks = checks(&source.tokens).map(|function| format!("{}::{function}", source.path));
                names.checks.extend(checks);
            }
        }
        names
    }

    /// Returns what is wrong with a mark, which is given without its parentheses. Other words are no marks.
    fn check(&self, mark: &str) -> Option<String> {
        if [TEST, CHECK].iter().any(|begin| mark.starts_with(begin) && name_in(mark, begin).is_none()) {
            return Some(format!("the mark `({mark})` has no name in backticks"));
        }
        if let Some(test) = name_in(mark, TEST) {
            let is_test = self.tests.contains(test);
            return (!is_test).then(|| format!("there is no test `{test}`"));
        }
        let check = name_in(mark, CHECK)?;
        let is_check = self.checks.iter().any(|known| {
            known.strip_suffix(check).is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
        });
        (!is_check).then(|| format!("there is no function `{check}` with an assertion"))
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

/// Checks that a module of the engine with invariants has an assertion or a mark, and that its marks are right.
pub(crate) fn stated(source: &Source, names: &Names) -> Found {
    let is_apparatus = source.modules[0].iter().any(|part| APPARATUS.contains(&part.as_str()));
    if !imports::is_engine(source) || source.test || is_apparatus {
        return Vec::new();
    }
    let doc: Vec<&str> = source.text.lines().map_while(|line| line.strip_prefix("//!")).collect();
    let Some(first) = doc.iter().position(|line| line.contains(HEADING)) else { return Vec::new() };
    // A mark may continue on the next line.
    let text = doc[first..].iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ");
    let marks = text.split('(').skip(1).filter_map(|rest| rest.split(')').next());
    let (mut found, mut is_marked) = (Vec::new(), false);
    for mark in marks {
        is_marked |= mark == "by type" || [TEST, CHECK].iter().any(|begin| name_in(mark, begin).is_some());
        found.extend(names.check(mark).map(|what| (first + 1, what)));
    }
    let asserts =
        (0..source.tokens.len()).any(|at| is_assertion(&source.tokens, at) && !source.tokens[at].test);
    if !asserts && !is_marked {
        found.push((
            first + 1,
            "states invariants, and neither asserts one nor names what checks them".into(),
        ));
    }
    found
}

/// Returns the name in a mark with this beginning.
fn name_in<'m>(mark: &'m str, begin: &str) -> Option<&'m str> {
    mark.strip_prefix(begin)?.strip_prefix('`')?.strip_suffix('`')
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
