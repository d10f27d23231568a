//! Records that purge has deferred for a check are processed after it, whatever happens meanwhile, and other tables do
//! not wait for it.

use core::{mem::take, time::Duration};
use std::collections::BTreeMap;

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::*;
use crate::{UndoLimitAction, env::RealEnv, error::TransactionError};

const ROWS: u32 = 60;
/// A number that takes purge more steps than a check waits for work without progress.
const MANY_ROWS: u32 = 6000;

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

/// Returns whether purge has processed all records of a table, which is not under check.
fn is_purged(db: &Database, table: &Space) -> bool {
    quiesce::with_table_quiesced(&db.engine.transactions, table, false, |rest| rest.is_purged)
}

/// Creates tables with rows that an open transaction has given new index keys; purge has already reached that point.
fn with_changes(db: &Database, env: &SimulatedEnv, names: &[&str], rows: u32) -> Transaction {
    let trx = begin(db);
    for name in names {
        let table = db.create_table(name, indexed()).unwrap();
        (0..rows).for_each(|n| table.put(&key(n), &[1; 10]).unwrap());
        (0..rows).for_each(|n| trx.table(&table).put(&key(n), &[2; 10]).unwrap());
        trx.table(&table).put(&key(0), &long(2)).unwrap();
        trx.table(&table).put(&key(0), &vec![2; 60_000]).unwrap();
    }
    env.run_workers(1000);
    trx
}

/// A full check works correctly directly after another one with records still deferred, and a concurrent check reports
/// no long value as lost.
#[test]
fn a_check_after_a_check_knows_the_deferred_records() {
    for whole in [true, false] {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let db = open(&disk, &env);
        let mut trx = Some(with_changes(&db, &env, &["t"], MANY_ROWS));
        let (table, entries) = (space(&db, "t"), index(&db, "t"));
        let report = check_with_hook(&db, "t", usize::MAX, || {
            trx.take().expect("it is one piece").commit().unwrap();
            env.run_workers(1000);
        });
        assert_eq!(report.findings, Vec::<String>::new());
        assert!(marked(&db, "t") == u64::from(MANY_ROWS) && !is_purged(&db, &table));
        lose_a_page(&db, "t", PageType::Overflow);
        let mut seen = None;
        let report = check_with_hook(&db, "t", if whole { usize::MAX } else { CHECK_PAGES_PER_STEP }, || {
            seen.get_or_insert(marked_in(&entries));
        });
        let expected = if whole { (Some(0), 1) } else { (Some(u64::from(MANY_ROWS)), 0) };
        assert_eq!((seen, report.findings.len()), expected, "{:?}", report.findings);
        env.run_workers(1000);
        assert!(marked(&db, "t") == 0 && is_purged(&db, &table));
        assert_eq!(db.check_live().unwrap().findings.len(), 1);
    }
}

/// Deferred records are discarded with their table, and are purged by the next process if this one ends meanwhile.
#[test]
fn deferred_records_outlive_their_check_and_not_their_table() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum End {
        Dropped,
        Truncated,
        IndexDropped,
        Closed,
        Crashed,
    }
    for end in [End::Dropped, End::Truncated, End::IndexDropped, End::Closed, End::Crashed] {
        let (mut disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let mut db = open(&disk, &env);
        let mut trx = Some(with_changes(&db, &env, &["a", "t"], ROWS));
        let [mut other, mut table] = ["a", "t"].map(|name| space(&db, name));
        let entries = index(&db, "t");
        check_with_hook(&db, "t", usize::MAX, || {
            trx.take().expect("it is one piece").commit().unwrap();
            env.run_workers(1000);
            assert!(is_purged(&db, &other) && marked_in(&entries) == u64::from(ROWS), "{end:?}");
            if end == End::Crashed {
                disk = disk.restart(Survive::Everything);
            }
        });
        match end {
            End::Dropped => drop(db.drop_table("t").unwrap()),
            End::Truncated => drop(db.truncate_table("t").unwrap()),
            End::IndexDropped => drop(db.drop_index("t", "first").unwrap()),
            End::Closed => {
                assert!(!is_purged(&db, &table));
                db.clone().close().unwrap();
            }
            End::Crashed => {}
        }
        if matches!(end, End::Closed | End::Crashed) {
            db = open(&disk, &env);
            [other, table] = ["a", "t"].map(|name| space(&db, name));
            assert!(!is_purged(&db, &table));
        }
        env.run_workers(3000);
        assert!(is_purged(&db, &table) && is_purged(&db, &other), "{end:?}");
        let report = db.check().unwrap();
        assert_eq!(report.findings, Vec::<String>::new(), "{end:?}");
        assert!(report.trees.iter().all(|tree| tree.deleted == 0), "{end:?}: {:?}", report.trees);
    }
}

/// Each of two tables under check defers only its own records, wherever they are in the undo stream.
#[test]
fn two_checks_defer_the_records_of_their_tables() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let tables = ["a", "b"].map(|name| db.create_table(name, indexed()).unwrap());
    let change = |trx: &Transaction, fill: u8| {
        let rows = (0..ROWS).flat_map(|n| [(n, &tables[0]), (n, &tables[1])]);
        rows.for_each(|(n, table)| trx.table(table).put(&key(n), &[fill; 100]).unwrap());
    };
    for (first, second) in [("a", "b"), ("b", "a")] {
        let [trx, before] = [(); 2].map(|()| begin(&db));
        change(&before, 1);
        before.commit().unwrap();
        env.run_workers(1000);
        change(&trx, 2);
        env.run_workers(1000);
        let mut trx = Some(trx);
        let entries = [first, second].map(|name| index(&db, name));
        let marked = || entries.each_ref().map(|tree| marked_in(tree));
        let mut came = 0;
        check_with_hook(&db, first, usize::MAX, || {
            check_with_hook(&db, second, usize::MAX, || {
                trx.take().expect("it is one piece").commit().unwrap();
                env.run_workers(1000);
                assert_eq!(marked(), [u64::from(ROWS); 2]);
            });
            env.run_workers(1000);
            assert_eq!(marked(), [u64::from(ROWS), 0]);
            came += 1;
        });
        env.run_workers(1000);
        assert_eq!((marked(), came), ([0; 2], 1));
    }
}

/// Among the deferred records is one that purge may not process yet, because a read view needs the version before it.
#[test]
fn a_deferred_record_that_a_view_needs_is_kept() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let [table, other] = ["t", "other"].map(|name| db.create_table(name, indexed()).unwrap());
    let view = || db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    let change = |trx: &Transaction, key: &[u8]| trx.table(&table).put(key, &[2; 100]).unwrap();
    for key in [b"a", b"b", b"c"] {
        table.put(key, &[1; 100]).unwrap();
    }
    other.put(b"row", &[1; 100]).unwrap();
    let [one, two] = [(); 2].map(|()| begin(&db));
    change(&one, b"a");
    env.run_workers(500);
    // Purge stops at this read view.
    let old = view();
    other.put(b"row", &[2; 100]).unwrap();
    assert!(two.table(&table).delete(b"b").unwrap());
    change(&one, b"c");
    one.commit().unwrap();
    let young = view();
    two.commit().unwrap();
    let mut old = Some(old);
    let entries = index(&db, "t");
    check_with_hook(&db, "t", CHECK_PAGES_PER_STEP, || {
        drop(old.take());
        env.run_workers(500);
        assert_eq!(marked_in(&entries), 3);
    });
    env.run_workers(500);
    assert_eq!(marked_in(&entries), 1, "two were read again");
    let within = young.table(&table);
    assert_eq!(within.get(b"b").unwrap(), Some(vec![1; 100]));
    assert_eq!(within.index("first").unwrap().get(&[1]).unwrap().count(), 1);
    young.commit().unwrap();
    env.run_workers(500);
    assert_eq!(marked_in(&entries), 0);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// A change of an open transaction: a table, a row and its new value.
type Change = (usize, Vec<u8>, Option<Vec<u8>>);

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

struct Open {
    trx: Transaction,
    /// The first byte of the keys that this transaction alone changes.
    class: u8,
    changes: Vec<Change>,
    name: Option<Vec<u8>>,
}

/// A database with concurrent checks, and its expected content.
struct World {
    disk: SimulatedDisk,
    env: SimulatedEnv,
    db: Database,
    chance: StdRng,
    rows: Vec<Rows>,
    open: Vec<Open>,
    views: Vec<(Transaction, Vec<Rows>)>,
    checked: Vec<usize>,
    names: u32,
}

const TABLES: [&str; 3] = ["a", "b", "c"];

impl World {
    fn new(seed: u64) -> Self {
        let (disk, env) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
        let db = open(&disk, &env);
        for name in TABLES {
            db.create_table(name, indexed()).unwrap();
        }
        let (rows, chance) = (vec![Rows::new(); TABLES.len()], StdRng::seed_from_u64(seed));
        let (open, views, checked) = (Vec::new(), Vec::new(), Vec::new());
        Self { disk, env, db, chance, rows, open, views, checked, names: 0 }
    }

    fn draw(&mut self, below: usize) -> usize {
        self.chance.random_range(0..below)
    }

    fn table(&self, n: usize) -> Table {
        self.db.table(TABLES[n]).unwrap()
    }

    /// Returns a table that is not under check.
    fn other(&mut self) -> usize {
        loop {
            let n = self.draw(TABLES.len());
            if !self.checked.contains(&n) {
                return n;
            }
        }
    }

    /// Returns a random row and its new value.
    fn change(&mut self, class: u8) -> Change {
        let (table, row, fill) = (self.other(), self.draw(12) as u8, self.draw(5) as u8);
        let length = match self.draw(20) {
            0 => 20_000,
            _ => 300 + self.draw(900),
        };
        let deletes = self.draw(4) == 0;
        (table, vec![class, row], (!deletes).then(|| vec![fill; length]))
    }

    fn make(table: &Table<impl Access>, (_, key, value): &Change) {
        match value {
            Some(value) => table.put(key, value).unwrap(),
            None => drop(table.delete(key).unwrap()),
        }
    }

    fn enter(rows: &mut [Rows], changes: Vec<Change>) {
        for (table, key, value) in changes {
            match value {
                Some(value) => drop(rows[table].insert(key, value)),
                None => drop(rows[table].remove(&key)),
            }
        }
    }

    /// Returns whether its changes can be rolled back while the current checks run.
    fn goes_back(&self, open: &Open) -> bool {
        open.changes.iter().all(|(table, ..)| !self.checked.contains(table))
    }

    fn end(&mut self, at: usize, commits: bool) {
        let commits = commits || !self.goes_back(&self.open[at]);
        let Open { trx, changes, name, .. } = self.open.remove(at);
        if let Some(name) = name {
            // The coordinator ends a prepared transaction by its XID.
            drop(trx);
            if commits { self.db.commit_prepared(&name).map(drop) } else { self.db.rollback_prepared(&name) }
                .unwrap();
        } else {
            if commits { trx.commit().map(drop) } else { trx.rollback() }.unwrap();
        }
        if commits {
            Self::enter(&mut self.rows, changes);
        }
    }

    fn assert_sees(&self, view: &(Transaction, Vec<Rows>)) {
        let (trx, rows) = view;
        for (n, rows) in rows.iter().enumerate().filter(|(n, _)| !self.checked.contains(n)) {
            let table = trx.table(&self.table(n));
            let seen: Rows = table.rows().unwrap().map(Result::unwrap).collect();
            assert!(seen == *rows, "a view sees {} rows of {}", seen.len(), rows.len());
            let entries = table.index("first").unwrap().range::<&[u8]>(..).unwrap();
            let seen: Rows = entries.map(|row| row.unwrap()).map(|row| (row.key, row.value)).collect();
            assert!(seen == *rows, "an index gives {} rows of {}", seen.len(), rows.len());
        }
    }

    fn step(&mut self) {
        match self.draw(40) {
            0..16 => {
                let change = self.change(0);
                Self::make(&self.table(change.0), &change);
                Self::enter(&mut self.rows, vec![change]);
            }
            16..18 if self.open.len() < 3 => {
                let class = (1..=3).find(|class| self.open.iter().all(|open| open.class != *class)).unwrap();
                let trx = begin(&self.db);
                self.open.push(Open { trx, class, changes: Vec::new(), name: None });
            }
            18..28 if !self.open.is_empty() => {
                let at = self.draw(self.open.len());
                if self.open[at].name.is_some() {
                    return self.end(at, self.names.is_multiple_of(2));
                }
                let change = self.change(self.open[at].class);
                let others_follow = self.draw(4) == 0;
                let table = self.open[at].trx.table(&self.table(change.0));
                Self::make(&table, &change);
                // Sometimes other changes follow, and are rolled back at once.
                if others_follow {
                    let trx = &self.open[at].trx;
                    trx.savepoint("here").unwrap();
                    Self::make(&table, &(0, change.1.clone(), None));
                    Self::make(&table, &(0, change.1.clone(), Some(long(9))));
                    trx.rollback_to("here").unwrap();
                }
                self.open[at].changes.push(change);
            }
            28..30 if !self.open.is_empty() => {
                let (at, commits) = (self.draw(self.open.len()), self.draw(2) == 0);
                self.end(at, commits);
            }
            30 if !self.open.is_empty() => {
                self.names += 1;
                let (at, name) = (self.draw(self.open.len()), self.names.to_string().into_bytes());
                let open = &mut self.open[at];
                if open.name.is_none() && !open.changes.is_empty() {
                    open.trx.prepare(&name).unwrap();
                    open.name = Some(name);
                }
            }
            31 if self.views.len() < 2 => {
                let trx = self.db.begin(TransactionOptions::default().read_only().consistent_snapshot());
                self.views.push((trx, self.rows.clone()));
            }
            32 if !self.views.is_empty() => {
                let at = self.draw(self.views.len());
                let view = self.views.remove(at);
                self.assert_sees(&view);
            }
            33 => self.views.iter().for_each(|view| self.assert_sees(view)),
            34..37 => {
                let most = self.draw(60);
                self.env.run_workers(most);
            }
            37 if self.checked.len() < 2 => self.check(),
            _ => {}
        }
    }

    fn check(&mut self) {
        let n = self.other();
        let piece = [usize::MAX, CHECK_PAGES_PER_STEP, 3][self.draw(3)];
        self.checked.push(n);
        let (db, mut steps) = (self.db.clone(), 150);
        let report = check_with_hook(&db, TABLES[n], piece, || {
            (0..take(&mut steps)).for_each(|_| self.step());
        });
        assert_eq!(report.findings, Vec::<String>::new());
        assert_eq!(self.checked.pop(), Some(n));
    }

    /// Ends everything and verifies that nothing is left.
    fn settle(mut self) {
        self.views.clear();
        while !self.open.is_empty() {
            self.end(0, false);
        }
        Self::assert_settled(&self.db, &self.env, &self.rows);
    }

    fn assert_settled(db: &Database, env: &SimulatedEnv, rows: &[Rows]) {
        env.run_workers(2000);
        let metrics = db.metrics();
        assert_eq!(metrics.history_bytes, 0);
        for (name, rows) in TABLES.iter().zip(rows) {
            let table = db.table(name).unwrap();
            assert!(is_purged(db, &space(db, name)), "{name}");
            let found: Rows = table.rows().unwrap().map(Result::unwrap).collect();
            assert!(found == *rows, "{name}");
        }
        // The current slice, and the next one.
        let streams = db.engine.transactions.streams().all().count() as u64;
        assert!(metrics.undo_slices <= 2 * streams, "{} slices of {streams}", metrics.undo_slices);
        let report = db.check().unwrap();
        assert_eq!(report.findings, Vec::<String>::new());
        assert!(report.trees.iter().all(|tree| tree.deleted == 0), "{:?}", report.trees);
    }

    /// After a crash all committed changes are there, and no others.
    fn crash(self) {
        self.db.flush_log().unwrap();
        let Self { disk, env, db, rows, open: was_open, views, .. } = self;
        let disk = disk.restart(Survive::Everything);
        drop((was_open, views, db));
        let db = open(&disk, &env);
        for prepared in db.prepared() {
            db.rollback_prepared(&prepared.xid).unwrap();
        }
        Self::assert_settled(&db, &env, &rows);
    }
}

/// Checks after each other and within each other, concurrent with calls, transactions, read views and prepared
/// transactions.
#[test]
fn no_deferred_record_is_lost_during_concurrent_work() {
    for seed in 0..12 {
        let mut world = World::new(seed);
        (0..400).for_each(|_| world.step());
        (0..3).for_each(|_| world.check());
        if seed % 3 == 0 { world.crash() } else { world.settle() }
    }
}

const LIMIT: u64 = 1 << 20;

/// Changes rows of a table until undo exceeds the limit by far, or a change is refused.
fn fill(table: &Table<impl Access>, bytes: impl Fn() -> u64) -> Result<()> {
    for n in 0..100_000_u32 {
        if bytes() > 3 * LIMIT {
            return Ok(());
        }
        table.put(&key(n % 500), &[n as u8; 1000])?;
    }
    panic!("{} bytes of undo", bytes());
}

fn is_full<T>(done: Result<T>) -> bool {
    matches!(done, Err(Error::Transaction(TransactionError::UndoFull { .. })))
}

/// Returns a transaction that has changed so much of a table that its undo alone exceeds the limit.
fn with_much_undo(db: &Database, env: &SimulatedEnv) -> Transaction {
    let [table, _] = ["t", "other"].map(|name| db.create_table(name, indexed()).unwrap());
    let trx = begin(db);
    fill(&trx.table(&table), || db.metrics().undo_bytes).unwrap();
    env.run_workers(1000);
    trx
}

/// The change waits as long as the lock timeout of its call, and not at all if that is zero.
#[test]
fn a_change_waits_at_the_limit_for_a_check_that_purge_has_met() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let mut trx = Some(with_much_undo(&db, &env));
    let other = db.table("other").unwrap();
    let put = |at_most: u64| {
        let wait = Duration::from_secs(at_most);
        let trx = db.begin(TransactionOptions::default().lock_wait(wait));
        let before = env.now();
        let done = trx.table(&other).put(b"row", b"1");
        (done, env.now().saturating_sub(before))
    };
    db.set_undo_limit(Some(LIMIT)).unwrap();
    check_with_hook(&db, "t", usize::MAX, || {
        trx.take().expect("it is one piece").commit().unwrap();
        env.run_workers(1000);
        for at_most in [0, 20] {
            let (done, waited) = put(at_most);
            assert!(is_full(done));
            assert_eq!(waited.as_secs(), at_most);
        }
    });
    assert!(put(20).0.is_ok());
    env.run_workers(1000);
    assert!(db.metrics().undo_bytes < LIMIT);
    // A check that purge does not meet prolongs no wait.
    let view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    assert!(is_full(fill(&other, || 0)));
    check_with_hook(&db, "t", usize::MAX, || {
        let (done, waited) = put(20);
        assert!(is_full(done) && waited < Duration::from_secs(4), "{waited:?}");
    });
    drop(view);
    assert!(put(20).0.is_ok());
}

/// The error names the remedy; a check that purge does not wait for is not named.
#[test]
fn the_error_at_the_limit_names_a_check_that_purge_waits_for() {
    const CHECK: &str = "a check of a table, which ends by itself";
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let mut trx = Some(with_much_undo(&db, &env));
    let [other, last] = [db.table("other"), db.create_table("u", indexed())].map(Result::unwrap);
    last.put(b"row", b"1").unwrap();
    trx.as_ref().unwrap().table(&last).put(b"row", b"2").unwrap();
    env.run_workers(1000);
    let why = |at_most: u64| {
        let wait = TransactionOptions::default().lock_wait(Duration::from_secs(at_most));
        db.begin(wait).table(&other).put(b"row", b"1").unwrap_err().to_string()
    };
    let view = || db.begin(TransactionOptions::default().read_only().consistent_snapshot());
    db.set_undo_limit(Some(LIMIT)).unwrap();
    check_with_hook(&db, "u", usize::MAX, || {
        check_with_hook(&db, "t", usize::MAX, || {
            trx.take().expect("it is one piece").commit().unwrap();
            env.run_workers(1000);
            for has_view in [false, true] {
                let _view = has_view.then(view);
                for at_most in [0, 5] {
                    let why = why(at_most);
                    assert!(why.contains(CHECK) && why.contains("a view") == has_view, "{why}");
                }
            }
        });
        // The other check is still running.
        assert!(why(0).contains(CHECK));
    });
    // Purge has not reached the record since.
    let late = why(0);
    assert!(!late.contains(CHECK) && late.contains("purge is behind"), "{late}");
    env.run_workers(1000);
    let _view = view();
    assert!(is_full(fill(&other, || 0)));
    check_with_hook(&db, "t", usize::MAX, || {
        let why = why(5);
        assert!(!why.contains(CHECK) && why.contains("a view"), "{why}");
    });
}

/// If both a read view and a check block purge, the read view can be ended.
#[test]
fn a_view_is_ended_at_the_limit_during_a_check() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let db = open(&disk, &env);
    let mut trx = Some(with_changes(&db, &env, &["t"], ROWS));
    let (other, entries) = (db.create_table("other", indexed()).unwrap(), index(&db, "t"));
    db.set_undo_limit(Some(LIMIT)).unwrap();
    db.set_undo_limit_action(UndoLimitAction::EndOldestView);
    check_with_hook(&db, "t", usize::MAX, || {
        trx.take().expect("it is one piece").commit().unwrap();
        env.run_workers(1000);
        assert_eq!(marked_in(&entries), u64::from(ROWS), "the records are not deferred");
        let view = db.begin(TransactionOptions::default().read_only().consistent_snapshot());
        env.run_workers(100);
        let before = env.now();
        (0..3000_u32).for_each(|n| other.put(&key(n % 500), &[n as u8; 1000]).unwrap());
        let (ended, waited) = (db.metrics().views_ended, env.now().saturating_sub(before));
        assert!(ended == 1 && waited < Duration::from_secs(10), "{ended} views, {waited:?}");
        drop(view);
    });
    env.run_workers(1000);
    assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
}

/// Changes that wait for purge continue when the check ends.
#[test]
fn a_change_that_waits_at_the_limit_continues_after_the_check() {
    let options = Options::default().page_size(4096).buffer_pool_size(2048 * 4096).log_size(8 << 20);
    let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(RealEnv::default()));
    let db = Database::open_on(disk, env, &options, &|_| {}).unwrap();
    let mut trx = Some(with_much_undo(&db, &SimulatedEnv::new(1)));
    let other = db.table("other").unwrap();
    db.set_undo_limit(Some(LIMIT)).unwrap();
    let waits = || db.metrics().undo_waits;
    let put = || {
        let patient = TransactionOptions::default().lock_wait(Duration::from_hours(1));
        db.begin(patient).table(&other).put(b"row", b"1")
    };
    let before = waits();
    thread::scope(|scope| {
        let mut change = None;
        check_with_hook(&db, "t", usize::MAX, || {
            trx.take().expect("it is one piece").commit().unwrap();
            change = Some(scope.spawn(put));
            while waits() == before {
                thread::sleep(Duration::from_millis(1));
            }
        });
        change.expect("it has begun").join().unwrap().unwrap();
    });
}
