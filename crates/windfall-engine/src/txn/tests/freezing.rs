//! Headers that are removed while transactions and views are open.

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{Base, Edit, FieldSet, Mode, Rows, Setup, Trx, Value, change, row, secondary::entry_key};
use crate::{
    buffer::BufferPool,
    error::Error,
    failpoint::Eager,
    ids::TrxId,
    mtr::Mtr,
    page::EntryHeader,
    store::Tree,
    sync::Arc,
    tree::{
        Horizon, Room,
        hash::{HashBudget, TreeHash},
    },
    txn::mvcc::{ReadView, Visibility},
};

fn open(disk: &SimulatedDisk) -> Base {
    Eager::set(true);
    let env = SimulatedEnv::new(1);
    Base::open(Setup { purge: false, ..Setup::simulated(disk, &env) }).unwrap()
}

fn header(tree: &Tree, key: &[u8]) -> EntryHeader {
    tree.get_into(key, &mut Vec::new()).unwrap().unwrap()
}

/// Returns whether all entries of a row with this value are frozen; they must all be, or none.
fn is_frozen(base: &Base, key: &[u8], value: &[u8]) -> bool {
    let entries = [
        header(&base.clustered, key),
        header(&base.unique, &entry_key(&value[..2], key)),
        header(&base.plain, &entry_key(&value[2..], key)),
    ];
    let frozen = entries.map(|header| header.trx == TrxId(0));
    assert!(frozen.iter().all(|is| *is == frozen[0]), "{entries:?}");
    assert!(!frozen[0] || entries == [EntryHeader::UNVERSIONED; 3], "{entries:?}");
    frozen[0]
}

/// Changes another row in the leaves of all rows, which freezes them.
fn touch(base: &Base, n: u8) {
    base.put(b"other", &[b'9', n, n], Mode::Put).unwrap();
}

fn seen(base: &Base, key: &[u8], view: &ReadView) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let visibility = Visibility::View(view, None);
    let found = base.transactions.versions().get_in(
        &base.clustered,
        key,
        visibility,
        Some(FieldSet::ALL),
        &mut value,
    );
    found.unwrap().then_some(value)
}

#[test]
fn a_view_keeps_the_headers_that_it_needs() {
    let base = open(&SimulatedDisk::new(1));
    base.put(b"a", b"11x", Mode::Put).unwrap();
    assert!(!is_frozen(&base, b"a", b"11x"), "the last change has nothing old in its leaf");
    touch(&base, 1);
    assert!(is_frozen(&base, b"a", b"11x"));
    let view = base.transactions.versions().view();
    base.put(b"a", b"22y", Mode::Put).unwrap();
    base.put(b"b", b"33y", Mode::Put).unwrap();
    let later = base.transactions.versions().view();
    touch(&base, 2);
    for (key, value) in [(b"a", b"22y"), (b"b", b"33y")] {
        assert!(!is_frozen(&base, key, value), "the view does not see this version");
        assert_eq!(seen(&base, key, &later), Some(value.to_vec()));
    }
    assert_eq!((seen(&base, b"a", &view), seen(&base, b"b", &view)), (Some(b"11x".to_vec()), None));
    drop(view);
    touch(&base, 3);
    for (key, value) in [(b"a", b"22y"), (b"b", b"33y")] {
        assert!(is_frozen(&base, key, value), "every view sees this version");
        assert_eq!(seen(&base, key, &later), Some(value.to_vec()));
    }
    // The old entries of the row are delete-marked, and purge must find their versions.
    let old = header(&base.unique, &entry_key(b"11", b"a"));
    assert!(old.is_deleted() && old.has_undo() && old.trx != TrxId(0));
    drop(later);
    let rows = [(&b"a"[..], b"22y"), (b"b", b"33y"), (b"other", b"9\x03\x03")];
    let rows: Rows = rows.map(|(key, value)| (key.to_vec(), value.to_vec())).into();
    base.compare_purged(&rows).unwrap();
}

/// The version of a transaction that is active keeps its header, and the frozen version before it comes back by its
/// rollback, at once or after a crash.
#[test]
fn an_active_transaction_keeps_the_headers_of_its_versions() {
    let rows = |other: u8| -> Rows {
        let rows = [(&b"a"[..], [b'1', b'1', b'x']), (b"b", *b"22x"), (b"other", [b'9', other, other])];
        rows.map(|(key, value)| (key.to_vec(), value.to_vec())).into()
    };
    let disk = SimulatedDisk::new(1);
    let base = open(&disk);
    base.put(b"a", b"11x", Mode::Put).unwrap();
    base.put(b"b", b"22x", Mode::Put).unwrap();
    touch(&base, 1);
    assert!(is_frozen(&base, b"a", b"11x") && is_frozen(&base, b"b", b"22x"));
    for crashes in [false, true] {
        let secondaries = base.secondaries();
        let target = base.target(&secondaries);
        let mut trx = Trx::new(&base.transactions);
        change(&mut trx, &target, b"a", Some(b"33y")).unwrap();
        change(&mut trx, &target, b"b", None).unwrap();
        change(&mut trx, &target, b"c", Some(b"44y")).unwrap();
        // A later transaction has ended, and may be older than all views; but it is not older than this one.
        touch(&base, 2);
        touch(&base, 3);
        let own = trx.writer_id();
        for key in [b"a", b"b", b"c"] {
            assert_eq!(header(&base.clustered, key).trx, own);
        }
        assert!(!is_frozen(&base, b"a", b"33y") && !is_frozen(&base, b"other", b"9\x03\x03"));
        if crashes {
            base.sync().unwrap();
            let survivor = disk.restart(Survive::Everything);
            core::mem::forget(trx);
            base.stop();
            let base = open(&survivor);
            base.compare_purged(&rows(3)).unwrap();
            return;
        }
        trx.rollback().unwrap();
        base.compare(&rows(3)).unwrap();
    }
}

/// A writer that plans its change by a version that is frozen before the change finds it unchanged.
#[test]
fn a_version_that_is_frozen_is_replaced_as_before() {
    let base = open(&SimulatedDisk::new(1));
    for n in 0..20 {
        let value = [b'1' + n % 7, b'1', b'x'];
        let secondaries = base.secondaries();
        let mut trx = Trx::new(&base.transactions);
        let mut edit = Edit::write(Value::Bytes(&value), Mode::Put);
        row::change(&mut trx, &base.target(&secondaries), b"a", &mut edit, n % 2 == 0).unwrap();
        if n % 2 == 1 {
            trx.commit().unwrap();
        }
        let rows: Rows = [(b"a".to_vec(), value.to_vec())].into();
        if n % 3 == 0 {
            base.compare_purged(&rows).unwrap();
        } else {
            base.compare(&rows).unwrap();
        }
    }
}

/// A horizon above all transactions, because the database is stopped just before it is read.
#[derive(Debug)]
struct Stopping(Arc<BufferPool>);

impl Horizon for Stopping {
    fn frozen_below(&self) -> TrxId {
        self.0.context().health.poison("on purpose");
        TrxId::MAX
    }
}

/// A rollback that fails leaves its versions in the pages, and stops the database before the horizon passes them.
#[test]
fn nothing_is_frozen_after_a_rollback_has_failed() {
    let base = open(&SimulatedDisk::new(1));
    base.put(b"a", b"11x", Mode::Put).unwrap();
    let (pool, space) = (base.pool.clone(), base.clustered.space().clone());
    let tree = Tree::new(pool.clone(), space, TreeHash::new(Arc::new(HashBudget::new(0))));
    let tree = tree.with_horizon(Arc::new(Stopping(pool.clone())));
    let before = header(&tree, b"a");
    let mut mtr = Mtr::begin(&pool).unwrap();
    let refused = tree.seek_for_change(&mut mtr, b"a", Room::Header).map(drop);
    assert!(matches!(refused, Err(Error::Poisoned(_))), "{refused:?}");
    drop(mtr);
    assert_eq!(header(&tree, b"a"), before);
}
