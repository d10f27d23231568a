//! Changes that are larger than the log buffer or the pool, which must hold them at once: they are refused as a whole,
//! with the option to enlarge, and the database continues to work.

use windfall::{Database, FlushLog, IndexOptions, Options, Result, TableOptions};

const PAGE: u64 = 4096;

fn options() -> Options {
    Options::default()
        .page_size(PAGE as usize)
        .buffer_pool_size(300 * PAGE)
        .log_size(1 << 20)
        .log_buffer_size(256 << 10)
}

#[test]
fn a_group_that_does_not_fit_the_log_buffer_is_refused_whole() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let options = options().log_buffer_size(64 << 10).flush_log_at_trx_commit(FlushLog::Lazy);
    let db = Database::open(folder.path(), options)?;
    let names: Vec<String> = (0..3000).map(|n| format!("a table with a rather long name {n:06}")).collect();
    for name in &names {
        db.create_table(name, TableOptions::default())?;
    }
    let all: Vec<&str> = names.iter().map(String::as_str).collect();
    match db.drop_tables(&all) {
        Ok(report) => assert_eq!(report.trees, 3000),
        Err(error) => {
            println!("a group of 3000: {error}");
            let text = error.to_string();
            assert!(text.contains("log_buffer_size") || text.contains("buffer pool"), "{text}");
            for refused in [db.drop_tables_with_prefix("a t"), db.truncate_tables_with_prefix("a t")] {
                let text = refused.expect_err("its group is as large").to_string();
                assert!(text.contains("3000 tables") && text.contains("log_buffer_size"), "{text}");
            }
            assert_eq!(db.tables()?.len(), 3000);
            db.table(&names[7])?.insert(b"key", b"value")?;
            for some in all.chunks(100) {
                db.drop_tables(some)?;
            }
        }
    }
    assert_eq!(db.tables()?, []);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_row_whose_entries_do_not_fit_the_log_buffer_is_refused_whole() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let db = Database::open(folder.path(), options().log_buffer_size(64 << 10))?;
    let indexes = |count: u8| {
        (0..count).fold(TableOptions::default(), |options, n| {
            options.index(&char::from(b'a' + n).to_string(), IndexOptions::on_value(0..700))
        })
    };
    let mut refused = 0;
    for count in 1..14 {
        let name = format!("with {count} indexes");
        let table = db.create_table(&name, indexes(count))?;
        table.put(b"key", &[1; 700])?;
        // Its group contains the entries that are removed and those that are inserted.
        if let Err(error) = table.put(b"key", &[2; 700]) {
            assert!(error.to_string().contains("log_buffer_size"), "{error}");
            assert_eq!(table.get(b"key")?, Some(vec![1; 700]));
            refused += 1;
        }
        for length in 0..70 {
            let _ = table.put(b"other", &vec![3; length * 10]);
            let _ = table.put(b"other", &vec![4; 700 - length * 10]);
        }
        db.table(&name)?.put(b"short", b"")?;
    }
    assert!((1..13).contains(&refused), "{refused} were refused");
    // A temporary table is not logged, so no group is too long for it.
    let session = db.session();
    let table = session.create_temporary_table("temporary", indexes(13))?;
    table.put(b"key", &[1; 700])?;
    table.put(b"key", &[2; 700])?;
    assert_eq!(table.get(b"key")?, Some(vec![2; 700]));
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}

#[test]
fn a_group_that_is_too_large_for_the_pool_is_refused() -> Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let small = Options::default().page_size(4096).buffer_pool_size(64 * 4096).log_size(4 << 20);
    let db = Database::open(folder.path(), small.flush_log_at_trx_commit(FlushLog::Lazy))?;
    let names: Vec<String> =
        (0..4_000).map(|n| format!("a table with a name that takes some room {n:05}")).collect();
    for name in &names {
        db.create_table(name, TableOptions::default())?;
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let error = db.drop_tables(&names).expect_err("its records do not fit into the pool");
    assert!(error.to_string().contains("too small"), "{error}");
    // All tables are still there, and can be dropped in smaller groups.
    for group in names.chunks(200) {
        db.drop_tables(group)?;
    }
    assert_eq!(db.tables()?.len(), 0);
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}
