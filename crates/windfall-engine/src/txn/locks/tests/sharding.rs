//! Tests of what the shards of the lock table share, and what not.

use super::*;
use crate::txn::locks::shards::STRIPES;

/// Returns a tablespace whose shards are others than those of [`SPACE`].
fn elsewhere() -> SpaceId {
    let shard = |space| Shards::spot_of_space(space).shard;
    (SPACE.0..SPACE.0 + 1000).map(SpaceId).find(|space| shard(*space) != shard(SPACE)).unwrap()
}

/// Returns the shards in which there were steps since then.
fn changed(locks: &LockManager, before: &[u64]) -> Vec<usize> {
    let after = locks.shards.steps();
    (0..after.len()).filter(|n| after[*n] != before[*n]).collect()
}

/// What transactions do that meet no other one: they lock a table, rows and ranges, write, insert and end.
fn run_alone(locks: &LockManager, space: SpaceId, trx: u64) {
    let me = locks.lock_owner(TrxId(trx));
    let table = LockRequest::Table(space, TableMode::IntentionExclusive);
    locks.acquire(&me, table, LockTimeout::Forever).unwrap();
    for key in 0..200u32 {
        let key = key.to_be_bytes();
        let row = RowName { space, key: key.into() };
        locks.acquire(&me, LockRequest::Row(row.clone(), RowMode::Shared), LockTimeout::Forever).unwrap();
        locks.lock_range(&me, space, Bound::Included(&key), Bound::Included(&key));
        assert!(locks.may_write(Some(me.id()), space, &key) && !locks.may_insert(None, space, &key));
        assert!(locks.make_explicit(&me, row));
    }
    locks.end(&me);
}

#[test]
fn different_tables_and_rows_take_different_mutexes() {
    let locks = real();
    // A transaction that meets no other one does not take the mutex of the waits: this thread has it.
    let waits = locks.waits.lock();
    let before = locks.shards.steps();
    run_alone(&locks, SPACE, 1);
    let here = changed(&locks, &before);
    let before = locks.shards.steps();
    run_alone(&locks, elsewhere(), 2);
    let there = changed(&locks, &before);
    assert!(here.len() == STRIPES as usize && there.len() == STRIPES as usize, "{here:?} and {there:?}");
    assert!(here.iter().all(|shard| !there.contains(shard)), "{here:?} and {there:?} have one in common");
    // Two rows of one table: each takes the mutex of its own shard, once.
    let mut shards = Vec::new();
    for (trx, key) in [(3, b"a"), (4, b"b"), (5, b"c"), (6, b"d")] {
        let before = locks.shards.steps();
        let me = locks.lock_owner(TrxId(trx));
        let row = RowName { space: SPACE, key: key[..].into() };
        locks.acquire(&me, LockRequest::Row(row, RowMode::Exclusive), LockTimeout::Forever).unwrap();
        let mine = changed(&locks, &before);
        assert_eq!((mine.len(), locks.shards.steps()[mine[0]] - before[mine[0]]), (1, 1));
        shards.extend(mine);
        locks.end(&me);
    }
    shards.sort_unstable();
    shards.dedup();
    assert!(shards.len() > 1, "all rows are in shard {shards:?}");
    drop(waits);
    assert!(locks.is_empty());
}

/// The cycle goes through a request that is queued behind an upgrade, after another upgrade for the same mode was
/// visited.
#[test]
fn a_request_behind_an_upgrade_closes_a_cycle() {
    let desk = TestLocks::new();
    let all @ [other, second, last, first, root] = &desk.lock_owners();
    let table = |mode| LockRequest::Table(SPACE, mode);
    assert!(desk.ask(other, table(TableMode::IntentionExclusive)));
    for me in [first, second, root] {
        assert!(desk.ask(me, table(TableMode::IntentionShared)));
    }
    for me in [second, last] {
        assert!(desk.ask(me, shared("k")));
    }
    assert!(!desk.ask(first, table(TableMode::Exclusive)));
    assert!(!desk.ask(second, table(TableMode::Shared)));
    assert!(!desk.ask(last, table(TableMode::Shared)));
    assert_eq!(desk.locks.metrics().deadlocks, 0);
    assert!(!desk.ask(root, exclusive("k")));
    assert_eq!(desk.locks.metrics().deadlocks, 1, "{:?}", desk.locks.waits());
    for me in [other, root, first, second, last] {
        drop(desk.outcome(me));
        if !me.is_resolved() && me.waits() {
            desk.locks.interrupt(me);
            drop(desk.outcome(me));
        }
    }
    desk.close(all);
}
