//! Allocations of reads: after a warm-up none.

mod common;

use common::{key, new_database};
use windfall::{
    Batch, CountingAllocator, FlushLog, IndexBatch, IndexOptions, OneRow, Options, Result, Seek,
    TableOptions, TransactionOptions, Values, row::FieldSet,
};
use windfall_base::sync::work::{self, Work};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const ROWS: u32 = 5_000;

/// Asserts that `read` allocates nothing the third time.
fn allocates_nothing(what: &str, read: impl FnMut() -> Result<()>) -> Result<()> {
    allocates_at_most(0, what, read)
}

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
        // The seek makes the bound of the entries, in another form than that of the index key.
        allocates_at_most(2, "batches of entries", || {
            assert!(cursor.seek(Seek::AtLeast(&key(0)))?);
            while cursor.next_batch(&mut batch)? > 0 {
                assert!(batch.iter().all(|row| row.index_key == row.key));
            }
            Ok(())
        })?;
        allocates_at_most(2, what, || {
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
    let (keys, mut values) = ((0..ROWS).rev().map(key).collect::<Vec<_>>(), Values::default());
    allocates_nothing("many rows in a transaction", || {
        assert_eq!(within.get_many(&keys, &mut values)?, ROWS as usize);
        Ok(())
    })?;
    let mut one = OneRow::default();
    let own = within.index("i")?;
    allocates_nothing("rows by an index key", || {
        (0..ROWS).try_for_each(|n| {
            assert!(index.get_one(&key(n), &mut one)?.is_some());
            assert!(own.get_one(&key(n), &mut one)?.is_some());
            index.get_one_key(&key(n), &mut one).map(|found| assert!(found.is_some()))
        })
    })?;
    let mut value = Vec::new();
    allocates_nothing("point reads", || {
        (0..ROWS).try_for_each(|n| plain.get_into(&key(n), &mut value).map(|found| assert!(found)))
    })?;
    drop(trx);
    db.close()
}
