//! Allocations of reads: after a warm-up none. Those of changes do not depend on indexes that they do not touch. The
//! memory of loads.

mod common;

use core::{mem::take, ops::Bound};

use common::{key, new_database};
use windfall::{
    Batch, Condition, CountingAllocator, CursorMemory, FlushLog, IndexBatch, IndexCursor, IndexEntry,
    IndexOptions, Isolation, LoadOptions, OneRow, Options, Result, Seek, StatementEnd, SuppliedChange,
    SuppliedEntry, TableLoad, TableOptions, Transaction, TransactionOptions, Values, row::FieldSet,
};
use windfall_base::sync::work::{self, Work};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROWS: u32 = 5_000;
/// The most allocations for the lock on a row.
const ROW_LOCK: u64 = 3;
/// The most allocations for the locks on a row and on the gap before it.
const GAP_LOCK: u64 = 6;

/// Asserts that `read` allocates nothing the third time.
fn allocates_nothing(what: &str, read: impl FnMut() -> Result<()>) -> Result<()> {
    allocates_at_most(0, what, read)
}

/// Asserts that `read` makes at most so many allocations the third time.
fn allocates_at_most(most: u64, what: &str, mut read: impl FnMut() -> Result<()>) -> Result<()> {
    let allocations = || work::so_far().of(Work::Allocation);
    read()?;
    read()?;
    let before = allocations();
    read()?;
    let made = allocations() - before;
    assert!(made <= most, "{what}: {made}");
    Ok(())
}

/// Asserts that `read` makes at most so many allocations for each of its `rows` the third time, each time in a new
/// transaction: locks take memory.
fn allocates_for_locks(
    what: &str,
    most: u64,
    trx: &mut Transaction,
    mut read: impl FnMut(&Transaction) -> Result<()>,
) -> Result<()> {
    let options = TransactionOptions::default().isolation(trx.isolation());
    let mut made = 0;
    for _ in 0..3 {
        let before = work::so_far().of(Work::Allocation);
        read(trx)?;
        made = work::so_far().of(Work::Allocation) - before;
        trx.commit_and_keep(FlushLog::Lazy)?;
        trx.restart(options)?;
    }
    // The tables of locks grow in steps.
    assert!(made <= most * u64::from(LOCKED) + u64::from(LOCKED) / 8, "{what}: {made} for {LOCKED} rows");
    Ok(())
}

#[test]
fn scans_of_rows_of_many_fields_allocate_nothing() -> Result<()> {
    let options =
        Options::default().page_size(4096).buffer_pool_size(16 << 20).flush_log_at_trx_commit(FlushLog::Lazy);
    let (_folder, db) = new_database(options)?;
    for count in [2, 46] {
        let table = db.create_table(&format!("t{count}"), TableOptions::default())?;
        for n in 0..100 {
            let mut fields = vec![&[1; 20][..]; count];
            fields[0] = &[7; 2000];
            table.insert_fields(&key(n), &fields, &[])?;
        }
        let short = table.select_fields(FieldSet::ALL.without(0));
        for (what, table) in [("a scan of all fields", &table), ("a scan of short fields", &short)] {
            let mut cursor = table.cursor()?;
            allocates_nothing(what, || {
                assert!(cursor.seek(Seek::First)?);
                let mut rows = 1;
                while cursor.next()? {
                    rows += 1;
                }
                assert_eq!(rows, 100);
                Ok(())
            })?;
        }
    }
    db.close()
}

/// The values of the index contain zero bytes, so that its keys are copied where the cursor unescapes them.
#[test]
fn reads_allocate_nothing_after_a_warm_up() -> Result<()> {
    let options =
        Options::default().page_size(4096).buffer_pool_size(16 << 20).flush_log_at_trx_commit(FlushLog::Lazy);
    let (_folder, db) = new_database(options)?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..4)))?;
    for n in 0..ROWS {
        table.insert(&key(n), &[&key(n)[..], &[7; 100]].concat())?;
    }
    let trx = db.begin(TransactionOptions::default());
    let (within, plain) = (trx.table(&table), &table);
    let (mut inside, mut outside) = (within.cursor()?, plain.cursor()?);
    for (what, cursor) in [("a scan in a transaction", &mut inside), ("a scan", &mut outside)] {
        allocates_nothing(what, || {
            assert!(cursor.seek(Seek::First)?);
            let mut rows = 1;
            while cursor.next()? {
                assert!(cursor.row().is_some());
                rows += 1;
            }
            assert_eq!(rows, ROWS);
            Ok(())
        })?;
        allocates_nothing(what, || {
            assert!(cursor.seek(Seek::Last)?);
            while cursor.prev()? {}
            Ok(())
        })?;
        let mut batch = Batch::default();
        allocates_nothing("batches", || {
            assert!(cursor.seek(Seek::First)?);
            let mut rows = 1;
            while cursor.next_batch(&mut batch)? > 0 {
                rows += batch.len();
            }
            assert_eq!(rows, ROWS as usize);
            while cursor.prev_batch(&mut batch)? > 0 {}
            Ok(())
        })?;
        allocates_nothing("seeks", || {
            (0..ROWS).try_for_each(|n| cursor.seek(Seek::AtLeast(&key(n))).map(drop))
        })?;
    }
    let index = plain.index("i")?;
    for (what, mut cursor) in [("rows of an index", index.cursor()?), ("entries alone", index.key_cursor()?)]
    {
        let mut batch = IndexBatch::default();
        allocates_nothing("batches of entries", || {
            assert!(cursor.seek(Seek::AtLeast(&key(0)))?);
            while cursor.next_batch(&mut batch)? > 0 {
                assert!(batch.iter().all(|row| row.index_key == row.key));
            }
            Ok(())
        })?;
        let even = |entry: IndexEntry<'_>| match entry.key[3] % 2 {
            0 => Condition::Holds,
            _ => Condition::Fails,
        };
        allocates_nothing("small batches under a condition", || {
            assert!(cursor.seek(Seek::AtLeast(&key(0)))?);
            let mut rows = 1;
            while cursor.next_batch_where(&mut batch, 4, even)? > 0 {
                rows += batch.len();
            }
            assert_eq!(rows, ROWS as usize / 2);
            Ok(())
        })?;
        allocates_nothing(what, || {
            assert!(cursor.seek(Seek::AtLeast(&key(0)))?);
            let mut entries = 1;
            while cursor.next()? {
                assert!(cursor.row().is_some_and(|row| row.index_key == row.key));
                entries += 1;
            }
            assert_eq!(entries, ROWS);
            Ok(())
        })?;
    }
    for (what, mut cursor) in [("rows", index.cursor()?), ("entries alone", index.key_cursor()?)] {
        // In the index the keys have another form, which some of them have longer than others.
        allocates_nothing(&format!("seeks among {what}"), || {
            (0..ROWS).try_for_each(|n| {
                assert!(cursor.seek(Seek::AtLeast(&key(n)))? && cursor.seek(Seek::AtMost(&key(n)))?);
                cursor.seek(Seek::Above(&key(n)))?;
                cursor.seek(Seek::Below(&key(n))).map(drop)
            })
        })?;
        allocates_nothing(&format!("ranges of {what}"), || {
            (0..ROWS).try_for_each(|n| {
                let (from, to) = (key(n), key(n + 3));
                cursor.set_range((Bound::Excluded(from), Bound::Included(to)));
                assert_eq!(cursor.next()?, n + 1 < ROWS);
                cursor.set_range(from..=from);
                assert!(cursor.next()? && !cursor.next()?);
                Ok(())
            })
        })?;
    }
    let mut memory = CursorMemory::default();
    allocates_nothing("a new cursor in the memory of another one", || {
        let mut cursor = within.cursor()?.with_memory(take(&mut memory));
        cursor.set_range(key(7)..key(9));
        assert!(cursor.next()? && cursor.next()? && !cursor.next()?);
        memory = cursor.into_memory();
        Ok(())
    })?;
    let own = within.index("i")?;
    allocates_nothing("a new cursor over an index in the memory of another one", || {
        let mut cursor = own.cursor()?.with_memory(take(&mut memory));
        cursor.set_range(key(7)..key(9));
        assert!(cursor.next()? && cursor.next()? && !cursor.next()?);
        memory = cursor.into_memory();
        Ok(())
    })?;
    let (keys, mut values) = ((0..ROWS).rev().map(key).collect::<Vec<_>>(), Values::default());
    allocates_nothing("many rows in a transaction", || {
        assert_eq!(within.get_many(&keys, &mut values)?, ROWS as usize);
        Ok(())
    })?;
    let mut one = OneRow::default();
    let own = within.index("i")?;
    let number = table.index_number("i")?;
    allocates_nothing("rows by an index key", || {
        (0..ROWS).try_for_each(|n| {
            assert!(index.get_one(&key(n), &mut one)?.is_some());
            assert!(own.get_one(&key(n), &mut one)?.is_some());
            index.get_one_key(&key(n), &mut one).map(|found| assert!(found.is_some()))
        })
    })?;
    let mut value = Vec::new();
    for level in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let options = TransactionOptions::default().isolation(level);
        let mut trx = db.begin(options);
        let what = format!("statements of transactions with one handle at {level:?}");
        allocates_nothing(&what, || {
            for n in 0..ROWS {
                trx.begin_statement()?;
                let table = trx.table(&table);
                assert!(table.get_into(&key(n), &mut value)?);
                assert!(table.index_at(number)?.get_one(&key(n), &mut one)?.is_some());
                if n % 2 == 0 {
                    trx.end_statement(StatementEnd::Keep)?;
                    trx.commit_and_keep(FlushLog::Lazy)?;
                } else {
                    trx.commit_statement(FlushLog::Lazy)?;
                }
                trx.restart(options)?;
            }
            Ok(())
        })?;
    }
    allocates_nothing("point reads", || {
        (0..ROWS).try_for_each(|n| plain.get_into(&key(n), &mut value).map(|found| assert!(found)))
    })?;
    drop(trx);
    db.close()
}

/// Rows that locking reads lock.
const LOCKED: u32 = 1_000;

/// A scan through a cursor over the rows of an index, by steps, under a condition, and by batches.
fn scan_index(cursor: &mut IndexCursor, batch: &mut IndexBatch, by: usize) -> Result<()> {
    let mut rows = 0;
    assert_eq!(cursor.row(), None);
    match by {
        0 => {
            while cursor.next()? {
                rows += 1;
            }
        }
        1 => {
            while cursor
                .next_where(|entry| if entry.key.is_empty() { Condition::Fails } else { Condition::Holds })?
            {
                rows += 1;
            }
        }
        _ => {
            while cursor.next_batch(batch)? > 0 {
                rows += batch.len() as u32;
            }
        }
    }
    assert_eq!(rows, LOCKED);
    Ok(())
}

/// Once a transaction has locked the rows, reads of them allocate nothing. A lock on a row takes some allocations, and
/// so does each gap, unless the range is locked at once.
#[test]
fn locking_reads_allocate_for_their_locks_alone() -> Result<()> {
    let options =
        Options::default().page_size(4096).buffer_pool_size(16 << 20).flush_log_at_trx_commit(FlushLog::Lazy);
    let (_folder, db) = new_database(options)?;
    let definition = TableOptions::default()
        .index("value", IndexOptions::on_value(0..4))
        .index("payload", IndexOptions::supplied(4));
    let table = db.create_table("t", definition)?;
    for n in 0..LOCKED {
        let (key, value) = (key(n), [&key(n)[..], &[7; 100]].concat());
        let entry = SuppliedEntry::new(&key).payload(b"payload");
        table.insert_with(&key, &value, &[SuppliedChange::new("payload", None, Some(entry))])?;
    }
    let keys: Vec<_> = (0..LOCKED).map(key).collect();
    for level in [Isolation::ReadCommitted, Isolation::RepeatableRead] {
        let locks_gaps = level == Isolation::RepeatableRead;
        let mut trx = db.begin(TransactionOptions::default().isolation(level));
        let (mut one, mut values) = (OneRow::default(), Values::default());
        let by_key = |trx: &Transaction, one: &mut OneRow| {
            let within = trx.table(&table);
            keys.iter()
                .try_for_each(|key| within.get_one_for_update(key, one).map(|row| assert!(row.is_some())))
        };
        let semi_consistent = |trx: &Transaction, one: &mut OneRow| {
            let within = trx.table(&table);
            keys.iter().try_for_each(|key| within.get_one_for_update_semi_consistent(key, one).map(drop))
        };
        let by_index_key = |trx: &Transaction, one: &mut OneRow| {
            let within = trx.table(&table);
            ["value", "payload"].iter().try_for_each(|name| {
                let index = within.index(name)?;
                keys.iter().try_for_each(|key| {
                    assert!(index.get_one_for_update(key, one)?.is_some());
                    index.get_one_for_update_semi_consistent(key, one).map(drop)
                })
            })
        };
        allocates_for_locks("reads by key", ROW_LOCK, &mut trx, |trx| by_key(trx, &mut one))?;
        allocates_for_locks("semi-consistent reads", ROW_LOCK, &mut trx, |trx| {
            semi_consistent(trx, &mut one)
        })?;
        allocates_for_locks("reads by index key", ROW_LOCK, &mut trx, |trx| by_index_key(trx, &mut one))?;
        allocates_for_locks("many rows", ROW_LOCK, &mut trx, |trx| {
            trx.table(&table).get_many_for_update(&keys, &mut values).map(drop)
        })?;
        allocates_for_locks("row by row", if locks_gaps { GAP_LOCK } else { ROW_LOCK }, &mut trx, |trx| {
            let mut cursor = trx.table(&table).cursor_for_update()?;
            while cursor.next()? {}
            Ok(())
        })?;
        for name in ["value", "payload"] {
            for by in 0..3 {
                let mut batch = IndexBatch::default();
                let what = format!("{level:?}, a range of {name} locked at once, by {by}");
                allocates_for_locks(&what, ROW_LOCK, &mut trx, |trx| {
                    let mut cursor = trx.table(&table).index(name)?.cursor_for_update()?;
                    cursor.lock_range()?;
                    scan_index(&mut cursor, &mut batch, by)
                })?;
            }
        }

        let trx = &trx;
        allocates_nothing("reads by key of locked rows", || by_key(trx, &mut one))?;
        allocates_nothing("semi-consistent reads of locked rows", || semi_consistent(trx, &mut one))?;
        allocates_nothing("reads by index key of locked rows", || by_index_key(trx, &mut one))?;
        allocates_nothing("many locked rows", || {
            trx.table(&table).get_many_for_update(&keys, &mut values).map(drop)?;
            trx.table(&table).get_many_for_share(&keys, &mut values).map(drop)
        })?;
        for at_once in [false, true] {
            let mut cursor = trx.table(&table).cursor_for_update()?;
            cursor.semi_consistent(at_once);
            let mut batch = Batch::default();
            let what = format!("{level:?}, locked at once: {at_once}");
            allocates_nothing(&format!("steps, {what}"), || {
                cursor.set_range::<&[u8]>(..);
                if at_once {
                    cursor.lock_range()?;
                }
                let mut rows = 0;
                while cursor.next()? {
                    rows += 1;
                }
                assert_eq!(rows, LOCKED);
                while cursor.prev()? {}
                Ok(())
            })?;
            allocates_nothing(&format!("batches, {what}"), || {
                cursor.set_range::<&[u8]>(..);
                if at_once {
                    cursor.lock_range()?;
                }
                while cursor.next_batch(&mut batch)? > 0 {}
                Ok(())
            })?;
            for name in ["value", "payload"] {
                let index = trx.table(&table).index(name)?;
                for (alone, mut cursor) in
                    [(false, index.cursor_for_update()?), (true, index.key_cursor_for_update()?)]
                {
                    let mut batch = IndexBatch::default();
                    for by in 0..3 {
                        // A scan notes once which transactions have ended.
                        let what = format!("{name}, alone: {alone}, by {by}, {what}");
                        allocates_at_most(1, &what, || {
                            cursor.set_range::<&[u8]>(..);
                            if at_once {
                                cursor.lock_range()?;
                            }
                            scan_index(&mut cursor, &mut batch, by)
                        })?;
                    }
                }
            }
        }
    }
    db.close()
}

/// As the partitions of a table are loaded, in turn. Rows and entries exceed the memory many times.
#[test]
fn many_loads_at_once_stay_within_their_memory() -> Result<()> {
    const LOADS: usize = 100;
    const MEMORY: usize = 64 << 10;
    // What a load takes besides: its handle, trees, the parts of a list that are not used.
    const BESIDES: usize = 96 << 10;
    let options =
        Options::default().page_size(4096).buffer_pool_size(32 << 20).flush_log_at_trx_commit(FlushLog::Lazy);
    let (_folder, db) = new_database(options)?;
    let taken = || {
        let work = work::so_far();
        work.of(Work::AllocatedBytes).saturating_sub(work.of(Work::FreedBytes)) as usize
    };
    let names: Vec<String> = (0..LOADS).map(|n| format!("t#{n}")).collect();
    for name in &names {
        db.create_table(name, TableOptions::default().index("i", IndexOptions::on_value(0..60)))?;
    }
    let before = taken();
    let mut loads: Vec<TableLoad> = Vec::new();
    for name in &names {
        loads.push(db.load_table_with(name, LoadOptions::default().unsorted().memory(MEMORY))?);
    }
    let mut most = 0;
    for n in 0..1_000u32 {
        for (of, load) in loads.iter_mut().enumerate() {
            let mixed = n.wrapping_mul(2_654_435_761);
            load.push(&mixed.to_be_bytes(), &[(of + n as usize) as u8; 200], &[])?;
        }
        most = most.max(taken().saturating_sub(before));
    }
    assert!(most > LOADS * MEMORY / 2, "{most} bytes: the rows fit in memory");
    assert!(most < LOADS * (MEMORY + BESIDES), "{most} bytes are taken by {LOADS} loads of {MEMORY} bytes");
    loads.into_iter().try_for_each(TableLoad::finish)?;
    for name in &names {
        let table = db.table(name)?;
        assert_eq!((table.row_count()?, table.index("i")?.keys::<&[u8]>(..)?.count()), (1_000, 1_000));
    }
    db.close()
}

/// The work of a change for indexes that it does not touch, and for those that it does.
#[test]
fn a_change_allocates_nothing_for_indexes_that_it_does_not_touch() -> Result<()> {
    let options = Options::default().buffer_pool_size(16 << 20).flush_log_at_trx_commit(FlushLog::Lazy);
    let (_folder, db) = new_database(options)?;
    let allocations = |indexes: usize, touched: usize| -> Result<u64> {
        let name = |n: usize| format!("i{n}");
        let options = (0..indexes)
            .fold(TableOptions::default(), |options, n| options.index(&name(n), IndexOptions::supplied(4)));
        let table = db.create_table(&format!("t{indexes}-{touched}"), options)?;
        let numbers = (0..indexes).map(|n| table.index_number(&name(n))).collect::<Result<Vec<_>>>()?;
        let change = |from: u32, to: u32, count: usize| -> Result<u64> {
            let [old, new] = [key(from), key(to)];
            let before = (from > 0).then(|| SuppliedEntry::new(&old));
            let entries = numbers[..count].iter();
            let entries: Vec<_> = entries
                .map(|index| SuppliedChange::new(*index, before, Some(SuppliedEntry::new(&new))))
                .collect();
            let so_far = work::so_far().of(Work::Allocation);
            match from {
                0 => table.insert_with(b"row", &[0; 100], &entries)?,
                _ => table.update_with(b"row", &[to as u8; 100], &entries)?,
            }
            Ok(work::so_far().of(Work::Allocation) - so_far)
        };
        change(0, 1, indexes)?;
        (1..5).try_for_each(|n| change(n, n + 1, touched).map(drop))?;
        change(5, 6, touched)
    };
    let untouched = allocations(0, 0)?;
    assert_eq!(allocations(64, 0)?, untouched);
    let (half, all) = (allocations(32, 32)?, allocations(64, 64)?);
    assert!(all - half <= 6 * 32, "the entries of 32 indexes: {}", all - half);
    db.close()
}
