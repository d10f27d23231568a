//! Lock modes and their compatibility.
//!
//! **Purpose.** One compatibility matrix for tables and rows: the shared and exclusive modes of a row are those of a
//! table.
//!
//! **Invariants.** The matrix is symmetric (test: `the_matrix_is_the_usual_one`). A mode that covers another one
//! conflicts with everything that the other one conflicts with (test:
//! `a_mode_covers_another_if_it_conflicts_with_at_least_as_much`).

use core::fmt;

/// The mode of a row lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowMode {
    /// Others may share the row, and no transaction may change it.
    Shared,
    /// No other transaction has a lock on the row.
    Exclusive,
}

/// The mode of a table lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableMode {
    /// The holder will lock some rows in shared mode.
    IntentionShared,
    /// The holder will change some rows.
    IntentionExclusive,
    /// No other transaction may change rows.
    Shared,
    /// No other transaction has a lock on the table or its rows.
    Exclusive,
}

use TableMode::{Exclusive, IntentionExclusive, IntentionShared, Shared};

impl From<RowMode> for TableMode {
    fn from(mode: RowMode) -> Self {
        match mode {
            RowMode::Shared => Self::Shared,
            RowMode::Exclusive => Self::Exclusive,
        }
    }
}

impl TableMode {
    /// All modes, the weaker ones first.
    pub const ALL: [Self; 4] = [IntentionShared, IntentionExclusive, Shared, Exclusive];

    /// Returns whether two transactions may not hold these modes at once.
    pub const fn conflicts(self, other: Self) -> bool {
        Modes::of(&[self]).conflict(other)
    }

    /// Returns whether a transaction that holds this mode need not request the other one.
    pub const fn includes(self, other: Self) -> bool {
        Modes::of(&[self]).cover(other)
    }

    /// Returns the modes that conflict with this one.
    const fn rivals(self) -> Modes {
        match self {
            IntentionShared => Modes::of(&[Exclusive]),
            IntentionExclusive => Modes::of(&[Shared, Exclusive]),
            Shared => Modes::of(&[IntentionExclusive, Exclusive]),
            Exclusive => Modes::of(&Self::ALL),
        }
    }

    /// Returns the modes that cover this one.
    const fn covers(self) -> Modes {
        match self {
            IntentionShared => Modes::of(&Self::ALL),
            IntentionExclusive => Modes::of(&[IntentionExclusive, Exclusive]),
            Shared => Modes::of(&[Shared, Exclusive]),
            Exclusive => Modes::of(&[Exclusive]),
        }
    }
}

impl fmt::Display for TableMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IntentionShared => "intention shared",
            IntentionExclusive => "intention exclusive",
            Shared => "shared",
            Exclusive => "exclusive",
        })
    }
}

impl fmt::Display for RowMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        TableMode::from(*self).fmt(f)
    }
}

/// A set of modes. A transaction that holds a table in shared mode and changes rows of it itself has two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Modes(u8);

impl From<TableMode> for Modes {
    fn from(mode: TableMode) -> Self {
        Self::of(&[mode])
    }
}

impl Modes {
    const fn of(modes: &[TableMode]) -> Self {
        let (mut bits, mut n) = (0, 0);
        while n < modes.len() {
            bits |= 1 << modes[n] as u8;
            n += 1;
        }
        Self(bits)
    }

    /// Adds a mode, and removes the modes that it covers.
    pub(super) fn with(self, mode: TableMode) -> Self {
        if self.cover(mode) {
            return self;
        }
        let new = Self::of(&[mode]);
        let kept = self.iter().filter(|other| !new.cover(*other));
        let all = kept.fold(new, |all, other| Self(all.0 | Self::of(&[other]).0));
        debug_assert!(all.cover(mode), "a set of modes covers the mode that was added");
        all
    }

    /// Returns whether the set is empty.
    pub(super) const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns whether these modes cover this one.
    pub(super) const fn cover(self, mode: TableMode) -> bool {
        self.0 & mode.covers().0 != 0
    }

    /// Returns whether any of these modes conflicts with this one.
    pub(super) const fn conflict(self, mode: TableMode) -> bool {
        self.0 & mode.rivals().0 != 0
    }

    /// Returns the modes, the weaker ones first.
    pub(super) fn iter(self) -> impl Iterator<Item = TableMode> {
        TableMode::ALL.into_iter().filter(move |mode| self.0 & Self::of(&[*mode]).0 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_the_usual_one() {
        // In the order of `ALL`: whether two transactions may hold both.
        let together = [
            [true, true, true, false],
            [true, true, false, false],
            [true, false, true, false],
            [false, false, false, false],
        ];
        for (n, row) in together.iter().enumerate() {
            for (m, together) in row.iter().enumerate() {
                let (one, other) = (TableMode::ALL[n], TableMode::ALL[m]);
                assert_eq!(!one.conflicts(other), *together, "{one} and {other}");
            }
        }
    }

    #[test]
    fn a_mode_covers_another_if_it_conflicts_with_at_least_as_much() {
        for strong in TableMode::ALL {
            for weak in TableMode::ALL {
                let covers = Modes::of(&[strong]).cover(weak);
                let keeps_out = |mode: TableMode| mode.rivals().0;
                let is_stronger = keeps_out(weak) & !keeps_out(strong) == 0;
                assert_eq!(covers, is_stronger, "{strong} and {weak}");
                assert_eq!(strong.includes(weak), covers, "{strong} and {weak}");
            }
        }
    }

    #[test]
    fn a_stronger_mode_takes_the_place_of_weaker_ones() {
        let both = Modes::default().with(IntentionExclusive).with(Shared);
        assert_eq!(both.iter().collect::<Vec<_>>(), [IntentionExclusive, Shared]);
        assert!(
            both.conflict(IntentionExclusive) && both.conflict(Shared) && !both.conflict(IntentionShared)
        );
        assert!(both.cover(IntentionShared) && !both.cover(Exclusive));
        assert_eq!(both.with(IntentionShared), both);
        assert_eq!(both.with(Exclusive).iter().collect::<Vec<_>>(), [Exclusive]);
    }
}
