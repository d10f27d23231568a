//! Allocations of reads: after a warm-up none. Those of changes do not depend on indexes that they do not touch. The
//! memory of loads.

mod common;

use core::{mem::take, ops::Bound};

use common::{key, new_database};
use windfall::{
    Batch, Condition, CountingAllocator, CursorMemory, FlushLog, IndexBatch, IndexEntry, IndexOptions,
    Isolation, LoadOptions, OneRow, Options, Result, Seek, StatementEnd, SuppliedChange, SuppliedEntry,
    TableLoad, TableOptions, TransactionOptions, Values, row::FieldSet,
};
use windfall_base::sync::work::{self, Work};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROWS: u32 = 5_000;

/// Asserts that `read` allocates nothing the third time.
fn allocates_nothing(what: &str, mut read: impl FnMut() -> Result<()>) -> Result<()> {
    let allocations = || work::so_far().of(Work::Allocation);
    read()?;
    read()?;
    let before = allocations();
    read()?;
    let made = allocations() - before;
    assert!(made == 0, "{what}: {made}");
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
