//! Checks of one table.

use super::*;
use crate::{Phase, Progress, TableChanges, disk::Disk, error::UsageError};

/// Creates tables with an index, long values and long metadata, of which each has more pages than a piece.
fn create(db: &Database, names: &[&str]) {
    for name in names {
        let table = db.create_table(name, indexed().metadata(vec![7; 60_000])).unwrap();
        for n in 0..2000u32 {
            table.insert(&n.to_be_bytes(), &[n as u8; 300]).unwrap();
        }
        (0..20u32).for_each(|n| table.put(&n.to_be_bytes(), &long(n as u8)).unwrap());
    }
    db.checkpoint().unwrap();
}

#[test]
fn the_check_of_a_table_reports_its_damage_and_no_other() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    create(&db, &["t", "other"]);
    let [table, other] = ["t", "other"].map(|name| db.table(name).unwrap());
    lose_a_page(&db, "other", PageType::Leaf);
    let mut seen = Vec::new();
    let report = table
        .check(|progress| {
            seen.push(progress);
            true
        })
        .unwrap();
    assert_eq!((report.findings, report.cancelled), (vec![], false));
    let of = |tree: &CheckedTree| (tree.table.clone(), tree.index.clone(), tree.is_metadata, tree.entries);
    let index = Some("first".to_owned());
    let trees: Vec<_> = report.trees.iter().map(of).collect();
    let t = || "t".to_owned();
    assert_eq!(trees, [(t(), None, false, 2000), (t(), index, false, 2000), (t(), None, true, 1)]);
    let pages: u64 = report.trees.iter().map(|tree| tree.pages).sum();
    assert!(report.pages >= pages && pages > CHECK_PAGES_PER_STEP as u64, "{} of {pages}", report.pages);
    let Progress { phase: Phase::Pages, done: last, total, .. } = *seen.last().unwrap() else {
        panic!("{seen:?}")
    };
    assert!(
        seen.len() > 4 && last >= 2 * pages && last <= total,
        "{last} of {total}, in {} steps",
        seen.len()
    );
    assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done));
    assert!(total <= seen[0].total + total / 5, "the total grows from {} to {total}", seen[0].total);

    let report = other.check(|_| true).unwrap();
    assert!(report.findings.len() == 1 && report.findings[0].contains("in use and nothing leads to it"));
    assert!(report.findings[0].contains("table other"), "{:?}", report.findings);
    // A damaged page of a file, in a page that is in memory.
    let file = FileName::Data(space(&db, "t").id());
    let mut page = vec![0; 4096];
    disk.read(file, 2 * 4096, &mut page).unwrap();
    page[100] ^= 1;
    disk.write(file, 2 * 4096, &page).unwrap();
    let report = table.check(|_| true).unwrap();
    assert!(report.findings.len() == 1 && report.findings[0].contains("page 2"), "{:?}", report.findings);
}

#[test]
fn a_check_of_a_table_ends_when_its_callback_says_so() {
    let db = open(&SimulatedDisk::new(1), &SimulatedEnv::new(1));
    create(&db, &["t"]);
    let table = db.table("t").unwrap();
    let mut all = 0;
    table
        .check(|_| {
            all += 1;
            true
        })
        .unwrap();
    for last in 1..=all {
        let mut calls = 0;
        let report = table
            .check(|_| {
                calls += 1;
                calls < last
            })
            .unwrap();
        assert_eq!((calls, report.cancelled), (last, true), "of {all}");
        assert_eq!(report.findings, Vec::<String>::new());
    }
    table.put(b"key", b"the table can be used").unwrap();
}

#[test]
fn a_table_may_be_used_by_the_callback_of_its_check() {
    let db = open(&SimulatedDisk::new(1), &SimulatedEnv::new(1));
    create(&db, &["t", "other"]);
    let table = db.table("t").unwrap();
    let trx = begin(&db);
    trx.table(&table).put(b"open", &long(1)).unwrap();
    let mut calls = 0u32;
    let report = table
        .check(|_| {
            calls += 1;
            let n = calls % 2000;
            table.put(&n.to_be_bytes(), &long(calls as u8)).unwrap();
            assert!(table.delete(&(n + 300).to_be_bytes()).unwrap());
            match calls {
                1 => drop(db.truncate_table("other").unwrap()),
                2 => db.create_index("other", "second", IndexOptions::on_value(1..2)).unwrap(),
                // The check of another table, within that of this one.
                3 => assert!(db.table("other").unwrap().check(|_| true).unwrap().is_sound()),
                _ => {}
            }
            true
        })
        .unwrap();
    assert!(report.is_sound() && calls > 4, "{calls}: {report:?}");
    trx.rollback().unwrap();
    assert!(db.check().unwrap().is_sound());
}

#[test]
fn the_check_of_a_table_follows_a_rename_and_ends_with_a_drop() {
    let db = open(&SimulatedDisk::new(1), &SimulatedEnv::new(1));
    create(&db, &["t"]);
    let table = db.table("t").unwrap();
    let mut calls = 0;
    let report = table
        .check(|_| {
            calls += 1;
            match calls {
                1 => db.rename_table("t", "u").unwrap(),
                2 => drop(db.create_table("t", TableOptions::default()).unwrap()),
                3 => drop(db.alter_table("u", TableChanges::default().name("v").metadata(vec![1])).unwrap()),
                _ => {}
            }
            true
        })
        .unwrap();
    assert!(report.is_sound() && calls > 4, "{calls}: {report:?}");
    assert_eq!(report.trees.iter().filter(|tree| tree.entries == 2000).count(), 2);
    assert!(report.trees.iter().all(|tree| ["t", "u", "v"].contains(&&*tree.table)));
    for at in 1..=calls {
        let mut calls = 0;
        let table = db.table("v").unwrap();
        let checked = table.check(|_| {
            calls += 1;
            if calls == at {
                db.drop_table("v").unwrap();
            }
            true
        });
        assert!(calls < at || matches!(checked, Err(Error::TableDropped(_))), "at {at}: {checked:?}");
        if calls < at {
            break;
        }
        assert!(matches!(table.check(|_| true), Err(Error::TableDropped(_))));
        create(&db, &["v"]);
    }
    let session = db.session();
    let temporary = session.create_temporary_table("v", TableOptions::default()).unwrap();
    let refused = temporary.check(|_| true);
    assert!(matches!(refused, Err(Error::Usage(UsageError::TemporaryCheck(_)))), "{refused:?}");
}
