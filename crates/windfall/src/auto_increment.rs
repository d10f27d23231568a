//! Auto-increment values of a table, as its handle returns them.
//!
//! **Purpose.** What `AUTO_INCREMENT` needs: rising numbers, each returned once.
//!
//! **Invariants.** A number that was returned before a row was written is not returned again once that row is durable,
//! wherever a crash occurs (tests: `first_runs_crash_at_every_operation`,
//! `a_close_leaves_no_gap_and_a_crash_a_small_one`). No lock is held to the end of a transaction, so the numbers of
//! rows that are rolled back are skipped, as with `innodb_autoinc_lock_mode=2` (test:
//! `a_transaction_keeps_no_other_from_a_number_and_gives_none_back`).

use core::ops::Range;

use crate::{
    catalog::{AutoIncrement, Call},
    error::Result,
    store::Tree,
    sync::Arc,
    table::Table,
    tx_table::Access,
};

impl<A: Access> Table<A> {
    fn with_auto_increment<T>(&self, run: impl FnOnce(&AutoIncrement, &Arc<Tree>) -> Result<T>) -> Result<T> {
        self.engine.check_open()?;
        let call: Call<'_> = self.enter()?;
        run(self.inner.auto_increment(&call), &call.clustered).map_err(|error| self.with_owner(error))
    }

    /// Returns the next auto-increment value of this table, and reserves it for the caller. It is 1 at first, and after
    /// a truncation.
    ///
    /// After a crash some numbers are skipped: at most as many as were returned before, or 8 if that is more, and never
    /// more than 128. After [`Database::close`](crate::Database::close) none are.
    ///
    /// # Errors
    /// [`UsageError::AutoIncrementExhausted`](crate::error::UsageError::AutoIncrementExhausted): `u64::MAX` is never
    /// returned. The table was dropped; damage, I/O.
    pub fn next_number(&self) -> Result<u64> {
        Ok(self.reserve_numbers(1)?.start)
    }

    /// Reserves the next `count` auto-increment values of this table, without a gap between them.
    ///
    /// # Errors
    /// As [`Table::next_number`]; no number is then lost.
    pub fn reserve_numbers(&self, count: u64) -> Result<Range<u64>> {
        self.with_auto_increment(|auto_increment, tree| auto_increment.allocate(tree, count))
    }

    /// Raises the next auto-increment value above `at_least`, a number that the caller has chosen for a row. Must be
    /// called before that row is written: then the raise survives every crash that the row survives.
    ///
    /// # Errors
    /// The table was dropped; damage, I/O.
    pub fn raise_numbers(&self, at_least: u64) -> Result<()> {
        self.with_auto_increment(|auto_increment, tree| auto_increment.raise(tree, at_least))
    }

    /// Returns the number that [`Table::next_number`] would return now, without reserving it; `u64::MAX` if the numbers
    /// are used up.
    ///
    /// # Errors
    /// The table was dropped; damage, I/O.
    pub fn peek_number(&self) -> Result<u64> {
        self.with_auto_increment(AutoIncrement::peek)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

    use super::*;
    use crate::{
        Database, Options, TableOptions, Transaction, TransactionOptions,
        error::{Error, UsageError},
        sync::atomic::{AtomicBool, Ordering::SeqCst},
    };

    fn open(disk: &SimulatedDisk) -> Database {
        let options = Options::default().page_size(4096).buffer_pool_size(256 * 4096).log_size(4 << 20);
        let (disk, env) = (Arc::new(disk.clone()), Arc::new(SimulatedEnv::new(1)));
        Database::open_on(disk, env, &options, &|_| {}).unwrap()
    }

    fn table(db: &Database, name: &str) -> Table {
        db.table(name).or_else(|_| db.create_table(name, TableOptions::default())).unwrap()
    }

    fn is_used_up<T>(result: Result<T>, asked: u64) -> bool {
        let Err(Error::Usage(UsageError::AutoIncrementExhausted { owner, count, .. })) = result else {
            return false;
        };
        count == asked && owner.to_string() == "table t"
    }

    #[test]
    fn a_close_leaves_no_gap_and_a_crash_a_small_one() {
        let mut disk = SimulatedDisk::new(1);
        let mut next = 1;
        for round in 0..12u64 {
            let db = open(&disk);
            let t = table(&db, "t");
            assert_eq!(t.peek_number().unwrap(), next, "round {round}");
            for n in next..next + [1, 5, 300][round as usize % 3] {
                assert_eq!(t.next_number().unwrap(), n);
                t.insert(&n.to_be_bytes(), b"").unwrap();
            }
            next = t.peek_number().unwrap();
            if round % 2 == 0 {
                if round % 4 == 0 {
                    db.checkpoint().unwrap();
                }
                db.close().unwrap();
                assert!(matches!(t.next_number(), Err(Error::Closed)));
                continue;
            }
            // Dropping the handle closes the database after the crash, without an effect.
            disk.crash_at(disk.operations() + 1);
            drop((db, t));
            disk = disk.restart([Survive::Nothing, Survive::Everything][round as usize / 2 % 2]);
            let now = table(&open(&disk), "t").peek_number().unwrap();
            assert!((next..=2 * next + 8).contains(&now) && now <= next + 128, "{next}, then {now}");
            next = now;
        }
    }

    #[test]
    fn a_transaction_keeps_no_other_from_a_number_and_gives_none_back() {
        let db = open(&SimulatedDisk::new(1));
        let t = table(&db, "t");
        let [first, second] = [(); 2].map(|()| db.begin(TransactionOptions::default()));
        let insert = |trx: &Transaction| {
            let t = trx.table(&t);
            let number = t.next_number().unwrap();
            t.insert(&number.to_be_bytes(), b"").unwrap();
            number
        };
        // In a simulation a wait for the lock of another open transaction would be an error.
        assert_eq!([insert(&first), insert(&second), insert(&first)], [1, 2, 3]);
        first.rollback().unwrap();
        second.commit().unwrap();
        assert_eq!(t.next_number().unwrap(), 4);
        let keys: Vec<_> = t.rows().unwrap().map(|row| row.unwrap().0).collect();
        assert_eq!(keys, [2u64.to_be_bytes()]);
    }

    #[test]
    fn numbers_follow_the_rows() {
        let disk = SimulatedDisk::new(1);
        let db = open(&disk);
        let (a, b) = (table(&db, "a"), table(&db, "b"));
        assert_eq!(a.reserve_numbers(500).unwrap(), 1..501);
        assert_eq!(b.next_number().unwrap(), 1);
        db.rename_table("a", "c").unwrap();
        assert_eq!(a.next_number().unwrap(), 501);
        db.swap_tables("b", "c").unwrap();
        assert_eq!(
            (table(&db, "b").next_number().unwrap(), table(&db, "c").next_number().unwrap()),
            (502, 2)
        );
        db.create_index("b", "i", crate::IndexOptions::on_value(0..4)).unwrap();
        db.drop_index("b", "i").unwrap();
        db.close().unwrap();

        let db = open(&disk);
        let [b, c] = ["b", "c"].map(|name| table(&db, name));
        assert_eq!((b.next_number().unwrap(), c.next_number().unwrap()), (503, 3));
        db.truncate_table("b").unwrap();
        assert_eq!((b.peek_number().unwrap(), b.next_number().unwrap()), (1, 1));
        // No call has requested a number of this table since the database was opened.
        db.truncate_table("c").unwrap();
        db.drop_table("b").unwrap();
        assert!(matches!(b.next_number(), Err(Error::TableDropped(_))));
        assert_eq!(table(&db, "b").next_number().unwrap(), 1);
        db.close().unwrap();
        let db = open(&disk);
        assert_eq!((table(&db, "b").next_number().unwrap(), table(&db, "c").next_number().unwrap()), (2, 1));
        assert_eq!(db.check().unwrap().findings, Vec::<String>::new());
    }

    #[test]
    fn a_row_may_bring_its_number_until_they_are_used_up() {
        let disk = SimulatedDisk::new(1);
        let db = open(&disk);
        let t = table(&db, "t");
        assert_eq!(t.reserve_numbers(0).unwrap(), 1..1);
        t.raise_numbers(0).unwrap();
        assert_eq!(t.next_number().unwrap(), 1);
        for (brought, next) in [(1, 2), (2, 3), (1000, 1001), (5, 1001)] {
            t.raise_numbers(brought).unwrap();
            assert_eq!(t.peek_number().unwrap(), next);
        }
        assert!(is_used_up(t.reserve_numbers(u64::MAX - 1000), u64::MAX - 1000));
        assert_eq!(t.next_number().unwrap(), 1001);
        t.raise_numbers(u64::MAX - 3).unwrap();
        assert!(is_used_up(t.reserve_numbers(3), 3));
        assert_eq!(t.reserve_numbers(2).unwrap(), u64::MAX - 2..u64::MAX);
        assert!(is_used_up(t.next_number(), 1));
        assert_eq!(t.reserve_numbers(0).unwrap(), u64::MAX..u64::MAX);
        t.raise_numbers(u64::MAX).unwrap();
        db.close().unwrap();

        let db = open(&disk);
        let t = table(&db, "t");
        assert_eq!(t.peek_number().unwrap(), u64::MAX);
        assert!(is_used_up(t.next_number(), 1));
        db.truncate_table("t").unwrap();
        assert_eq!(t.next_number().unwrap(), 1);
    }

    #[test]
    fn a_table_without_numbers_writes_no_log_for_them() {
        let db = open(&SimulatedDisk::new(1));
        let (t, session) = (table(&db, "t"), db.session());
        let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
        let end = || db.engine().log.end();
        let before = end();
        assert_eq!(t.peek_number().unwrap(), 1);
        assert_eq!(temporary.reserve_numbers(1_000_000).unwrap(), 1..1_000_001);
        temporary.raise_numbers(u64::MAX - 2).unwrap();
        assert_eq!(temporary.next_number().unwrap(), u64::MAX - 1);
        assert!(is_used_up(temporary.next_number(), 1));
        assert_eq!((before, t.metadata()), (end(), vec![]));
        assert_eq!(t.next_number().unwrap(), 1);
        assert!(end() > before);
        // Most numbers are not logged.
        t.reserve_numbers(1000).unwrap();
        let (before, syncs) = (end(), db.metrics().log_syncs);
        let taken = (0..1000).filter(|_| {
            let before = end();
            t.next_number().unwrap();
            end() > before
        });
        assert!((1..=9).contains(&taken.count()), "{} bytes of log", end().0 - before.0);
        assert_eq!(db.metrics().log_syncs, syncs);
    }

    #[test]
    fn threads_get_numbers_of_their_own_and_a_close_is_an_end() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Database::open(folder.path(), Options::default().buffer_pool_size(4 << 20)).unwrap();
        let mut seen: BTreeSet<u64> = BTreeSet::new();
        for round in 0..4 {
            let db = open();
            let t = table(&db, "t");
            let next = t.peek_number().unwrap();
            assert_eq!(next, seen.last().map_or(1, |last| last + 1), "round {round}");
            let is_closing = AtomicBool::new(false);
            let taken: Vec<Vec<u64>> = thread::scope(|scope| {
                let take = |n: u64| {
                    let mut taken = Vec::new();
                    loop {
                        match t.reserve_numbers(1 + n) {
                            Ok(range) => taken.extend(range),
                            Err(Error::Closed) if is_closing.load(SeqCst) => return taken,
                            Err(error) => panic!("{error}"),
                        }
                    }
                };
                let threads: Vec<_> = (0..4).map(|n| scope.spawn(move || take(n))).collect();
                while t.peek_number().unwrap() < next + 20_000 {
                    thread::yield_now();
                }
                is_closing.store(true, SeqCst);
                db.close().unwrap();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(taken.iter().all(|numbers| numbers.is_sorted()));
            for number in taken.into_iter().flatten() {
                assert!(seen.insert(number), "{number} was returned twice");
            }
            assert_eq!(seen.len() as u64, *seen.last().unwrap(), "some numbers were never returned");
        }
    }
}
