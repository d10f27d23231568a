//! Rows and entries in batches.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use windfall::{
    Access, BATCH_ROWS, Batch, Cursor, Database, Error, IndexBatch, IndexCursor, IndexItem, IndexOptions,
    IndexRow, Isolation, Seek, SuppliedChange, SuppliedEntry, Table, TableOptions,
};

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
    let new = Some(SuppliedEntry::new(&new_key).payload(&n));
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
type Row = IndexRow;

fn plain(row: Option<(&[u8], &[u8])>) -> Option<Row> {
    let (key, value) = row?;
    let (index_key, payload) = (Vec::new(), Vec::new());
    Some(Row { index_key, key: key.to_vec(), value: value.to_vec(), payload })
}

/// A cursor over rows or over entries.
trait Walks {
    type Batch: Default;

    fn restrict(&mut self, from: &[u8], to: &[u8]);
    fn at(&self) -> Option<Row>;
    fn step(&mut self, up: bool) -> bool;
    fn batch(&mut self, up: bool, batch: &mut Self::Batch) -> Vec<Row>;
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

    fn batch(&mut self, up: bool, batch: &mut Batch) -> Vec<Row> {
        let rows = if up { self.next_batch(batch) } else { self.prev_batch(batch) }.unwrap();
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

    fn batch(&mut self, up: bool, batch: &mut IndexBatch) -> Vec<Row> {
        let rows = if up { self.next_batch(batch) } else { self.prev_batch(batch) }.unwrap();
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
                let rows = one.batch(up, &mut batch);
                let bytes: usize = rows.iter().map(|row| row.key.len() + row.value.len()).sum();
                assert!(rows.len() <= BATCH_ROWS);
                for row in &rows {
                    assert!(other.step(up), "{row:?} was not found by a step");
                    assert_eq!(other.at().as_ref(), Some(row));
                }
                if rows.is_empty() {
                    assert!(!other.step(up), "a step has found {:?}", other.at());
                } else if rows.len() < BATCH_ROWS && bytes < 200 << 10 {
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

#[test]
fn batches_are_steps() {
    let (db, mut random) = (database(), SmallRng::seed_from_u64(3));
    db.set_lock_wait_timeout(Duration::ZERO);
    let table = indexed(&db);
    (0..500).for_each(|_| change(&table, &mut random));
    for round in 0..6 {
        all(&table, &mut random, &mut |random| change(&table, random));
        for level in LEVELS {
            let (writer, reader) = (begin(&db, Isolation::ReadCommitted), begin(&db, level));
            reader.table(&table).get(b"x").unwrap();
            let has_view = !matches!(level, Isolation::ReadUncommitted | Isolation::Serializable);
            if level != Isolation::Serializable {
                (0..5).for_each(|_| change(&writer.table(&table), &mut random));
            }
            (0..3).for_each(|_| change(&reader.table(&table), &mut random));
            // Without a view the two cursors would see a change at different moments.
            all(&reader.table(&table), &mut random, &mut |random| {
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
fn all(table: &Table<impl Access>, random: &mut SmallRng, between: &mut dyn FnMut(&mut SmallRng)) {
    walk([(); 2].map(|()| table.cursor().unwrap()), random, between);
    for name in ["value", "supplied"] {
        let index = table.index(name).unwrap();
        walk([(); 2].map(|()| index.cursor().unwrap()), random, between);
        walk([(); 2].map(|()| index.key_cursor().unwrap()), random, between);
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
