//! The progress of long work, and its end by the callback that gets it.

use std::sync::{Arc, Mutex};

use windfall::{
    Database, Error, IndexOptions, InterruptHandle, Phase, Progress, Result, TableChanges, TableOptions,
    TransactionOptions,
    error::{LockError, UsageError},
};

use super::database;

const ROWS: u32 = 5000;
/// The callback is called at least once in so many steps.
const STEPS: u64 = 1024;

/// Rows in the order of neither the keys nor the values.
fn rows() -> impl Iterator<Item = Result<(Vec<u8>, Vec<u8>)>> {
    let row = |n: u32| {
        (n.wrapping_mul(2_654_435_761).to_be_bytes().to_vec(), n.swap_bytes().to_be_bytes().to_vec())
    };
    (0..ROWS).map(move |n| Ok(row(n)))
}

fn on_value() -> IndexOptions {
    IndexOptions::on_value(0..4)
}

type Work = fn(&Database) -> Result<()>;

/// Phases, each with its steps if they are known.
type Phases = Vec<(Phase, u64)>;

/// Work on a table `t` with rows and an empty table `empty`, and its phases.
fn works() -> [(&'static str, Work, Phases); 6] {
    let rows = u64::from(ROWS);
    let built =
        |indexes: u64| vec![(Phase::Rows, rows), (Phase::Entries, indexes * rows), (Phase::Changes, 0)];
    let loaded = |entries| vec![(Phase::Rows, 0), (Phase::Entries, entries)];
    [
        ("an index", |db| db.create_index("t", "i", on_value()), built(1)),
        (
            "three indexes",
            |db| {
                let add = |changes: TableChanges, name| changes.add_index(name, on_value().unique());
                db.alter_table("t", ["i", "j", "k"].into_iter().fold(TableChanges::default(), add)).map(drop)
            },
            built(3),
        ),
        (
            "rows in any order",
            |db| {
                let options = TableOptions::default().index("i", on_value());
                db.create_table_from_unsorted("new", options, self::rows()).map(drop)
            },
            loaded(2 * rows),
        ),
        (
            "rows for a table",
            |db| {
                let mut load = db.load_table("empty")?;
                (0..ROWS).try_for_each(|n| load.push(&n.to_be_bytes(), b"value", &[]))?;
                load.finish()
            },
            loaded(rows),
        ),
        ("a check", |db| db.check().map(drop), vec![(Phase::Pages, 0)]),
        ("a live check", |db| db.check_live().map(drop), vec![(Phase::Pages, 0)]),
    ]
}

/// Does the work in a new database, and calls `go_on` with the progress.
fn run(work: Work, go_on: impl Fn(Progress) -> bool + Send + Sync + 'static) -> (Database, Result<()>) {
    let db = database();
    db.create_table_from_unsorted("t", TableOptions::default(), rows()).unwrap();
    db.create_table("empty", TableOptions::default().index("i", on_value())).unwrap();
    let handle = InterruptHandle::reporting(go_on);
    let done = work(&db.with_interrupt(&handle));
    assert!(!handle.is_set());
    (db, done)
}

#[test]
fn long_work_reports_its_progress() {
    for (what, work, phases) in works() {
        let seen = Arc::new(Mutex::new(Vec::<Progress>::new()));
        let noted = seen.clone();
        let (_db, done) = run(work, move |progress| {
            noted.lock().unwrap().push(progress);
            true
        });
        done.unwrap_or_else(|error| panic!("{what}: {error}"));
        let seen = seen.lock().unwrap();
        let of_phases: Vec<_> =
            seen.chunk_by(|one, next| one.phase == next.phase && one.done <= next.done).collect();
        let mut found: Vec<Phase> = of_phases.iter().map(|of_phase| of_phase[0].phase).collect();
        found.dedup();
        assert_eq!(found, phases.iter().map(|(phase, _)| *phase).collect::<Vec<_>>(), "{what}: {seen:?}");
        for (phase, steps) in phases {
            let of_phase = of_phases.iter().find(|of_phase| of_phase[0].phase == phase).unwrap();
            let last = of_phase.last().unwrap();
            assert!(
                of_phase.iter().all(|now| now.total == 0 || now.done <= now.total),
                "{what}: {of_phase:?}"
            );
            let near = |pair: &[Progress]| pair[1].done - pair[0].done < 2 * STEPS;
            assert!(of_phase.windows(2).all(near), "{what}: {of_phase:?}");
            if steps > 0 {
                assert!(last.done + STEPS > steps, "{what}: {of_phase:?}");
                assert!(
                    phase == Phase::Rows && last.total == 0 || last.total == steps,
                    "{what}: {of_phase:?}"
                );
            }
        }
    }
}

#[test]
fn a_callback_ends_long_work_which_has_changed_nothing() {
    for (what, work, _) in works() {
        for ends_at in 1.. {
            let count = Mutex::new(0);
            let (db, done) = run(work, move |_| {
                let mut count = count.lock().unwrap();
                *count += 1;
                *count != ends_at
            });
            if done.is_ok() {
                assert!(ends_at > 1, "{what}");
                break;
            }
            assert!(
                matches!(done, Err(Error::Lock(LockError::Interrupted))),
                "{what} at {ends_at}: {done:?}"
            );
            let tables: Vec<_> =
                db.tables().unwrap().into_iter().map(|info| (info.name, info.indexes)).collect();
            assert_eq!(
                tables,
                [("empty".to_owned(), vec!["i".to_owned()]), ("t".to_owned(), vec![])],
                "{what}"
            );
            assert_eq!(db.table("empty").unwrap().rows().unwrap().count(), 0, "{what} at {ends_at}");
            assert_eq!(db.check().unwrap().findings, Vec::<String>::new(), "{what} at {ends_at}");
            work(&db).unwrap_or_else(|error| panic!("{what} at {ends_at}, again: {error}"));
        }
    }
}

#[test]
fn a_wait_for_transactions_is_reported_and_ends() {
    let db = database();
    let table = db.create_table_from_unsorted("t", TableOptions::default(), rows()).unwrap();
    let trx = db.begin(TransactionOptions::default());
    trx.table(&table).put(b"key", b"value").unwrap();
    let handle = InterruptHandle::reporting(|progress| progress.phase != Phase::Transactions);
    let done = db.with_interrupt(&handle).create_index("t", "i", on_value());
    assert!(matches!(done, Err(Error::Lock(LockError::Interrupted))), "{done:?}");
    trx.commit().unwrap();
    db.with_interrupt(&handle).create_index("t", "i", on_value()).unwrap();
    assert_eq!(table.index("i").unwrap().range::<&[u8]>(..).unwrap().count(), ROWS as usize + 1);
}

#[test]
fn a_callback_uses_tables_and_runs_no_statement() {
    let db = database();
    let table = db.create_table_from_unsorted("t", TableOptions::default(), rows()).unwrap();
    let other = db.create_table("other", TableOptions::default()).unwrap();
    let (handle, of_other, of_table) = (db.clone(), other.clone(), table.clone());
    let reporting = InterruptHandle::reporting(move |progress| {
        of_other.put(progress.to_string().as_bytes(), b"").unwrap();
        of_table.put(b"key", &progress.done.to_be_bytes()).unwrap();
        let refused = handle.drop_table("other").unwrap_err();
        assert!(matches!(refused, Error::Usage(UsageError::StatementInCall)), "{refused}");
        true
    });
    db.with_interrupt(&reporting).create_index("t", "i", on_value()).unwrap();
    assert!(other.rows().unwrap().count() > 6);
    assert_eq!(table.index("i").unwrap().range::<&[u8]>(..).unwrap().count(), ROWS as usize + 1);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}
