//! A memory limit: the memory that a process uses besides its pool does not grow with its data, and a request that
//! exceeds the limit is reported.

use rustix::process::Resource;
use windfall::{Database, Error, IndexOptions, Options, TableOptions, error::UsageError};

use crate::{
    Case, assert_sound, die, guard::mix, in_a_process_of_its_own, in_processes_of_its_own, limit, memory,
    seed, sized, small,
};

pub(crate) const BOUNDED: &str = "memory::memory_outside_the_pool_does_not_grow_with_the_data";

pub(crate) const MANY_CALLS: &str =
    "memory::memory_of_recovery_does_not_grow_with_the_transactions_in_the_log";

const POOL: u64 = 8 << 20;
/// The memory that the process may use besides the pool, for any content of the database. Half of it is what recovery
/// collects before it applies it to pages, or what an index build sorts at a time.
const BESIDE: u64 = 112 << 20;
/// In addition: stacks of threads, and memory that is reserved and not used.
const RESERVED: u64 = 96 << 20;

fn options() -> Options {
    small().buffer_pool_size(POOL).buffer_pool_max_size(POOL).log_size(64 << 20)
}

/// Opens the database in a process with a limit of what it should need.
fn open(case: &Case) -> Database {
    limit(Resource::Data, POOL + BESIDE + RESERVED);
    Database::open(&case.folder, options()).unwrap()
}

fn assert_bounded(what: &str) {
    let beside = memory("VmHWM").saturating_sub(POOL);
    println!("    {what}: at most {} MiB beside the pool", beside >> 20);
    assert!(beside <= BESIDE, "{what}: {beside} bytes beside the pool");
}

/// Returns a row. Groups of neighbours are in random order.
fn row(n: u32) -> ([u8; 12], Vec<u8>) {
    let place = mix(&[seed(), u64::from(n / 64)]);
    let mut key = [0; 12];
    key[..8].copy_from_slice(&place.to_be_bytes());
    key[8..].copy_from_slice(&n.to_be_bytes());
    let mut value = vec![n as u8 | 1; 640 + n as usize % 200];
    value[..4].copy_from_slice(&n.to_be_bytes());
    (key, value)
}

const LONG: u64 = 48 << 20;

fn long_value(fill: u8) -> impl std::io::Read {
    std::io::Read::take(std::io::repeat(fill), LONG)
}

/// Data of many times the size of the pool and of the bound: rows in random order, an index, long values, tables, a
/// scan, a check. Then the process dies with much to recover, and the next one continues.
#[test]
fn memory_outside_the_pool_does_not_grow_with_the_data() {
    let rows = sized(120_000, 1_500_000);
    let work = |case: &Case| {
        let db = open(case);
        let table = db.create_table("t", TableOptions::default()).unwrap();
        case.part("rows", || {
            for n in 0..rows {
                let (key, value) = row(n);
                table.insert(&key, &value).unwrap();
            }
        });
        assert_bounded("rows");
        case.part("long values", || {
            for n in 0..4u8 {
                let (key, fill) = ([n % 2], n);
                table.put_stream(&key, LONG, &mut long_value(fill)).unwrap();
            }
            for n in 0..2u8 {
                assert_eq!(table.read_stream(&[n], &mut std::io::sink()).unwrap(), Some(LONG));
            }
            assert!(table.delete(&[0]).unwrap() && table.delete(&[1]).unwrap());
        });
        assert_bounded("long values");
        case.part("index", || db.create_index("t", "i", IndexOptions::on_value(0..640)).unwrap());
        assert_bounded("index");
        case.part("scans", || {
            assert_eq!(table.rows().unwrap().count(), rows as usize);
            assert_eq!(table.rows().unwrap().rev().count(), rows as usize);
        });
        assert_bounded("scans");
        case.part("check", || {
            assert_sound(&db, "all at once");
            assert_eq!(db.check_live().unwrap().findings, Vec::<String>::new());
        });
        assert_bounded("check");
        case.part("much to recover", || {
            for n in (0..rows).step_by(5) {
                assert!(table.delete(&row(n).0).unwrap());
            }
            db.create_table("last", TableOptions::default()).unwrap();
            db.set_flush_log_at_trx_commit(windfall::FlushLog::Sync);
            table.insert(b"last", b"").unwrap();
        });
        assert_bounded("all of it");
        die();
    };
    let reopened = |case: &Case| {
        let db = case.part("recovery", || open(case));
        assert_bounded("recovery");
        let table = db.table("t").unwrap();
        case.part("purge and check", || {
            assert_eq!(table.rows().unwrap().count(), (rows - rows.div_ceil(5) + 1) as usize);
            assert_sound(&db, "after recovery");
        });
        assert_bounded("purge and check");
        case.part("gone", || {
            db.drop_table("t").unwrap();
            db.close().unwrap();
        });
        assert_bounded("all of it");
    };
    in_processes_of_its_own(BOUNDED, &[&work, &reopened]);
}

/// The memory that recovery may use besides the pool, for a log of many short transactions. Most of it is the batch of
/// changes that it collects.
const RECOVERY: u64 = 48 << 20;

/// Many transactions after the last checkpoint, all of which have ended: recovery keeps none of them. Their changes are
/// more than a batch.
#[test]
fn memory_of_recovery_does_not_grow_with_the_transactions_in_the_log() {
    let calls: u32 = sized(1_500_000, 4_000_000);
    // The log is so large that its use never triggers a checkpoint.
    let options = || options().log_size(64 << 30);
    let work = |case: &Case| {
        let db = Database::open(&case.folder, options()).unwrap();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        db.checkpoint().unwrap();
        db.set_flush_log_at_trx_commit(windfall::FlushLog::Lazy);
        case.part("calls", || {
            for n in 0..calls {
                table.put(&(n % 500).to_be_bytes(), &n.to_be_bytes()).unwrap();
            }
        });
        db.set_flush_log_at_trx_commit(windfall::FlushLog::Sync);
        table.put(b"last", b"").unwrap();
        die();
    };
    let reopened = |case: &Case| {
        let db = case.part("recovery", || Database::open(&case.folder, options()).unwrap());
        let beside = memory("VmHWM").saturating_sub(POOL);
        println!("    recovery: at most {} MiB beside the pool", beside >> 20);
        assert!(beside <= RECOVERY, "{beside} bytes beside the pool");
        assert_eq!(db.table("t").unwrap().rows().unwrap().count(), 501);
    };
    in_processes_of_its_own(MANY_CALLS, &[&work, &reopened]);
}

/// An option that requests more memory than available is reported by name, with the remedy, and creates nothing. With
/// less it works.
#[test]
fn a_size_beyond_the_memory_is_reported() {
    in_a_process_of_its_own("memory::a_size_beyond_the_memory_is_reported", |case| {
        limit(Resource::As, 512 << 20);
        let refused = |options: Options, option: &str| {
            let error = Database::open(&case.folder, options).unwrap_err();
            let text = error.to_string();
            assert!(
                matches!(&error, Error::Usage(UsageError::Option { name, .. }) if *name == option),
                "{error:?}"
            );
            assert!(text.contains("bytes") && text.contains("choose less"), "{text}");
        };
        let pool = |bytes| small().buffer_pool_size(bytes);
        refused(pool(4 << 30), "buffer_pool_max_size");
        // Four times this size is reserved, because the pool may grow.
        refused(pool(400 << 20), "buffer_pool_max_size");
        refused(small().buffer_pool_max_size(16 << 40), "buffer_pool_max_size");
        refused(small().log_buffer_size(1 << 30).log_size(4 << 30), "log_buffer_size");
        let db = Database::open(&case.folder, pool(32 << 20)).unwrap();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        // The refused opens have left nothing that prevents this.
        table.insert(b"k", b"v").unwrap();
        // A value that does not fit into memory is also reported, and can be read in pieces.
        let length = 300 << 20;
        case.part("a value beyond the memory", || {
            table.put_stream(b"long", length, &mut std::io::Read::take(std::io::repeat(7), length)).unwrap();
            let text = table.get(b"long").unwrap_err().to_string();
            assert!(
                text.contains("table t") && text.contains("bytes") && text.contains("read_stream"),
                "{text}"
            );
            let text = table.rows().unwrap().find_map(Result::err).expect("it is not to be had").to_string();
            assert!(text.contains("table t") && text.contains("read_stream"), "{text}");
        });
        assert_eq!(table.read_stream(b"long", &mut std::io::sink()).unwrap(), Some(length));
        assert_eq!(table.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
        db.close().unwrap();
    });
}
