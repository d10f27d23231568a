//! The factors.
//!
//! **Purpose.** The list of the things that a table can own or have around it, with the small and the large amount of
//! each, the statements that are measured, and the number of rounds.
//!
//! **Invariants.** In a full run the large amount is at least a thousand times the small one, unless the factor has a
//! lower limit (test: `names_are_found_and_amounts_differ`).

use windfall_measure::{
    Scale,
    flat::{Bounds, FLAT, Figure},
    units::{bytes, count},
};

/// A factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FactorKind {
    Rows,
    CleanPages,
    DirtyPages,
    HashIndex,
    Indexes,
    LongValues,
    History,
    Purge,
    Handles,
    NoHandle,
    Cursors,
    Prepared,
    Group,
    LargeGroup,
    Catalog,
    OpenFile,
    ClosedFile,
}

/// A statement that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `drop_table`, or `drop_tables` of a group.
    Drop,
    /// `truncate_table`.
    Truncate,
    /// `drop_index`.
    DropIndex,
}

impl Kind {
    /// Returns its name.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Truncate => "truncate",
            Self::DropIndex => "drop index",
        }
    }
}

/// Number of rounds of each kind of measurement, each with little and with much.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounds {
    /// Rounds with times and counted work.
    pub timed: u32,
    /// Rounds with single-stepping.
    pub stepped: u32,
    /// Rounds with traced system calls.
    pub traced: u32,
    /// Rounds with concurrent readers and writers: with much only.
    pub concurrent: u32,
}

impl FactorKind {
    /// The name of the part of `bench drop` that measures them.
    pub(crate) const PART: &str = "factors";
    /// All factors.
    pub(crate) const ALL: [Self; 17] = [
        Self::Rows,
        Self::CleanPages,
        Self::DirtyPages,
        Self::HashIndex,
        Self::Indexes,
        Self::LongValues,
        Self::History,
        Self::Purge,
        Self::Handles,
        Self::NoHandle,
        Self::Cursors,
        Self::Prepared,
        Self::Group,
        Self::LargeGroup,
        Self::Catalog,
        Self::OpenFile,
        Self::ClosedFile,
    ];

    /// Returns its short name.
    pub(crate) fn id(self) -> &'static str {
        match self {
            Self::Rows => "rows",
            Self::CleanPages => "clean-pages",
            Self::DirtyPages => "dirty-pages",
            Self::HashIndex => "hash-index",
            Self::Indexes => "indexes",
            Self::LongValues => "long-values",
            Self::History => "history",
            Self::Purge => "purge",
            Self::Handles => "handles",
            Self::NoHandle => "no-handle",
            Self::Cursors => "cursors",
            Self::Prepared => "prepared",
            Self::Group => "group",
            Self::LargeGroup => "large-group",
            Self::Catalog => "catalog",
            Self::OpenFile => "open-file",
            Self::ClosedFile => "closed-file",
        }
    }

    /// Returns the factor of this name.
    pub(crate) fn named(id: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|factor| factor.id() == id)
    }

    /// Returns the factors among these names; all for no name, and for that of the part.
    pub(crate) fn among(names: &[String]) -> Vec<Self> {
        if names.is_empty() || names.iter().any(|name| name == Self::PART) {
            return Self::ALL.into();
        }
        names.iter().filter_map(|name| Self::named(name)).collect()
    }

    /// Returns its description.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Rows => "rows of the table",
            Self::CleanPages => "clean pages of it in the pool",
            Self::DirtyPages => "dirty pages of it in the pool",
            Self::HashIndex => "its hash index, grown by point reads",
            Self::Indexes => "its secondary indexes",
            Self::LongValues => "long values, each a chain of overflow pages",
            Self::History => "changes of its rows since a view that is kept open",
            Self::Purge => "deleted rows that purge has still to remove",
            Self::Handles => "handles of the table and of an index that are kept",
            Self::NoHandle => "handles of the table that are kept: one, and none",
            Self::Cursors => "transactions with a view, a cursor and a range in the table",
            Self::Prepared => {
                "transactions that changed it, were prepared and have ended, and as many that stand prepared in another \
                 table"
            }
            Self::Group => "tables that one statement drops",
            Self::LargeGroup => "the same, too many to be stepped: instructions are not counted",
            Self::Catalog => "other tables in the catalog",
            Self::OpenFile => "its file, which is open",
            Self::ClosedFile => "its file, which is closed: it had to leave the cache of open files",
        }
    }

    /// Returns the small and the large amount.
    pub(crate) fn amounts(self, scale: Scale) -> [u64; 2] {
        const KB: u64 = 1 << 10;
        const MB: u64 = 1 << 20;
        match self {
            Self::Rows => scale.pick([50, 500], [1_000, 100_000], [1_000, 1_000_000]),
            Self::CleanPages => scale.pick([8, 80], [16, 1_600], [16, 16_000]),
            // The pool also has dirty pages of the small tables around the victim, some 150 at most.
            Self::DirtyPages => scale.pick([8, 800], [16, 1_600], [16, 16_000]),
            // A hash index grows fourfold: these are sizes that it can have.
            Self::HashIndex => scale.pick([32 * KB, 128 * KB], [32 * KB, 8 * MB], [32 * KB, 32 * MB]),
            Self::Indexes => scale.pick([0, 6], [0, 60], [0, 60]),
            Self::History => scale.pick([5, 50], [10, 1_000], [10, 10_000]),
            Self::Purge => scale.pick([5, 50], [1, 200], [1, 1_000]),
            Self::Handles => scale.pick([1, 50], [1, 1_000], [1, 1_000]),
            Self::NoHandle => [1, 0],
            Self::LongValues | Self::Cursors | Self::Prepared => scale.pick([1, 10], [1, 200], [1, 1_000]),
            Self::Group => scale.pick([1, 10], [1, 50], [1, 200]),
            Self::LargeGroup => scale.pick([1, 20], [1, 2_000], [1, 10_000]),
            Self::Catalog => scale.pick([10, 100], [10, 20_000], [10, 1_000_000]),
            Self::OpenFile | Self::ClosedFile => {
                scale.pick([128 * KB, 8 * MB], [MB, 100 * MB], [MB, 1_024 * MB])
            }
        }
    }

    /// Formats an amount of it.
    pub(crate) fn in_words(self, amount: u64) -> String {
        match self {
            Self::HashIndex | Self::OpenFile | Self::ClosedFile => bytes(amount as f64),
            _ => count(amount),
        }
    }

    /// Returns the unit that costs are divided by; none for the whole statement.
    pub(crate) fn per(self) -> Option<&'static str> {
        match self {
            Self::Indexes => Some("tree of the table"),
            Self::Group | Self::LargeGroup => Some("table of the group"),
            _ => None,
        }
    }

    /// Returns whether it is around the dropped table, and never in it.
    pub(crate) fn is_around(self) -> bool {
        self == Self::Catalog
    }

    /// Returns whether it is a group of tables.
    pub(crate) fn is_group(self) -> bool {
        matches!(self, Self::Group | Self::LargeGroup)
    }

    /// Returns the figures that cannot be flat, each with the largest allowed ratios with much in the table and with
    /// much in another one, and the reason.
    pub(crate) fn grows(self) -> Option<(&'static [(Figure, Bounds)], &'static str)> {
        match self {
            Self::Catalog => Some((
                &[
                    (Figure::Instructions, [1.3; 2]),
                    (Figure::Work, [1.25; 2]),
                    (Figure::Time, [1.5; 2]),
                    (Figure::ThreadTime, [1.5; 2]),
                ],
                "a statement goes down the tree that holds the records of tables, a page for each of its levels",
            )),
            Self::Indexes => Some((
                &[
                    // The drop of one tree requests no memory, so these are bytes for each tree, plus one.
                    (Figure::Allocated, [32.0, FLAT]),
                    // The drop of one index frees 53 bytes in a table of two trees, and 2,150 in one of 61.
                    (Figure::Freed, [1.4, FLAT]),
                ],
                "the queue of dropped trees requests a block of memory for every 31 of them, and a statement on one \
                 index replaces the list of all",
            )),
            Self::Group | Self::LargeGroup => Some((
                &[
                    (Figure::Instructions, [1.5; 2]),
                    // The drop of one table requests no memory, so these are 511 bytes for each table, plus one. It
                    // frees 32 bytes.
                    (Figure::Allocated, [512.0, FLAT]),
                    (Figure::Freed, [9.9, FLAT]),
                    (Figure::Time, [1.33; 2]),
                    (Figure::ThreadTime, [1.33; 2]),
                ],
                "with many tables the tree of their records is higher; and the lists of a statement on one table lie on \
                 the stack, those of one on many in memory",
            )),
            _ => None,
        }
    }

    /// Returns the number of these units in a statement.
    pub(crate) fn each(self, kind: Kind, amount: u64) -> f64 {
        match self {
            Self::Indexes => self.indexes(kind, amount) as f64 + 1.0,
            Self::Group | Self::LargeGroup => amount as f64,
            _ => 1.0,
        }
    }

    /// Returns the number of secondary indexes of a table that is dropped.
    pub(crate) fn indexes(self, kind: Kind, amount: u64) -> u64 {
        match self {
            Self::Indexes if kind == Kind::DropIndex => amount.max(1),
            Self::Indexes => amount,
            Self::HashIndex | Self::Group | Self::LargeGroup => 0,
            _ => 2,
        }
    }

    /// Returns the lists of statements that a table goes through in sequence; each list is measured equally often.
    pub(crate) fn statements(self) -> &'static [&'static [Kind]] {
        match self {
            Self::Group | Self::LargeGroup => &[&[Kind::Drop]],
            // Point reads use the clustered tree, so secondary indexes have no hash index to lose.
            Self::HashIndex => &[&[Kind::Drop], &[Kind::Truncate]],
            // Purge reaches the table after the first statement.
            Self::Indexes | Self::Purge => &[&[Kind::Drop], &[Kind::Truncate], &[Kind::DropIndex]],
            _ => &[&[Kind::DropIndex, Kind::Drop], &[Kind::DropIndex, Kind::Truncate]],
        }
    }

    /// Returns the number of rounds of each list of statements.
    pub(crate) fn rounds(self, scale: Scale) -> Rounds {
        const MADE_SLOWLY: [FactorKind; 7] = [
            FactorKind::Rows,
            FactorKind::CleanPages,
            FactorKind::DirtyPages,
            FactorKind::HashIndex,
            FactorKind::LargeGroup,
            FactorKind::OpenFile,
            FactorKind::ClosedFile,
        ];
        let [timed, stepped, traced, concurrent] = match (scale, MADE_SLOWLY.contains(&self)) {
            (Scale::Quick, _) => [1, 1, 1, 1],
            (Scale::Default, false) => [12, 1, 1, 4],
            (Scale::Default, true) => [6, 1, 1, 2],
            (Scale::Full, false) => [84, 12, 3, 20],
            (Scale::Full, true) => [24, 12, 1, 16],
        };
        // A single step takes the time of ten thousand instructions, and more on a virtual machine.
        let is_stepped = match (self, scale) {
            // The group would need too many steps. With `Purge`, purge would reach the table meanwhile.
            (Self::LargeGroup | Self::Purge, _) => false,
            (Self::Rows | Self::HashIndex | Self::Group, _) => true,
            (_, scale) => scale != Scale::Quick,
        };
        let stepped = match self {
            _ if !is_stepped => 0,
            // Every round steps through all tables of the group. Their number makes up for that of the rounds.
            Self::Group => stepped.min(3),
            _ => stepped,
        };
        Rounds { timed, stepped, traced, concurrent }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_amounts_differ() {
        for factor in FactorKind::ALL {
            assert_eq!(FactorKind::named(factor.id()), Some(factor));
            for scale in Scale::ALL {
                let [little, much] = factor.amounts(scale);
                assert!(little < much || factor == FactorKind::NoHandle, "{factor:?}");
            }
            let [little, much] = factor.amounts(Scale::Full);
            let has_lower_limit =
                matches!(factor, FactorKind::Indexes | FactorKind::NoHandle | FactorKind::Group);
            assert!(has_lower_limit || much >= 1_000 * little, "{factor:?}: {little} and {much}");
            // Each order of the three sides occurs equally often, or each side equally often in each place; and half of
            // the runs with other clients begin with a drop.
            let rounds = factor.rounds(Scale::Full);
            assert!(rounds.timed % 6 == 0 && rounds.stepped % 3 == 0, "{factor:?}: {rounds:?}");
            assert!(rounds.concurrent % 2 == 0, "{factor:?}: {rounds:?}");
            // With fewer windows no rank test could reach the required significance.
            assert!(rounds.timed >= 24 && rounds.concurrent >= 16, "{factor:?}: {rounds:?}");
        }
        assert_eq!(FactorKind::Indexes.each(Kind::DropIndex, 0), 2.0);
        assert_eq!(FactorKind::Indexes.each(Kind::Drop, 60), 61.0);
    }
}
