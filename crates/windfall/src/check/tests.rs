//! Checks concurrent with other work, at chosen points.

mod purge;
mod table;

use std::{cell::Cell, thread};

use windfall_engine::mtr::Mtr;
use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::*;
use crate::{
    InterruptHandle, Isolation, TableChanges, Transaction, TransactionOptions,
    database::{Database, IndexOptions, TableOptions},
    env::{Env, Next, WorkerClass},
    error::{Error, LockError},
    options::Options,
    page::PageType,
    store::Tree,
    sync::{
        Event, as_another_thread,
        atomic::{AtomicUsize, Ordering::Relaxed},
        work::{self, Work},
    },
    table::Table,
    tablespace,
    tx_table::Access,
};

fn open(disk: &SimulatedDisk, env: &SimulatedEnv) -> Database {
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(2048 * 4096)
        .log_size(8 << 20)
        .log_buffer_size(256 << 10);
    Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {}).unwrap()
}

fn begin(db: &Database) -> Transaction {
    db.begin(TransactionOptions::default().isolation(Isolation::ReadCommitted))
}

fn indexed() -> TableOptions {
    TableOptions::default().index("first", IndexOptions::on_value(0..1))
}

/// Returns a value long enough for overflow pages.
fn long(fill: u8) -> Vec<u8> {
    vec![fill; 50_000]
}

fn space(db: &Database, table: &str) -> Arc<Space> {
    db.engine.catalog.table(table).unwrap().schema().clustered.space().clone()
}

/// Allocates a page that nothing references.
fn lose_a_page(db: &Database, table: &str, kind: PageType) {
    let mut mtr = Mtr::begin(&db.engine.pool).unwrap();
    tablespace::allocate(&mut mtr, &space(db, table), kind, 0, PageNo::ROOT).unwrap();
    mtr.commit().unwrap();
}

/// Checks a table and runs `between` during each piece; returns the report.
fn check_with_hook(db: &Database, table: &str, piece: usize, between: impl FnMut()) -> CheckReport {
    try_check_with_hook(db, table, piece, between).unwrap()
}

fn try_check_with_hook(
    db: &Database,
    table: &str,
    piece: usize,
    mut between: impl FnMut(),
) -> Result<CheckReport> {
    let (mut report, mut named) = (CheckReport::default(), BTreeSet::new());
    Pieces::new(&db.engine, piece).run(&mut report, |pieces, report| {
        block_table(&db.engine, &table.into(), pieces, &mut named, |pieces, trees, rest| {
            pieces.begin_piece(trees, rest);
            as_another_thread(&mut between);
            pieces.check_piece(report, trees, rest)
        })
    })?;
    Ok(report)
}

/// In the middle of a tree that is checked in one piece, and between two pieces.
#[test]
fn an_interrupt_ends_a_check_in_a_piece_and_between_two() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let table = db.create_table("t", indexed()).unwrap();
    for n in 0..2 * LongWork::STEPS {
        table.put(&n.to_be_bytes(), &[n as u8; 1300]).unwrap();
    }
    let handle = InterruptHandle::new();
    let _interruptible = handle.enter();
    for (piece, ends_at) in [(usize::MAX, 1), (CHECK_PAGES_PER_STEP, 2)] {
        for withdraws in [true, false] {
            let mut pieces = 0;
            let done = try_check_with_hook(&db, "t", piece, || {
                pieces += 1;
                if pieces == ends_at {
                    handle.interrupt();
                    if withdraws {
                        handle.clear();
                    }
                }
            });
            if withdraws {
                assert_eq!(done.unwrap().findings, Vec::<String>::new());
                assert!(pieces > ends_at || piece == usize::MAX);
            } else {
                assert!(matches!(done, Err(Error::Lock(LockError::Interrupted))), "{done:?}");
                assert_eq!(pieces, ends_at);
            }
            handle.clear();
        }
    }
}

#[test]
fn a_lost_page_is_reported_by_a_live_check_too() {
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(4096 * 4096)
        .log_size(4 << 20)
        .log_buffer_size(256 << 10);
    let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedEnv::new(1)));
    let db = Database::open_on(disk, env, &options, &|_| {}).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for n in 0..6000u32 {
        table.put(&n.to_be_bytes(), &[n as u8; 300]).unwrap();
    }
    let pages = |report: &CheckReport| report.trees.iter().map(|tree| tree.pages).max().unwrap();
    let [whole, pieces] = [db.check().unwrap(), db.check_live().unwrap()];
    assert!(pages(&whole) > 3 * CHECK_PAGES_PER_STEP as u64 / 2, "it is one piece");
    assert_eq!((&whole.findings, &whole.trees), (&Vec::new(), &pieces.trees));
    assert_eq!(pieces.findings, whole.findings);

    let engine = &db.engine;
    let space = engine.catalog.table("t").unwrap().schema().clustered.space().clone();
    let mut mtr = Mtr::begin(&engine.pool).unwrap();
    tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
    mtr.commit().unwrap();
    for report in [db.check().unwrap(), db.check_live().unwrap()] {
        assert!(
            matches!(&report.findings[..], [one] if one.contains("is in use and nothing leads to it")),
            "{:?}",
            report.findings
        );
    }
}

/// Counted, not timed: the number of pages examined while a table's calls wait is independent of the table's size.
#[test]
fn a_check_piece_of_a_large_tree_is_as_short_as_of_a_small_one() {
    let options = Options::default().page_size(4096).buffer_pool_size(4096 * 4096).log_size(128 << 20);
    let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedEnv::new(1)));
    let db = Database::open_on(disk, env.clone(), &options, &|_| {}).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for n in 0..3000u32 {
        table.put(&n.to_be_bytes(), &[n as u8; 1000]).unwrap();
    }
    for n in 0..5u8 {
        table.put_stream(&[b'l', n], 40_000_000, &mut std::io::repeat(n)).unwrap();
        db.checkpoint().unwrap();
        env.run_workers(200);
    }
    let engine = &db.engine;
    let space = engine.catalog.table("t").unwrap().schema().clustered.space().clone();
    let lost = 1000;
    for _ in 0..lost {
        let mut mtr = Mtr::begin(&engine.pool).unwrap();
        tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
        mtr.commit().unwrap();
    }
    let (mut report, mut named) = (CheckReport::default(), BTreeSet::new());
    let mut pieces = Pieces::new(engine, CHECK_PAGES_PER_STEP);
    let (mut blocks, mut longest, mut most_reported) = (0u64, 0, 0);
    loop {
        let before = work::so_far();
        let has_ended = check_some(engine, &"t".into(), &mut pieces, &mut report, &mut named).unwrap();
        longest = longest.max((work::so_far() - before).of(Work::Frame));
        let reported = report.findings.len();
        pieces.report_suspects(&mut report);
        most_reported = most_reported.max(report.findings.len() - reported);
        blocks += 1;
        if has_ended {
            break;
        }
    }
    let tree = &report.trees[0];
    assert!(tree.pages > 50_000, "{tree:?}");
    assert_eq!(report.findings.len(), lost, "{:?}", report.findings.first());
    let bound = CHECK_PAGES_PER_STEP as u64 + u64::from(tree.height);
    assert!(longest <= bound, "{longest} pages in one piece");
    assert!(most_reported <= CHECK_PAGES_PER_STEP + 64, "{most_reported} pages suspected in one piece");
    assert!(blocks >= tree.pages / bound, "{blocks} blocks");
}

#[test]
fn a_check_makes_a_checkpoint_and_changes_nothing() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let table = db.create_table("t", indexed()).unwrap();
    for n in 0..200u8 {
        table.put(&[n], &if n % 50 == 0 { long(n) } else { vec![n; 100] }).unwrap();
    }
    let rows = || table.rows().unwrap().map(Result::unwrap).collect::<Vec<_>>();
    for is_live in [false, true] {
        // Purge, the deletion of files and the page cleaner have nothing left to do.
        env.run_workers(2000);
        db.checkpoint().unwrap();
        let (before, rows_before) = (db.metrics(), rows());
        let report = if is_live { db.check_live() } else { db.check() };
        assert_eq!(report.unwrap().findings, Vec::<String>::new());
        let after = db.metrics();
        let checkpoints = after.checkpoints - before.checkpoints;
        assert!(after.log_groups - before.log_groups <= checkpoints && checkpoints <= 1, "{after:?}");
        assert_eq!((before.pool_dirty, after.pool_writes), (0, before.pool_writes), "live {is_live}");
        assert!(rows() == rows_before, "live {is_live}");
    }
}

#[test]
fn a_rollback_in_other_tables_does_not_wait_for_a_check() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let [checked, other] = ["checked", "other"].map(|name| db.create_table(name, indexed()).unwrap());
    for table in [&checked, &other] {
        (0..100u8).for_each(|n| table.put(&[n], &[n; 100]).unwrap());
    }
    let rows = |table: &Table| table.rows().unwrap().map(Result::unwrap).collect::<Vec<_>>();
    let before = rows(&other);
    let mut trx = Some(begin(&db));
    (0..50u8).for_each(|n| trx.as_ref().unwrap().table(&other).put(&[n], &long(n)).unwrap());
    let mut came = 0;
    let space = space(&db, "checked");
    let report = check_with_hook(&db, "checked", usize::MAX, || {
        // A rollback in the table itself would wait.
        assert!(space.check_lock().try_read().is_none());
        let trx = trx.take().expect("it is one piece");
        thread::scope(|scope| {
            let work = scope.spawn(|| {
                let within = trx.table(&other);
                trx.savepoint("here").unwrap();
                within.put(&[60], b"changed").unwrap();
                trx.rollback_to("here").unwrap();
                let failed = trx.atomically(|| {
                    within.put(&[61], b"changed")?;
                    within.insert(&[62], b"twice")
                });
                failed.unwrap_err();
                trx.rollback().unwrap();
                other.insert(&[1], b"twice").unwrap_err();
            });
            work.join().unwrap();
        });
        assert_eq!(rows(&other), before);
        came += 1;
    });
    assert_eq!((came, report.findings), (1, Vec::new()));
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// Returns the index of a table.
fn index(db: &Database, table: &str) -> Arc<Tree> {
    db.engine.catalog.table(table).unwrap().schema().secondaries[0].clone()
}

/// Returns the number of delete-marked entries of a table's index.
fn marked(db: &Database, table: &str) -> u64 {
    marked_in(&index(db, table))
}

fn marked_in(tree: &Tree) -> u64 {
    let mut walk = crate::tree::Walk::default();
    tree.check_piece(&mut walk, &mut usize::MAX.clone()).unwrap();
    walk.finish().deleted
}

/// The single worker for background rollbacks skips the table under check, and so does purge.
#[test]
fn workers_continue_with_other_tables_during_a_check() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    for name in ["checked", "other"] {
        let table = db.create_table(name, indexed()).unwrap();
        (0..100u8).for_each(|n| table.put(&[n], &[n; 100]).unwrap());
        let trx = begin(&db);
        (0..50u8).for_each(|n| trx.table(&table).put(&[n], &[200; 100]).unwrap());
        core::mem::forget(trx);
    }
    db.flush_log().unwrap();
    let db = open(&disk.restart(Survive::Everything), &env);
    let rollbacks = || db.engine.transactions.rollbacks().count();
    let [checked, other] = ["checked", "other"].map(|name| db.table(name).unwrap());
    assert_eq!(rollbacks(), 2);
    let marked = |name| marked(&db, name);
    let report = check_with_hook(&db, "checked", CHECK_PAGES_PER_STEP, || {
        // The table's own rows are as the crash has left them.
        env.run_workers(500);
        assert_eq!(rollbacks(), 1, "that of the other table has ended");
        other.put(&[1], &[7; 100]).unwrap();
        env.run_workers(500);
        assert_eq!(marked("other"), 0, "purge continues");
    });
    assert_eq!((report.findings, report.uncompared), (Vec::new(), vec!["checked".to_owned()]));
    env.run_workers(500);
    assert_eq!((rollbacks(), marked("checked")), (0, 0));
    checked.put(&[1], &[7; 100]).unwrap();
    let report = db.check().unwrap();
    assert_eq!((report.findings, report.uncompared), (Vec::new(), Vec::new()));
}

/// Purge of other tables does not wait for a check, whatever records of the checked table are pending: versions kept
/// by a read view until then, or the records of a transaction that ends meanwhile. These precede those of the other
/// table.
#[test]
fn purge_passes_over_any_number_of_records_of_the_table_under_check() {
    const ROWS: u32 = 1000;
    fn change(table: &Table<impl Access>, fill: u8) {
        (0..ROWS).for_each(|n| table.put(&n.to_be_bytes(), &[fill; 800]).unwrap());
    }
    for ends_a_view in [true, false] {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let db = open(&disk, &env);
        let [checked, other] = ["checked", "other"].map(|name| db.create_table(name, indexed()).unwrap());
        // Besides the current slice and the next one of each stream; a second transaction has one of its own.
        let has_undo = || db.metrics().undo_slices > 4;
        for table in [&checked, &other] {
            change(table, 1);
        }
        env.run_workers(2000);
        let trx = db.begin(TransactionOptions::default().isolation(Isolation::RepeatableRead));
        if ends_a_view {
            trx.table(&checked).get(b"x").unwrap();
            change(&checked, 2);
        } else {
            // Its undo is purged from the last record to the first.
            change(&trx.table(&other), 2);
            change(&trx.table(&checked), 2);
        }
        env.run_workers(2000);
        let mut trx = Some(trx);
        let report = check_with_hook(&db, "checked", usize::MAX, || {
            trx.take().expect("it is one piece").commit().unwrap();
            env.run_workers(2000);
            change(&other, 3);
            env.run_workers(5000);
            assert_eq!(marked(&db, "other"), 0, "purge continues");
            assert_eq!(db.metrics().history_bytes, 0);
            assert!(has_undo(), "what waits is still there");
        });
        assert!(trx.is_none());
        assert_eq!(report.findings, Vec::<String>::new());
        assert_eq!(marked(&db, "checked"), u64::from(ROWS));
        env.run_workers(5000);
        assert_eq!(marked(&db, "checked"), 0);
        assert!(!has_undo());
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    }
}

/// A check waits for purge of its own table: endless work on other tables does not keep the table closed.
#[test]
fn a_load_on_other_tables_does_not_prolong_a_check() {
    // Purge needs as long for that many rows as a check waits for work without progress.
    const ROWS: u32 = 6000;
    const LOADS: usize = 40;
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let [checked, other] = ["checked", "other"].map(|name| db.create_table(name, indexed()).unwrap());
    (0..ROWS).for_each(|n| other.put(&n.to_be_bytes(), &[0]).unwrap());
    checked.put(b"k", b"value").unwrap();
    env.run_workers(1000);
    let trx = begin(&db);
    trx.table(&checked).put(b"k", b"another").unwrap();
    let loads = Arc::new(AtomicUsize::new(0));
    let step = {
        let loads = loads.clone();
        move || {
            if loads.fetch_add(1, Relaxed) == LOADS {
                return Next::Done;
            }
            as_another_thread(|| (0..ROWS).for_each(|n| other.put(&n.to_be_bytes(), &[n as u8]).unwrap()));
            Next::Again
        }
    };
    let load = env.spawn("load", WorkerClass::Client, Arc::new(Event::new()), Box::new(step)).unwrap();
    let report = check_with_hook(&db, "checked", usize::MAX, || {});
    let loads = loads.load(Relaxed);
    drop(load);
    assert_eq!(report.findings, Vec::<String>::new());
    assert!((1..LOADS).contains(&loads), "{loads} loads");
    drop(trx);
}

/// Unfinished work does not hide damage.
#[test]
fn damage_is_found_during_a_transaction_with_long_values() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let [table, other] = ["t", "other"].map(|name| db.create_table(name, indexed()).unwrap());
    // So small that a check of either is one piece.
    (0..8u8).for_each(|n| table.put(&[n], &long(n)).unwrap());
    (0..8u8).for_each(|n| other.put(&[n], &long(n)).unwrap());
    let trx = begin(&db);
    (0..5u8).for_each(|n| trx.table(&table).put(&[n], &long(100)).unwrap());
    env.run_workers(500);
    let checks = || [db.check().unwrap().findings, db.check_live().unwrap().findings];
    assert_eq!(checks(), [Vec::<String>::new(), Vec::new()]);
    // A page of the table that belongs to no long value, and a page of a long value in another table.
    let mut wrong = Vec::new();
    for (name, kind) in [("t", PageType::Leaf), ("other", PageType::Overflow)] {
        lose_a_page(&db, name, kind);
        wrong.push(format!("table {name}"));
        for findings in checks() {
            assert_eq!(findings.len(), wrong.len(), "{findings:?}");
            let is_reported = |name: &String| {
                let reported =
                    |finding: &&String| finding.contains("nothing leads to it") && finding.starts_with(name);
                findings.iter().filter(reported).count() == 1
            };
            assert!(wrong.iter().all(is_reported), "{findings:?}");
        }
    }
    // A row without its entry, in the table that the transaction has changed.
    let tree = index(&db, "t");
    let mut cursor = tree.cursor();
    assert!(cursor.seek(crate::tree::Seek::AtLeast(&[7])).unwrap() && cursor.key().starts_with(&[7]));
    let entry = cursor.key().to_vec();
    let mut mtr = Mtr::begin(&db.engine.pool).unwrap();
    let located = tree.seek_for_change(&mut mtr, &entry, crate::tree::Room::Keep).unwrap();
    located.remove(&mut mtr);
    mtr.commit().unwrap();
    for findings in checks() {
        assert!(findings.iter().any(|finding| finding.contains("rows, but")), "{findings:?}");
        assert_eq!(findings.len(), 3, "{findings:?}");
    }
    drop(trx);
}

#[test]
fn a_wrong_count_of_the_pages_is_found() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let table = db.create_table("t", indexed()).unwrap();
    (0..8u8).for_each(|n| table.put(&[n], &long(n)).unwrap());
    let checks = || [db.check().unwrap().findings, db.check_live().unwrap().findings];
    assert_eq!(checks(), [Vec::<String>::new(), Vec::new()]);
    tablespace::miscount_pages(&space(&db, "t"));
    for findings in checks() {
        assert!(findings.len() == 1 && findings[0].contains("are counted"), "{findings:?}");
    }
    drop((table, db));
    // Nothing of the count is stored, and what is not counted yet is not compared.
    let db = open(&disk, &env);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// The tree was walked in an earlier piece than the one that compares the pages, and a rollback has run in between.
#[test]
fn a_value_that_a_rollback_puts_back_between_two_pieces_is_not_lost() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let table = db.create_table("t", TableOptions::default()).unwrap();
    for n in 0..4000u32 {
        table.put(&n.to_be_bytes(), &[n as u8; 300]).unwrap();
    }
    let key = 0u32.to_be_bytes();
    table.put(&key, &long(1)).unwrap();
    db.checkpoint().unwrap();
    let mut trx = Some(begin(&db));
    trx.as_ref().unwrap().table(&table).put(&key, &long(2)).unwrap();
    env.run_workers(500);
    let (mut report, mut named) = (CheckReport::default(), BTreeSet::new());
    let (mut pieces, mut blocks) = (Pieces::new(&db.engine, CHECK_PAGES_PER_STEP), 0);
    while !check_some(&db.engine, &"t".into(), &mut pieces, &mut report, &mut named).unwrap() {
        pieces.report_suspects(&mut report);
        // The walk saw the row as the transaction had left it.
        trx.take().into_iter().for_each(|trx| trx.rollback().unwrap());
        env.run_workers(500);
        blocks += 1;
    }
    pieces.report_suspects(&mut report);
    assert!(blocks >= 1, "it is one piece");
    assert_eq!(report.findings, Vec::<String>::new());
    assert_eq!(table.get(&key).unwrap(), Some(long(1)));
}

/// A call fails, and its change of a row cannot be rolled back completely.
#[test]
fn versions_cut_off_by_a_failed_rollback_are_not_reported_as_damage() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let table = db.create_table("t", indexed()).unwrap();
    table.put(b"row", &[1; 100]).unwrap();
    let (transactions, id) = (&db.engine.transactions, space(&db, "t").id());
    let trx = begin(&db);
    trx.table(&table).put(b"row", &[2; 100]).unwrap();
    let trx_id = trx.id().unwrap();
    transactions.rollbacks().cut_off(trx_id, id);
    for check in [Database::check, Database::check_live] {
        assert_eq!(check(&db).unwrap().uncompared, ["t"]);
    }
    // The table counts as uncompared until the transaction ends.
    trx.rollback().unwrap();
    assert_eq!(db.check().unwrap().uncompared, Vec::<String>::new());
    // A call that fails and is rolled back leaves nothing.
    transactions.fail_at(3);
    assert!(matches!(table.put(b"row", &[3; 100]), Err(Error::Usage(_))));
    let report = db.check().unwrap();
    assert_eq!((report.findings, report.uncompared), (Vec::new(), Vec::new()));
}

/// Statements run between any two reads of the lists of tablespaces.
#[test]
fn no_statement_makes_a_file_look_unowned() {
    type Statement = fn(&Database);
    let statements: [Statement; 8] = [
        |db| db.rename_table("a", "c").unwrap(),
        |db| db.rename_table("c", "a").unwrap(),
        |db| db.swap_tables("a", "b").unwrap(),
        |db| {
            db.truncate_table("a").unwrap();
            db.table("a").unwrap().put(b"row", &[1; 100]).unwrap();
        },
        |db| {
            db.drop_index("b", "first").unwrap();
        },
        |db| {
            db.drop_table("b").unwrap();
        },
        |db| {
            // Creates as many files as were dropped.
            let rows = (0..50u8).map(|n| Ok((vec![n], vec![n; 100])));
            db.create_table_from("b", TableOptions::default(), rows).unwrap();
            db.create_index("b", "first", IndexOptions::on_value(0..1)).unwrap();
        },
        |db| db.checkpoint().unwrap(),
    ];
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    for name in ["a", "b"] {
        let table = db.create_table(name, indexed()).unwrap();
        (0..50u8).for_each(|n| table.put(&[n], &[n; 100]).unwrap());
    }
    db.checkpoint().unwrap();
    let mut looks = 0;
    // Each statement at each point, and the next one at the next point, as concurrent work would.
    for round in 0..60 {
        let files = engine_files(&db.engine);
        assert!(!files.is_empty());
        let at = Cell::new(0);
        let found = unowned(&db.engine, files, || {
            if at.get() == round / statements.len() % 4 || round % 3 == 0 {
                statements[looks % statements.len()](&db);
                looks += 1;
                // Sometimes dropped files are deleted meanwhile.
                if looks % 5 == 0 {
                    env.run_workers(100);
                }
            }
            at.set(at.get() + 1);
        });
        assert_eq!(found, Vec::new(), "round {round}");
    }
    assert!(looks > 60, "{looks} statements");
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    // A file that belongs to nothing is reported.
    let lost = db.engine.transactions.ids().space().unwrap();
    let attached = db.engine.pool.attach(lost, Durability::Logged);
    assert_eq!(unowned(&db.engine, vec![lost], || {}), [lost]);
    db.engine.pool.detach(&attached, None);
}

/// A check looks at every point of a group that fills trees: they are listed until their tables can be found.
#[test]
fn no_group_makes_a_file_look_unowned() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    db.create_table("a", indexed()).unwrap();
    let (other, looks) = (db.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = looks.clone();
    db.engine.catalog.pause.set(move || {
        other.checkpoint().unwrap();
        let files = engine_files(&other.engine);
        assert_eq!(unowned(&other.engine, files, || {}), Vec::new());
        counted.fetch_add(1, Relaxed);
    });
    let mut group = db.ddl();
    group.create_table("b", indexed().metadata(long(1)));
    group.alter_table("b", TableChanges::default().numbers(500));
    group.alter_table("a", TableChanges::default().metadata(long(2)).name("c"));
    group.commit().unwrap();
    db.engine.catalog.pause.clear();
    assert_eq!(looks.load(Relaxed), 3);
    assert_eq!(engine_files(&db.engine).len(), 3, "two of metadata, and one with a header");
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

fn engine_files(engine: &Engine) -> Vec<SpaceId> {
    let files = engine.disk.list(Folder::Data).unwrap();
    let data = |file| if let FileName::Data(id) = file { Some(id) } else { None };
    files.into_iter().filter_map(data).filter(|id| *id != SpaceId::SYSTEM).collect()
}
