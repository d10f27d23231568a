//! The frequency of each kind of outcome: a test that never meets a refusal proves nothing about it.

use std::collections::BTreeMap;

use crate::outcome::{Outcome, Refusal};
use crate::steps::Ddl;

/// The least frequency of each kind of outcome.
pub(crate) const AT_LEAST: u64 = 10;

const ALONE: &str = "alone";
const READ_UNCOMMITTED: &str = "read uncommitted";
const READ_COMMITTED: &str = "read committed";
const REPEATABLE_READ: &str = "repeatable read";
const SNAPSHOT: &str = "snapshot";
const SERIALIZABLE: &str = "serializable";
const LEVELS: &[&str] = &[READ_UNCOMMITTED, READ_COMMITTED, REPEATABLE_READ, SNAPSHOT, SERIALIZABLE];
const ALL: &[&str] = &[ALONE, READ_UNCOMMITTED, READ_COMMITTED, REPEATABLE_READ, SNAPSHOT, SERIALIZABLE];
const PLAIN: &[&str] = &[ALONE, READ_UNCOMMITTED, READ_COMMITTED, REPEATABLE_READ, SNAPSHOT];

/// Groups, and for each kind of call the outcomes that must occur.
type Expected = (&'static [&'static str], &'static [(&'static str, &'static str)]);

const EXPECTED: &[Expected] = &[
    (
        ALL,
        &[
            ("write", "done Busy DuplicateRow DuplicateIndexKey NoRow"),
            ("delete", "true false Busy"),
            ("read", "a_value none true false"),
            ("open", "done"),
            ("call within", "Turn done BusyWithin"),
            ("call within, late", "Turn"),
            ("look", "a_row the_end"),
        ],
    ),
    (
        LEVELS,
        &[
            ("write", "ReadOnly Prepared"),
            ("delete", "ReadOnly Prepared"),
            ("read", "Prepared"),
            ("locking read", "a_value none Busy ReadOnly Prepared"),
            ("locking cursor", "a_row the_end Busy"),
            ("open", "ReadOnly"),
            ("statement", "done OnPurpose Busy DuplicateRow DuplicateIndexKey NoRow"),
            ("begin statement", "done Prepared"),
            ("keep statement", "done NoStatement Prepared"),
            ("undo statement", "done NoStatement Prepared"),
            ("savepoint", "done Prepared"),
            ("rollback to", "done NoSavepoint Prepared"),
            ("release", "done NoSavepoint"),
            ("prepare", "done NameTaken Prepared StatementInProgress"),
            ("end", "done StatementInProgress"),
            ("end during a call", "done StatementInProgress"),
        ],
    ),
    (PLAIN, &[("open", "NoIndex"), ("cursor", "a_row the_end Dropped")]),
    (&[REPEATABLE_READ, SNAPSHOT], &[("read", "TableChanged"), ("cursor", "TableChanged")]),
    (
        &[SNAPSHOT],
        &[
            ("write", "Changed TableChanged"),
            ("delete", "Changed"),
            ("locking read", "Changed TableChanged"),
            ("locking cursor", "Changed"),
            ("statement", "Changed"),
        ],
    ),
    (&[SERIALIZABLE], &[("read", "Busy")]),
    (&[ALONE], &[("end prepared", "done InUse NotPrepared")]),
    (
        &["statement"],
        &[
            ("create", "done TableExists"),
            ("create temporary", "done TableExists"),
            ("drop temporary", "done NoTable"),
            ("drop", "done Busy NoTable"),
            ("drop two", "done Busy NoTable"),
            ("truncate", "done Busy NoTable"),
            ("rename", "done Busy NoTable TableExists"),
            ("swap", "done Busy NoTable"),
            ("create index", "done Busy NoTable IndexExists DuplicateIndexKey"),
            ("drop index", "done Busy NoTable NoIndex"),
        ],
    ),
    (&["check"], &[("live", "done"), ("whole", "done")]),
    (&["restart"], &[("crash", "done"), ("reopen", "done")]),
];

/// By level (or another group), kind of call, and outcome.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(BTreeMap<(&'static str, &'static str, String), u64>);

fn name(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "done".into(),
        Outcome::Is(is) => is.to_string(),
        Outcome::Value(value) => if value.is_some() { "a value" } else { "none" }.into(),
        Outcome::Row { .. } => "a row".into(),
        Outcome::End => "the end".into(),
        Outcome::Refused(Refusal::Other(_)) => "an error".into(),
        Outcome::Refused(Refusal::DuplicateRow(_)) => "DuplicateRow".into(),
        Outcome::Refused(Refusal::DuplicateIndexKey(_)) => "DuplicateIndexKey".into(),
        Outcome::Refused(refusal) => format!("{refusal:?}"),
    }
}

impl Counts {
    pub(crate) fn add(&mut self, group: &'static str, kind: &'static str, outcome: &Outcome) {
        *self.0.entry((group, kind, name(outcome))).or_default() += 1;
    }

    pub(crate) fn merge(&mut self, other: Self) {
        for (key, count) in other.0 {
            *self.0.entry(key).or_default() += count;
        }
    }

    fn of(&self, group: &str, kind: &str, outcome: &str) -> u64 {
        let is_it = |key: &(&str, &str, String)| key.0 == group && key.1 == kind && key.2 == outcome;
        self.0.iter().filter(|(key, _)| is_it(key)).map(|(_, count)| count).sum()
    }

    /// Returns the required kinds of outcomes that occurred less often than this.
    pub(crate) fn rarer_than(&self, at_least: u64) -> Vec<String> {
        let of_groups = EXPECTED.iter().flat_map(|(groups, kinds)| {
            groups
                .iter()
                .flat_map(move |group| kinds.iter().map(move |(kind, outcomes)| (*group, *kind, *outcomes)))
        });
        let mut rare = Vec::new();
        for (group, kind, outcomes) in of_groups {
            for outcome in outcomes.split(' ') {
                let outcome = outcome.replace('_', " ");
                let count = self.of(group, kind, &outcome);
                if count < at_least {
                    rare.push(format!("{group}, {kind}: {outcome} {count}"));
                }
            }
        }
        rare
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// Returns the counts, one line per group and kind.
    pub(crate) fn table(&self) -> String {
        let mut lines: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for ((group, kind, outcome), count) in &self.0 {
            lines.entry((group, kind)).or_default().push(format!("{outcome} {count}"));
        }
        let lines = lines
            .into_iter()
            .map(|((group, kind), counts)| format!("{group}, {kind}: {}\n", counts.join(", ")));
        lines.collect()
    }
}

impl Ddl {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Create { .. } => "create",
            Self::CreateTemporary { .. } => "create temporary",
            Self::DropTemporary => "drop temporary",
            Self::Drop { .. } => "drop",
            Self::DropTwo { .. } => "drop two",
            Self::Truncate { .. } => "truncate",
            Self::Rename { .. } => "rename",
            Self::Swap { .. } => "swap",
            Self::CreateIndex { .. } => "create index",
            Self::DropIndex { .. } => "drop index",
        }
    }
}
