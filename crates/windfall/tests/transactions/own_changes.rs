//! Open cursors find what their own transaction changes after they were opened.

use std::time::Duration;

use rand::{Rng, SeedableRng, rngs::SmallRng};
use windfall::{
    Batch, Cursor, Database, IndexBatch, IndexCursor, IndexOptions, Isolation, Seek, Table, TableOptions,
    TransactionOptions, TxTable,
};
use windfall_base::sync::work::{Work, so_far};

use super::{
    LEVELS,
    batches::{Row, Walks, plain},
    begin, database,
};

const ROWS: u8 = 60;

fn filled(db: &Database, name: &str) -> Table {
    let table =
        db.create_table(name, TableOptions::default().index("i", IndexOptions::on_value(0..1))).unwrap();
    (0..ROWS).for_each(|n| table.insert(&[n], &[n, 0]).unwrap());
    table
}

/// Changes a row, anywhere.
fn change(table: &TxTable<'_>, random: &mut SmallRng) {
    let (key, first) = ([random.random_range(0..ROWS)], random.random_range(0..ROWS));
    match random.random_range(0..4) {
        0 => drop(table.delete(&key).unwrap()),
        1 => table.put(&key, &[key[0], random.random()]).unwrap(),
        2 => table.put(&[key[0], first], &[first, 1]).unwrap(),
        _ => table.put(&key, &[first, 2]).unwrap(),
    }
}

/// Returns the next rows of a cursor: one, or a batch of at most so many.
fn next_of<C: Walks>(cursor: &mut C, batch: &mut C::Batch, up: bool, at_most: Option<usize>) -> Vec<Row> {
    match at_most {
        Some(most) => cursor.batch(up, most, batch),
        None if cursor.step(up) => vec![cursor.at().expect("a step has found a row")],
        None => Vec::new(),
    }
}

/// The ways of reading a table.
enum Reader {
    Rows(Cursor, Batch),
    ByIndex(IndexCursor, IndexBatch),
    Entries(IndexCursor, IndexBatch),
}

/// Whether a cursor locks rows, and whether it locks its range at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Locks {
    Nothing,
    Rows,
    RangeAndRows,
}

impl Reader {
    fn all(table: &TxTable<'_>, locks: Locks) -> [Self; 3] {
        let index = table.index("i").unwrap();
        let (mut rows, [mut by_index, mut entries]) = if locks == Locks::Nothing {
            (table.cursor().unwrap(), [index.cursor().unwrap(), index.key_cursor().unwrap()])
        } else {
            let by_index = [index.cursor_for_update().unwrap(), index.key_cursor_for_update().unwrap()];
            (table.cursor_for_update().unwrap(), by_index)
        };
        if locks == Locks::RangeAndRows {
            rows.lock_range().unwrap();
            by_index.lock_range().unwrap();
            entries.lock_range().unwrap();
        }
        [
            Self::Rows(rows, Batch::default()),
            Self::ByIndex(by_index, IndexBatch::default()),
            Self::Entries(entries, IndexBatch::default()),
        ]
    }

    /// Returns the next rows: one, or a batch of at most so many.
    fn next(&mut self, up: bool, at_most: Option<usize>) -> Vec<Row> {
        match self {
            Self::Rows(cursor, batch) => next_of(cursor, batch, up, at_most),
            Self::ByIndex(cursor, batch) | Self::Entries(cursor, batch) => {
                next_of(cursor, batch, up, at_most)
            }
        }
    }

    /// Returns all rows, as a new read of this kind finds them.
    fn fresh(&self, table: &TxTable<'_>) -> Vec<Row> {
        let index = table.index("i").unwrap();
        let rows = table.rows().unwrap().map(|row| {
            let (key, value) = row.unwrap();
            plain(Some((&key, &value))).unwrap()
        });
        let by_index = index.range::<&[u8]>(..).unwrap().map(Result::unwrap);
        match self {
            Self::Rows(..) => rows.collect(),
            Self::ByIndex(..) => by_index.collect(),
            Self::Entries(..) => by_index.map(|row| Row { value: Vec::new(), ..row }).collect(),
        }
    }
}

#[test]
fn an_open_cursor_finds_later_changes_of_its_transaction() {
    later_changes_are_found(Locks::Nothing);
}

#[test]
fn an_open_locking_cursor_finds_later_changes_of_its_transaction() {
    later_changes_are_found(Locks::Rows);
    later_changes_are_found(Locks::RangeAndRows);
}

fn later_changes_are_found(locks: Locks) {
    let mut random = SmallRng::seed_from_u64(11);
    for level in LEVELS {
        let db = database();
        db.set_lock_wait_timeout(Duration::ZERO);
        let table = filled(&db, "t");
        let trx = begin(&db, level);
        let within = trx.table(&table);
        for round in 0..6 {
            // In a statement, READ COMMITTED reads one snapshot, and its own changes on top of it.
            let in_statement = round % 2 == 1;
            if in_statement {
                trx.begin_statement().unwrap();
            }
            for up in [true, false] {
                for (mut reader, kind) in Reader::all(&within, locks).into_iter().zip(0..) {
                    let mut last: Option<Row> = None;
                    loop {
                        match random.random_range(0..9) {
                            0..3 => change(&within, &mut random),
                            3 if !in_statement => {
                                trx.savepoint("s").unwrap();
                                change(&within, &mut random);
                                trx.rollback_to("s").unwrap();
                            }
                            _ => {}
                        }
                        let at_most = [None, None, Some(1), Some(5)][random.random_range(0..4)];
                        let mut rows = reader.fresh(&within);
                        if !up {
                            rows.reverse();
                        }
                        let is_ahead = |row: &Row| {
                            let place = |row: &Row| (row.index_key.clone(), row.key.clone());
                            last.as_ref().is_none_or(|last| {
                                if up { place(row) > place(last) } else { place(row) < place(last) }
                            })
                        };
                        let ahead: Vec<_> =
                            rows.into_iter().filter(is_ahead).take(at_most.unwrap_or(1)).collect();
                        let found = reader.next(up, at_most);
                        assert_eq!(
                            found, ahead,
                            "{level:?}, {locks:?}, {kind}, up: {up}, {at_most:?}, behind {last:?}"
                        );
                        let Some(row) = found.last() else { break };
                        last = Some(row.clone());
                    }
                }
            }
            if in_statement {
                trx.end_statement(windfall::StatementEnd::Keep).unwrap();
            }
        }
    }
}

/// A cursor that has found nothing has read ahead, too.
/// A row of another transaction that has come, or has gone, since the cursor has read ahead.
#[test]
fn a_locking_cursor_finds_its_transactions_changes_of_rows_that_came_later() {
    for isolation in [Isolation::ReadCommitted, Isolation::ReadUncommitted] {
        for by_index in [false, true] {
            for comes_back in [false, true] {
                let db = database();
                let table = filled(&db, "t");
                let keeps_marked = db.begin(TransactionOptions::default().isolation(Isolation::Snapshot));
                keeps_marked.table(&table).get(b"x").unwrap();
                let trx = begin(&db, isolation);
                let within = trx.table(&table);
                let index = within.index("i").unwrap();
                let mut rows = within.cursor_for_update().unwrap();
                let mut by = index.cursor_for_update().unwrap();
                let mut next = || {
                    let found = if by_index { by.next() } else { rows.next() }.unwrap();
                    let row = if by_index { by.row().map(|entry| entry.key) } else { rows.key() };
                    row.filter(|_| found).map(<[u8]>::to_vec)
                };
                assert_eq!(next(), Some(vec![0]));
                table.insert(&[0, 7], &[0, 5]).unwrap();
                if comes_back {
                    table.delete(&[0, 7]).unwrap();
                    within.insert(&[0, 7], &[0, 6]).unwrap();
                } else {
                    within.update(&[0, 7], &[0, 6]).unwrap();
                }
                let why = format!("{isolation:?}, by index: {by_index}, comes back: {comes_back}");
                assert_eq!(next(), Some(vec![0, 7]), "{why}");
                assert_eq!(next(), Some(vec![1]), "{why}");
            }
        }
    }
}

#[test]
fn a_cursor_past_an_end_finds_later_changes_of_its_transaction() {
    let db = database();
    let table = filled(&db, "t");
    for (up, to, n) in [(true, Seek::Below(&[5]), 2), (false, Seek::AtLeast(&[5]), 7)] {
        let trx = begin(&db, Isolation::RepeatableRead);
        let within = trx.table(&table);
        within.rows().unwrap().for_each(|row| assert!(within.delete(&row.unwrap().0).unwrap()));
        let mut cursor = within.cursor().unwrap();
        assert!(!cursor.seek(to).unwrap());
        within.put(&[n], b"new").unwrap();
        assert!(if up { cursor.next() } else { cursor.prev() }.unwrap());
        assert_eq!(cursor.row(), Some((&[n][..], &b"new"[..])));
        // Nor does a second change move a cursor whose row was deleted.
        within.delete(&[n]).unwrap();
        within.put(&[n], b"again").unwrap();
        assert!(!if up { cursor.next() } else { cursor.prev() }.unwrap());
        assert_eq!(cursor.row(), None);
    }
}

/// An iterator over a range does so at both ends.
#[test]
fn a_range_finds_later_changes_of_its_transaction() {
    for level in LEVELS {
        let db = database();
        let table = filled(&db, "t");
        let trx = begin(&db, level);
        let within = trx.table(&table);
        let mut rows = within.rows().unwrap();
        assert_eq!(rows.next().unwrap().unwrap().0, [0]);
        assert_eq!(rows.next_back().unwrap().unwrap().0, [ROWS - 1]);
        within.delete(&[1]).unwrap();
        within.put(&[1, 1], b"new").unwrap();
        within.put(&[ROWS - 2], b"changed").unwrap();
        assert_eq!(rows.next().unwrap().unwrap(), (vec![1, 1], b"new".to_vec()), "{level:?}");
        assert_eq!(rows.next_back().unwrap().unwrap(), (vec![ROWS - 2], b"changed".to_vec()), "{level:?}");
        assert_eq!(rows.count(), usize::from(ROWS) - 4);
    }
}

/// A scan of one table while the transaction fills another reads each page once.
#[test]
fn steps_read_ahead_while_other_tables_change() {
    let db = database();
    let (table, other) = (filled(&db, "t"), filled(&db, "other"));
    let trx = begin(&db, Isolation::RepeatableRead);
    let (within, target) = (trx.table(&table), trx.table(&other));
    let frames = |change: &dyn Fn(u8)| {
        let (mut cursor, mut frames) = (within.cursor().unwrap(), 0);
        assert!(cursor.seek(Seek::First).unwrap());
        for n in 1..ROWS {
            change(n);
            let before = so_far().of(Work::Frame);
            assert!(cursor.next().unwrap());
            frames += so_far().of(Work::Frame) - before;
        }
        frames
    };
    let alone = frames(&|_| ());
    let (of_other, of_own) =
        (frames(&|n| target.put(&[n], b"x").unwrap()), frames(&|n| within.put(&[n], &[n, 1]).unwrap()));
    assert!(
        alone == of_other && of_own >= alone + u64::from(ROWS / 2),
        "{alone}, {of_other}, {of_own} frames"
    );
}
