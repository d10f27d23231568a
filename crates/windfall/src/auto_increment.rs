//! The counters of a table, as its handle returns their numbers: auto-increment values, and row ids.
//!
//! **Purpose.** What `AUTO_INCREMENT` needs: rising numbers, each returned once. And a second counter with the same
//! functions, for the ids of rows to which the application gives no key.
//!
//! **Invariants.** The counters do not depend on each other (test: `row_ids_are_numbers_of_their_own`). A number that
//! was returned before a row was written is not returned again once that row is durable, wherever a crash occurs,
//! unless the counter is set to a lower one (tests: `first_runs_crash_at_every_operation`,
//! `a_close_leaves_no_gap_and_a_crash_a_small_one`). No lock is held to the end of a transaction, so the numbers of
//! rows that are rolled back are skipped, as with `innodb_autoinc_lock_mode=2` (test:
//! `a_transaction_keeps_no_other_from_a_number_and_gives_none_back`).

use core::ops::Range;

use crate::{
    catalog::{Call, Counter},
    error::Result,
    store::Tree,
    sync::Arc,
    table::Table,
    tablespace::CounterKind,
    tx_table::Access,
};

impl<A: Access> Table<A> {
    fn with_counter<T>(
        &self,
        kind: CounterKind,
        run: impl FnOnce(&Counter, &Arc<Tree>) -> Result<T>,
    ) -> Result<T> {
        self.engine.check_open()?;
        let call: Call<'_> = self.enter()?;
        run(self.inner.counter(&call, kind), &call.clustered).map_err(|error| self.with_owner(error))
    }

    fn set_counter(&self, kind: CounterKind, next: u64) -> Result<()> {
        let end = self.with_counter(kind, |counter, tree| counter.set(tree, next))?;
        self.engine.await_log(end, self.engine.flush_mode())
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
        self.with_counter(CounterKind::AutoIncrement, |counter, tree| counter.allocate(tree, count))
    }

    /// Returns the unused end of a range that [`Table::reserve_numbers`] has reserved, as a server does at the end of
    /// an insert of many rows: if nothing was reserved after it, the next number is then the first of `unused`. Returns
    /// whether it is. If another call has reserved numbers since, or [`Table::raise_numbers`] was called with one in
    /// `unused`, the numbers of `unused` are skipped.
    ///
    /// ```
    /// # fn main() -> windfall::Result<()> {
    /// # let folder = std::env::temp_dir().join(format!("windfall-return-numbers-{}", std::process::id()));
    /// # let db = windfall::Database::open(&folder, windfall::Options::default().buffer_pool_size(16 << 20))?;
    /// let orders = db.create_table("orders", windfall::TableOptions::default())?;
    /// let mut numbers = orders.reserve_numbers(10)?;
    /// for order in ["apples", "pears"] {
    ///     let number = numbers.next().expect("ten are reserved");
    ///     orders.insert(&number.to_be_bytes(), order.as_bytes())?;
    /// }
    /// assert!(orders.return_numbers(numbers)?);
    /// assert_eq!(orders.next_number()?, 3);
    /// # db.close()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Only the call that has reserved the range may return a part of it, and not after [`Table::set_numbers`].
    ///
    /// # Errors
    /// The table was dropped.
    pub fn return_numbers(&self, unused: Range<u64>) -> Result<bool> {
        self.with_counter(CounterKind::AutoIncrement, |counter, _| Ok(counter.take_back(&unused)))
    }

    /// Raises the next auto-increment value above `at_least`, a number that the caller has chosen for a row. Must be
    /// called before that row is written: then the raise survives every crash that the row survives.
    ///
    /// # Errors
    /// The table was dropped; damage, I/O.
    pub fn raise_numbers(&self, at_least: u64) -> Result<()> {
        self.with_counter(CounterKind::AutoIncrement, |counter, tree| counter.raise(tree, at_least))
    }

    /// Sets the next auto-increment value, also to a lower one: `ALTER TABLE .. AUTO_INCREMENT = next` of SQL, without
    /// the comparison with the rows. Zero counts as 1. When the call returns, this is as durable as a commit. It is no
    /// part of a transaction.
    ///
    /// Numbers from `next` on that were returned before are returned again: the caller makes sure that no row has them,
    /// and that no other call uses numbers of this table meanwhile. The number after a crash is at least `next`, and
    /// above every number of a durable row that was requested after this call.
    ///
    /// # Errors
    /// The table was dropped; damage, I/O. The next number has not changed then, unless the log could not be synced: in
    /// that case the database has stopped.
    pub fn set_numbers(&self, next: u64) -> Result<()> {
        self.set_counter(CounterKind::AutoIncrement, next)
    }

    /// Returns the number that [`Table::next_number`] would return now, without reserving it; `u64::MAX` if the numbers
    /// are used up.
    ///
    /// # Errors
    /// The table was dropped; damage, I/O.
    pub fn peek_number(&self) -> Result<u64> {
        self.with_counter(CounterKind::AutoIncrement, Counter::peek)
    }

    /// Returns the next row id of this table, and reserves it for the caller: a number of a second counter, for rows
    /// that have no other key. As [`Table::next_number`], which does not depend on it.
    ///
    /// # Errors
    /// As [`Table::next_number`].
    pub fn next_row_id(&self) -> Result<u64> {
        Ok(self.reserve_row_ids(1)?.start)
    }

    /// Reserves the next `count` row ids of this table, as [`Table::reserve_numbers`].
    ///
    /// # Errors
    /// As [`Table::reserve_numbers`].
    pub fn reserve_row_ids(&self, count: u64) -> Result<Range<u64>> {
        self.with_counter(CounterKind::RowId, |counter, tree| counter.allocate(tree, count))
    }

    /// Returns the unused end of a range that [`Table::reserve_row_ids`] has reserved, as [`Table::return_numbers`].
    ///
    /// # Errors
    /// The table was dropped.
    pub fn return_row_ids(&self, unused: Range<u64>) -> Result<bool> {
        self.with_counter(CounterKind::RowId, |counter, _| Ok(counter.take_back(&unused)))
    }

    /// Raises the next row id above `at_least`, as [`Table::raise_numbers`].
    ///
    /// # Errors
    /// As [`Table::raise_numbers`].
    pub fn raise_row_ids(&self, at_least: u64) -> Result<()> {
        self.with_counter(CounterKind::RowId, |counter, tree| counter.raise(tree, at_least))
    }

    /// Sets the next row id, also to a lower one, as [`Table::set_numbers`].
    ///
    /// # Errors
    /// As [`Table::set_numbers`].
    pub fn set_row_ids(&self, next: u64) -> Result<()> {
        self.set_counter(CounterKind::RowId, next)
    }

    /// Returns the number that [`Table::next_row_id`] would return now, as [`Table::peek_number`].
    ///
    /// # Errors
    /// As [`Table::peek_number`].
    pub fn peek_row_id(&self) -> Result<u64> {
        self.with_counter(CounterKind::RowId, Counter::peek)
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
        assert_eq!((before, t.metadata().unwrap()), (end(), vec![]));
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
    fn row_ids_are_numbers_of_their_own() {
        let disk = SimulatedDisk::new(1);
        let db = open(&disk);
        let t = table(&db, "t");
        assert_eq!((t.next_number().unwrap(), t.next_row_id().unwrap()), (1, 1));
        assert_eq!((t.reserve_row_ids(9).unwrap(), t.peek_number().unwrap()), (2..11, 2));
        t.raise_row_ids(99).unwrap();
        t.raise_numbers(49).unwrap();
        assert!(t.return_row_ids(100..100).unwrap() && !t.return_row_ids(2..11).unwrap());
        let session = db.session();
        let temporary = session.create_temporary_table("t", TableOptions::default()).unwrap();
        assert_eq!((temporary.next_row_id().unwrap(), temporary.next_number().unwrap()), (1, 1));
        temporary.set_row_ids(7).unwrap();
        assert_eq!((temporary.next_row_id().unwrap(), temporary.next_number().unwrap()), (7, 2));
        drop((temporary, session));
        db.close().unwrap();

        let db = open(&disk);
        let t = table(&db, "t");
        assert_eq!((t.next_number().unwrap(), t.next_row_id().unwrap()), (50, 100));
        t.set_row_ids(3).unwrap();
        assert_eq!((t.peek_number().unwrap(), t.peek_row_id().unwrap()), (51, 3));
        db.rename_table("t", "u").unwrap();
        assert_eq!((t.next_number().unwrap(), t.next_row_id().unwrap()), (51, 3));
        db.truncate_table("u").unwrap();
        assert_eq!((t.next_number().unwrap(), t.next_row_id().unwrap()), (1, 1));
        db.drop_table("u").unwrap();
        let gone = [t.next_row_id().err(), t.set_row_ids(1).err(), t.return_row_ids(1..2).err()];
        assert!(gone.iter().all(|error| matches!(error, Some(Error::TableDropped(_)))), "{gone:?}");
    }

    #[test]
    fn a_number_that_was_set_survives_a_crash() {
        let mut disk = SimulatedDisk::new(1);
        let mut rows = 0u64;
        // Lower ones, higher ones, zero, which counts as one, and the end.
        for (round, set) in [5, 1000, 7, 1, 0, u64::MAX, 50, 50].into_iter().enumerate() {
            let db = open(&disk);
            let t = table(&db, "t");
            let other = t.peek_number().unwrap();
            if round % 2 == 1 {
                t.reserve_row_ids(300).unwrap();
            }
            t.set_row_ids(set).unwrap();
            let next = set.max(1);
            assert_eq!((t.peek_row_id().unwrap(), t.peek_number().unwrap()), (next, other));
            // The call has waited for the log.
            let left = open(&disk.survivor(Survive::Nothing));
            assert_eq!(table(&left, "t").peek_row_id().unwrap(), next, "round {round}");
            let mut used = next - 1;
            for _ in 0..if next == u64::MAX { 0 } else { round * 20 } {
                used = t.next_row_id().unwrap();
                rows += 1;
                t.insert(&rows.to_be_bytes(), &used.to_be_bytes()).unwrap();
            }
            if round % 3 == 0 {
                db.close().unwrap();
                drop(t);
            } else {
                disk.crash_at(disk.operations() + 1);
                drop((db, t));
            }
            disk = disk.restart(Survive::Nothing);
            let now = table(&open(&disk), "t").peek_row_id().unwrap();
            assert!(now > used && now <= used.saturating_add(129), "round {round}: {used}, then {now}");
        }
    }

    #[test]
    fn a_number_that_cannot_be_set_stays() {
        let disk = SimulatedDisk::new(1);
        let db = open(&disk);
        let t = table(&db, "t");
        assert_eq!(t.reserve_numbers(20).unwrap(), 1..21);
        let closed = db.clone();
        closed.close().unwrap();
        assert!(matches!(t.set_numbers(5), Err(Error::Closed)));
        assert!(matches!(t.return_numbers(5..21), Err(Error::Closed)));
        assert_eq!(table(&open(&disk), "t").peek_number().unwrap(), 21);
    }

    #[test]
    fn the_unused_end_of_a_range_is_returned_if_it_is_the_last() {
        let disk = SimulatedDisk::new(1);
        let db = open(&disk);
        let t = table(&db, "t");
        let back = |unused: Range<u64>| t.return_numbers(unused).unwrap();
        assert!(!back(1..2), "no number was requested yet");
        assert_eq!(t.reserve_numbers(10).unwrap(), 1..11);
        assert!(back(4..11) && !back(4..11) && back(4..4));
        assert_eq!(t.reserve_numbers(10).unwrap(), 4..14);
        assert_eq!(t.next_number().unwrap(), 14);
        assert!(!back(6..14), "another number came after them");
        assert!(back(14..15) && back(6..14), "the later number is back as well");
        assert!(!back(0..6), "zero is no number");
        // A number that a row brings is not returned, wherever it is in the range.
        assert_eq!(t.reserve_numbers(10).unwrap(), 6..16);
        t.raise_numbers(9).unwrap();
        assert!(!back(9..16) && back(10..16));
        assert_eq!(t.peek_number().unwrap(), 10);
        // No number below one that was set is returned.
        assert_eq!(t.reserve_numbers(10).unwrap(), 10..20);
        t.set_numbers(20).unwrap();
        assert!(!back(15..20));
        assert_eq!(t.next_number().unwrap(), 20);
        assert!(back(20..21));
        db.close().unwrap();
        assert_eq!(table(&open(&disk), "t").next_number().unwrap(), 20);
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
