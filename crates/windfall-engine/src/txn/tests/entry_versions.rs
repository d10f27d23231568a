//! Reads of rows by their index entries, by views of different times.

use core::ops::Bound::Unbounded;

use proptest::prelude::*;
use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{
    Base, Edit, FieldSet, Mode, RowTarget, Rows, Setup, Stop, Trx, UNIQUE, Value, change, keys_of, row,
    secondary::entry_key,
};
use crate::{
    failpoint::Eager,
    ids::TrxId,
    sync::Arc,
    tablespace,
    txn::{
        mvcc::{ReadView, Visibility},
        undo::entry_versions::{EntryAndRow, FoundEntry},
    },
};

fn base(supplied: bool) -> Base {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let setup = Setup { purge: false, log_size: 16 << 20, supplied, ..Setup::simulated(&disk, &env) };
    Base::open(setup).unwrap()
}

/// A row as it is found by an entry: index key, row key, payload, value.
type Found = (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>);

/// Returns the rows that a read finds by the entries of a secondary tree, in the order of the entries.
fn found_by(base: &Base, n: usize, visibility: Visibility<'_>) -> Vec<Found> {
    let index = [&base.unique, &base.plain][n];
    let mut cursor = index.cursor();
    let mut found = Vec::new();
    while cursor.next().unwrap() {
        let row = base.form.split(cursor.key(), cursor.value()).unwrap().row;
        let (entry, header) = (cursor.key(), cursor.header().unwrap());
        let entry = FoundEntry { index, entry, header, value: cursor.value(), row };
        let (mut of_entry, mut value) = (Vec::new(), Vec::new());
        let out = EntryAndRow { fields: FieldSet::ALL, entry: &mut of_entry, row: &mut value };
        if base.transactions.versions().get_by_entry(&base.clustered, entry, visibility, out).unwrap() {
            let parts = base.form.split(cursor.key(), &of_entry).unwrap();
            let index_key = base.form.index_key(parts.index, &mut Vec::new()).to_vec();
            found.push((index_key, row.to_vec(), parts.payload.to_vec(), value));
        }
    }
    found
}

/// Asserts that a view, with its own transaction, finds exactly these rows by each index.
fn assert_found(base: &Base, view: &ReadView, own: Option<TrxId>, rows: &Rows, what: &str) {
    for n in 0..2 {
        let entry = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            let (index_key, payload) = base.entry_of(n, value)?;
            Some((index_key, key.clone(), payload, value.clone()))
        };
        let mut expected: Vec<_> = rows.iter().filter_map(entry).collect();
        expected.sort();
        assert_eq!(found_by(base, n, Visibility::View(view, own)), expected, "index {n}, {what}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// One change, committed.
    Alone(u8, Option<Vec<u8>>),
    /// One change in the open transaction.
    Change(u8, Option<Vec<u8>>),
    /// Some changes in the open transaction, and a rollback to before them.
    Undone(Vec<(u8, Option<Vec<u8>>)>),
    End {
        commits: bool,
    },
    /// A view of what is committed.
    View,
    /// The end of the oldest view.
    EndView,
    Purge,
}

/// Few keys and index keys, so that entries are marked and revived; some values are in overflow pages.
fn value() -> impl Strategy<Value = Option<Vec<u8>>> {
    let length = prop_oneof![8 => Just(4usize), 1 => Just(1100usize)];
    let value = ((0..3u8, 0..2u8), length, any::<u8>()).prop_map(|((a, b), length, fill)| {
        let mut value = vec![a, b, b];
        value.resize(length, fill);
        value
    });
    prop::option::weighted(0.75, value)
}

fn op() -> impl Strategy<Value = Op> {
    let change = || (0..4u8, value());
    prop_oneof![
        6 => change().prop_map(|(key, value)| Op::Alone(key, value)),
        6 => change().prop_map(|(key, value)| Op::Change(key, value)),
        2 => prop::collection::vec(change(), 1..4).prop_map(Op::Undone),
        3 => any::<bool>().prop_map(|commits| Op::End { commits }),
        3 => Just(Op::View),
        1 => Just(Op::EndView),
        1 => Just(Op::Purge),
    ]
}

/// Returns whether no other row has the unique key of this value.
fn fits(rows: &[&Rows], key: u8, value: Option<&Vec<u8>>) -> bool {
    let Some(wanted) = unique_key(value) else { return true };
    let is_other =
        |(k, v): (&Vec<u8>, &Vec<u8>)| k[..] == [key] || unique_key(Some(v)).as_ref() != Some(&wanted);
    rows.iter().all(|rows| rows.iter().all(is_other))
}

fn apply(rows: &mut Rows, key: u8, value: Option<Vec<u8>>) {
    match value {
        Some(value) => drop(rows.insert(vec![key], value)),
        None => drop(rows.remove(&vec![key])),
    }
}

/// The rows, and the work of the open transaction.
#[derive(Default)]
struct Model {
    committed: Rows,
    /// What the transaction has made of them.
    own: Rows,
    /// The rows of which it has made the newest version.
    changed: Vec<u8>,
    /// The rows and the unique keys that it has locked, also by changes that were undone: others would wait for it.
    locked: Vec<u8>,
    unique: Vec<Vec<u8>>,
}

fn unique_key(value: Option<&Vec<u8>>) -> Option<Vec<u8>> {
    value.and_then(|value| keys_of(value)[0].clone())
}

impl Model {
    fn change(&mut self, base: &Base, trx: &mut Trx<'_>, key: u8, value: Option<Vec<u8>>) {
        if fits(&[&self.committed, &self.own], key, value.as_ref()) {
            self.locked.push(key);
            self.unique.extend(unique_key(value.as_ref()));
            self.unique.extend(unique_key(self.own.get(&vec![key])));
            change(trx, &base.target(&base.secondaries()), &[key], value.as_deref()).unwrap();
            apply(&mut self.own, key, value);
            self.changed.push(key);
            self.keep_changed(base, trx);
        }
    }

    /// Keeps the rows of which the transaction has made the newest version: not those that it has deleted in vain, or
    /// whose changes were undone.
    fn keep_changed(&mut self, base: &Base, trx: &Trx<'_>) {
        self.changed.retain(|key| {
            let header = base.clustered.get_into(&[*key], &mut Vec::new()).unwrap();
            header.is_some_and(|header| Some(header.trx) == trx.id())
        });
    }

    /// Returns whether another call may make this change at once.
    fn is_free(&self, key: u8, value: Option<&Vec<u8>>) -> bool {
        let keys = [unique_key(value), unique_key(self.committed.get(&vec![key]))];
        let is_locked = |unique: &Vec<u8>| self.unique.contains(unique);
        !self.locked.contains(&key)
            && !keys.iter().flatten().any(is_locked)
            && fits(&[&self.committed, &self.own], key, value)
    }

    /// Returns the rows that a view sees for the open transaction: its own versions of the rows that it has changed.
    fn with_own(&self, seen: &Rows) -> Rows {
        let mut rows = seen.clone();
        for key in &self.changed {
            apply(&mut rows, *key, self.own.get(&vec![*key]).cloned());
        }
        rows
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]
    #[test]
    fn an_entry_is_seen_by_the_views_that_see_its_row_with_it(
        ops in prop::collection::vec(op(), 1..40),
        eager in any::<bool>(),
        supplied in any::<bool>(),
    ) {
        Eager::set(eager);
        let base = base(supplied);
        let mut trx = Trx::new(&base.transactions);
        let mut model = Model::default();
        let mut views: Vec<(Arc<ReadView>, Rows)> = Vec::new();
        for op in ops {
            let what = format!("after {op:?}");
            match op {
                Op::Alone(key, value) if model.is_free(key, value.as_ref()) => {
                    match &value {
                        Some(value) => drop(base.put(&[key], value, Mode::Put).unwrap()),
                        None => drop(base.delete(&[key]).unwrap()),
                    }
                    apply(&mut model.committed, key, value.clone());
                    apply(&mut model.own, key, value);
                }
                Op::Alone(..) => {}
                Op::Change(key, value) => model.change(&base, &mut trx, key, value),
                Op::Undone(changes) => {
                    let (start, own) = (trx.savepoint(), model.own.clone());
                    for (key, value) in changes {
                        model.change(&base, &mut trx, key, value);
                    }
                    trx.rollback_to(&start).unwrap();
                    model.own = own;
                    model.keep_changed(&base, &trx);
                }
                Op::End { commits } => {
                    if commits {
                        trx.commit().unwrap();
                        model.committed = model.own.clone();
                    } else {
                        trx.rollback().unwrap();
                        model.own = model.committed.clone();
                    }
                    model = Model { committed: model.committed, own: model.own, ..Model::default() };
                    trx = Trx::new(&base.transactions);
                }
                Op::View => views.push((base.transactions.versions().view().into(), model.committed.clone())),
                Op::EndView if views.is_empty() => {}
                Op::EndView => drop(views.remove(0)),
                Op::Purge => base.purge_all(),
            }
            for (n, (view, rows)) in views.iter().enumerate() {
                assert_found(&base, view, None, rows, &format!("view {n}, {what}"));
                let own = model.with_own(rows);
                assert_found(&base, view, trx.id(), &own, &format!("own, view {n}, {what}"));
            }
        }
        trx.rollback().unwrap();
    }
}

/// A call has changed a row and one of its entries, and has not come to the others yet: the rollback of the call has
/// failed. The newest version of the row has none of its old entries.
#[test]
fn the_newest_version_of_a_row_is_found_by_its_own_entries_alone() {
    let base = base(false);
    base.put(b"a", b"11xx", Mode::Put).unwrap();
    base.put(b"b", b"33zz", Mode::Put).unwrap();
    let mut other = Trx::new(&base.transactions);
    let lock_owner = other.lock_owner().unwrap();
    let lock = |_: &[u8], _: Option<&[u8]>, _: Option<&[u8]>| {
        base.transactions.lock_manager().lock_range(&lock_owner, UNIQUE, Unbounded, Unbounded);
    };
    let newest = |n| found_by(&base, n, Visibility::Newest);
    let row = |index_key: &[u8], key: &[u8], value: &[u8]| {
        (index_key.to_vec(), key.to_vec(), Vec::new(), value.to_vec())
    };
    assert_eq!(newest(0), [row(b"11", b"a", b"11xx"), row(b"33", b"b", b"33zz")]);
    assert_eq!(newest(1), [row(b"xx", b"a", b"11xx"), row(b"zz", b"b", b"33zz")]);
    let secondaries = base.secondaries();
    let target = RowTarget { watch: Some(&lock), ..base.target(&secondaries) };
    let mut trx = Trx::new(&base.transactions);
    let mut edit = Edit::write(Value::Bytes(b"22yy"), Mode::Put);
    // Four steps of the change, and then the first of the rollback.
    base.transactions.fail_at(5);
    let done = row::change(&mut trx, &target, b"a", &mut edit, false);
    base.transactions.fail_at(0);
    assert!(matches!(done, Err(Stop::Failed(_))), "{done:?}");
    let live = |entry: &[u8]| !base.plain.get_into(entry, &mut Vec::new()).unwrap().unwrap().is_deleted();
    assert!(live(&entry_key(b"xx", b"a")), "the call has come to the entry that was to be left alone");
    assert_eq!(newest(0), [row(b"33", b"b", b"33zz")]);
    assert_eq!(newest(1), [row(b"zz", b"b", b"33zz")]);
}

/// A call fails after it has changed the row and before it comes to its entries. The rollback of the call finds them
/// untouched, with headers that are shorter than those of a version, and takes no page to make room for longer ones.
#[test]
fn the_rollback_of_a_call_splits_no_page_of_entries_that_it_has_not_changed() {
    let base = base(true);
    // No header is removed.
    let _view = base.transactions.versions().view();
    // Payloads of five bytes in the unique index, for both fills.
    let value = |n: u8, fill: u8| vec![n, n, 7, fill];
    for n in 1..=200u8 {
        base.put(&[n, 1], &value(n, 1), Mode::Put).unwrap();
    }
    let pages = || {
        [&base.unique, &base.plain]
            .map(|tree| tablespace::pages_in_use(&base.pool, tree.space()).unwrap().len())
    };
    for n in 1..200u8 {
        let before = pages();
        let mut trx = Trx::new(&base.transactions);
        base.transactions.fail_at(3);
        let target = base.secondaries();
        change(&mut trx, &base.target(&target), &[n + 1, 1], Some(&value(n + 1, 5))).unwrap_err();
        base.transactions.fail_at(0);
        trx.rollback().unwrap();
        assert_eq!(pages(), before, "row {n}");
        base.put(&[n, 1], &value(n, 5), Mode::Put).unwrap();
    }
}
