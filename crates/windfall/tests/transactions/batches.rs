//! Rows and entries in batches.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use windfall::{
    Access, BATCH_ROWS, Batch, Condition, Cursor, Database, Error, IndexBatch, IndexCursor, IndexEntry,
    IndexItem, IndexOptions, IndexRow, Isolation, Seek, SuppliedChange, SuppliedEntry, Table, TableOptions,
    error::UsageError,
};
use windfall_base::sync::work::{Work, so_far};

use super::{LEVELS, begin, database, locked_rows};

fn indexed(db: &Database) -> Table {
    let options = TableOptions::default()
        .index("value", IndexOptions::on_value(0..3))
        .index("supplied", IndexOptions::supplied(1));
    db.create_table("t", options).unwrap()
}

fn change(table: &Table<impl Access>, random: &mut SmallRng) {
    let n = random.random_range(0..400u16).to_be_bytes();
    let (first, length) = (random.random_range(0..4u8), [0, 50, 50, 6_000][random.random_range(0..4)]);
    let value = [&[first, 0, n[1]][..], &vec![first; length]].concat();
    let old = table.get(&n).unwrap();
    let old_key = old.as_ref().map(|old| [old[0]]);
    let old = old_key.as_ref().map(|key| SuppliedEntry::new(key));
    let new_key = [first];
    let payload = [random.random_range(0..3u8)];
    let new = Some(SuppliedEntry::new(&new_key).payload(&payload));
    let done = match (random.random_range(0..4), old) {
        (0, _) => table.delete_with(&n, &[SuppliedChange::new("supplied", old, None)]).map(drop),
        (_, None) => table.insert_with(&n, &value, &[SuppliedChange::new("supplied", old, new)]),
        (_, Some(_)) => table.update_with(&n, &value, &[SuppliedChange::new("supplied", old, new)]),
    };
    // Another transaction has changed or locked the row, or the view does not see it.
    assert!(matches!(
        done,
        Ok(()) | Err(Error::Lock(_) | Error::Transaction(_) | Error::Schema(_) | Error::Usage(_))
    ));
}

/// A row as a cursor lends it.
pub(super) type Row = IndexRow;

pub(super) fn plain(row: Option<(&[u8], &[u8])>) -> Option<Row> {
    let (key, value) = row?;
    let (index_key, payload) = (Vec::new(), Vec::new());
    Some(Row { index_key, key: key.to_vec(), value: value.to_vec(), payload })
}

/// A cursor over rows or over entries.
pub(super) trait Walks {
    type Batch: Default;

    fn restrict(&mut self, from: &[u8], to: &[u8]);
    fn at(&self) -> Option<Row>;
    fn step(&mut self, up: bool) -> bool;
    fn batch(&mut self, up: bool, at_most: usize, batch: &mut Self::Batch) -> Vec<Row>;
    fn to(&mut self, to: Seek<'_>) -> bool;
}

impl Walks for Cursor {
    type Batch = Batch;

    fn restrict(&mut self, from: &[u8], to: &[u8]) {
        self.set_range(from..to);
    }

    fn at(&self) -> Option<Row> {
        plain(self.row())
    }

    fn step(&mut self, up: bool) -> bool {
        if up { self.next() } else { self.prev() }.unwrap()
    }

    fn batch(&mut self, up: bool, at_most: usize, batch: &mut Batch) -> Vec<Row> {
        let rows = match (up, at_most) {
            (true, BATCH_ROWS) => self.next_batch(batch),
            (false, BATCH_ROWS) => self.prev_batch(batch),
            (true, _) => self.next_batch_of(batch, at_most),
            (false, _) => self.prev_batch_of(batch, at_most),
        };
        let rows = rows.unwrap();
        assert_eq!((rows, rows == 0), (batch.len(), batch.is_empty()));
        assert_eq!(batch.get(rows), None);
        let all: Vec<_> = batch.iter().map(|row| plain(Some(row)).unwrap()).collect();
        assert!((0..rows).all(|n| plain(batch.get(n)).as_ref() == Some(&all[n])));
        all
    }

    fn to(&mut self, to: Seek<'_>) -> bool {
        self.seek(to).unwrap()
    }
}

impl Walks for IndexCursor {
    type Batch = IndexBatch;

    fn restrict(&mut self, from: &[u8], to: &[u8]) {
        self.set_range(from..to);
    }

    fn at(&self) -> Option<Row> {
        self.row().map(Row::of)
    }

    fn step(&mut self, up: bool) -> bool {
        if up { self.next() } else { self.prev() }.unwrap()
    }

    fn batch(&mut self, up: bool, at_most: usize, batch: &mut IndexBatch) -> Vec<Row> {
        let rows = match (up, at_most) {
            (true, BATCH_ROWS) => self.next_batch(batch),
            (false, BATCH_ROWS) => self.prev_batch(batch),
            (true, _) => self.next_batch_of(batch, at_most),
            (false, _) => self.prev_batch_of(batch, at_most),
        };
        let rows = rows.unwrap();
        assert_eq!((rows, rows == 0), (batch.len(), batch.is_empty()));
        assert!(batch.get(rows).is_none());
        let all: Vec<_> = batch.iter().map(Row::of).collect();
        assert!((0..rows).all(|n| batch.get(n).map(Row::of).as_ref() == Some(&all[n])));
        all
    }

    fn to(&mut self, to: Seek<'_>) -> bool {
        self.seek(to).unwrap()
    }
}

/// Moves two cursors in the same way, one by batches and the other by single steps, and asserts that both find the
/// same. Between two moves `between` changes rows.
fn walk<C: Walks>(
    [mut one, mut other]: [C; 2],
    random: &mut SmallRng,
    between: &mut dyn FnMut(&mut SmallRng),
) {
    let mut batch = C::Batch::default();
    for _ in 0..12 {
        let key = random.random_range(0..400u16).to_be_bytes();
        match random.random_range(0..6) {
            0 => {
                let mut ends = [key, random.random_range(0..400u16).to_be_bytes()];
                ends.sort_unstable();
                one.restrict(&ends[0], &ends[1]);
                other.restrict(&ends[0], &ends[1]);
            }
            1 => assert_eq!(one.to(Seek::AtLeast(&key)), other.to(Seek::AtLeast(&key))),
            2 => assert_eq!(one.to(Seek::AtMost(&key)), other.to(Seek::AtMost(&key))),
            3 => {
                let up = random.random();
                assert_eq!(one.step(up), other.step(up));
            }
            _ => {
                let up = random.random();
                let at_most = [1, 2, 7, BATCH_ROWS, BATCH_ROWS][random.random_range(0..5)];
                let rows = one.batch(up, at_most, &mut batch);
                let bytes: usize = rows.iter().map(|row| row.key.len() + row.value.len()).sum();
                assert!(rows.len() <= at_most);
                for row in &rows {
                    assert!(other.step(up), "{row:?} was not found by a step");
                    assert_eq!(other.at().as_ref(), Some(row));
                }
                if rows.is_empty() {
                    assert!(!other.step(up), "a step has found {:?}", other.at());
                } else if rows.len() < at_most && bytes < 200 << 10 {
                    // The range has ended, and the cursor is at its last row.
                    assert!(!other.step(up), "a step has found {:?}", other.at());
                    assert!(other.step(!up));
                    assert_eq!(other.at().as_ref(), rows.last());
                }
            }
        }
        assert_eq!(one.at(), other.at());
        between(random);
    }
}

/// Moves two cursors in the same way under conditions, one by batches and the other by single steps.
fn walk_where(
    [mut one, mut other]: [IndexCursor; 2],
    random: &mut SmallRng,
    between: &mut dyn FnMut(&mut SmallRng),
) {
    let mut batch = IndexBatch::default();
    for _ in 0..12 {
        let (each, end) = (random.random_range(1..12u8), random.random_range(0..120u8));
        let condition = |entry: IndexEntry<'_>| match entry.key[1] {
            n if n == end => Condition::Ends,
            n if n % each == 0 && entry.payload != [1] => Condition::Holds,
            _ => Condition::Fails,
        };
        if random.random_range(0..4) == 0 {
            let key = [random.random_range(0..4)];
            assert_eq!(one.to(Seek::AtLeast(&key)), other.to(Seek::AtLeast(&key)));
        }
        let (up, at_most) = (random.random(), [1, 2, 5, 20][random.random_range(0..4)]);
        let rows = if up {
            one.next_batch_where(&mut batch, at_most, condition)
        } else {
            one.prev_batch_where(&mut batch, at_most, condition)
        };
        assert_eq!(rows.unwrap(), batch.len());
        let mut step = |up: bool| {
            let found = if up { other.next_where(condition) } else { other.prev_where(condition) };
            found.unwrap().then(|| other.at().unwrap())
        };
        for row in batch.iter().map(Row::of) {
            assert_eq!(step(up), Some(row));
        }
        if batch.len() < at_most {
            assert_eq!(step(up), None);
            if !batch.is_empty() {
                assert_eq!(step(!up), batch.iter().last().map(Row::of));
            }
        }
        assert_eq!(one.at(), other.at());
        between(random);
    }
}

#[test]
fn batches_are_steps() {
    all_levels(3, false);
}

/// The same with conditions, which also end batches.
#[test]
fn batches_with_a_condition_are_steps() {
    all_levels(4, true);
}

/// Runs walks outside of transactions and at each level, with changes by others, and by the reader itself.
fn all_levels(seed: u64, with_conditions: bool) {
    let (db, mut random) = (database(), SmallRng::seed_from_u64(seed));
    db.set_lock_wait_timeout(Duration::ZERO);
    let table = indexed(&db);
    (0..500).for_each(|_| change(&table, &mut random));
    for round in 0..6 {
        all(&table, with_conditions, &mut random, &mut |random| change(&table, random));
        for level in LEVELS {
            let (writer, reader) = (begin(&db, Isolation::ReadCommitted), begin(&db, level));
            reader.table(&table).get(b"x").unwrap();
            let has_view = !matches!(level, Isolation::ReadUncommitted | Isolation::Serializable);
            if level != Isolation::Serializable {
                (0..5).for_each(|_| change(&writer.table(&table), &mut random));
            }
            (0..3).for_each(|_| change(&reader.table(&table), &mut random));
            // Without a view the two cursors would see a change at different moments.
            all(&reader.table(&table), with_conditions, &mut random, &mut |random| {
                if has_view {
                    change(&table, random);
                    change(&writer.table(&table), random);
                }
            });
            if round % 2 == 0 { writer.rollback().unwrap() } else { writer.commit().map(drop).unwrap() }
        }
    }
}

/// Walks over the rows, the rows by each index, and the entries alone.
fn all(
    table: &Table<impl Access>,
    with_conditions: bool,
    random: &mut SmallRng,
    between: &mut dyn FnMut(&mut SmallRng),
) {
    if !with_conditions {
        walk([(); 2].map(|()| table.cursor().unwrap()), random, between);
    }
    for name in ["value", "supplied"] {
        let index = table.index(name).unwrap();
        let cursors =
            [[(); 2].map(|()| index.cursor().unwrap()), [(); 2].map(|()| index.key_cursor().unwrap())];
        for pair in cursors {
            if with_conditions { walk_where(pair, random, between) } else { walk(pair, random, between) }
        }
    }
}

/// Creates a table of 100 rows.
fn hundred(db: &Database) -> Table {
    let table = indexed(db);
    for n in 0..100u8 {
        let new = Some(SuppliedEntry::new(&[9]));
        table.insert_with(&[n], &[n], &[SuppliedChange::new("supplied", None, new)]).unwrap();
    }
    table
}

#[test]
fn a_batch_that_fails_has_no_rows() {
    let db = database();
    let table = hundred(&db);
    let (mut rows, mut entries) = (table.cursor().unwrap(), table.index("value").unwrap().cursor().unwrap());
    let (mut batch, mut entry_batch) = (Batch::default(), IndexBatch::default());
    assert_eq!(rows.next_batch(&mut batch).unwrap(), BATCH_ROWS);
    assert_eq!(entries.next_batch(&mut entry_batch).unwrap(), BATCH_ROWS);
    db.truncate_table("t").unwrap();
    assert!(matches!(rows.next_batch(&mut batch), Err(Error::TableDropped(_))));
    assert!(matches!(entries.prev_batch(&mut entry_batch), Err(Error::TableDropped(_))));
    assert!(batch.is_empty() && entry_batch.is_empty());
    assert_eq!((rows.row(), entries.row()), (None, None));
}

#[test]
fn a_batch_of_a_locking_cursor_locks_its_rows() {
    let db = database();
    let table = hundred(&db);
    for level in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let unlocks = level == Isolation::ReadCommitted;
        let trx = begin(&db, level);
        let mut cursor = trx.table(&table).cursor_for_update().unwrap();
        cursor.set_range([10]..[15]);
        let mut batch = Batch::default();
        assert_eq!(cursor.next_batch(&mut batch).unwrap(), 5);
        assert_eq!((locked_rows(&db, &trx), cursor.key()), (vec![10, 11, 12, 13, 14], Some(&[14][..])));
        assert_eq!(cursor.unlock_row_of(&mut batch, 1).unwrap(), unlocks);
        assert!(
            !cursor.unlock_row_of(&mut batch, 1).unwrap() && !cursor.unlock_row_of(&mut batch, 5).unwrap()
        );
        let mut kept = vec![10, 11, 12, 13, 14];
        if unlocks {
            kept.remove(1);
        }
        assert_eq!(locked_rows(&db, &trx), kept);
        trx.commit().unwrap();

        let trx = begin(&db, level);
        let mut cursor = trx.table(&table).index("value").unwrap().cursor_for_share().unwrap();
        cursor.set_range([20]..[25]);
        let mut batch = IndexBatch::default();
        assert_eq!(cursor.prev_batch(&mut batch).unwrap(), 5);
        assert_eq!((batch.get(0).unwrap().key, cursor.row().unwrap().key), (&[24][..], &[20][..]));
        assert_eq!(cursor.unlock_row_of(&mut batch, 0).unwrap(), unlocks);
        assert_eq!(
            locked_rows(&db, &trx),
            if unlocks { vec![20, 21, 22, 23] } else { vec![20, 21, 22, 23, 24] }
        );
    }
}

#[test]
fn a_locking_batch_locks_no_more_rows_than_it_may_have() {
    let db = database();
    let table = hundred(&db);
    let even = |entry: IndexEntry<'_>| match entry.key[0] {
        n if n >= 30 => Condition::Ends,
        n if n % 2 == 0 => Condition::Holds,
        _ => Condition::Fails,
    };
    for level in LEVELS {
        let trx = begin(&db, level);
        let mut cursor = trx.table(&table).cursor_for_update().unwrap();
        cursor.set_range([10]..);
        let mut batch = Batch::default();
        assert_eq!(cursor.next_batch_of(&mut batch, 1).unwrap(), 1);
        assert_eq!((locked_rows(&db, &trx), cursor.key()), (vec![10], Some(&[10][..])), "{level:?}");
        assert_eq!(cursor.next_batch_of(&mut batch, 2).unwrap(), 2);
        assert_eq!(locked_rows(&db, &trx), [10, 11, 12], "{level:?}");
        trx.commit().unwrap();

        let trx = begin(&db, level);
        let mut cursor = trx.table(&table).index("value").unwrap().cursor_for_update().unwrap();
        cursor.set_range([21]..);
        let mut batch = IndexBatch::default();
        assert_eq!(cursor.next_batch_where(&mut batch, 1, even).unwrap(), 1);
        assert_eq!((batch.get(0).unwrap().key, locked_rows(&db, &trx)), (&[22][..], vec![22]), "{level:?}");
        // The condition ends the batch, and neither that row nor one behind it is locked.
        assert_eq!(cursor.next_batch_where(&mut batch, 64, even).unwrap(), 3);
        assert_eq!(locked_rows(&db, &trx), [22, 24, 26, 28], "{level:?}");
        assert_eq!(cursor.row().map(|row| row.key), Some(&[28][..]));
        assert!(cursor.next().unwrap());
        assert_eq!(cursor.row().map(|row| row.key), Some(&[29][..]));
        assert_eq!(cursor.prev_batch_of(&mut batch, 1).unwrap(), 1);
        assert_eq!(cursor.row().map(|row| (row.index_key, row.key)), Some((&[28][..], &[28][..])));
    }
}

/// `LIMIT 1` by a secondary index reads one row of the table, whose rows are on many pages.
#[test]
fn a_batch_of_one_row_reads_one_row() {
    let db = database();
    let table =
        db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..2))).unwrap();
    for n in 0..1000u16 {
        // The index has another order than the rows.
        table.put(&n.wrapping_mul(7919).to_be_bytes(), &[&n.to_be_bytes()[..], &[7; 500]].concat()).unwrap();
    }
    let (mut cursor, mut batch) = (table.index("i").unwrap().cursor().unwrap(), IndexBatch::default());
    let mut frames = |at_most| {
        let before = so_far().of(Work::Frame);
        assert!(cursor.seek(Seek::First).unwrap());
        assert_eq!(cursor.next_batch_of(&mut batch, at_most).unwrap(), at_most);
        so_far().of(Work::Frame) - before
    };
    let [one, two, many] = [1, 2, 64].map(&mut frames);
    assert!(two - one <= 4 && one <= 12 && many > 62 * (two - one).max(1) / 2, "{one}, {two}, {many} frames");
    let none = cursor.next_batch_where(&mut batch, 1, |_| Condition::Fails).unwrap();
    assert_eq!((none, cursor.row()), (0, None));
}

#[test]
fn a_batch_of_no_row_or_of_too_many_is_refused() {
    let db = database();
    let table = hundred(&db);
    let (mut rows, mut entries) = (table.cursor().unwrap(), table.index("value").unwrap().cursor().unwrap());
    let (mut batch, mut entry_batch) = (Batch::default(), IndexBatch::default());
    assert_eq!(rows.next_batch_of(&mut batch, 3).unwrap(), 3);
    assert_eq!(entries.prev_batch_of(&mut entry_batch, 3).unwrap(), 3);
    for wrong in [0, BATCH_ROWS + 1] {
        let errors = [
            rows.next_batch_of(&mut batch, wrong),
            rows.prev_batch_of(&mut batch, wrong),
            entries.next_batch_of(&mut entry_batch, wrong),
            entries.prev_batch_where(&mut entry_batch, wrong, |_| Condition::Holds),
        ];
        for error in errors.map(Result::unwrap_err) {
            assert!(matches!(error, Error::Usage(UsageError::BatchRows { rows, most: 64 }) if rows == wrong));
        }
        assert!(batch.is_empty() && entry_batch.is_empty());
    }
    assert_eq!((rows.key(), entries.row().map(|row| row.key)), (Some(&[2][..]), Some(&[97][..])));
    assert_eq!(rows.next_batch(&mut batch).unwrap(), BATCH_ROWS);
}
