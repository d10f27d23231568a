//! Typed identifiers: log positions, tablespaces, pages, transactions, undo records.
//!
//! **Purpose.** One newtype per concept, so that a page number cannot be passed where a frame number is expected.
//!
//! **Invariants.** A [`SpaceId`] is an *incarnation*: it is never used twice, not even after a restart, so a stale
//! reference to a dropped tablespace cannot reach its successor (test: `an_incarnation_is_never_used_twice`). So an
//! [`IndexNumber`], which has one, is never taken for that of another index (test:
//! `a_number_stands_for_the_same_index_whatever_others_come_and_go`).

use core::fmt;

/// A position in the redo log: the number of bytes logged before it since the database was created.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// The position before all log records.
    pub const ZERO: Self = Self(0);
    /// The position after all log records that will ever exist: the neutral element of a minimum.
    pub const MAX: Self = Self(u64::MAX);
}

/// A tablespace incarnation. Zero is no tablespace; [`SpaceId::SYSTEM`] is the system tablespace.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SpaceId(pub u64);

impl SpaceId {
    /// No tablespace: the tag of a free frame.
    pub const NONE: Self = Self(0);
    /// The tablespace of the system tree, the only one that every database has.
    pub const SYSTEM: Self = Self(1);
    /// The first id that is assigned to a user tablespace; the ids below are the engine's.
    pub const FIRST: Self = Self(16);
    /// The largest id that is assigned.
    pub const MAX: Self = Self(u64::MAX / 2);
}

/// The number of an index ([`Table::index_number`](../windfall/struct.Table.html#method.index_number)). That of an
/// index remains the same while the table gets other indexes and loses them, and while names change; no other index
/// gets it.
#[derive(Clone, Copy, Debug)]
pub struct IndexNumber {
    /// The number of the opened database, in this process.
    database: u64,
    space: SpaceId,
    /// Where the index was among those of the table: only a hint.
    place: u32,
}

impl IndexNumber {
    /// The number of the index in this tablespace, which is at this place among those of its table.
    #[doc(hidden)]
    pub fn new(database: u64, space: SpaceId, place: usize) -> Self {
        Self { database, space, place: u32::try_from(place).unwrap_or(u32::MAX) }
    }

    /// Returns the place of the index among those of a table, given the number of indexes and the number of each.
    /// Costs the same for any number of indexes while the hint is right, or `expected` is.
    #[doc(hidden)]
    pub fn find(&self, expected: usize, count: usize, of: impl Fn(usize) -> Self) -> Option<usize> {
        let is_there = |place: &usize| *place < count && of(*place) == *self;
        [self.place as usize, expected].into_iter().find(is_there).or_else(|| (0..count).find(is_there))
    }
}

impl PartialEq for IndexNumber {
    fn eq(&self, other: &Self) -> bool {
        (self.database, self.space) == (other.database, other.space)
    }
}

impl Eq for IndexNumber {}

impl core::hash::Hash for IndexNumber {
    fn hash<H: core::hash::Hasher>(&self, state: &mut H) {
        (self.database, self.space).hash(state);
    }
}

/// The number of a page within its tablespace; page `n` begins at byte `n * page_size` of the file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageNo(pub u32);

impl PageNo {
    /// The first allocation-map page, which is also the header of the tablespace.
    pub const HEADER: Self = Self(0);
    /// The root of the tree, once it has one. It never moves.
    pub const ROOT: Self = Self(1);
    /// No page: the end of a chain.
    pub const NONE: Self = Self(u32::MAX);
}

/// Returns the pages with a set bit in a bitmap word that has one bit per page, the lowest bit for page `64 * at`.
pub fn pages_of(at: u32, bits: u64) -> impl Iterator<Item = PageNo> {
    (0..64).filter(move |bit| bits & 1 << bit != 0).map(move |bit| PageNo(at * 64 + bit))
}

/// A page of the database: its tablespace and its number there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PageId {
    /// The tablespace.
    pub space: SpaceId,
    /// The page within it.
    pub page: PageNo,
}

/// A transaction id, at least 1. Every index entry stores 48 bits of it; zero there means that the entry was committed
/// before every existing read view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TrxId(pub u64);

impl TrxId {
    /// The largest id that an entry header holds.
    pub const MAX: Self = Self((1 << 48) - 1);
}

/// The position of an undo record, which is not zero: the undo stream in the upper 8 bits, below it the byte position
/// in that unbounded stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct UndoPos(pub u64);

macro_rules! show {
    ($($name:ident $prefix:literal),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    )*};
}
show!(Lsn "lsn ", SpaceId "space ", PageNo "page ", TrxId "trx ", UndoPos "undo ");

impl fmt::Display for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {} of tablespace {}", self.page, self.space)
    }
}

impl fmt::Debug for PageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.space, self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_displayed_with_their_kind() {
        let page = PageId { space: SpaceId(7), page: PageNo(3) };
        assert_eq!((format!("{page}"), format!("{page:?}")), ("page 3 of tablespace 7".into(), "7:3".into()));
        assert_eq!((format!("{}", Lsn(5)), format!("{:?}", TrxId(6))), ("5".into(), "trx 6".into()));
    }

    #[test]
    fn reserved_ids_are_outside_the_range_of_assigned_ids() {
        // These values are distinguished by their order, and by what the formats reserve.
        assert!(SpaceId::NONE < SpaceId::SYSTEM && SpaceId::SYSTEM < SpaceId::FIRST);
        assert!(PageNo::HEADER < PageNo::ROOT && PageNo::ROOT < PageNo::NONE);
        assert_eq!([Lsn::ZERO, Lsn::MAX].iter().min(), Some(&Lsn::ZERO));
        assert_eq!(TrxId::MAX.0.checked_ilog2(), Some(47));
    }
}
