//! The modes of locks, and which of them go together.
//!
//! **Purpose.** One matrix for tables and rows: a row's shared and exclusive are those of a table.
//!
//! **Invariants.** What conflicts does so both ways. A mode that covers another one conflicts with all that the other
//! conflicts with.
//!
//! **May touch.** Nothing.

use core::fmt;

/// How a row is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowMode {
    /// Others may share it, and nobody changes it.
    Shared,
    /// Nobody else has any lock on it.
    Exclusive,
}

/// How a table is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableMode {
    /// Some of its rows are going to be shared.
    IntentionShared,
    /// Some of its rows are going to be changed.
    IntentionExclusive,
    /// Nobody changes any row.
    Shared,
    /// Nobody else has any lock on it or on its rows.
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
    /// All of them, the weaker ones first.
    pub const ALL: [Self; 4] = [IntentionShared, IntentionExclusive, Shared, Exclusive];

    /// Whether two may not have these at once.
    pub const fn conflicts(self, other: Self) -> bool {
        Modes::of(&[self]).conflict(other)
    }

    /// The modes in which nobody else may have what one has in this mode.
    const fn rivals(self) -> Modes {
        match self {
            IntentionShared => Modes::of(&[Exclusive]),
            IntentionExclusive => Modes::of(&[Shared, Exclusive]),
            Shared => Modes::of(&[IntentionExclusive, Exclusive]),
            Exclusive => Modes::of(&Self::ALL),
        }
    }

    /// The modes of which any one makes this one needless.
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

/// Some modes. Who has a table shared, and means to change rows of it himself, has two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modes(u8);

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

    /// With this one, too, and without what is needless then.
    pub fn with(self, mode: TableMode) -> Self {
        if self.cover(mode) {
            return self;
        }
        let new = Self::of(&[mode]);
        let kept = self.iter().filter(|other| !new.cover(*other));
        kept.fold(new, |all, other| Self(all.0 | Self::of(&[other]).0))
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether who has these needs no lock in this mode.
    pub const fn cover(self, mode: TableMode) -> bool {
        self.0 & mode.covers().0 != 0
    }

    /// Whether any of these, had by one, keeps another one from having this mode.
    pub const fn conflict(self, mode: TableMode) -> bool {
        self.0 & mode.rivals().0 != 0
    }

    /// Each of them, the weaker ones first.
    pub fn iter(self) -> impl Iterator<Item = TableMode> {
        TableMode::ALL.into_iter().filter(move |mode| self.0 & Self::of(&[*mode]).0 != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_the_usual_one() {
        // In the order of `ALL`: whether two may have it together.
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
    fn what_covers_another_mode_keeps_out_all_that_it_keeps_out() {
        for strong in TableMode::ALL {
            for weak in TableMode::ALL {
                let covers = Modes::of(&[strong]).cover(weak);
                let keeps_out = |mode: TableMode| mode.rivals().0;
                let is_stronger = keeps_out(weak) & !keeps_out(strong) == 0;
                assert_eq!(covers, is_stronger, "{strong} and {weak}");
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
