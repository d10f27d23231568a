//! Calls that meet an obstacle after they have changed something.

use core::ops::Bound::Unbounded;

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{
    Base, Edit, Mode, RowTarget, Setup, Stop, Trx, UNIQUE, Value, keys_of, row, secondary::entry_key,
};
use crate::{
    mtr::Mtr,
    page::EntryHeader,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    tablespace,
    tree::Room,
};

/// Between the plan of a change and its secondary entries, another transaction locks the range of one. The change of
/// the row is rolled back then, and the call waits. If that rollback fails and the rollback of the whole transaction
/// does not, the transaction has ended, and the call must not continue in it.
#[test]
fn a_blocked_call_of_a_transaction_that_has_ended_fails() {
    for fails in [false, true] {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let base = Base::open(Setup { purge: false, ..Setup::simulated(&disk, &env) }).unwrap();
        base.put(b"a", b"11x", Mode::Put).unwrap();
        let mut other = Trx::new(&base.transactions);
        let lock_owner = other.lock_owner().unwrap();
        let is_locked = AtomicBool::new(false);
        let lock = |_: &[u8], _: Option<&[u8]>, _: Option<&[u8]>| {
            base.transactions.lock_manager().lock_range(&lock_owner, UNIQUE, Unbounded, Unbounded);
            is_locked.store(true, Relaxed);
        };
        let secondaries = base.secondaries();
        let target = RowTarget { watch: Some(&lock), ..base.target(&secondaries) };
        let mut trx = Trx::new(&base.transactions);
        let mut edit = Edit::write(Value::Bytes(b"22x"), Mode::Put);
        // Three steps of the change, and then the first of the rollback.
        base.transactions.fail_at(if fails { 4 } else { 0 });
        let done = row::change(&mut trx, &target, b"b", &mut edit, true);
        base.transactions.fail_at(0);
        assert!(is_locked.load(Relaxed));
        match done {
            Err(Stop::Blocked(_)) if !fails => {}
            Err(Stop::Failed(error)) if fails => assert!(error.to_string().contains("failpoint"), "{error}"),
            done => panic!("{done:?}"),
        }
        assert_eq!(base.transactions.active().is_active(trx.id().unwrap()), !fails);
        assert!(!base.transactions.rollbacks().may_have_partial_change(base.clustered.space().id()));
        base.compare(&[(b"a".to_vec(), b"11x".to_vec())].into()).unwrap();
    }
}

/// Another transaction locks the row when its new value is about to be written, and ends.
#[test]
fn a_blocked_call_keeps_the_chain_that_it_has_written() {
    let long = [vec![0, 0, 1], vec![7; 70_000]].concat();
    for is_read_from_a_source in [false, true] {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let base = Base::open(Setup { purge: false, ..Setup::simulated(&disk, &env) }).unwrap();
        let mut other = Trx::new(&base.transactions);
        let lock = base.lock_once(&mut other);
        let secondaries = base.secondaries();
        let target = RowTarget { watch: Some(&*lock), ..base.target(&secondaries) };
        let mut trx = Trx::new(&base.transactions);
        let mut source = &long[..];
        let value = if is_read_from_a_source {
            Value::Source { length: long.len() as u64, source: &mut source }
        } else {
            Value::Bytes(&long)
        };
        let mut edit = Edit::write(value, Mode::Insert);
        let done = row::change(&mut trx, &target, b"row", &mut edit, true);
        assert!(matches!(done, Err(Stop::Blocked(_))), "{done:?}");
        let pages = || tablespace::pages_in_use(&base.pool, base.clustered.space()).unwrap();
        let written = pages();
        assert!(written.len() > 10, "{written:?}");
        other.rollback().unwrap();
        row::change(&mut trx, &target, b"row", &mut edit, true).unwrap();
        assert_eq!(pages(), written);
        base.compare_purged(&[(b"row".to_vec(), long.clone())].into()).unwrap();
    }
}

/// An index whose page is damaged may have an entry with a value. Its header grows all the same. The value stays in a
/// delete-marked entry, and a revived one has its own.
#[test]
fn an_index_entry_with_a_value_is_marked_and_revived() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let base = Base::open(Setup { purge: false, ..Setup::simulated(&disk, &env) }).unwrap();
    base.put(b"a", b"11x", Mode::Insert).unwrap();
    let keys: Vec<_> = keys_of(b"11x").into_iter().map(|key| entry_key(&key.unwrap(), b"a")).collect();
    let trees = [&base.unique, &base.plain];
    for (tree, key) in trees.into_iter().zip(&keys) {
        let mut mtr = Mtr::begin(tree.store()).unwrap();
        let mut entry = tree.seek_for_change(&mut mtr, key, Room::Value(700)).unwrap();
        assert!(entry.header().is_some());
        entry.replace(&mut mtr, EntryHeader::UNVERSIONED, &[7; 700]);
        mtr.commit().unwrap();
    }
    for is_deleted in [true, false] {
        if is_deleted {
            assert!(base.delete(b"a").unwrap().is_some());
        } else {
            base.put(b"a", b"11x", Mode::Insert).unwrap();
        }
        for (tree, key) in trees.into_iter().zip(&keys) {
            let mut value = Vec::new();
            let header = tree.get_into(key, &mut value).unwrap().unwrap();
            let expected = if is_deleted { vec![7; 700] } else { Vec::new() };
            assert_eq!((header.is_deleted(), value), (is_deleted, expected));
        }
    }
}

/// The key latch of a row protects its index entries between the plan of a change and the change. In a damaged tree an
/// entry may be found that was not there, or no longer: the change fails and is rolled back.
#[test]
fn a_change_that_finds_an_index_entry_other_than_planned_fails() {
    let entry = entry_key(&keys_of(b"11x")[0].clone().unwrap(), b"a");
    // The change of the row marks the entry, revives it, or inserts it.
    for (is_there, is_deleted) in [(true, false), (true, true), (false, true)] {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let base = Base::open(Setup { purge: false, ..Setup::simulated(&disk, &env) }).unwrap();
        if is_there {
            base.put(b"a", b"11x", Mode::Insert).unwrap();
        }
        if is_there && is_deleted {
            assert!(base.delete(b"a").unwrap().is_some());
        }
        let meddle = |_: &[u8], _: Option<&[u8]>, _: Option<&[u8]>| {
            let mut mtr = Mtr::begin(base.unique.store()).unwrap();
            let mut place = base.unique.seek_for_change(&mut mtr, &entry, Room::Value(700)).unwrap();
            assert_eq!(place.header().is_some(), is_there);
            if is_there {
                place.remove(&mut mtr);
            } else {
                place.insert(&mut mtr, EntryHeader::UNVERSIONED, &[7; 700]);
            }
            mtr.commit().unwrap();
        };
        let secondaries = base.secondaries();
        let target = RowTarget { watch: Some(&meddle), ..base.target(&secondaries) };
        let mut trx = Trx::new(&base.transactions);
        let mut edit =
            if is_deleted { Edit::write(Value::Bytes(b"11x"), Mode::Insert) } else { Edit::delete() };
        match row::change(&mut trx, &target, b"a", &mut edit, true) {
            Err(Stop::Failed(error)) => {
                assert!(error.to_string().contains("is not as it was when its row was locked"), "{error}");
            }
            done => panic!("{done:?}"),
        }
        assert!(!base.transactions.active().is_active(trx.id().unwrap()), "the change was not rolled back");
        let header = base.clustered.get_into(b"a", &mut Vec::new()).unwrap();
        assert_eq!(header.is_some_and(|header| !header.is_deleted()), !is_deleted);
    }
}
