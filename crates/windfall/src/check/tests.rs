//! Checks beside what others do, at chosen places.

use std::cell::Cell;

use super::*;
use crate::{
    database::{Database, IndexOptions, TableOptions},
    disk::simulated::SimulatedDisk,
    env::SimulatedEnv,
    mtr::Mtr,
    options::Options,
    page::PageType,
    sync::work::{self, Work},
    tablespace,
};

fn open(disk: &SimulatedDisk, env: &SimulatedEnv) -> Database {
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(2048 * 4096)
        .log_size(8 << 20)
        .log_buffer_size(256 << 10);
    Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), &options, &|_| {}).unwrap()
}

fn indexed() -> TableOptions {
    TableOptions::default().index("first", IndexOptions::on_value(0..1))
}

#[test]
fn a_lost_page_is_told_beside_others_too() {
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
    assert!(pages(&whole) > 3 * PIECE as u64 / 2, "it is one piece");
    assert_eq!((&whole.findings, &whole.trees), (&Vec::new(), &pieces.trees));
    assert_eq!(pieces.findings, whole.findings);

    let engine = &db.engine;
    let space = engine.catalog.table("t").unwrap().shape().clustered.space().clone();
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

/// Counted, not timed: what is looked at while a table's calls wait depends on no size.
#[test]
fn a_hold_of_a_large_tree_is_as_short_as_that_of_a_small_one() {
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
        env.settle(200);
    }
    let engine = &db.engine;
    let space = engine.catalog.table("t").unwrap().shape().clustered.space().clone();
    let lost = 1000;
    for _ in 0..lost {
        let mut mtr = Mtr::begin(&engine.pool).unwrap();
        tablespace::allocate(&mut mtr, &space, PageType::Leaf, 0, PageNo::ROOT).unwrap();
        mtr.commit().unwrap();
    }
    let (mut report, mut named) = (CheckReport::default(), BTreeSet::new());
    let mut pieces = Pieces::new(engine, PIECE);
    let (mut holds, mut longest, mut most_told) = (0u64, 0, 0);
    loop {
        let before = work::so_far();
        let has_ended = check_some(engine, &"t".into(), &mut pieces, &mut report, &mut named);
        longest = longest.max((work::so_far() - before).of(Work::Frame));
        let told = report.findings.len();
        pieces.judge(&mut report);
        most_told = most_told.max(report.findings.len() - told);
        holds += 1;
        if has_ended {
            break;
        }
    }
    let tree = &report.trees[0];
    assert!(tree.pages > 50_000, "{tree:?}");
    assert_eq!(report.findings.len(), lost, "{:?}", report.findings.first());
    let bound = PIECE as u64 + u64::from(tree.height);
    assert!(longest <= bound, "{longest} pages in one hold");
    assert!(most_told <= PIECE + 64, "{most_told} pages suspected in one hold");
    assert!(holds >= tree.pages / bound, "{holds} holds");
}

/// Statements between any two of the looks at what a file is of.
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
        |db| drop(db.drop_index("b", "first").unwrap()),
        |db| drop(db.drop_table("b").unwrap()),
        |db| {
            // As many files as before.
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
    // Each statement at each place, and the next one at the next place, as others go on.
    for round in 0..60 {
        let files = engine_files(&db.engine);
        assert!(!files.is_empty());
        let at = Cell::new(0);
        let found = unowned(&db.engine, files, || {
            if at.get() == round / statements.len() % 4 || round % 3 == 0 {
                statements[looks % statements.len()](&db);
                looks += 1;
                // Now and then what was dropped goes meanwhile.
                if looks % 5 == 0 {
                    env.settle(100);
                }
            }
            at.set(at.get() + 1);
        });
        assert_eq!(found, Vec::new(), "round {round}");
    }
    assert!(looks > 60, "{looks} statements");
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    // One that belongs to nothing is told.
    let lost = db.engine.transactions.ids().space().unwrap();
    let attached = db.engine.pool.attach(lost, Durability::Logged);
    assert_eq!(unowned(&db.engine, vec![lost], || {}), [lost]);
    db.engine.pool.detach(&attached, crate::ids::Lsn::ZERO);
}

fn engine_files(engine: &Engine) -> Vec<SpaceId> {
    let files = engine.disk.list(Folder::Data).unwrap();
    let data = |file| if let FileName::Data(id) = file { Some(id) } else { None };
    files.into_iter().filter_map(data).filter(|id| *id != SpaceId::CATALOG).collect()
}
