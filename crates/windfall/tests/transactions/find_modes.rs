//! The find modes of a SQL server, by an index of supplied entries: the calls that the documentation of `IndexCursor`
//! names for them.

use std::sync::Arc;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use windfall::{
    Database, IndexCursor, IndexItem, IndexKey, IndexOptions, Isolation, Result, Seek, SuppliedChange,
    SuppliedEntry, TableOptions, env::RealEnv,
};
use windfall_sim::SimulatedDisk;

use super::{begin, database, options};

/// The find modes: how a model finds the entry among all of them in order, and how a cursor does.
#[derive(Clone, Copy, Debug)]
enum Find {
    Exact,
    KeyOrNext,
    KeyOrPrev,
    After,
    Before,
    Prefix,
    PrefixLast,
    PrefixLastOrPrev,
}

const ALL: [Find; 8] = [
    Find::Exact,
    Find::KeyOrNext,
    Find::KeyOrPrev,
    Find::After,
    Find::Before,
    Find::Prefix,
    Find::PrefixLast,
    Find::PrefixLastOrPrev,
];

impl Find {
    /// Returns the place of the entry among the index keys of all entries.
    fn among(self, keys: &[Vec<u8>], key: &[u8]) -> Option<usize> {
        let is_of_key = |other: &Vec<u8>| other.starts_with(key);
        let is_below = |other: &Vec<u8>| &other[..] < key;
        match self {
            Self::Exact => keys.iter().position(|other| other == key),
            Self::KeyOrNext => keys.iter().position(|other| !is_below(other)),
            Self::KeyOrPrev | Self::PrefixLastOrPrev => {
                keys.iter().rposition(|other| is_below(other) || is_of_key(other))
            }
            Self::After => keys.iter().position(|other| !is_below(other) && !is_of_key(other)),
            Self::Before => keys.iter().rposition(is_below),
            Self::Prefix => keys.iter().position(is_of_key),
            Self::PrefixLast => keys.iter().rposition(is_of_key),
        }
    }

    fn by(self, cursor: &mut IndexCursor, key: &[u8]) -> Result<bool> {
        match self {
            Self::Exact | Self::Prefix => {
                cursor.set_range(key..=key);
                return cursor.next();
            }
            Self::PrefixLast => {
                cursor.set_range(key..=key);
                return cursor.prev();
            }
            _ => cursor.set_range::<&[u8]>(..),
        }
        cursor.seek(match self {
            Self::KeyOrNext => Seek::AtLeast(key),
            Self::After => Seek::Above(key),
            Self::Before => Seek::Below(key),
            _ => Seek::AtMost(key),
        })
    }
}

#[test]
fn each_find_mode_has_a_call() {
    let mut random = SmallRng::seed_from_u64(8);
    for round in 0..6u8 {
        let db = database();
        let options = TableOptions::default().index("i", IndexOptions::supplied(2));
        let table = db.create_table("t", options).unwrap();
        let mut entries = Vec::new();
        for row in 0..15 * round {
            let key = [(); 2].map(|()| [0, 1, 2, 0x7f, 0xfe, 0xff][random.random_range(0..6)]);
            let new = Some(SuppliedEntry::new(&key));
            table.insert_with(&[row], b"", &[SuppliedChange::new("i", None, new)]).unwrap();
            entries.push((key.to_vec(), vec![row]));
        }
        entries.sort_unstable();
        let keys: Vec<_> = entries.iter().map(|(key, _)| key.clone()).collect();
        for level in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
            let trx = begin(&db, level);
            let index = trx.table(&table).index("i").unwrap();
            let cursors =
                [index.cursor(), index.key_cursor(), index.cursor_for_share(), index.key_cursor_for_update()];
            let mut cursors = cursors.map(Result::unwrap);
            for _ in 0..60 {
                let key = [(); 2].map(|()| [0, 1, 2, 3, 0x7f, 0xfe, 0xff][random.random_range(0..7)]);
                let (find, prefix) = (ALL[random.random_range(0..8)], &key[..1]);
                let key = match find {
                    Find::Prefix | Find::PrefixLast | Find::PrefixLastOrPrev => prefix,
                    _ => &key[..],
                };
                let expected = find.among(&keys, key).map(|place| entries[place].clone());
                for (n, cursor) in cursors.iter_mut().enumerate() {
                    let found = find.by(cursor, key).unwrap();
                    let row = cursor.row().map(IndexKey::of).map(|row| (row.index_key, row.key));
                    assert_eq!(
                        (found, &row),
                        (expected.is_some(), &expected),
                        "{find:?} {key:?}, {level:?}, {n}"
                    );
                }
            }
        }
    }
}

/// In an index of extracted entries, the key of the row follows a zero byte behind the composite key.
#[test]
fn bounds_of_extracted_entries_reach_into_the_key_of_the_row() {
    let options = options().extractor("first", |_key, value, entries| {
        entries.add((&value[..1],));
        Ok(())
    });
    let disk = Arc::new(SimulatedDisk::new(1));
    let db = Database::open_on(disk, Arc::new(RealEnv::default()), &options, &|_| {}).unwrap();
    let table =
        db.create_table("t", TableOptions::default().index("i", IndexOptions::extracted("first"))).unwrap();
    (1..=6u8).for_each(|n| table.insert(&[n], &[n % 2]).unwrap());
    let index = table.index("i").unwrap();
    let bound = |row: u8| [index.key((&[1u8][..],)).as_ref(), &[0, row]].concat();
    let mut cursor = index.cursor().unwrap();
    for (seek, found) in [
        (Seek::AtLeast(&bound(3)), Some(3)),
        (Seek::Above(&bound(3)), Some(5)),
        (Seek::AtMost(&bound(4)), Some(3)),
        (Seek::Below(&bound(1)), Some(6)),
        (Seek::Above(&bound(5)), None),
    ] {
        assert_eq!(cursor.seek(seek).unwrap(), found.is_some(), "{seek:?}");
        assert_eq!(cursor.row().map(|row| row.key[0]), found, "{seek:?}");
    }
    cursor.set_range(bound(2)..=bound(5));
    assert!(cursor.next().unwrap() && cursor.next().unwrap() && !cursor.next().unwrap());
}
