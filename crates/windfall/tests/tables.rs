//! Tables and their handles beside statements on the same tables, with threads on a real disk.

use std::{
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use windfall::{Database, FlushLog, IndexOptions, Options, Result, TableOptions};

fn options() -> Options {
    Options::default().buffer_pool_size(16 << 20).log_size(32 << 20).flush_log_at_trx_commit(FlushLog::Lazy)
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Runs something that might wait for ever.
fn in_time<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(run()));
    result.recv_timeout(Duration::from_mins(1)).unwrap_or_else(|_| panic!("{what}: it waits for ever"))
}

#[test]
fn calls_go_on_while_an_index_is_built() -> Result<()> {
    const ROWS: u32 = 60_000;
    let folder = tempfile::tempdir().unwrap();
    let db = Database::open(folder.path(), options())?;
    let table = db.create_table("t", TableOptions::default().index("old", IndexOptions::on_value(4..8)))?;
    for n in 0..ROWS {
        table.insert(&key(n), &[key(n), key(n % 7)].concat())?;
    }
    let (building, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (reads, writes, scans, lookups) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let count = |calls: &AtomicU64| {
        calls.fetch_add(u64::from(building.load(SeqCst)), SeqCst);
    };
    thread::scope(|scope| {
        for thread in 0..2u32 {
            let (db, table, over, count) = (&db, &table, &over, &count);
            let (reads, writes, scans, lookups) = (&reads, &writes, &scans, &lookups);
            scope.spawn(move || {
                let mut n = thread;
                while !over.load(SeqCst) {
                    n = (n + 2 * 7919) % ROWS;
                    table.get(&key(n)).unwrap();
                    count(reads);
                    // Each thread has rows of its own; the index key moves, goes and comes back.
                    match n % 3 {
                        0 => table.put(&key(n), &[key(n + ROWS), key(n % 7)].concat()).unwrap(),
                        1 => drop(table.delete(&key(n)).unwrap()),
                        _ => table.put(&key(n), &[key(n), key(n % 5)].concat()).unwrap(),
                    }
                    count(writes);
                    assert!(table.range(key(n)..).unwrap().take(3).all(|row| row.is_ok()));
                    assert!(table.index("old").unwrap().get(&key(3)).unwrap().take(2).all(|row| row.is_ok()));
                    count(scans);
                    assert_eq!(db.table("t").unwrap().name(), "t");
                    count(lookups);
                }
            });
        }
        for round in 0..4 {
            let options = IndexOptions::on_value(0..4);
            let options = if round % 2 == 0 { options.unique() } else { options };
            building.store(true, SeqCst);
            let built = db.create_index("t", &format!("new {round}"), options);
            building.store(false, SeqCst);
            if built.is_err() {
                over.store(true, SeqCst);
            }
            built.unwrap();
        }
        over.store(true, SeqCst);
    });
    for (what, calls) in [("reads", reads), ("writes", writes), ("scans", scans), ("lookups", lookups)] {
        let calls = calls.load(SeqCst);
        assert!(calls > 20, "{calls} {what} while indexes were built");
    }
    let mut rows: Vec<_> = table.rows()?.collect::<Result<_>>()?;
    rows.sort_by(|a, b| (&a.1[..4], &a.0).cmp(&(&b.1[..4], &b.0)));
    for round in 0..4 {
        let found = table.index(&format!("new {round}"))?.range::<&[u8]>(..)?;
        let found: Vec<_> = found.map(|row| row.map(|row| (row.key, row.value))).collect::<Result<_>>()?;
        assert!(found == rows, "index {round}: {} entries, {} rows", found.len(), rows.len());
    }
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_drop_waits_for_the_index_that_is_being_built() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let db = Database::open(folder.path(), options())?;
    for round in 0..10 {
        let table = db.create_table("t", TableOptions::default())?;
        for n in 0..2000u32 {
            table.insert(&key(n), &key(n / 2))?;
        }
        let building = db.clone();
        let built = thread::spawn(move || building.create_index("t", "i", IndexOptions::on_value(0..4)));
        if round % 2 == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        let dropping = db.clone();
        in_time("a drop", move || dropping.drop_table("t"))?;
        // It came before the drop, or after it and found no table.
        let built = built.join().unwrap();
        assert!(built.is_ok() || built.unwrap_err().to_string().contains("no table"));
        assert!(table.get(&key(1)).is_err());
    }
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}
