//! The second step of an alteration waits for transactions while others change the tables.

use super::{
    super::super::{check_index, check_index_of, open, row},
    RUN, added, build, make_any_of, make_of, row_log_of,
};
use crate::{
    Result, Table, TableChanges, TableOptions, TransactionOptions,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    txn::Follower,
};
use windfall_sim::SimulatedDisk;

/// A group that waits for one of its tables applies what is noted for all of them.
#[test]
fn a_group_that_waits_for_its_tables_catches_up() -> Result<()> {
    const PASSES: u64 = 150;
    // The table for which the group waits.
    for waits_for in 0..3 {
        let (db, _) = open(&SimulatedDisk::new(1), 1)?;
        let value = |n: u64| format!("{:05}", n * 7919 % 99_991).into_bytes();
        let tables: Vec<Table> = ["a", "b", "c"]
            .into_iter()
            .map(|name| db.create_table(name, TableOptions::default()))
            .collect::<Result<_>>()?;
        tables.iter().try_for_each(|table| (0..15).try_for_each(|n| table.insert(&row(n), &value(n))))?;
        let pause = &db.engine().catalog.pause;
        pause.set_runs(RUN, 1000);
        let mut group = db.ddl();
        for name in ["a", "b", "c"] {
            let built = db.build_indexes_with(name, added(false, false), make_any_of)?;
            group.finish(built, TableChanges::default().metadata(vec![1]));
        }
        let trx = db.begin(TransactionOptions::default());
        trx.table(&tables[waits_for]).put(&row(100), &value(100))?;
        let (acting, mut trx, mut passed) = (tables.clone(), Some(trx), 0);
        pause.set(move || {
            passed += 1;
            if passed < PASSES {
                // Calls outside of transactions do not wait for the group, which has locks on some tables.
                let write =
                    |table: &Table| (0..10).try_for_each(|n| table.put(&row(n), &value(n + 20 * passed)));
                acting.iter().try_for_each(write).unwrap();
                let noted = acting.iter().map(|table| row_log_of(table).map_or(0, |log| log.noted()));
                let noted = noted.sum::<usize>();
                assert!(noted < 600, "{noted} notes are left in pass {passed}");
            } else if let Some(trx) = trx.take() {
                trx.commit().unwrap();
            }
        });
        group.commit_with(|_, index, row, value, entry| make_any_of(index, row, value, entry)).unwrap();
        pause.clear();
        for table in &tables {
            assert_eq!(table.metadata()?, [1]);
            check_index(table, false, "i");
            check_index_of(table, "s", true, "s");
        }
        assert!(tables[waits_for].get(&row(100))?.is_some());
        assert_eq!(db.check()?.findings, Vec::<String>::new());
    }
    Ok(())
}

/// Writers that are faster than the alteration applies their notes would leave more to it the longer it waits.
#[test]
fn changes_faster_than_a_waiting_alteration_wait_for_room() -> Result<()> {
    const PASSES: u64 = 80;
    // Some 300 notes.
    const MOST: usize = 5 * RUN;
    let (db, _) = open(&SimulatedDisk::new(1), 1)?;
    let value = |n: u64| format!("{:05}", n * 7919 % 99_991).into_bytes();
    let table = db.create_table("t", TableOptions::default())?;
    (0..15).try_for_each(|n| table.insert(&row(n), &value(n)))?;
    let pause = &db.engine().catalog.pause;
    pause.set_runs(RUN, 1000);
    pause.set_most(MOST);
    let mut built = build(&db, added(false, false))?;
    let trx = db.begin(TransactionOptions::default());
    trx.table(&table).put(&row(10_000), &value(10_000))?;
    let (acting, mut trx, mut passed, most) = (table.clone(), Some(trx), 0, Arc::new(AtomicUsize::new(0)));
    let noted_most = most.clone();
    pause.set(move || {
        passed += 1;
        if passed < PASSES {
            // A thread would go on when there is room.
            let mut changed = 0;
            while changed < 1_000 && !row_log_of(&acting).is_some_and(|log| Follower::is_full(&*log)) {
                acting.put(&row(changed), &value(changed + passed)).unwrap();
                changed += 1;
            }
            // What was noted before the wait is applied by then.
            if passed > PASSES / 2 {
                noted_most.fetch_max(row_log_of(&acting).map_or(0, |log| log.noted()), Relaxed);
            }
        } else if let Some(trx) = trx.take() {
            trx.commit().unwrap();
        }
    });
    built.finish_with(TableChanges::default(), make_of).unwrap();
    pause.clear();
    assert!((100..600).contains(&most.load(Relaxed)), "{most:?} notes at a time");
    check_index(&table, false, "i");
    assert_eq!(db.check()?.findings, Vec::<String>::new());
    Ok(())
}
