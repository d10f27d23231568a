//! Planted bugs: small changes of the engine's source, each of which a test suite must notice.
//!
//! **Purpose.** A test that cannot fail proves nothing. The files in `bugs` describe plausible mistakes as changes of
//! the source: a missing step, two steps in the wrong order, a missing check. [`plant_in_target`] makes a copy of the
//! workspace that contains all of them, each behind a condition, so that one build serves for all; the environment
//! variable [`VARIABLE`] names the bug that a process has. `tests/mutation_suite.rs` runs the test suites in that copy.
//!
//! **Invariants.** The product has no trace of a bug: the changes are made in the copy alone (test:
//! `every_bug_applies_and_unchanged_files_are_not_rewritten`). The text that a change replaces is in its file exactly
//! once, so a change of the engine's source that a bug depends on is detected (test:
//! `every_bug_applies_and_unchanged_files_are_not_rewritten`). A bug is present only when the variable names it;
//! without it, the copy behaves as the product does (test:
//! `every_planted_bug_is_found_and_without_them_the_suites_pass`). Each suite that an entry names fails with its bug
//! (test: `every_planted_bug_is_found_and_without_them_the_suites_pass`).
//!
//! **Format.** A file in `bugs` is a list of entries, separated by an empty line:
//!
//! ```text
//! bug LatchDespiteSharers
//! An exclusive latch is taken while other threads share it.
//! found by model sync
//! found by units sync::latch::tests::an_unchanged_release_keeps_the_version
//! in crates/windfall-base/src/sync/latch.rs
//! -            if word & (EXCLUSIVE | SHARERS) != 0 {
//! +            let held = if planted!(LatchDespiteSharers) { EXCLUSIVE } else { EXCLUSIVE | SHARERS };
//! +            if word & held != 0 {
//! ```
//!
//! The lines after `in` are those of a diff: kept, removed and added lines begin with a space, a minus and a plus. The
//! suites are those of [`Suite`].

mod copy;

pub use copy::{plant_in_target, workspace};

/// The environment variable that names the bug of a process.
pub const VARIABLE: &str = "WINDFALL_BUG";

const FILES: [&str; 8] = [
    include_str!("../bugs/sync.diff"),
    include_str!("../bugs/tree.diff"),
    include_str!("../bugs/log.diff"),
    include_str!("../bugs/buffer.diff"),
    include_str!("../bugs/tablespace.diff"),
    include_str!("../bugs/recovery.diff"),
    include_str!("../bugs/txn.diff"),
    include_str!("../bugs/catalog.diff"),
];

/// A test suite that must fail with a bug.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Suite {
    /// `tests TARGET FILTER`: the tests of an integration test program whose names begin with the filter.
    Tests {
        /// The program, in `crates/windfall/tests`.
        target: String,
        /// The beginning of the names of the tests.
        filter: String,
    },
    /// `units FILTER`: unit tests, of the package that has the filter's first module.
    Units(String),
    /// `fuzz TARGET`: a fuzz target, with its inputs and their mutants.
    Fuzz(String),
    /// `model PATH`: a file of model scenarios, which names the bug, or a folder with such a file `interleavings.rs`.
    Model(String),
}

impl Suite {
    /// Reads what follows `found by`.
    fn parse(line: &str) -> Option<Self> {
        let (kind, of) = line.split_once(' ')?;
        Some(match kind {
            "tests" => {
                let (target, filter) = of.split_once(' ')?;
                Self::Tests { target: target.into(), filter: filter.into() }
            }
            "units" => Self::Units(of.into()),
            "fuzz" => Self::Fuzz(of.into()),
            "model" => Self::Model(of.into()),
            _ => return None,
        })
    }
}

/// A change of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// The path of the file in the workspace.
    pub file: String,
    /// The lines that it replaces.
    pub old: String,
    /// The lines that it puts in their place.
    pub new: String,
}

/// A bug.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bug {
    /// The name.
    pub name: String,
    /// A sentence that says what is wrong.
    pub what: String,
    /// The suites that must notice it; at least one.
    pub found_by: Vec<Suite>,
    /// The changes of the source; at least one.
    pub changes: Vec<Change>,
}

/// Returns all bugs.
///
/// # Panics
/// If an entry is malformed.
pub fn bugs() -> Vec<Bug> {
    FILES.iter().flat_map(|text| parse(text).unwrap_or_else(|wrong| panic!("bugs: {wrong}"))).collect()
}

/// Reads a file of bugs.
///
/// # Errors
/// The first line that is wrong.
fn parse(text: &str) -> Result<Vec<Bug>, String> {
    let mut bugs: Vec<Bug> = Vec::new();
    for line in text.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = line.strip_prefix("bug ") {
            bugs.push(Bug { name: name.into(), ..Bug::default() });
            continue;
        }
        let wrong = || format!("not expected here: {line}");
        let bug = bugs.last_mut().ok_or_else(wrong)?;
        if let Some(file) = line.strip_prefix("in ") {
            bug.changes.push(Change { file: file.into(), ..Change::default() });
        } else if let Some(suite) = line.strip_prefix("found by ") {
            bug.found_by.push(Suite::parse(suite).ok_or_else(wrong)?);
        } else if let Some(change) = bug.changes.last_mut() {
            let (kind, text) = line.split_at_checked(1).ok_or_else(wrong)?;
            let [is_old, is_new] = match kind {
                " " => [true, true],
                "-" => [true, false],
                "+" => [false, true],
                _ => return Err(wrong()),
            };
            for (is_part, of) in [(is_old, &mut change.old), (is_new, &mut change.new)] {
                if is_part {
                    of.push_str(text);
                    of.push('\n');
                }
            }
        } else if bug.what.is_empty() {
            bug.what = line.into();
        } else {
            return Err(wrong());
        }
    }
    Ok(bugs)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn entries_are_complete_and_each_change_asks_for_its_own_bug() {
        let bugs = bugs();
        let names: BTreeSet<&str> = bugs.iter().map(|bug| &*bug.name).collect();
        assert_eq!(names.len(), bugs.len(), "a name is used twice");
        for Bug { name, what, found_by, changes } in &bugs {
            assert!(what.ends_with('.') && !found_by.is_empty() && !changes.is_empty(), "{name}");
            for Change { old, new, .. } in changes {
                assert!(!old.contains("planted!("), "{name}");
                let asked: BTreeSet<_> =
                    new.split("planted!(").skip(1).map(|rest| rest.split(')').next()).collect();
                assert!(asked.iter().all(|asked| *asked == Some(name)), "{name} asks for {asked:?}");
            }
            assert!(changes.iter().any(|change| change.new.contains("planted!(")), "{name}");
        }
    }

    #[test]
    fn malformed_bug_entries_are_refused() {
        let what = "bug A\nIt is wrong.\nfound by fuzz x\nin a.rs\n";
        let [bug] = &parse(&format!("{what} kept\n-old\n+new\n")).unwrap()[..] else { panic!("one bug") };
        assert_eq!((&*bug.changes[0].old, &*bug.changes[0].new), ("kept\nold\n", "kept\nnew\n"));
        for wrong in ["It is wrong.", "bug A\nOne.\nTwo.", "bug A\nfound by luck", &format!("{what}*text")] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
