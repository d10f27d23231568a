//! Cursors over tables and indexes: compared with a model, and while the table changes or is dropped.

mod common;

use std::{
    collections::{BTreeMap, VecDeque},
    ops::{Bound, RangeBounds},
    sync::atomic::{AtomicBool, Ordering::SeqCst},
    time::Duration,
};

use common::{key, new_database};
use rand::{Rng, SeedableRng, rngs::StdRng};
use windfall::{
    Cursor, CursorMemory, Error, FlushLog, IndexCursor, IndexOptions, Isolation, Options, Result, Seek,
    TableOptions, TransactionOptions, error::Owner,
};

fn options() -> Options {
    Options::default().page_size(4096).buffer_pool_size(8 << 20).flush_log_at_trx_commit(FlushLog::Lazy)
}

/// An index key and a key. For the table itself, the index key is empty.
type Keys = (Vec<u8>, Vec<u8>);
type Rows = BTreeMap<Keys, Vec<u8>>;

/// The operations that both kinds of cursors share. A row is returned as index key, key and value.
trait Walks {
    fn seek(&mut self, to: Seek<'_>) -> Result<bool>;
    fn next(&mut self) -> Result<bool>;
    fn prev(&mut self) -> Result<bool>;
    fn row(&self) -> Option<(&[u8], &[u8], &[u8])>;
    fn set_range(&mut self, range: &(Bound<Vec<u8>>, Bound<Vec<u8>>));
}

impl Walks for Cursor {
    fn seek(&mut self, to: Seek<'_>) -> Result<bool> {
        self.seek(to)
    }

    fn next(&mut self) -> Result<bool> {
        self.next()
    }

    fn prev(&mut self) -> Result<bool> {
        self.prev()
    }

    fn row(&self) -> Option<(&[u8], &[u8], &[u8])> {
        self.row().map(|(key, value)| (&[][..], key, value))
    }

    fn set_range(&mut self, range: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) {
        self.set_range(range.clone());
    }
}

impl Walks for IndexCursor {
    fn seek(&mut self, to: Seek<'_>) -> Result<bool> {
        self.seek(to)
    }

    fn next(&mut self) -> Result<bool> {
        self.next()
    }

    fn prev(&mut self) -> Result<bool> {
        self.prev()
    }

    fn row(&self) -> Option<(&[u8], &[u8], &[u8])> {
        self.row().map(|row| (row.index_key, row.key, row.value))
    }

    fn set_range(&mut self, range: &(Bound<Vec<u8>>, Bound<Vec<u8>>)) {
        self.set_range(range.clone());
    }
}

fn random_key(chance: &mut StdRng) -> Vec<u8> {
    let length = chance.random_range(1..4);
    (0..length).map(|_| b"\0\x01ab\xff"[chance.random_range(0..5)]).collect()
}

/// Moves a cursor at random and compares it with a position in the model: 1 is the first row, 0 is before it, and
/// `behind` is after the last. `part` returns the part of a row's keys that seeks compare. Then it does the same in
/// some ranges.
fn walk(chance: &mut StdRng, rows: &Rows, part: fn(&Keys) -> &[u8], cursor: &mut impl Walks) -> Result<()> {
    walk_in(chance, &rows.iter().collect::<Vec<_>>(), part, cursor, 2_000)?;
    for _ in 0..40 {
        let mut bound = || match chance.random_range(0..5) {
            0 | 1 => Bound::Included(random_key(chance)),
            2 | 3 => Bound::Excluded(random_key(chance)),
            _ => Bound::Unbounded,
        };
        let range = (bound(), bound());
        cursor.set_range(&range);
        let keys = (range.0.as_ref().map(|key| &key[..]), range.1.as_ref().map(|key| &key[..]));
        let is_in = |row: &(&Keys, _)| RangeBounds::<[u8]>::contains(&keys, part(row.0));
        walk_in(chance, &rows.iter().filter(is_in).collect::<Vec<_>>(), part, cursor, 60)?;
    }
    Ok(())
}

/// As [`walk`], in some rows of the table, with so many steps.
fn walk_in(
    chance: &mut StdRng,
    rows: &[(&Keys, &Vec<u8>)],
    part: fn(&Keys) -> &[u8],
    cursor: &mut impl Walks,
    steps: u32,
) -> Result<()> {
    let behind = rows.len() + 1;
    let below = |key: &[u8]| rows.partition_point(|row| part(row.0) < key);
    let up_to = |key: &[u8]| rows.partition_point(|row| part(row.0) <= key);
    assert_eq!(cursor.row(), None);
    let mut at = None;
    for _ in 0..steps {
        let key = random_key(chance);
        let (found, place) = match chance.random_range(0..40) {
            0 => (cursor.seek(Seek::First)?, 1),
            1 => (cursor.seek(Seek::Last)?, behind - 1),
            2 => (cursor.seek(Seek::AtLeast(&key))?, below(&key) + 1),
            3 => (cursor.seek(Seek::Above(&key))?, up_to(&key) + 1),
            4 => (cursor.seek(Seek::AtMost(&key))?, up_to(&key)),
            5 => (cursor.seek(Seek::Below(&key))?, below(&key)),
            n if n < 23 => (cursor.prev()?, at.unwrap_or(behind).saturating_sub(1)),
            _ => (cursor.next()?, behind.min(at.unwrap_or(0) + 1)),
        };
        at = Some(place);
        let expected = place.checked_sub(1).and_then(|place| rows.get(place));
        assert_eq!(found, expected.is_some());
        assert_eq!(cursor.row(), expected.map(|(keys, value)| (&keys.0[..], &keys.1[..], &value[..])));
    }
    Ok(())
}

#[test]
fn cursors_walk_like_a_model() -> Result<()> {
    for seed in 0..12 {
        let mut chance = StdRng::seed_from_u64(seed);
        let (_folder, db) = new_database(options())?;
        let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..2)))?;
        let (mut rows, mut by_index) = (Rows::new(), Rows::new());
        // In the last round the table is empty.
        for _ in 0..if seed == 11 { 0 } else { 400 } {
            let key = random_key(&mut chance);
            if chance.random_range(0..3) == 0 {
                table.delete(&key)?;
                rows.remove(&(Vec::new(), key));
            } else {
                // Some values need overflow pages.
                let length = if chance.random_range(0..8) == 0 { 5_000 } else { chance.random_range(2..60) };
                let value = vec![chance.random_range(0..6); length];
                table.put(&key, &value)?;
                rows.insert((Vec::new(), key), value);
            }
        }
        for ((_, key), value) in &rows {
            by_index.insert((value[..2].to_vec(), key.clone()), value.clone());
        }
        walk(&mut chance, &rows, |keys| &keys.1, &mut table.cursor()?)?;
        walk(&mut chance, &by_index, |keys| &keys.0, &mut table.index("i")?.cursor()?)?;
        db.close()?;
    }
    Ok(())
}

#[test]
fn a_cursor_keeps_its_place_while_rows_come_and_go() -> Result<()> {
    const ROWS: u32 = 20_000;
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default())?;
    for n in (0..ROWS).step_by(2) {
        table.insert(&key(n), &[1; 100])?;
    }
    // The even rows stay, while the odd ones cause splits and merges around them.
    std::thread::scope(|scope| {
        let changer = scope.spawn(|| -> Result<()> {
            for n in (1..ROWS).step_by(2).chain((1..ROWS).step_by(2).rev()) {
                if !table.delete(&key(n))? {
                    table.insert(&key(n), &[2; 300])?;
                }
            }
            Ok(())
        });
        let mut cursor = table.cursor()?;
        let mut evens = |forward: bool| -> Result<Vec<u32>> {
            let mut seen = Vec::new();
            let mut there = cursor.seek(if forward { Seek::First } else { Seek::Last })?;
            while there {
                let key = cursor.key().expect("it is at a row");
                let n = u32::from_be_bytes(key.try_into().expect("four bytes"));
                seen.extend((n % 2 == 0).then_some(n));
                there = if forward { cursor.next()? } else { cursor.prev()? };
            }
            Ok(seen)
        };
        let expected: Vec<_> = (0..ROWS).step_by(2).collect();
        loop {
            let over = changer.is_finished();
            assert!(evens(true)? == expected);
            assert!(evens(false)?.into_iter().rev().eq(expected.iter().copied()));
            if over {
                return changer.join().expect("it does not panic");
            }
        }
    })
}

#[test]
fn a_seek_reads_again() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..1)))?;
    for key in ["a", "b", "c"] {
        table.insert(key.as_bytes(), b"1")?;
    }
    let (mut cursor, mut by_index) = (table.cursor()?, table.index("i")?.cursor()?);
    assert!(cursor.next()? && by_index.next()?);
    table.update(b"b", b"2")?;
    table.delete(b"c")?;
    assert!(cursor.seek(Seek::Above(b"a"))?);
    assert_eq!(cursor.row(), Some((&b"b"[..], &b"2"[..])));
    assert!(!cursor.next()? && cursor.prev()?);
    assert_eq!(cursor.key(), Some(&b"b"[..]));
    // Until the next seek, the cursor reads one snapshot, in the index and in the rows.
    assert!(by_index.next()?);
    assert_eq!(by_index.row().map(|row| (row.key, row.value)), Some((&b"b"[..], &b"1"[..])));
    assert!(by_index.next()? && by_index.row().is_some_and(|row| row.key == b"c") && !by_index.next()?);
    assert!(by_index.seek(Seek::Last)?);
    assert_eq!(by_index.row().map(|row| row.index_key), Some(&b"2"[..]));
    Ok(())
}

#[test]
fn a_cursor_ends_with_its_table() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..1)))?;
    for n in 0..100_u32 {
        table.insert(&key(n), b"v")?;
    }
    let (mut cursor, mut by_index) = (table.cursor()?, table.index("i")?.cursor()?);
    assert!(cursor.next()? && by_index.next()?);
    db.truncate_table("t")?;
    assert!(matches!(cursor.next(), Err(Error::TableDropped(_))));
    assert!(matches!(by_index.prev(), Err(Error::TableDropped(_))));
    assert_eq!((cursor.row(), by_index.row()), (None, None));
    // A locking range that has not started yet also names the table in its error.
    let trx = db.begin(TransactionOptions::default());
    let mut locking = trx.table(&table).range_for_update::<&[u8]>(..)?;
    db.truncate_table("t")?;
    match locking.next() {
        Some(Err(Error::TableDropped(Owner::Table(name)))) => assert_eq!(&*name, "t"),
        other => panic!("{other:?}"),
    }
    drop(trx);
    // The handle follows the table. A cursor from before the truncation does not.
    assert!(matches!(cursor.seek(Seek::First), Err(Error::TableDropped(_))));
    assert!(!table.cursor()?.seek(Seek::First)?);
    db.drop_table("t")?;
    assert!(matches!(table.cursor(), Err(Error::TableDropped(_))));
    Ok(())
}

/// Another thread inserts rows all the time, each before all others.
#[test]
fn no_row_appears_before_the_one_that_a_locking_cursor_has_found() -> Result<()> {
    const ROUNDS: usize = 2000;
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default())?;
    let has_ended = AtomicBool::new(false);
    let level = TransactionOptions::default().isolation(Isolation::RepeatableRead);
    let phantom = std::thread::scope(|scope| {
        scope.spawn(|| {
            let insert = |n| table.insert(&key(n), b"v").expect("no transaction is open for long");
            (0..u32::MAX).rev().take_while(|_| !has_ended.load(SeqCst)).for_each(insert);
        });
        let phantom = (0..ROUNDS).find_map(|round| {
            let trx = db.begin(level);
            let first = || -> Result<_> {
                let mut cursor = trx.table(&table).cursor_for_share()?;
                cursor.seek(Seek::First)?;
                Ok(cursor.key().map(<[u8]>::to_vec))
            };
            let found: Result<_> = first().and_then(|found| Ok((found, first()?)));
            let is_same = found.as_ref().is_ok_and(|(found, again)| found == again);
            (!is_same).then_some((round, found))
        });
        has_ended.store(true, SeqCst);
        phantom
    });
    assert!(phantom.is_none(), "{phantom:?}");
    Ok(())
}

/// Rows "b" and "d" are in the range, "a" and "f" are not.
#[test]
fn a_locking_cursor_locks_its_range_row_by_row() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..1)))?;
    for key in ["a", "b", "d", "f"] {
        table.insert(key.as_bytes(), key.as_bytes())?;
    }
    let level = TransactionOptions::default().isolation(Isolation::RepeatableRead).lock_wait(Duration::ZERO);
    // Returns the keys that others may insert or change.
    let free = || {
        let other = db.begin(level);
        let within = other.table(&table);
        let is_free = |key: &&str| within.put(key.as_bytes(), key.as_bytes()).is_ok();
        let free: String = ["a", "b", "c", "d", "e", "f", "g"].into_iter().filter(is_free).collect();
        other.rollback().expect("it has not ended");
        free
    };
    for (up, steps) in [(true, ["acdefg", "aefg", "afg"]), (false, ["abcfg", "afg", "afg"])] {
        for by_index in [false, true] {
            let trx = db.begin(level);
            let within = trx.table(&table);
            let index = within.index("i")?;
            let (mut rows, mut entries) = (within.cursor_for_update()?, index.cursor_for_update()?);
            rows.set_range("b".."f");
            entries.set_range("b".."f");
            assert_eq!(free(), "abcdefg");
            for (n, free_then) in steps.into_iter().enumerate() {
                let found = match (by_index, up) {
                    (false, true) => rows.next()?,
                    (false, false) => rows.prev()?,
                    (true, true) => entries.next()?,
                    (true, false) => entries.prev()?,
                };
                assert_eq!((found, &*free()), (n < 2, free_then), "{by_index}, upwards {up}, step {n}");
            }
            trx.rollback()?;
        }
    }
    db.close()
}

/// Both ends of a locking range have met, and its own rows are deleted. Rows that other transactions add beyond that
/// point are not in the range, so it must not wait for their locks.
#[test]
fn a_locking_range_whose_ends_have_met_waits_for_no_lock() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..4)))?;
    let level = TransactionOptions::default().isolation(Isolation::ReadCommitted).lock_wait(Duration::ZERO);
    for from_back in [false, true] {
        for n in 1..5 {
            table.put(&key(n), &key(n))?;
        }
        let (trx, other) = (db.begin(level), db.begin(level));
        let within = trx.table(&table);
        let mut rows = within.range_for_update(key(0)..key(9))?;
        let mut by_index = within.index("i")?.range_for_update(key(0)..key(9))?;
        // The first row is taken from the other end, and deleted like all of them.
        let first = if from_back { rows.next() } else { rows.next_back() };
        assert_eq!(first.transpose()?.map(|row| row.0), Some(key(if from_back { 1 } else { 4 }).to_vec()));
        let first = if from_back { by_index.next() } else { by_index.next_back() };
        let first = first.transpose()?.expect("a row");
        assert!(within.delete(&first.key)?);
        let beyond = key(if from_back { 0 } else { 5 });
        other.table(&table).put(&beyond, &beyond)?;
        let mut step = || if from_back { rows.next_back() } else { rows.next() };
        for _ in 0..3 {
            let (key, _) = step().transpose()?.expect("a row");
            let same = if from_back { by_index.next_back() } else { by_index.next() };
            assert_eq!(same.transpose()?.map(|row| row.key), Some(key.clone()));
            assert!(within.delete(&key)?);
        }
        assert!(step().transpose()?.is_none());
        let last = if from_back { by_index.next_back() } else { by_index.next() };
        assert!(last.transpose()?.is_none());
        trx.commit()?;
        drop(other);
    }
    db.close()
}

/// Cursors in the same memory, one after the other, over tables that come and go, in transactions that end.
#[test]
fn a_cursor_in_the_memory_of_another_one_is_like_a_new_one() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let mut chance = StdRng::seed_from_u64(5);
    let with_index = || TableOptions::default().index("i", IndexOptions::on_value(0..2));
    let tables = [db.create_table("a", with_index())?, db.create_table("b", with_index())?];
    let mut memory = CursorMemory::default();
    for round in 0..200u32 {
        let table = &tables[chance.random_range(0..2)];
        match chance.random_range(0..6) {
            0 => assert!(db.truncate_table(table.name())?.trees > 0),
            1 => {
                assert!(db.drop_index(table.name(), "i")?.trees > 0);
                db.create_index(table.name(), "i", IndexOptions::on_value(0..2))?;
            }
            _ => {
                for _ in 0..50 {
                    let n = chance.random_range(0..500u32);
                    table.put(&key(n), &[&key(n)[2..], &key(round)[..]].concat())?;
                }
            }
        }
        let trx = db.begin(TransactionOptions::default());
        let within = trx.table(table);
        let (low, high) = (chance.random_range(0..300u32), chance.random_range(300..500u32));
        let expected: Vec<_> = within.range(key(low)..key(high))?.collect::<Result<_>>()?;
        let mut found = Vec::new();
        if chance.random() {
            let mut cursor = within.cursor()?;
            cursor.set_range(key(low)..key(high));
            let mut cursor = cursor.with_memory(memory);
            while cursor.next()? {
                found.extend(cursor.row().map(|(key, value)| (key.to_vec(), value.to_vec())));
            }
            // Somewhere within the table.
            cursor.prev()?;
            memory = cursor.into_memory();
        } else {
            let mut cursor = within.index("i")?.cursor()?.with_memory(memory);
            assert!(cursor.row().is_none());
            let mut there = cursor.seek(Seek::AtLeast(&key(low)[2..]))?;
            while let Some(row) = cursor.row().filter(|row| row.index_key < &key(high)[2..]) {
                assert!(there && row.index_key == &row.key[2..]);
                found.push((row.key.to_vec(), row.value.to_vec()));
                there = cursor.next()?;
            }
            memory = cursor.into_memory();
        }
        assert_eq!(found, expected);
        trx.commit()?;
        assert_eq!(db.views(), [], "the memory keeps a view");
    }
    db.close()
}

/// Each row is returned once, by the end that reaches it first, for every kind of reader.
#[test]
fn both_ends_of_a_range_meet() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default())?;
    for n in 0..300_u32 {
        table.put(&key(2 * n), &n.to_le_bytes())?;
    }
    let session = db.session();
    let temporary = session.create_temporary_table("t", TableOptions::default())?;
    for n in 0..300_u32 {
        temporary.put(&key(2 * n), &n.to_le_bytes())?;
    }
    let reads = |level| db.begin(TransactionOptions::default().isolation(level));
    let (plain, uncommitted, locking) =
        (reads(Isolation::RepeatableRead), reads(Isolation::ReadUncommitted), reads(Isolation::Serializable));
    let mut chance = StdRng::seed_from_u64(3);
    for round in 0..400 {
        let mut bound = || {
            let key = key(chance.random_range(0..620)).to_vec();
            match chance.random_range(0..5) {
                0 => Bound::Unbounded,
                1 | 2 => Bound::Included(key),
                _ => Bound::Excluded(key),
            }
        };
        let bounds = (bound(), bound());
        let is_in = |n: &u32| RangeBounds::<Vec<u8>>::contains(&bounds, &key(*n).to_vec());
        let mut expected: VecDeque<u32> = (0..300).map(|n| 2 * n).filter(is_in).collect();
        let mut rows = match round % 5 {
            0 => table.range(bounds.clone())?,
            1 => plain.table(&table).range(bounds.clone())?,
            2 => uncommitted.table(&table).range(bounds.clone())?,
            3 => locking.table(&table).range(bounds.clone())?,
            _ => temporary.range(bounds.clone())?,
        };
        // Some rounds read many rows from one end, some read from one end only.
        let (from_back, lent) = (chance.random_range(0.0..1.0_f64) * 1.4 - 0.2, chance.random_bool(0.5));
        let mut runs_back = false;
        loop {
            if chance.random_range(0..10) == 0 {
                runs_back = !runs_back;
            }
            let back = runs_back && chance.random_bool(from_back.clamp(0.0, 1.0));
            let own = |row: (&[u8], &[u8])| (row.0.to_vec(), row.1.to_vec());
            let row = match (back, lent) {
                (true, true) => rows.next_back_ref()?.map(own),
                (true, false) => rows.next_back().transpose()?,
                (false, true) => rows.next_ref()?.map(own),
                (false, false) => rows.next().transpose()?,
            };
            let due = if back { expected.pop_back() } else { expected.pop_front() };
            assert_eq!(row, due.map(|n| (key(n).to_vec(), (n / 2).to_le_bytes().to_vec())), "round {round}");
            if row.is_none() {
                break;
            }
        }
        assert!(rows.next().is_none() && rows.next_back().is_none());
        assert!(rows.next_ref()?.is_none() && rows.next_back_ref()?.is_none());
    }
    drop((plain, uncommitted, locking));
    drop(session);
    db.close()
}
