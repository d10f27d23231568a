//! Reads by a transaction of rows that it has changed itself.

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{Base, Edit, FieldSet, Mode, Setup, Trx, Value, row};
use crate::{
    ids::TrxId,
    txn::mvcc::{CurrentVersion, Visibility},
};

fn base() -> Base {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    Base::open(Setup { purge: false, ..Setup::simulated(&disk, &env) }).unwrap()
}

fn put(base: &Base, trx: &mut Trx<'_>, key: &[u8], value: &[u8]) {
    let secondaries = base.secondaries();
    let mut edit = Edit::write(Value::Bytes(value), Mode::Put);
    row::change(trx, &base.target(&secondaries), key, &mut edit, false).unwrap();
}

/// Returns what a transaction reads: the committed value, or the one that it has written. A new view shows the same.
fn seen(base: &Base, key: &[u8], own: TrxId) -> Option<Vec<u8>> {
    let versions = base.transactions.versions();
    let (mut value, mut in_view) = (Vec::new(), Vec::new());
    let found =
        versions.get_committed(&base.clustered, key, Some(own), Some(FieldSet::ALL), &mut value).unwrap();
    let view = versions.view();
    let visibility = Visibility::View(&view, Some(own));
    let is_there =
        versions.get_in(&base.clustered, key, visibility, Some(FieldSet::ALL), &mut in_view).unwrap();
    assert_eq!((is_there, is_there.then_some(&in_view)), (found, found.then_some(&value)));
    found.then_some(value)
}

/// Returns the writer of the newest version, or the transaction that has not ended and has written it.
fn writer(base: &Base, key: &[u8], me: TrxId) -> Result<Option<TrxId>, TrxId> {
    let read = || base.clustered.get_into(key, &mut Vec::new());
    match base.transactions.active().read_final(Some(me), read).unwrap() {
        CurrentVersion::Final(header) => Ok(header.map(|header| header.trx)),
        CurrentVersion::Unfinished(writer) => Err(writer),
    }
}

#[test]
fn a_change_is_seen_by_its_own_transaction_alone() {
    let base = base();
    base.put(b"a", b"11x", Mode::Put).unwrap();
    let (mut trx, mut other) = (Trx::new(&base.transactions), Trx::new(&base.transactions));
    let theirs = other.ensure_id().unwrap();
    // The second value is in overflow pages.
    for value in [b"22x".to_vec(), [&b"22x"[..], &vec![7; 20_000]].concat()] {
        put(&base, &mut trx, b"a", &value);
        let own = trx.writer_id();
        assert_eq!(seen(&base, b"a", own), Some(value));
        assert_eq!(seen(&base, b"a", theirs), Some(b"11x".to_vec()));
        assert_eq!(writer(&base, b"a", own), Ok(Some(own)));
        assert_eq!(writer(&base, b"a", theirs), Err(own));
    }
}

#[test]
fn a_transaction_does_not_see_its_rolled_back_changes() {
    let base = base();
    base.put(b"a", b"11x", Mode::Put).unwrap();
    let mut trx = Trx::new(&base.transactions);
    let start = trx.savepoint();
    put(&base, &mut trx, b"a", b"22x");
    let (own, savepoint) = (trx.writer_id(), trx.savepoint());
    put(&base, &mut trx, b"a", b"33x");
    put(&base, &mut trx, b"b", b"44x");
    trx.rollback_to(&savepoint).unwrap();
    assert_eq!((seen(&base, b"a", own), seen(&base, b"b", own)), (Some(b"22x".to_vec()), None));
    assert_eq!((writer(&base, b"a", own), writer(&base, b"b", own)), (Ok(Some(own)), Ok(None)));
    trx.rollback_to(&start).unwrap();
    assert_eq!(seen(&base, b"a", own), Some(b"11x".to_vec()));
    let before = writer(&base, b"a", own).unwrap();
    assert!(before.is_some_and(|before| before < own), "{before:?}");
}

#[test]
fn a_reused_slot_is_not_taken_for_an_own_entry() {
    let base = base();
    let mut trx = Trx::new(&base.transactions);
    let start = trx.savepoint();
    put(&base, &mut trx, b"b", b"22x");
    let own = trx.writer_id();
    trx.rollback_to(&start).unwrap();
    trx.release_unchanged();
    // Another row in the slot of the leaf, and then the same key.
    for (key, value) in [(b"c", b"33x"), (b"b", b"44x")] {
        base.put(key, value, Mode::Insert).unwrap();
        assert_eq!(seen(&base, key, own), Some(value.to_vec()));
        let now = writer(&base, key, own).unwrap();
        assert!(now.is_some_and(|now| now > own), "{now:?}");
    }
    let mut other = Trx::new(&base.transactions);
    put(&base, &mut other, b"b", b"55x");
    assert_eq!(seen(&base, b"b", own), Some(b"44x".to_vec()));
    assert_eq!(writer(&base, b"b", own), Err(other.writer_id()));
}
