//! Tables and their handles, concurrently with statements on the same tables, with threads on a real disk.

mod common;
mod time_limit;

use std::{
    io::{self, Read, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    thread,
    time::Duration,
};

use common::{key, new_database, with_record};
use time_limit::{HANG, wait_until};
use windfall::{
    Database, Error, FlushLog, IndexOptions, Options, Result, Table, TableOptions,
    error::{SchemaError, UsageError},
    row,
};

fn options() -> Options {
    Options::default().buffer_pool_size(16 << 20).log_size(32 << 20).flush_log_at_trx_commit(FlushLog::Lazy)
}

/// Runs something that might hang.
fn in_time<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    thread::spawn(move || done.send(run()));
    result.recv_timeout(HANG).unwrap_or_else(|_| panic!("{what}: it waits for ever"))
}

#[test]
fn calls_go_on_while_an_index_is_built() -> Result<()> {
    const ROWS: u32 = 60_000;
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default().index("old", IndexOptions::on_value(4..8)))?;
    for n in 0..ROWS {
        table.insert(&key(n), &[key(n), key(n % 7)].concat())?;
    }
    let (building, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (reads, writes, scans, lookups) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let mut built = 0;
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
                    // Each thread has rows of its own. The index key changes, is removed, and comes back.
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
        let are_many = || [&reads, &writes, &scans, &lookups].iter().all(|calls| calls.load(SeqCst) > 20);
        while built < 4 || !are_many() {
            let options = IndexOptions::on_value(0..4);
            let options = if built % 2 == 0 { options.unique() } else { options };
            building.store(true, SeqCst);
            let done = db.create_index("t", &format!("new {built}"), options);
            building.store(false, SeqCst);
            if done.is_err() {
                over.store(true, SeqCst);
            }
            done.unwrap();
            built += 1;
        }
        over.store(true, SeqCst);
    });
    let mut rows: Vec<_> = table.rows()?.collect::<Result<_>>()?;
    rows.sort_by(|a, b| (&a.1[..4], &a.0).cmp(&(&b.1[..4], &b.0)));
    for index in 0..built {
        let found = table.index(&format!("new {index}"))?.range::<&[u8]>(..)?;
        let found: Vec<_> = found.map(|row| row.map(|row| (row.key, row.value))).collect::<Result<_>>()?;
        assert!(found == rows, "index {index}: {} entries, {} rows", found.len(), rows.len());
    }
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_drop_waits_for_the_index_that_is_being_built() -> Result<()> {
    let (_folder, db) = new_database(options())?;
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
        // The index was built before the drop, or after it, when there was no table.
        let built = built.join().unwrap();
        assert!(built.is_ok() || built.unwrap_err().to_string().contains("no table"));
        assert!(table.get(&key(1)).is_err());
    }
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// A value's source or sink that performs an action at its first byte.
struct Acting<F>(Option<F>);

impl<F: FnOnce()> Acting<F> {
    fn act(&mut self) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

impl<F: FnOnce()> Read for Acting<F> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.act();
        out.fill(7);
        Ok(out.len())
    }
}

impl<F: FnOnce()> Write for Acting<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.act();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A sink that stores what it receives.
struct Keeping<'a, W>(&'a mut Vec<u8>, &'a mut W);

impl<W: Write> Write for Keeping<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.extend_from_slice(bytes);
        self.1.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const LONG: u64 = 300_000;

/// Puts a long value, and runs `act` from within its source after a statement has begun on another thread.
fn put_during_a_statement(
    table: &Table,
    statement: impl FnOnce() -> Result<()> + Send + 'static,
    act: impl FnOnce(),
) -> (Result<()>, Result<()>) {
    let mut begun = None;
    let source = || {
        begun = Some(thread::spawn(statement));
        // The statement waits for this very call.
        thread::sleep(Duration::from_millis(50));
        act();
    };
    let put = table.put_stream(&key(0), LONG, &mut Acting(Some(source)));
    (put, begun.expect("the source was asked").join().expect("no panic"))
}

type Statement = fn(&Database) -> Result<()>;

#[test]
fn a_source_may_call_tables_that_a_statement_is_closing() -> Result<()> {
    let statements: [(&str, Statement); 5] = [
        ("drop both", |db| db.drop_tables(&["a", "b"]).map(drop)),
        ("drop the table itself", |db| db.drop_table("b").map(drop)),
        ("truncate", |db| db.truncate_table("b").map(drop)),
        ("create an index", |db| db.create_index("b", "i", IndexOptions::on_value(0..4))),
        ("check", |db| db.check().map(drop)),
    ];
    for (what, statement) in statements {
        let (folder, db) = new_database(options())?;
        let (a, b) =
            (db.create_table("a", TableOptions::default())?, db.create_table("b", TableOptions::default())?);
        for table in [&a, &b] {
            table.insert(&key(1), b"one")?;
        }
        let other = db.clone();
        let (put, done) = in_time(what, move || {
            put_during_a_statement(
                &b.clone(),
                move || statement(&other),
                move || {
                    for table in [&a, &b] {
                        assert_eq!(table.get(&key(1)).unwrap().as_deref(), Some(&b"one"[..]));
                        table.put(&key(2), b"two").unwrap();
                        assert!(table.rows().unwrap().all(|row| row.is_ok()));
                    }
                    // Until the statement is done, the name refers to the same table.
                    assert_eq!(db.table("b").unwrap().get(&key(2)).unwrap().as_deref(), Some(&b"two"[..]));
                },
            )
        });
        put.unwrap_or_else(|error| panic!("{what}: {error}"));
        done.unwrap_or_else(|error| panic!("{what}: {error}"));
        let db = Database::open(folder.path(), options());
        assert!(db.is_err() || db?.check()?.is_sound(), "{what}");
    }
    Ok(())
}

#[test]
fn a_source_makes_no_statement_and_waits_for_no_row() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default())?;
    table.insert(&key(1), &vec![1; 100_000])?;
    let refused = |result: Result<()>| {
        let error = result.unwrap_err();
        let is_refused =
            matches!(error, Error::Usage(UsageError::StatementInCall | UsageError::WaitInCall { .. }));
        assert!(is_refused, "{error}");
        assert!(error.to_string().contains("source"), "{error}");
    };
    let (inner, handle) = (db.clone(), table.clone());
    in_time("a source", move || {
        let act = || {
            refused(inner.drop_table("t").map(drop));
            refused(inner.truncate_table("t").map(drop));
            refused(inner.create_table("new", TableOptions::default()).map(drop));
            refused(inner.create_index("t", "i", IndexOptions::on_value(0..4)));
            refused(inner.rename_table("t", "new"));
            refused(inner.swap_tables("t", "t"));
            refused(inner.check().map(drop));
            // The row of this value.
            refused(handle.put(&key(0), b"another value"));
            // A reader of the row sees the committed version.
            assert!(handle.get(&key(0)).unwrap().is_none());
            assert_eq!(handle.read_stream(&key(0), &mut io::sink()).unwrap(), None);
            assert_eq!(handle.read_stream(&key(1), &mut io::sink()).unwrap(), Some(100_000));
        };
        handle.put_stream(&key(0), LONG, &mut Acting(Some(act)))
    })?;
    assert_eq!(table.get(&key(0))?, Some(vec![7; LONG as usize]));

    // Two rows, each of which the other's source changes.
    let (one, other) = (table.clone(), table.clone());
    let results = in_time("two sources", move || {
        let meet = Arc::new(std::sync::Barrier::new(2));
        let put = move |table: Table, mine: u32, others: u32, meet: Arc<std::sync::Barrier>| {
            let mut inner = None;
            let act = || {
                meet.wait();
                inner = Some(table.put(&key(others), b"from a source"));
                meet.wait();
            };
            table.put_stream(&key(mine), LONG, &mut Acting(Some(act))).unwrap();
            inner.expect("the source was asked")
        };
        let met = meet.clone();
        let thread = thread::spawn(move || put(one, 5, 6, met));
        [put(other, 6, 5, meet), thread.join().unwrap()]
    });
    results.into_iter().for_each(refused);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// Two databases count as one here: threads may use them in both orders, and neither database sees the whole cycle.
#[test]
fn calls_within_calls_on_another_database_cause_no_deadlock() -> Result<()> {
    let ((_folder, one), (_other_folder, other)) = (new_database(options())?, new_database(options())?);
    let dbs = [one, other];
    let tables = [0, 1].map(|n| dbs[n].create_table("t", TableOptions::default()).unwrap());
    // In each thread's source, a write to the row of the other database that the other thread is putting.
    let (ours, of) = (tables.clone(), dbs.clone());
    let done = in_time("two sources", move || {
        let meet = Arc::new(std::sync::Barrier::new(2));
        let threads = [0, 1].map(|n| {
            let (tables, meet, other) = (ours.clone(), meet.clone(), of[1 - n].clone());
            thread::spawn(move || {
                let mut inner = None;
                let act = || {
                    let theirs = &tables[1 - n];
                    meet.wait();
                    let statement = other.drop_table("t").map(drop);
                    inner = Some((theirs.put(&key(0), b"from a source"), statement));
                    meet.wait();
                    theirs.put(&key(1), b"nobody's").unwrap();
                };
                tables[n].put_stream(&key(0), LONG, &mut Acting(Some(act))).unwrap();
                inner.expect("the source was asked")
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    for (put, statement) in done {
        for refused in [put, statement] {
            let error = refused.unwrap_err();
            assert!(error.to_string().contains("source"), "{error}");
        }
    }
    // A statement of each database waits for its own thread, which also calls the other database.
    let (ours, of) = (tables.clone(), dbs.clone());
    in_time("two sources and two statements", move || {
        let meet = Arc::new(std::sync::Barrier::new(2));
        let threads = [0, 1].map(|n| {
            let (tables, meet, db) = (ours.clone(), meet.clone(), of[n].clone());
            thread::spawn(move || {
                let truncate = move || db.truncate_table("t").map(drop);
                let act = || {
                    meet.wait();
                    tables[1 - n].put(&key(2), b"two").unwrap();
                };
                let (put, truncated) = put_during_a_statement(&tables[n], truncate, act);
                put.unwrap();
                truncated.unwrap();
            })
        });
        for thread in threads {
            thread.join().unwrap();
        }
    });
    for (n, db) in dbs.iter().enumerate() {
        assert_eq!(tables[n].get(&key(0))?, None);
        assert!(db.check()?.is_sound());
    }
    Ok(())
}

#[test]
fn a_sink_blocks_no_call_and_gets_the_value_that_was_there() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default())?;
    let value = vec![3; LONG as usize];
    table.insert(&key(0), &value)?;
    let (handle, inner) = (table.clone(), db.clone());
    let read = in_time("a sink", move || {
        let act = || {
            inner.create_index("t", "i", IndexOptions::on_value(0..4)).unwrap();
            handle.put(&key(0), &vec![4; 200_000]).unwrap();
            handle.insert(&key(1), &vec![5; 200_000]).unwrap();
            assert_eq!(inner.check().unwrap().findings, Vec::<String>::new());
            inner.rename_table("t", "u").unwrap();
        };
        let mut read = Vec::new();
        let mut acting = Acting(Some(act));
        let length = handle.read_stream(&key(0), &mut Keeping(&mut read, &mut acting))?;
        assert_eq!(length, Some(LONG));
        Ok::<_, Error>(read)
    })?;
    assert!(read == value, "another value, or a part of it");

    for truncate in [true, false] {
        let (handle, inner) = (table.clone(), db.clone());
        handle.put(&key(0), &value)?;
        let error = in_time("a drop during a write to a sink", move || {
            let act = || {
                if truncate { inner.truncate_table("u") } else { inner.drop_table("u") }.unwrap();
            };
            handle.read_stream(&key(0), &mut Acting(Some(act))).unwrap_err()
        });
        assert!(matches!(error, Error::TableDropped(_)), "{error}");
    }
    Ok(())
}

#[test]
fn tables_with_large_records_are_swapped() -> Result<()> {
    for page_size in [4096, 16384] {
        let (folder, db) = new_database(options().page_size(page_size))?;
        // The largest record that is possible.
        let made = |name: &str, size: usize| {
            let options = with_record(size, page_size, db.name_limit());
            let metadata = vec![name.as_bytes()[0]; size.min(page_size / 8)];
            db.create_table(name, options.metadata(metadata)).is_ok()
        };
        let size = (1..page_size / 2).rev().find(|size| made("a neighbour", *size)).unwrap();
        assert!(size > page_size / 5, "{size}");
        for n in 0..20 {
            assert!(made(&format!("b{n}"), size * (n % 3) / 2));
        }
        assert!(made("a", size) && made("c", size) && made("d", size / 2));
        for (one, other) in [
            ("a", "c"),
            ("a", "a neighbour"),
            ("a", "d"),
            ("b2", "b5"),
            ("b3", "b2"),
            ("a", "c"),
            ("b0", "d"),
        ] {
            let meta = |name: &str| db.table(name)?.metadata();
            let before = (meta(one)?, meta(other)?);
            db.swap_tables(one, other).unwrap_or_else(|error| panic!("{one} and {other}: {error}"));
            assert_eq!((meta(other)?, meta(one)?), before);
        }
        assert_eq!(db.check()?.findings, Vec::<String>::new());
        let before: Vec<_> = db.tables()?.into_iter().map(|table| table.name).collect();
        let metadata = |db: &Database| -> Result<Vec<_>> {
            before.iter().map(|name| db.table(name)?.metadata()).collect()
        };
        let wanted = metadata(&db)?;
        db.close()?;
        let db = Database::open(folder.path(), options().page_size(page_size))?;
        assert_eq!(metadata(&db)?, wanted);
    }
    Ok(())
}

#[test]
fn values_are_put_from_sources() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table("t", TableOptions::default().index("i", IndexOptions::on_value(0..2)))?;
    let value =
        |length: usize, salt: usize| -> Vec<u8> { (0..length).map(|n| (n / 3 + salt) as u8).collect() };
    let by_index = |value: &[u8]| -> Result<Vec<_>> {
        table.index("i")?.get(&value[..value.len().min(2)])?.map(|row| row.map(|row| row.value)).collect()
    };
    // Empty, inside the entry, of one piece, and of several pieces; each replaces the previous value.
    for (n, length) in [0, 1, 3000, 5000, 65_536, 65_537, 400_000, 10].into_iter().enumerate() {
        let value = value(length, n * 7);
        table.put_stream(b"key", length as u64, &mut &value[..])?;
        assert!(table.get(b"key")?.as_ref() == Some(&value), "{length} bytes");
        assert_eq!(by_index(&value)?, std::slice::from_ref(&value));
        let mut read = Vec::new();
        assert_eq!(table.read_stream(b"key", &mut read)?, Some(length as u64));
        assert!(read == value, "{length} bytes");
        assert_eq!(table.rows()?.count(), 1);
    }
    // At most the given length is read from a source, and a shorter source changes nothing.
    let before = value(200_000, 2);
    table.put_stream(b"key", 200_000, &mut before.chain(&[9; 9][..]))?;
    for length in [100, 90_000, 300_000] {
        let error = table.put_stream(b"key", length, &mut io::empty().chain(&[5; 50][..])).unwrap_err();
        assert!(matches!(error, Error::Usage(UsageError::Source { .. })), "{error}");
    }
    let exists = table.insert_stream(b"key", 70_000, &mut io::repeat(1)).unwrap_err();
    assert!(matches!(exists, Error::Schema(SchemaError::DuplicateKey { .. })), "{exists}");
    assert!(table.get(b"key")?.as_ref() == Some(&before));
    table.insert_stream(b"other", 70_000, &mut io::repeat(1))?;
    assert_eq!(by_index(&[1, 1])?.len(), 1);
    let long = table.put_stream(b"key", (4 << 30) + 1, &mut io::repeat(1)).unwrap_err();
    assert!(matches!(long, Error::Usage(UsageError::ValueTooLong { .. })), "{long}");
    assert_eq!(table.read_stream(b"no such row", &mut io::sink())?, None);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_value_far_longer_than_the_log_is_put_replaced_and_deleted() -> Result<()> {
    const LENGTH: u64 = 64 << 20;
    let (_folder, db) = new_database(options().log_size(4 << 20).log_buffer_size(1 << 20))?;
    let table = db.create_table("t", TableOptions::default())?;
    for fill in [1, 2] {
        table.put_stream(b"long", LENGTH, &mut io::repeat(fill).take(LENGTH))?;
    }
    // The source ends early, and what was written is rolled back.
    let short = table.put_stream(b"long", LENGTH, &mut io::repeat(3).take(LENGTH - 1));
    assert!(matches!(short, Err(Error::Usage(_))), "{short:?}");
    assert_eq!(table.get(b"long")?, Some(vec![2; LENGTH as usize]));
    assert!(table.delete(b"long")?);
    // Purge has finished: only needed pages are in use.
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    let metrics = db.metrics();
    assert!(metrics.log_age < 5 << 20, "{} bytes of a log of 4 MiB", metrics.log_age);
    table.put(b"short", b"value")?;
    db.close()
}

#[test]
fn ranges_of_rows_and_of_index_keys_are_estimated() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let options = TableOptions::default().index("tenth", IndexOptions::on_value(0..4));
    let table = db.create_table("t", options)?;
    assert_eq!(table.estimate_rows::<&[u8]>(..)?, 0);
    (0..20_000).try_for_each(|n| table.insert(&key(n), &[&key(n / 10)[..], &[1; 60]].concat()))?;
    let index = table.index("tenth")?;
    for (from, to) in [(0, 20_000), (3_000, 3_010), (500, 9_500), (19_990, 30_000), (5, 5)] {
        let rows = u64::from(to.min(20_000) - from);
        let [by_key, by_index] =
            [table.estimate_rows(key(from)..key(to))?, index.estimate_rows(key(from / 10)..key(to / 10))?];
        for found in [by_key, by_index] {
            assert!(
                found >= rows / 2 && found <= 2 * rows,
                "{found} instead of {rows} rows from {from} to {to}"
            );
        }
    }
    assert_eq!(index.estimate_rows(key(7)..=key(7))?, 10);
    db.drop_index("t", "tenth")?;
    let gone = index.estimate_rows::<&[u8]>(..).unwrap_err().to_string();
    assert!(gone.contains("tenth"), "{gone}");
    Ok(())
}

#[test]
fn indexes_are_made_of_fields() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let table = db.create_table(
        "people",
        TableOptions::default()
            .index("town", IndexOptions::on_field(1))
            .index("start and name", IndexOptions::on_value(0..2).and_field(0).unique()),
    )?;
    for (key, name, town) in [("1", "Ada", "London"), ("2", "Edgar", "Oxford"), ("3", "Grace", "London")] {
        table.insert(key.as_bytes(), &row::encode(&[name, town]))?;
    }
    let keys = |index: &str, key: &str| -> Result<Vec<String>> {
        let rows = table.index(index)?.get(key.as_bytes())?;
        rows.map(|row| row.map(|row| String::from_utf8_lossy(&row.key).into_owned())).collect()
    };
    assert_eq!(keys("town", "London")?, ["1", "3"]);
    assert_eq!(keys("town", "Lon")?, Vec::<String>::new());
    // The encoding of a row begins with the number of its fields, here two.
    assert_eq!(keys("start and name", "\u{2}\0Grace")?, ["3"]);
    let twice = table.insert(b"4", &row::encode(&["Ada", "London"])).unwrap_err();
    assert!(matches!(twice, Error::Schema(SchemaError::DuplicateKey { .. })), "{twice}");
    // A row without this field has an empty one.
    table.insert(b"5", &row::encode(&["Nobody"]))?;
    assert_eq!(keys("town", "")?, ["5"]);
    table.update(b"1", &row::encode(&["Ada", "Torino"]))?;
    assert_eq!((keys("town", "London")?, keys("town", "Torino")?), (vec!["3".into()], vec!["1".into()]));
    db.create_index("people", "name", IndexOptions::on_field(0))?;
    assert_eq!(keys("name", "Nobody")?, ["5"]);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_session_drops_its_own_temporary_tables() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let (session, other) = (db.session(), db.session());
    let indexed = || TableOptions::default().index("i", IndexOptions::on_value(0..4));
    let table = session.create_temporary_table("t", indexed())?;
    let others = other.create_temporary_table("t", TableOptions::default())?;
    assert!(session.create_temporary_table("t", TableOptions::default()).is_err());
    for n in 0..2000 {
        table.insert(&key(n), &key(n / 2))?;
        others.insert(&key(n), &[1; 100])?;
    }
    let mut rows = table.rows()?;
    assert!(rows.next().is_some_and(|row| row.is_ok()));
    assert_eq!(session.drop_temporary_table("t")?.trees, 2);
    assert!(matches!(table.get(&key(1)), Err(Error::TableDropped(_))));
    assert!(matches!(table.put(&key(1), b""), Err(Error::TableDropped(_))));
    assert!(matches!(rows.next(), Some(Err(Error::TableDropped(_)))));
    let missing = session.drop_temporary_table("t").unwrap_err();
    assert!(matches!(missing, Error::Schema(SchemaError::NoTable(_))), "{missing}");
    assert!(session.temporary_table("t").is_err());
    // The name is free, and the other session's table of this name still exists.
    let again = session.create_temporary_table("t", indexed())?;
    assert_eq!((again.rows()?.count(), others.rows()?.count()), (0, 2000));
    assert_eq!(other.temporary_table("t")?.rows()?.count(), 2000);
    Ok(())
}

#[test]
fn a_scratch_tree_ends_with_its_guard_or_its_session() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let session = db.session();
    let (first, second) = (session.scratch()?, session.scratch()?);
    for n in 0..3000u32 {
        first.insert(&n.to_be_bytes(), &[1; 300])?;
        second.put(&(n % 10).to_be_bytes(), &[2; 300])?;
    }
    let handle = Table::clone(&first);
    assert_eq!((first.rows()?.count(), second.rows()?.count()), (3000, 10));
    let taken = db.metrics();
    drop(first);
    assert!(matches!(handle.get(&key(1)), Err(Error::TableDropped(_))));
    assert_eq!(second.rows()?.count(), 10);
    // Its memory is freed while other tables are in use.
    let back = || db.metrics().pool_dirty + 30 < taken.pool_dirty;
    wait_until("frames of a scratch tree that has ended", back);
    drop(session);
    assert!(matches!(second.put(&key(1), b"late"), Err(Error::TableDropped(_))));
    drop(second);
    let third = db.session().scratch()?;
    assert!(matches!(third.get(&key(1)), Err(Error::TableDropped(_))), "its session has ended");
    assert!(db.tables()?.is_empty());
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

/// Writers that record more changes than the index builder applies at a time are throttled until it has caught up.
#[test]
fn an_index_is_built_under_more_writers_than_it_can_follow() {
    const ROWS: u32 = 20_000;
    in_time("an index under many writers", || {
        let (_folder, db) = new_database(options()).unwrap();
        let table = db.create_table("t", TableOptions::default()).unwrap();
        for n in 0..ROWS {
            table.insert(&key(n), &[&key(n)[..], &[1; 60]].concat()).unwrap();
        }
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..5u32 {
                let (table, over) = (&table, &over);
                scope.spawn(move || {
                    let (mut n, mut value) = (thread, thread);
                    while !over.load(SeqCst) {
                        n = n.wrapping_mul(1_664_525).wrapping_add(1_013_904_223) % ROWS;
                        value = value.wrapping_add(7919);
                        table.put(&key(n), &[&key(value)[..], &[1; 60]].concat()).unwrap();
                    }
                });
            }
            db.create_index("t", "i", IndexOptions::on_value(0..4)).unwrap();
            over.store(true, SeqCst);
        });
        let rows = table.rows().unwrap().count();
        let entries = table.index("i").unwrap().range::<&[u8]>(..).unwrap().count();
        assert_eq!((rows, entries), (ROWS as usize, ROWS as usize));
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    });
}

/// An index reads only the beginning of a value: a field beyond that is refused, not misread.
#[test]
fn a_field_that_no_index_can_see_is_refused() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let by_field = || IndexOptions::on_field(1).unique();
    let table = db.create_table("t", TableOptions::default().index("i", by_field()))?;
    let value = |long: usize, n: u32| row::encode(&[&vec![7; long][..], &key(n)]);
    table.insert(b"seen", &value(60_000, 1))?;
    for n in 2..4 {
        let refused = table.insert(&key(n), &value(70_000, n));
        assert!(matches!(refused, Err(Error::Usage(UsageError::IndexedPartTooFar { limit: 65_536, .. }))));
    }
    assert_eq!(table.index("i")?.get(&key(1))?.count(), 1);
    assert_eq!(table.rows()?.count(), 1);
    // The same for rows that existed before the index.
    db.drop_index("t", "i")?;
    table.insert(b"unseen", &value(70_000, 9))?;
    let refused = db.create_index("t", "i", by_field());
    assert!(matches!(refused, Err(Error::Usage(UsageError::IndexedPartTooFar { .. }))), "{refused:?}");
    table.delete(b"unseen")?;
    db.create_index("t", "i", by_field())?;
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_statement_that_waits_for_one_table_hides_no_other() -> Result<()> {
    let (_folder, db) = new_database(options())?;
    let large = db.create_table("large", TableOptions::default())?;
    for n in 0..60_000 {
        large.insert(&key(n), &key(n))?;
    }
    db.create_table("a", TableOptions::default())?.insert(b"k", b"v")?;
    let (begun, built) = (AtomicBool::new(false), AtomicBool::new(false));
    let lookups = thread::scope(|scope| {
        let build = scope.spawn(|| {
            begun.store(true, SeqCst);
            let done = db.create_index("large", "i", IndexOptions::on_value(0..4));
            built.store(true, SeqCst);
            done
        });
        while !begun.load(SeqCst) {
            thread::yield_now();
        }
        // The swap has the metadata lock of one of its names, and waits for the other.
        let swap = scope.spawn(|| db.swap_tables("a", "large"));
        let mut lookups = 0;
        while !built.load(SeqCst) {
            assert!(db.table("a")?.rows()?.next().is_some());
            lookups += u32::from(!built.load(SeqCst));
        }
        build.join().expect("no panic")?;
        swap.join().expect("no panic")?;
        Ok::<_, Error>(lookups)
    })?;
    assert!(lookups > 20, "{lookups} of table a while the index of the other one was built");
    assert_eq!(db.table("large")?.get(b"k")?.as_deref(), Some(&b"v"[..]));
    Ok(())
}
