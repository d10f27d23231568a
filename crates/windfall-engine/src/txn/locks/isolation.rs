//! The isolation level of a transaction.
//!
//! **Purpose.** The names of the levels, and what a plain read does at each. What else they mean for reads and locks is
//! decided by the calls, above.
//!
//! **Invariants.** The levels are in the order of their strictness, and [`Isolation::ALL`] has each at its place (test:
//! `levels_are_at_their_places`).

/// The isolation level of a transaction, with the meanings that users of `MariaDB` know.
///
/// A *plain read* locks nothing. Changes and locking reads ([`TxTable::get_for_update`]) use the newest version of a
/// row, and wait for a transaction that is changing it.
///
/// [`TxTable::get_for_update`]: https://docs.rs/windfall/latest/windfall/struct.TxTable.html#method.get_for_update
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Isolation {
    /// A plain read returns the newest version, committed or not.
    ReadUncommitted,
    /// Each plain read returns what was committed when it began. In a statement (`Transaction::begin_statement`) all
    /// plain reads return what was committed at the first of them, and refuse a table that was created or truncated
    /// since ([`TransactionError::TableChanged`](crate::error::TransactionError::TableChanged)).
    ReadCommitted,
    /// All plain reads return what was committed at the first of them. No row is inserted into a range that the
    /// transaction has locked.
    #[default]
    RepeatableRead,
    /// As [`Isolation::RepeatableRead`], and a row that has changed since the snapshot is neither changed nor locked:
    /// [`TransactionError::Changed`](crate::error::TransactionError::Changed). This prevents lost updates. Temporary
    /// tables have no versions, and are read and changed as they are.
    Snapshot,
    /// Every plain read locks its rows, and the gaps between, as a read for share does.
    Serializable,
}

/// What a plain read of a transaction does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlainRead {
    /// It returns the newest versions.
    Newest,
    /// It returns what was committed when it began, or when the first plain read of its statement did.
    Committed,
    /// It returns what was committed when the first plain read of the transaction began.
    Snapshot,
    /// It locks what it reads.
    Locking,
}

impl Isolation {
    /// Returns what a plain read does at this level.
    #[doc(hidden)]
    pub fn plain_read(self) -> PlainRead {
        match self {
            Self::ReadUncommitted => PlainRead::Newest,
            Self::ReadCommitted => PlainRead::Committed,
            Self::RepeatableRead | Self::Snapshot => PlainRead::Snapshot,
            Self::Serializable => PlainRead::Locking,
        }
    }

    /// All levels, from the weakest to the strictest.
    pub const ALL: &[Self] = &[
        Self::ReadUncommitted,
        Self::ReadCommitted,
        Self::RepeatableRead,
        Self::Snapshot,
        Self::Serializable,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_at_their_places() {
        assert!(Isolation::ALL.is_sorted() && Isolation::ALL.len() == 5);
        for (place, level) in Isolation::ALL.iter().enumerate() {
            assert_eq!(*level as usize, place, "{level:?}");
        }
    }
}
