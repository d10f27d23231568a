//! Purge shrinks trees, drops slices, and keeps what is still needed.

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{
    super::{
        Trx, Visibility,
        row::IndexKeys,
        trx::quiesce,
        undo::{purge::RETRY_PAUSE, stream::SLICE_PAGES},
    },
    Base, CLUSTERED, FieldSet, Mode, PAGE_SIZE, RowTarget, Rows, Setup, Value, change,
};
use crate::{
    buffer::Durability,
    disk::FileName,
    error::{Error, TransactionError, UsageError},
    ids::PageNo,
    store::Tree,
    sync::{
        Arc, as_another_thread,
        atomic::Ordering::Relaxed,
        work::{self, Work},
    },
    tablespace,
    tree::hash::{HashBudget, TreeHash},
};

fn base(disk: &SimulatedDisk) -> Base {
    base_in(disk, &SimulatedEnv::new(5))
}

fn base_in(disk: &SimulatedDisk, env: &SimulatedEnv) -> Base {
    let mut setup = Setup::simulated(disk, env);
    setup.purge = false;
    setup.log_size = 64 << 20;
    setup.frames = 1024;
    Base::open(setup).unwrap()
}

/// Returns the tree of another table.
fn tree(base: &Base, durability: Durability) -> Tree {
    let space = base.pool.attach(base.transactions.ids().space().unwrap(), durability);
    Tree::new(base.pool.clone(), space, TreeHash::new(Arc::new(HashBudget::new(0))))
}

/// Runs a closure while the table is quiesced.
fn quiesced(base: &Base, run: impl FnOnce()) {
    quiesce::with_table_quiesced(&base.transactions, base.clustered.space(), false, |_| {
        as_another_thread(run);
    });
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn row(n: u32, round: u8) -> Vec<u8> {
    let mut value = vec![0, 0, round, n as u8];
    value.resize(300, round);
    value
}

/// Writes enough undo to fill several slices of a stream.
fn churn(base: &Base, model: &mut Rows, rounds: u8) {
    for round in 0..rounds {
        for n in 0..300 {
            base.put(&key(n), &row(n, round), Mode::Put).unwrap();
            model.insert(key(n).to_vec(), row(n, round));
        }
    }
}

#[test]
fn slices_are_dropped_whole_and_trees_shrink() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let mut model = Rows::new();
    churn(&base, &mut model, 6);
    let before = base.slices();
    assert!(before > 2, "{before} slices");
    base.compare_purged(&model).unwrap();
    assert_eq!(base.slices(), 1);
    let (_, pages) = base.footprint();
    for n in 0..300 {
        base.delete(&key(n)).unwrap();
        model.remove(&key(n)[..]);
    }
    base.compare_purged(&model).unwrap();
    assert!(base.footprint().1 < pages / 4);
    // The system tree has no records of the dropped slices.
    let mut records = 0;
    base.system
        .scan(&[crate::system::UNDO], &mut |_, _| {
            records += 1;
            true
        })
        .unwrap();
    assert_eq!(records, base.slices());
}

/// If no key and no long value has changed, there is nothing to purge, and the slices are not read.
#[test]
fn slices_with_nothing_to_purge_go_unread() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let mut model = Rows::new();
    churn(&base, &mut model, 1);
    base.compare_purged(&model).unwrap();
    let view = base.transactions.versions().view();
    let plain = RowTarget { secondaries: &[], ..base.target(&[]) };
    let update = |n: u32, round: u8| {
        // The index keys do not change.
        let mut value = model[&key(n).to_vec()].clone();
        value.resize(900, round);
        base.transactions.write(&plain, &key(n), Value::Bytes(&value), Mode::Put).unwrap();
        value
    };
    let mut last = Vec::new();
    for round in 0..12 {
        last = (0..300).map(|n| update(n, round)).collect();
    }
    model.extend((0..300).map(key).map(|key| key.to_vec()).zip(last));
    base.purge_all();
    let kept = base.slices();
    assert!(kept > 8, "{kept} slices");
    drop(view);
    // Two steps for the last one, which is not full.
    let mut steps = 0;
    while base.transactions.purge().step().unwrap() {
        steps += 1;
    }
    assert_eq!(base.slices(), 1);
    assert!(steps <= 3, "{steps} steps for {kept} slices");
    base.compare_purged(&model).unwrap();
}

/// The records of inserts are not decoded one by one, whether the transaction that wrote them had ended or not. Without
/// a summary of their slice, they are passed by the page.
#[test]
fn records_that_leave_nothing_are_passed_by_the_page() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let mut model = Rows::new();
    let step = || base.transactions.purge().step().unwrap();
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    let mut trx = Trx::new(&base.transactions);
    for n in 0..1500 {
        let mut insert = |n: u32| {
            model.insert(key(n).to_vec(), row(n, 1));
            row(n, 1)
        };
        base.put(&key(n), &insert(n), Mode::Insert).unwrap();
        change(&mut trx, &target, &key(5000 + n), Some(&insert(5000 + n))).unwrap();
    }
    assert!(!step(), "some pages of records are work for more than one step");
    trx.commit().unwrap();
    drop(trx);
    assert!(!step(), "there is a walk, although nothing is to be purged");
    assert_eq!(base.transactions.purge().history_bytes(), 0);
    // A record that leaves something is found between them.
    for n in 0..300 {
        base.put(&key(2000 + n), &row(n, 1), Mode::Insert).unwrap();
        model.insert(key(2000 + n).to_vec(), row(n, 1));
        if n % 50 == 0 {
            base.delete(&key(n)).unwrap();
            model.remove(&key(n)[..]);
        }
    }
    let entries = base.footprint().0;
    assert!(!step());
    assert!(base.footprint().0 < entries, "the marked entries are still there");
    base.compare_purged(&model).unwrap();
}

/// Undo that was evicted is read in slice by slice, and not page by page.
#[test]
fn undo_is_read_ahead() {
    let disk = SimulatedDisk::new(1);
    let mut model = Rows::new();
    let slices = {
        let base = base(&disk);
        churn(&base, &mut model, 6);
        base.sync().unwrap();
        base.checkpointer.checkpoint_all(true).unwrap();
        base.slices()
    };
    assert!(slices > 2, "{slices} slices");
    let base = base(&disk);
    let read_ahead = || base.pool.counters.reads_ahead.load(Relaxed);
    let before = read_ahead();
    base.compare_purged(&model).unwrap();
    let (ahead, undo) = (read_ahead() - before, (slices as u64 - 1) * SLICE_PAGES);
    // The first page of each slice shows that reading ahead is worthwhile.
    assert!(ahead >= undo - slices as u64, "{ahead} of {undo} pages of undo were read ahead");
}

/// The walk of a transaction that purge has skipped passes through slices that are needed for nothing else.
#[test]
fn slices_in_the_path_of_a_purge_walk_are_kept_until_it_passes() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let mut model = Rows::new();
    churn(&base, &mut model, 1);
    base.compare_purged(&model).unwrap();
    let plain = RowTarget { secondaries: &[], ..base.target(&[]) };
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    let fill = |model: &mut Rows, round: u8| {
        for n in 0..300 {
            let mut value = model[&key(n).to_vec()].clone();
            value.resize(900, round);
            base.transactions.write(&plain, &key(n), Value::Bytes(&value), Mode::Put).unwrap();
            model.insert(key(n).to_vec(), value);
        }
    };
    // It deletes a row, which must be purged, and changes another one much later.
    let mut trx = Trx::new(&base.transactions);
    base.put(&key(1000), &row(1000, 1), Mode::Put).unwrap();
    base.put(&key(1001), &row(1001, 1), Mode::Put).unwrap();
    change(&mut trx, &target, &key(1000), None).unwrap();
    fill(&mut model, 1);
    base.purge_all();
    let mut other = row(1001, 1);
    other.resize(800, 7);
    change(&mut trx, &plain, &key(1001), Some(&other)).unwrap();
    model.insert(key(1001).to_vec(), other);
    fill(&mut model, 2);
    base.purge_all();
    trx.commit().unwrap();
    drop(trx);
    base.compare_purged(&model).unwrap();
    assert_eq!(base.slices(), 1);
}

#[test]
fn an_unfinished_transaction_keeps_only_its_own_undo_slices() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let mut model = Rows::new();
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    let mut trx = Trx::new(&base.transactions);
    churn(&base, &mut model, 3);
    let old = row(1000, 1);
    change(&mut trx, &target, &key(1000), Some(&old)).unwrap();
    let before = base.slices();
    churn(&base, &mut model, 5);
    assert!(base.slices() > before + 1);
    base.purge_all();
    assert!((2..=3).contains(&base.slices()), "{} slices are left", base.slices());
    assert!(base.slices() <= before);
    // The rollback reads the old slice, which is then dropped.
    trx.rollback().unwrap();
    base.compare_purged(&model).unwrap();
    assert_eq!(base.slices(), 1);
}

#[test]
fn a_transaction_skipped_by_purge_is_purged_when_it_has_committed() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let mut model = Rows::new();
    churn(&base, &mut model, 1);
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    let mut trx = Trx::new(&base.transactions);
    for n in 0..40 {
        change(&mut trx, &target, &key(n), None).unwrap();
        model.remove(&key(n)[..]);
    }
    for round in 0..4 {
        for n in 100..300 {
            base.put(&key(n), &row(n, round), Mode::Put).unwrap();
            model.insert(key(n).to_vec(), row(n, round));
        }
        base.purge_all();
    }
    let entries = base.footprint().0;
    trx.commit().unwrap();
    base.compare_purged(&model).unwrap();
    assert_eq!(base.slices(), 1);
    assert!(base.footprint().0 < entries);
}

#[test]
fn a_walk_that_takes_long_comes_to_the_first_record() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let mut model = Rows::new();
    churn(&base, &mut model, 1);
    base.put(&key(5000), &vec![0; 8 << 20], Mode::Put).unwrap();
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    let mut trx = Trx::new(&base.transactions);
    let mut put = |key: &[u8], new: Option<&[u8]>| change(&mut trx, &target, key, new).unwrap();
    let put_others = |model: &mut Rows| {
        for n in 100..300 {
            base.put(&key(n), &row(n, 1), Mode::Put).unwrap();
            model.insert(key(n).to_vec(), row(n, 1));
        }
    };
    // Purge skips these while the transaction is active.
    for n in 0..40 {
        put(&key(n), None);
        model.remove(&key(n)[..]);
    }
    (0..4).for_each(|_| put_others(&mut model));
    base.purge_all();
    // Purge reaches this record, in a slice of its own, while the last record is still being processed.
    put(&key(6000), Some(&row(1, 1)));
    (0..8).for_each(|_| put_others(&mut model));
    put(&key(5000), Some(&row(2, 2)));
    trx.commit().unwrap();
    model.extend([(key(6000).to_vec(), row(1, 1)), (key(5000).to_vec(), row(2, 2))]);
    base.compare_purged(&model).unwrap();
    assert_eq!(base.slices(), 1);
}

#[test]
fn a_pin_keeps_versions_and_a_reader_its_value() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let value = |round: u8| {
        let mut value = vec![0, 0, round];
        value.resize(40_000, round);
        value
    };
    let mut model = Rows::from([(key(1).to_vec(), value(2))]);
    base.put(&key(1), &value(1), Mode::Insert).unwrap();
    let view = base.transactions.versions().view();
    let visibility = Visibility::View(&view, None);
    let mut reader = base
        .transactions
        .versions()
        .open_value(&base.clustered, &key(1), visibility, FieldSet::ALL)
        .unwrap()
        .unwrap();
    base.put(&key(1), &value(2), Mode::Update).unwrap();
    churn(&base, &mut model, 1);
    base.purge_all();
    let mut read = vec![0; reader.left() as usize];
    let mut at = 0;
    while reader.left() > 0 {
        at += reader.read(&mut read[at..]).unwrap();
    }
    assert!(read == value(1));
    drop(view);
    base.compare_purged(&model).unwrap();
    // An older deletion of the same row does not remove the newer one.
    base.delete(&key(1)).unwrap();
    base.put(&key(1), &value(3), Mode::Insert).unwrap();
    let view = base.transactions.versions().view();
    base.delete(&key(1)).unwrap();
    model.remove(&key(1)[..]);
    base.purge_all();
    let mut raw = Vec::new();
    assert!(base.clustered.get_into(&key(1), &mut raw).unwrap().unwrap().is_deleted());
    drop(view);
    base.compare_purged(&model).unwrap();
}

#[test]
fn temporary_rows_leave_nothing_in_the_log() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let ids = base.transactions.ids();
    let tree = tree(&base, Durability::Temporary);
    let stream = Arc::new(base.transactions.streams().temporary());
    let target = RowTarget {
        name: "temporary",
        clustered: &tree,
        secondaries: &[],
        keys_of: &|_| Ok(IndexKeys::default()),
        temporary: Some(&stream),
        watch: None,
        reads: None,
    };
    base.put(b"x", b"abc", Mode::Put).unwrap();
    let spaces = ids.ceilings();
    let log = &base.pool.context().log;
    let before = log.end();
    let undo = || {
        let streams = base.transactions.streams();
        (streams.extent(), streams.bytes_in_the_limit())
    };
    let logged_undo = undo();
    for round in 0..12 {
        for n in 0..200 {
            let value = row(n, round);
            base.transactions.write(&target, &key(n), Value::Bytes(&value), Mode::Put).unwrap();
        }
    }
    let mut trx = Trx::new(&base.transactions);
    change(&mut trx, &target, &key(3), None).unwrap();
    trx.rollback().unwrap();
    let mut value = Vec::new();
    assert!(super::value::get(&tree, &key(3), FieldSet::ALL, &mut value).unwrap());
    assert!(value == row(3, 11));
    assert!(stream.slices().len() > 2);
    assert_eq!(undo(), logged_undo);
    base.transactions.purge().purge_temporary(&stream);
    assert_eq!(stream.slices().len(), 1);
    assert_eq!((log.end(), ids.ceilings()), (before, spaces));
}

#[test]
fn temporary_rows_ask_for_no_room_in_the_log() {
    let disk = SimulatedDisk::new(1);
    let setup = Setup::simulated(&disk, &SimulatedEnv::new(5));
    let base = Base::open(Setup { purge: false, frames: 1024, ..setup }).unwrap();
    let stream = Arc::new(base.transactions.streams().temporary());
    let tree = tree(&base, Durability::Temporary);
    // Flushing has stopped, and waiters for it are informed.
    base.stop();
    let log = &base.pool.context().log;
    log.set_unflushed(Some(UsageError::Other("the disk is full".into()).into()));
    for value in [&[0; 300][..], b""] {
        while base.put(b"logged", value, Mode::Put).is_ok() {}
    }
    let before = log.end();
    let secondaries = [];
    let target = RowTarget { clustered: &tree, temporary: Some(&stream), ..base.target(&secondaries) };
    let write =
        |value: &[u8]| base.transactions.write(&target, b"row", Value::Bytes(value), Mode::Put).map(drop);
    let long = vec![7; 300_000];
    for value in [&[0; 100], &long[..], &[1; 200], &long[..]] {
        write(value).unwrap();
    }
    base.transactions.fail_at(2);
    assert!(write(&vec![1; 250_000]).unwrap_err().to_string().contains("failpoint"));
    let mut found = Vec::new();
    assert!(super::value::get(&tree, b"row", FieldSet::ALL, &mut found).unwrap() && found == long);
    assert!(base.transactions.delete(&target, b"row").unwrap().is_some());
    let pages = || tablespace::pages_in_use(&base.pool, tree.space()).unwrap().len();
    assert!(pages() > 200);
    base.transactions.purge().purge_temporary(&stream);
    assert_eq!((pages(), log.end()), (2, before), "a map and a root");
}

#[test]
fn rows_of_a_dropped_table_are_passed_over() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    base.put(b"gone", &row(1, 1), Mode::Put).unwrap();
    base.delete(b"gone").unwrap();
    let mut trx = Trx::new(&base.transactions);
    let long = vec![7; 5000];
    change(&mut trx, &target, b"x", Some(&long)).unwrap();
    for tree in [&base.clustered, &base.unique, &base.plain] {
        base.pool.detach(tree.space(), Some(base.pool.context().log.end()));
    }
    trx.rollback().unwrap();
    base.purge_all();
    assert!(base.pool.context().health.check().is_ok());
    assert!(base.put(b"y", b"abc", Mode::Put).is_err());
    assert!(base.pool.context().health.check().is_ok());
}

#[test]
fn a_writer_finds_its_slices_made() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let mut model = Rows::new();
    churn(&base, &mut model, 1);
    let (before, start) = (base.slices(), work::so_far());
    let touched = || (work::so_far() - start).of(Work::SystemTreeFrame);
    // A writer that fills more than a slice between two visits of the worker creates the next one itself.
    churn(&base, &mut model, 5);
    assert!(base.slices() > before && touched() > 0);

    let streams = base.transactions.streams();
    let (mut made, mut ahead) = (base.slices(), 0);
    for round in 3..9 {
        for n in 0..300 {
            if n % 50 == 0 {
                streams.create_next_slices().unwrap();
                ahead += base.slices() - made;
                made = base.slices();
                streams.create_next_slices().unwrap();
                assert_eq!(base.slices(), made, "one is enough");
            }
            let before = work::so_far();
            base.put(&key(n), &row(n, round), Mode::Put).unwrap();
            model.insert(key(n).to_vec(), row(n, round));
            let work = work::so_far() - before;
            assert_eq!((work.of(Work::SystemTreeFrame), work.of(Work::SystemTreeLatch)), (0, 0), "{work:?}");
        }
    }
    assert!(ahead >= 2, "{ahead} slices");
    base.compare_purged(&model).unwrap();
    assert!(base.slices() <= 2);
    // A slice that was created and not used is abandoned at the next start, and is dropped.
    base.sync().unwrap();
    drop(base);
    let base = self::base(&disk.restart(Survive::Everything));
    base.compare_purged(&model).unwrap();
    churn(&base, &mut model, 3);
    base.compare_purged(&model).unwrap();
    assert_eq!(base.slices(), 1);
}

/// With a limit of zero a stream may have two slices. A third one counts.
#[test]
fn two_slices_of_a_stream_do_not_count_towards_the_limit() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    base.transactions.undo_limit().set(Some(0));
    let put = |n| base.put(b"row", &row(n, 1), Mode::Put);
    let refused = (0..10_000).find_map(|n| put(n).err()).unwrap();
    assert!(matches!(refused, Error::Transaction(TransactionError::UndoFull { .. })), "{refused}");
    assert_eq!(base.slices(), 3);
}

/// A reader that comes to the end of such a record finds no further one. The next process does not know how far the
/// stream was written.
#[test]
fn a_record_may_end_where_its_page_ends() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let page_bytes = PAGE_SIZE as u64 - 32;
    let end = || base.transactions.streams().get(0).end();
    let put = |length: u64| {
        let before = end();
        base.put(b"row", &vec![0; length as usize], Mode::Put).unwrap();
        end() - before
    };
    // The record of a change has the value before it.
    put(100);
    let overhead = put(100) - 100;
    loop {
        let room = page_bytes - (end() + overhead + 100) % page_bytes;
        let length = room.checked_sub(overhead).filter(|length| (3..500).contains(length));
        put(length.unwrap_or(100));
        if length.is_some() {
            break;
        }
    }
    put(100);
    let at = end();
    assert_eq!(at % page_bytes, 0);
    base.sync().unwrap();
    drop(base);
    let base = self::base(&disk.restart(Survive::Everything));
    let stream = base.transactions.streams().get(0);
    assert!(stream.end() > at && stream.next_record(at).unwrap().is_none());
    base.compare_purged(&Rows::from([(b"row".to_vec(), vec![0; 100])])).unwrap();
}

/// Changes rows of another table until undo ends less than `bytes` bytes before the end of a slice. Returns the slice.
fn fill_up_to_the_end(base: &Base, other: &RowTarget<'_>, bytes: u64) -> u64 {
    let stream = base.transactions.streams().get(0);
    fill_while(base, other, || stream.end() % stream.slice_bytes() + bytes <= stream.slice_bytes());
    stream.end() / stream.slice_bytes()
}

/// Changes rows of another table until undo ends in this slice.
fn fill_up_to(base: &Base, other: &RowTarget<'_>, slice: u64) {
    let stream = base.transactions.streams().get(0);
    fill_while(base, other, || stream.end() / stream.slice_bytes() < slice);
}

fn fill_while(base: &Base, other: &RowTarget<'_>, goes_on: impl Fn() -> bool) {
    while goes_on() {
        base.transactions.write(other, b"other", Value::Bytes(&[0; 200]), Mode::Put).unwrap();
    }
}

/// The length of a value with an undo record longer than this, and longer than two of those that fill a slice.
const LONG: usize = 900;

fn long(fill: u8) -> Vec<u8> {
    vec![fill; LONG]
}

fn kept(base: &Base) -> Vec<u64> {
    base.transactions.streams().get(0).slices().into_iter().map(|(slice, _)| slice).collect()
}

#[test]
fn a_record_deferred_for_a_check_keeps_the_slice_that_it_reaches_into() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    let tree = tree(&base, Durability::Logged);
    let other = RowTarget { clustered: &tree, ..base.target(&[]) };
    base.put(b"row", &long(1), Mode::Insert).unwrap();
    let first = fill_up_to_the_end(&base, &other, LONG as u64);
    base.put(b"row", &[2; 3], Mode::Update).unwrap();
    quiesced(&base, || {
        fill_up_to(&base, &other, first + 4);
        base.purge_all();
        // Each of the other slices is dropped.
        assert_eq!(kept(&base), [first, first + 1, first + 4]);
        assert_eq!(base.footprint().0, 5, "two entries are marked as deleted");
    });
    base.compare_purged(&Rows::from([(b"row".to_vec(), vec![2; 3])])).unwrap();
    assert_eq!(kept(&base), [first + 4]);
}

#[test]
fn a_record_of_a_locked_row_is_deferred_for_a_check() {
    let disk = SimulatedDisk::new(1);
    let base = base(&disk);
    base.put(b"row", &[1; 3], Mode::Insert).unwrap();
    base.delete(b"row").unwrap();
    let latches = base.transactions.key_latches();
    let latch = latches.try_latch(latches.name(CLUSTERED, b"row")).unwrap();
    base.purge_all();
    quiesced(&base, || {
        drop(latch);
        base.purge_all();
        assert_eq!(base.footprint().0, 3);
    });
    base.compare_purged(&Rows::new()).unwrap();
}

#[test]
fn a_record_that_could_not_be_read_is_deferred_for_a_check() {
    let disk = SimulatedDisk::new(1);
    {
        let base = base(&disk);
        base.put(b"row", &[1; 3], Mode::Insert).unwrap();
        base.delete(b"row").unwrap();
        base.sync().unwrap();
        base.checkpointer.checkpoint_all(true).unwrap();
    }
    let env = SimulatedEnv::new(5);
    let base = base_in(&disk, &env);
    let root = u64::from(PageNo::ROOT.0) * PAGE_SIZE as u64;
    disk.make_unreadable(FileName::Data(CLUSTERED), root);
    // The record is postponed, and retried once.
    base.purge_all();
    base.purge_all();
    disk.make_readable(FileName::Data(CLUSTERED), root);
    let is_there = || base.clustered.get_into(b"row", &mut Vec::new()).unwrap().is_some();
    base.purge_all();
    assert!(is_there(), "it is tried again from time to time");
    env.advance(RETRY_PAUSE);
    quiesced(&base, || {
        base.purge_all();
        assert!(is_there());
    });
    // The record no longer waits for its retry time.
    base.compare_purged(&Rows::new()).unwrap();
}

/// Reading would be useless: purge cannot process these records while the check lasts.
#[test]
fn purge_reads_no_deferred_record_while_the_check_lasts() {
    let disk = SimulatedDisk::new(1);
    let mut model = Rows::new();
    {
        let base = base(&disk);
        churn(&base, &mut model, 6);
        base.sync().unwrap();
        base.checkpointer.checkpoint_all(true).unwrap();
    }
    let setup = Setup::simulated(&disk, &SimulatedEnv::new(5));
    let base = Base::open(Setup { log_size: 64 << 20, purge: false, ..setup }).unwrap();
    let tree = tree(&base, Durability::Logged);
    let other = RowTarget { clustered: &tree, ..base.target(&[]) };
    let put = |key: &[u8], value: &[u8]| {
        base.transactions.write(&other, key, Value::Bytes(value), Mode::Put).unwrap();
    };
    let counters = &base.pool.counters;
    let read = || [&counters.reads, &counters.reads_ahead].map(|count| count.load(Relaxed));
    quiesced(&base, || {
        base.purge_all();
        for n in 0..4 {
            // The pool has room for nothing else.
            put(&key(n), &vec![1; 2 * 128 * PAGE_SIZE]);
            put(b"row", b"1");
            let before = read();
            base.purge_all();
            assert_eq!(read(), before, "round {n}");
        }
    });
    base.compare_purged(&model).unwrap();
}

/// Purge of an earlier process had made more progress in some slices than in those before them.
#[test]
fn after_a_restart_purge_skips_no_record_because_of_a_missing_one() {
    let disk = SimulatedDisk::new(1);
    let disk = {
        let base = base(&disk);
        let tree = tree(&base, Durability::Logged);
        let other = RowTarget { clustered: &tree, ..base.target(&[]) };
        let secondaries = base.secondaries();
        let target = base.target(&secondaries);
        base.put(b"row", &long(1), Mode::Insert).unwrap();
        base.put(b"kept", &[2; 3], Mode::Insert).unwrap();
        base.put(b"late", &[3; 3], Mode::Insert).unwrap();
        let first = fill_up_to_the_end(&base, &other, 2 * LONG as u64);
        // This record keeps its slice.
        let mut trx = Trx::new(&base.transactions);
        change(&mut trx, &target, b"kept", None).unwrap();
        fill_up_to_the_end(&base, &other, LONG as u64);
        // This record ends in the next slice, which is dropped.
        base.put(b"row", &[4; 3], Mode::Update).unwrap();
        fill_up_to(&base, &other, first + 2);
        base.purge_all();
        assert_eq!(kept(&base), [first, first + 2]);
        trx.commit().unwrap();
        base.delete(b"late").unwrap();
        base.sync().unwrap();
        disk.restart(Survive::Everything)
    };
    // Another process ends in the middle of a slice, and purges nothing.
    let disk = {
        let base = base(&disk);
        base.delete(b"row").unwrap();
        base.sync().unwrap();
        assert_eq!(kept(&base).len(), 3);
        disk.restart(Survive::Everything)
    };
    let base = base(&disk);
    base.compare_purged(&Rows::new()).unwrap();
    assert_eq!(kept(&base).len(), 1);
}
