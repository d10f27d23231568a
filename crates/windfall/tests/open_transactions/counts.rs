//! How often each kind of outcome occurred: a test that never comes to a refusal proves nothing of it.

use std::collections::BTreeMap;

use crate::outcome::{Outcome, Refusal};
use crate::steps::Ddl;

/// By level (or another group), kind of call, and outcome.
#[derive(Clone, Debug, Default)]
pub struct Counts(BTreeMap<(&'static str, &'static str, String), u64>);

fn name(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Done => "done".into(),
        Outcome::Is(is) => is.to_string(),
        Outcome::Value(value) => if value.is_some() { "a value" } else { "none" }.into(),
        Outcome::Row { .. } => "a row".into(),
        Outcome::End => "the end".into(),
        Outcome::Refused(Refusal::Other(_)) => "an error".into(),
        Outcome::Refused(refusal) => format!("{refusal:?}"),
    }
}

impl Counts {
    pub fn add(&mut self, group: &'static str, kind: &'static str, outcome: &Outcome) {
        *self.0.entry((group, kind, name(outcome))).or_default() += 1;
    }

    pub fn merge(&mut self, other: Self) {
        for (key, count) in other.0 {
            *self.0.entry(key).or_default() += count;
        }
    }

    pub fn of(&self, group: &str, kind: &str, outcome: &str) -> u64 {
        let is_it = |key: &(&str, &str, String)| key.0 == group && key.1 == kind && key.2 == outcome;
        self.0.iter().filter(|(key, _)| is_it(key)).map(|(_, count)| count).sum()
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    /// One line a group and kind.
    pub fn table(&self) -> String {
        let mut lines: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
        for ((group, kind, outcome), count) in &self.0 {
            lines.entry((group, kind)).or_default().push(format!("{outcome} {count}"));
        }
        let lines = lines.into_iter().map(|((group, kind), counts)| format!("{group}, {kind}: {}\n", counts.join(", ")));
        lines.collect()
    }
}

impl Ddl {
    pub fn name(&self) -> &'static str {
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
