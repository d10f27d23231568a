//! Interleavings of the lock table with transactions that end, and with inserts and writes under a latch.

use core::time::Duration;

use super::*;
use crate::{
    env::ModelEnv,
    sync::{
        Event, Gate, Interrupt,
        atomic::{AtomicBool, AtomicU32, Ordering::Relaxed},
        latch::Latch,
        model::{explore, spawn},
    },
};

const SPACE: SpaceId = SpaceId(20);

fn locks() -> Arc<LockManager> {
    Arc::new(LockManager::new(Arc::new(ModelEnv::default())))
}

fn row() -> RowName {
    RowName { space: SPACE, key: b"k"[..].into() }
}

/// Returns rows in different shards.
fn rows_apart(locks: &LockManager) -> [RowName; 2] {
    let row = |key: u8| RowName { space: SPACE, key: [key].into() };
    let shard = |row: &RowName| locks.shards.spot(row.space, &row.key).shard;
    let first = row(b'a');
    let other = (b'b'..=b'z').map(row).find(|other| shard(other) != shard(&first)).unwrap();
    [first, other]
}

fn exclusive() -> LockRequest {
    LockRequest::Row(row(), RowMode::Exclusive)
}

/// A leaf: its latch, and its entry under one key, which is the writer's id.
#[derive(Default)]
struct Leaf {
    latch: Latch,
    writer: AtomicU64,
    /// The number of attempts to write it, and an event for each.
    attempts: AtomicU64,
    attempt: Event,
}

impl Leaf {
    /// Reads the writer of the entry, with version validation.
    fn read(&self) -> u64 {
        loop {
            let version = self.latch.version_while(|| true).expect("the frame keeps its page");
            let writer = self.writer.load(Relaxed);
            if self.latch.is(version) {
                return writer;
            }
        }
    }

    /// Writes the entry, if that is allowed.
    fn write(&self, id: TrxId, may: impl FnOnce() -> bool) -> bool {
        self.latch.exclusive();
        let may = may();
        if may {
            self.writer.store(id.0, Relaxed);
            self.latch.release_changed();
        } else {
            self.latch.release_unchanged();
        }
        self.attempts.fetch_add(1, SeqCst);
        self.attempt.notify();
        may
    }

    /// Waits until there was an attempt to write it.
    fn await_attempt(&self) {
        self.attempt.wait(|| self.attempts.load(SeqCst) > 0);
    }
}

/// Three transactions queue for a row, each after a request without a wait, one of them with a timeout; one is
/// interrupted meanwhile.
///
/// Catches: a release that does not wake the next holder; two transactions that hold the row at once; a wait that ends
/// twice.
#[test]
fn the_next_holder_is_woken() {
    explore(4000, &["ServedAndNotWoken"], || {
        let locks = locks();
        let inside = Arc::new(AtomicU64::new(0));
        let lock_owners = [1, 2, 3].map(|id| locks.lock_owner(TrxId(id)));
        let lock_timeout =
            [LockTimeout::Forever, LockTimeout::AtMost(Duration::from_millis(1)), LockTimeout::Forever];
        let threads = [0, 1, 2].map(|n| {
            let (locks, inside, me) = (locks.clone(), inside.clone(), lock_owners[n].clone());
            spawn(move || {
                let outcome = locks.acquire(&me, exclusive(), lock_timeout[n]);
                if outcome.is_ok() {
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two have the row");
                    inside.fetch_sub(1, SeqCst);
                }
                locks.end(&me);
                outcome
            })
        });
        locks.interrupt(&lock_owners[2]);
        let [first, second, third] = threads.map(|thread| thread.join().unwrap());
        assert_eq!(first, Ok(()));
        assert!(matches!(second, Ok(()) | Err(LockError::TimedOut { .. })), "{second:?}");
        assert!(matches!(third, Ok(()) | Err(LockError::Interrupted)), "{third:?}");
        assert_eq!(locks.metrics().held + locks.metrics().waiting, 0);
    });
}

/// Two transactions wait for a row that the third one keeps until their waits have ended; both are interrupted through
/// the interrupt of their threads, at any moment before or during the wait.
///
/// Catches: an interrupt between the check of a wait and the wait; a waiter that is not woken.
#[test]
fn an_interrupted_wait_ends() {
    explore(4000, &["InterruptedAndNotWoken", "InterruptLooksBeforeItIsSet"], || {
        let (locks, interrupt) = (locks(), Arc::new(Interrupt::default()));
        let holder = locks.lock_owner(TrxId(1));
        locks.acquire(&holder, exclusive(), LockTimeout::NoWait).unwrap();
        let threads = [2, 3].map(|id| {
            let (locks, interrupt, me) = (locks.clone(), interrupt.clone(), locks.lock_owner(TrxId(id)));
            spawn(move || {
                let _entered = interrupt.enter();
                let outcome = locks.acquire(&me, exclusive(), LockTimeout::Forever);
                locks.end(&me);
                outcome
            })
        });
        interrupt.interrupt();
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Err(LockError::Interrupted));
        }
        locks.end(&holder);
        assert!(locks.listing().is_empty() && locks.waits().is_empty());
    });
}

/// Notes the ids of the blockers of all waits, and how many waits have begun and ended.
#[derive(Default)]
struct Named {
    ids: AtomicU64,
    begun: AtomicU64,
    ended: AtomicU64,
    event: Event,
}

impl Named {
    fn note(&self, wait: &ObservedWait) {
        let ids = wait.blockers.iter().fold(0, |ids, party| ids | 1 << party.trx.0);
        self.ids.fetch_or(ids, SeqCst);
        self.event.notify();
    }

    fn has(&self, id: TrxId) -> bool {
        self.ids.load(SeqCst) & 1 << id.0 != 0
    }
}

impl LockWaitObserver for Named {
    fn wait_begins(&self, wait: &ObservedWait) {
        self.begun.fetch_add(1, SeqCst);
        self.note(wait);
    }

    fn blockers_changed(&self, wait: &ObservedWait) {
        self.note(wait);
    }

    fn wait_ended(&self, _: &ObservedWait, _: WaitOutcome) {
        self.ended.fetch_add(1, SeqCst);
        self.event.notify();
    }
}

/// A transaction waits for a row that two others hold in the end: one ends at any moment; the other one comes into its
/// way at any moment, and ends when the observer has named it, or when the wait is over.
///
/// Catches: a transaction that comes into the way and is not reported; a wait that is granted while a callback runs,
/// and goes on.
#[test]
fn an_observed_wait_ends() {
    explore(4000, &["ServedAndNotWoken", "OutdatedAndNotWoken"], || {
        let named = Arc::new(Named::default());
        let mut locks = LockManager::new(Arc::new(ModelEnv::default()));
        let observer: Arc<dyn LockWaitObserver> = named.clone();
        locks.set_observer(observer.into());
        let locks = Arc::new(locks);
        let [holder, late, me] = [1, 2, 3].map(|id| locks.lock_owner(TrxId(id)));
        locks.acquire(&holder, LockRequest::Row(row(), RowMode::Shared), LockTimeout::NoWait).unwrap();
        let is_done = Arc::new(AtomicBool::new(false));
        let waiter = {
            let (locks, named, is_done) = (locks.clone(), named.clone(), is_done.clone());
            spawn(move || {
                locks.acquire(&me, exclusive(), LockTimeout::Forever).unwrap();
                is_done.store(true, SeqCst);
                named.event.notify();
                me
            })
        };
        let writer = {
            let (locks, named) = (locks.clone(), named.clone());
            spawn(move || {
                assert!(locks.make_explicit(&late, row()));
                named.event.wait(|| named.has(late.id()) || is_done.load(SeqCst));
                locks.end(&late);
            })
        };
        locks.end(&holder);
        let me = waiter.join().unwrap();
        writer.join().unwrap();
        let (begun, ended) = (named.begun.load(SeqCst), named.ended.load(SeqCst));
        assert!(begun == ended && begun <= 1, "{begun} waits were announced, and {ended} ended");
        locks.end(&me);
        assert!(locks.listing().is_empty() && locks.waits().is_empty());
    });
}

/// A writer ends while another transaction makes its lock explicit and queues for it.
///
/// Catches: a lock that is entered for a transaction that has released all its locks, and is therefore never released.
#[test]
fn no_request_waits_for_a_transaction_that_has_ended() {
    explore(4000, &["EndedWriterLocks", "ServedAndNotWoken"], || {
        let locks = locks();
        let writer = locks.lock_owner(TrxId(1));
        let others = [2, 3].map(|id| {
            let (locks, writer, me) = (locks.clone(), writer.clone(), locks.lock_owner(TrxId(id)));
            spawn(move || {
                locks.make_explicit(&writer, row());
                locks.acquire(&me, exclusive(), LockTimeout::Forever).unwrap();
                locks.end(&me);
            })
        });
        locks.end(&writer);
        for thread in others {
            thread.join().unwrap();
        }
        assert!(locks.listing().is_empty() && locks.waits().is_empty());
        assert!(locks.may_write(None, SPACE, b"k"));
    });
}

/// Two transactions wait for each other, and a third one for both.
///
/// Catches: a cycle that is not found; a victim that is not woken.
#[test]
fn a_deadlock_is_broken_whichever_request_closes_it() {
    explore(2000, &["ServedAndNotWoken"], || {
        let locks = locks();
        let threads = [(1, [b'a', b'b']), (2, [b'b', b'a']), (3, [b'a', b'a'])].map(|(id, keys)| {
            let (locks, me) = (locks.clone(), locks.lock_owner(TrxId(id)));
            spawn(move || {
                let take = |key: u8| {
                    let row = RowName { space: SPACE, key: [key].into() };
                    locks.acquire(&me, LockRequest::Row(row, RowMode::Exclusive), LockTimeout::Forever)
                };
                let outcome = keys.into_iter().try_for_each(take);
                locks.end(&me);
                u64::from(matches!(outcome, Err(LockError::Deadlock(_))))
            })
        });
        let refused: u64 = threads.map(|thread| thread.join().unwrap()).iter().sum();
        assert!(
            refused <= 1 && refused == locks.metrics().deadlocks,
            "{refused} transactions got a deadlock error"
        );
    });
}

/// Two transactions lock two rows of different shards in opposite orders, while a third one locks each of them for a
/// moment: the ends of these locks grant requests in one shard while a search is in the other.
///
/// Catches: a search that does not leave a shard; a cycle that is reported although one of its members was granted its
/// request; a waiter that is granted its lock between its enqueueing and its wait, and not woken.
#[test]
fn a_search_crosses_shards_while_locks_are_granted() {
    explore(4000, &["ServedAndNotWoken", "SearchInOneShard", "WaitNotedLate"], || {
        let locks = locks();
        let [a, b] = rows_apart(&locks);
        let orders = [(1, [a.clone(), b.clone()]), (2, [b.clone(), a.clone()])];
        let threads = orders.map(|(id, rows)| {
            let (locks, me) = (locks.clone(), locks.lock_owner(TrxId(id)));
            spawn(move || {
                let take =
                    |row| locks.acquire(&me, LockRequest::Row(row, RowMode::Exclusive), LockTimeout::Forever);
                let outcome = rows.into_iter().try_for_each(take);
                locks.end(&me);
                match outcome {
                    Ok(()) => 0,
                    Err(LockError::Deadlock(_)) => 1,
                    Err(other) => panic!("{other}"),
                }
            })
        });
        for (id, row) in [(3, a), (4, b)] {
            let me = locks.lock_owner(TrxId(id));
            let taken = locks.acquire(&me, LockRequest::Row(row, RowMode::Exclusive), LockTimeout::Forever);
            assert_eq!(taken, Ok(()), "it holds nothing else");
            locks.end(&me);
        }
        let refused: u64 = threads.map(|thread| thread.join().unwrap()).iter().sum();
        assert!(
            refused <= 1 && refused == locks.metrics().deadlocks,
            "{refused} transactions got a deadlock error"
        );
        assert!(locks.listing().is_empty() && locks.waits().is_empty());
    });
}

/// A transaction with two rows in different shards ends while two others queue for one of them each.
///
/// Catches: a release in one shard that misses a request in another; a lock that was granted by a release, and is not
/// in the list of its new holder, which never releases it.
#[test]
fn a_release_reaches_waiters_of_each_shard() {
    explore(4000, &["ServedAndNotWoken", "WaitNotedLate", "GrantNotListed"], || {
        let locks = locks();
        let rows = rows_apart(&locks);
        let holder = locks.lock_owner(TrxId(1));
        for row in rows.clone() {
            locks.acquire(&holder, LockRequest::Row(row, RowMode::Exclusive), LockTimeout::NoWait).unwrap();
        }
        let mut id = 1;
        let threads = rows.map(|row| {
            id += 1;
            let (locks, me) = (locks.clone(), locks.lock_owner(TrxId(id)));
            spawn(move || {
                locks.acquire(&me, LockRequest::Row(row, RowMode::Exclusive), LockTimeout::Forever).unwrap();
                locks.end(&me);
            })
        });
        locks.end(&holder);
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(locks.listing().is_empty() && locks.waits().is_empty());
    });
}

/// One thread locks a range and then reads the leaf, one inserts into it, and one with a range elsewhere ends. An
/// insert that the range lock has not prevented is seen by the reader.
///
/// Catches: a count of ranges that is published late, over a later one, so that the writer assumes there are none.
#[test]
fn an_insert_sees_the_range_or_is_seen() {
    explore(6000, &["LocksPublishedLate"], || {
        let locks = locks();
        let leaf = Arc::new(Leaf::default());
        let before = locks.lock_owner(TrxId(1));
        locks.lock_range(&before, SPACE, Bound::Included(b"a"), Bound::Included(b"b"));
        let lock_owner = {
            let (locks, leaf, me) = (locks.clone(), leaf.clone(), locks.lock_owner(TrxId(2)));
            spawn(move || {
                locks.lock_range(&me, SPACE, Bound::Included(b"j"), Bound::Included(b"l"));
                let seen = leaf.read();
                // It has locked the range: what it has read must not change.
                assert_eq!(leaf.read(), seen, "a phantom");
                (me, seen)
            })
        };
        let inserter = {
            let (locks, leaf) = (locks.clone(), leaf.clone());
            let id = TrxId(3);
            spawn(move || leaf.write(id, || locks.may_insert(Some(id), SPACE, b"k")))
        };
        locks.end(&before);
        let (me, seen) = lock_owner.join().unwrap();
        let inserted = inserter.join().unwrap();
        assert_eq!(inserted, seen == 3, "an insert that was not kept out is not seen");
        assert!(!locks.may_insert(None, SPACE, b"k") && locks.may_insert(None, SPACE, b"a"));
        locks.end(&me);
        assert!(locks.may_insert(None, SPACE, b"k"));
    });
}

/// One thread locks a row to read it, by the usual protocol; one writes it, and ends; one has another row, and ends.
/// The thread that has locked the row sees no change in it until it ends, which is after the first attempt to write it.
///
/// Catches: a count of rows that is published late, over a later one; a writer that misses a lock; a locking reader
/// that misses a writer.
#[test]
fn a_row_that_is_locked_is_not_written() {
    explore(6000, &["LocksPublishedLate", "ServedAndNotWoken"], || {
        let locks = locks();
        let leaf = Arc::new(Leaf::default());
        let before = locks.lock_owner(TrxId(1));
        // In the same shard, whose other locks come and go.
        let shard = |key: u8| locks.shards.spot(SPACE, &[key]).shard;
        let other =
            (b'a'..=b'j').find(|key| shard(*key) == shard(b'k')).expect("one of ten is in this shard");
        let elsewhere = RowName { space: SPACE, key: [other].into() };
        locks.acquire(&before, LockRequest::Row(elsewhere, RowMode::Shared), LockTimeout::NoWait).unwrap();
        let writer = locks.lock_owner(TrxId(3));
        let lock_owner = {
            let (locks, leaf, writer, me) =
                (locks.clone(), leaf.clone(), writer.clone(), locks.lock_owner(TrxId(2)));
            spawn(move || {
                loop {
                    locks.acquire(&me, exclusive(), LockTimeout::Forever).unwrap();
                    let seen = leaf.read();
                    if seen != writer.id().0 || !locks.make_explicit(&writer, row()) {
                        // A late publication of none is noticed by a writer that comes while the row is locked.
                        leaf.await_attempt();
                        assert_eq!(leaf.read(), seen, "another transaction has written the row");
                        break;
                    }
                    locks.release_row(&me, &row());
                }
                locks.end(&me);
            })
        };
        let writes = {
            let (locks, leaf) = (locks.clone(), leaf.clone());
            spawn(move || {
                while !leaf.write(writer.id(), || locks.may_write(Some(writer.id()), SPACE, b"k")) {
                    locks.acquire(&writer, exclusive(), LockTimeout::Forever).unwrap();
                }
                locks.end(&writer);
            })
        };
        locks.end(&before);
        lock_owner.join().unwrap();
        writes.join().unwrap();
        assert!(locks.listing().is_empty() && locks.may_write(None, SPACE, b"k"));
    });
}

/// A table with one row.
#[derive(Debug, Default)]
struct TableOfOne {
    gate: Gate,
    announced: AtomicU32,
    /// Odd during a change.
    row: AtomicU64,
}

impl WholeTable for TableOfOne {
    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn announced_locks(&self) -> &AtomicU32 {
        &self.announced
    }
}

impl TableOfOne {
    /// Changes the row outside of transactions.
    fn change(&self, locks: &LockManager, me: &Arc<LockOwner>) {
        let wanted = || LockRequest::Table(SPACE, TableMode::IntentionExclusive);
        loop {
            let inside = self.gate.enter(me.id().0 as usize).expect("it is open");
            if !self.is_lock_announced() || locks.acquire(me, wanted(), LockTimeout::NoWait).is_ok() {
                self.row.fetch_add(1, SeqCst);
                self.row.fetch_add(1, SeqCst);
                return locks.end(me);
            }
            drop(inside);
            locks.acquire(me, wanted(), LockTimeout::Forever).expect("it waits for nothing else");
        }
    }
}

/// Two threads change a row outside of transactions, several times, while two transactions lock the whole table.
///
/// Catches: a call that has passed the gate before the lock was announced, and is not waited for; a lock that is
/// announced too late.
#[test]
fn no_call_changes_a_table_that_is_locked() {
    explore(8000, &["LockAnnouncedLate", "PassersNotAwaited"], || {
        let (locks, table) = (locks(), Arc::new(TableOfOne::default()));
        let changes = [1, 2].map(|id| {
            let (locks, table) = (locks.clone(), table.clone());
            spawn(move || {
                for n in 0..2 {
                    table.change(&locks, &locks.lock_owner(TrxId(id + 10 * n)));
                }
            })
        });
        let lock = |locks: &LockManager, table: &Arc<TableOfOne>, id, mode| {
            let me = locks.lock_owner(TrxId(id));
            locks.lock_whole(&me, table, (SPACE, mode), LockTimeout::Forever).unwrap();
            let seen = table.row.load(SeqCst);
            assert_eq!(
                (seen % 2, table.row.load(SeqCst)),
                (0, seen),
                "a row of a table that is locked has changed"
            );
            locks.end(&me);
        };
        let other = {
            let (locks, table) = (locks.clone(), table.clone());
            spawn(move || lock(&locks, &table, 3, TableMode::Exclusive))
        };
        lock(&locks, &table, 4, TableMode::Shared);
        lock(&locks, &table, 5, TableMode::Shared);
        for thread in changes.into_iter().chain([other]) {
            thread.join().unwrap();
        }
        assert_eq!((table.row.load(SeqCst), table.announced.load(SeqCst)), (8, 0));
        assert!(locks.listing().is_empty() && locks.waits().is_empty());
    });
}
