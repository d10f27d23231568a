//! Values much longer than a purge step frees, and than the log: purge frees them in pieces.

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{
    super::{
        Trx,
        mvcc::value,
        trx::quiesce,
        undo::{chains::LOG_BYTES_PER_PAGE, purge::PAGES_PER_STEP},
    },
    Base, FieldSet, Mode, PAGE_SIZE, Rows, Setup, change,
};
use crate::tablespace;

/// A value that has an entry in each tree.
const FIRST: &[u8] = &[1, 1, 1];

fn base(log_size: u64) -> Base {
    let env = SimulatedEnv::new(3);
    let setup = Setup::simulated(&SimulatedDisk::new(1), &env);
    let base = Base::open(Setup { log_size, purge: false, ..setup }).unwrap();
    // Creates and records the files first: in a simulation a thread that waits for the log cannot do it.
    base.put(b"first", FIRST, Mode::Put).unwrap();
    base.checkpointer.checkpoint_all(false).unwrap();
    env.run_workers(50);
    base.checkpointer.checkpoint_all(false).unwrap();
    base
}

/// Returns a value of this many pages, in no unique index.
fn long(pages: usize, fill: u8) -> Vec<u8> {
    let mut value = vec![0, 0, fill];
    value.resize(pages * (PAGE_SIZE - 48), fill);
    value
}

fn pages(base: &Base) -> usize {
    tablespace::pages_in_use(&base.pool, base.clustered.space()).unwrap().len()
}

/// Puts a value and rolls back.
fn put_and_rollback(base: &Base, key: &[u8], value: &[u8]) {
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    let mut trx = Trx::new(&base.transactions);
    change(&mut trx, &target, key, Some(value)).unwrap();
    trx.rollback().unwrap();
}

/// Purges everything, and calls `after` after each step.
fn purge(base: &Base, mut after: impl FnMut()) -> usize {
    let mut steps = 1;
    while base.transactions.purge().step().unwrap() {
        after();
        steps += 1;
    }
    after();
    steps
}

#[test]
fn a_step_frees_a_bounded_number_of_pages() {
    const PAGES: usize = 3 * PAGES_PER_STEP;
    let base = base(64 << 20);
    let mut model = Rows::from([(b"first".to_vec(), FIRST.to_vec())]);
    for n in 0..40u8 {
        base.put(&[n], &long(3, n), Mode::Put).unwrap();
        base.put(&[n], &[0, 0, n], Mode::Put).unwrap();
        model.insert(vec![n], vec![0, 0, n]);
    }
    base.put(b"old", &long(PAGES, 1), Mode::Put).unwrap();
    base.put(b"old", &long(PAGES, 2), Mode::Put).unwrap();
    base.put(b"gone", &long(PAGES, 3), Mode::Put).unwrap();
    base.delete(b"gone").unwrap();
    model.insert(b"old".to_vec(), long(PAGES, 2));
    let before = pages(&base);
    put_and_rollback(&base, b"old", &long(PAGES, 4));
    assert!(pages(&base) >= before + PAGES, "a rollback frees nothing itself");
    let all = pages(&base);
    let log = &base.pool.context().log;
    let (mut was, mut end) = (all, log.end());
    let steps = purge(&base, || {
        let now = pages(&base);
        assert!(was - now <= PAGES_PER_STEP + 2, "{} pages in one step", was - now);
        let took = (log.end().0 - end.0) as usize;
        assert!(took <= PAGES_PER_STEP * LOG_BYTES_PER_PAGE, "{took} bytes of log in one step");
        (was, end) = (now, log.end());
    });
    assert!(all - was >= 3 * PAGES + 40 * 3, "{} pages came back", all - was);
    assert!(steps >= 10, "{steps} steps");
    base.compare_purged(&model).unwrap();
}

#[test]
fn a_value_far_longer_than_the_log_is_written_and_purged() {
    const PAGES: usize = 4200;
    let base = base(256 << 10);
    let log = &base.pool.context().log;
    let mut most = 0;
    let mut look = || most = most.max(log.age());
    base.put(b"long", &long(PAGES, 1), Mode::Put).unwrap();
    look();
    base.put(b"long", &long(PAGES, 2), Mode::Put).unwrap();
    look();
    // Catching up purges the whole chain, however many steps that takes.
    let table = base.clustered.space();
    assert!(quiesce::with_table_quiesced(&base.transactions, table, true, |rest| rest.is_purged));
    look();
    assert!(pages(&base) < PAGES + 20);
    put_and_rollback(&base, b"long", &long(PAGES, 3));
    look();
    // A call that fails after its value is written.
    base.transactions.fail_at(2);
    base.put(b"other", &long(PAGES, 4), Mode::Put).unwrap_err();
    look();
    let first = (b"first".to_vec(), FIRST.to_vec());
    base.compare(&Rows::from([first.clone(), (b"long".to_vec(), long(PAGES, 2))])).unwrap();
    base.delete(b"long").unwrap();
    look();
    let steps = purge(&base, &mut look);
    assert!(steps >= 3 * PAGES / PAGES_PER_STEP, "{steps} steps");
    base.compare_purged(&Rows::from([first])).unwrap();
    assert!(pages(&base) < 10);
    assert!(most <= log.size() + (16 << 10), "{most} bytes of a log of {}", log.size());
}

/// A transaction inserts a long value, rolls that back, inserts another one, and commits. Both entries have the same
/// header. A reader with a copy of the first entry, whose chain is freed, finds the other value, and no damage.
#[test]
fn a_row_that_was_inserted_twice_is_read_again() {
    let base = base(64 << 20);
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    let mut trx = Trx::new(&base.transactions);
    let start = trx.savepoint();
    change(&mut trx, &target, b"row", Some(&long(3, 1))).unwrap();
    let mut copied = Vec::new();
    let header = base.clustered.get_into(b"row", &mut copied).unwrap().unwrap();
    trx.rollback_to(&start).unwrap();
    change(&mut trx, &target, b"row", Some(&long(3, 2))).unwrap();
    trx.commit().unwrap();
    purge(&base, || {});
    assert_eq!(base.clustered.get_into(b"row", &mut Vec::new()).unwrap(), Some(header));
    assert!(value::resolve(&base.clustered, b"row", header, FieldSet::ALL, &mut copied).unwrap());
    assert_eq!(copied, long(3, 2));
}

/// Nor is the content of a buffer a value: the row that was read is absent.
#[test]
fn a_row_that_is_rolled_back_while_it_is_read_is_absent() {
    let base = base(64 << 20);
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    for replaced in [false, true] {
        let mut trx = Trx::new(&base.transactions);
        change(&mut trx, &target, b"row", Some(&long(3, 1))).unwrap();
        let mut copied = Vec::new();
        let header = base.clustered.get_into(b"row", &mut copied).unwrap().unwrap();
        trx.rollback().unwrap();
        if replaced {
            let mut next = Trx::new(&base.transactions);
            change(&mut next, &target, b"row", Some(&long(3, 2))).unwrap();
            next.commit().unwrap();
        }
        purge(&base, || {});
        let read =
            value::resolve_with_header(&base.clustered, b"row", header, FieldSet::ALL, &mut copied).unwrap();
        let mut value = Vec::new();
        let now = value::get_with_header(&base.clustered, b"row", FieldSet::ALL, &mut value).unwrap();
        assert_eq!((read, read.is_some()), (now, replaced));
        assert!(!replaced || read != Some(header) && copied == long(3, 2) && value == copied);
    }
}
