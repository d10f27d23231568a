//! Many threads on few keys.

use std::thread;

use windfall_sim::SimulatedDisk;

use super::{
    super::{Trx, mvcc::value::INDEXED_BYTES},
    Base, FieldSet, Mode, Rows, Setup, Value, change, keys_of, lock, value,
};
use crate::{
    env::RealEnv,
    error::{Error, LockError, SchemaError},
    sync::{
        Arc, Gate,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

fn base() -> Arc<Base> {
    let setup = Setup {
        disk: Arc::new(SimulatedDisk::new(1)),
        env: Arc::new(RealEnv::default()),
        frames: 256,
        log_size: 16 << 20,
        purge: true,
        supplied: false,
    };
    Arc::new(Base::open(setup).unwrap())
}

fn chance(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |n| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    }
}

/// Returns the rows of the table.
fn rows(base: &Base) -> Rows {
    let mut rows = Rows::new();
    let mut cursor = base.clustered.cursor();
    while cursor.next().unwrap() {
        let mut value = Vec::new();
        if value::get(&base.clustered, cursor.key(), FieldSet::ALL, &mut value).unwrap() {
            rows.insert(cursor.key().to_vec(), value);
        }
    }
    rows
}

/// A transaction that releases its locks because of a deadlock starts again, and can still be interrupted.
#[test]
fn an_interrupt_outlives_a_deadlock() {
    let base = base();
    let secondaries = base.secondaries();
    let target = base.target(&secondaries);
    let [mut holder, mut trx] = [Trx::new(&base.transactions), Trx::new(&base.transactions)];
    change(&mut holder, &target, b"row", Some(b"1234")).unwrap();
    change(&mut trx, &target, b"other", Some(b"5678")).unwrap();
    assert!(base.transactions.interrupt(trx.id().unwrap()));
    trx.release_unchanged();
    let again = change(&mut trx, &target, b"row", Some(b"9012"));
    assert!(matches!(again, Err(Error::Lock(LockError::Interrupted))), "{again:?}");
    trx.rollback().unwrap();
    holder.rollback().unwrap();
}

#[test]
fn rows_and_entries_stay_one_under_contention() {
    let base = base();
    let threads: Vec<_> = (0..6u64)
        .map(|n| {
            let base = base.clone();
            thread::spawn(move || {
                let mut draw = chance(n + 1);
                let mut refused = 0;
                for _ in 0..600 {
                    let key = [draw(8) as u8];
                    let mut value = vec![1 + draw(6) as u8, 0, draw(2) as u8, n as u8];
                    let length = if draw(10) == 0 { 3000 } else { draw(60) + 4 };
                    value.resize(length as usize, n as u8);
                    let done = match draw(4) {
                        0 => base.delete(&key).map(drop),
                        1 => {
                            // A change that is rolled back.
                            let secondaries = base.secondaries();
                            let target = base.target(&secondaries);
                            let mut trx = Trx::new(&base.transactions);
                            let done = change(&mut trx, &target, &key, Some(&value));
                            trx.rollback().unwrap();
                            match done {
                                // Two rows that swap their unique keys wait for each other. This one is given up
                                // anyway; those of their own begin again.
                                Err(Error::Lock(LockError::Deadlock(_))) => Ok(()),
                                done => done,
                            }
                        }
                        _ => base.put(&key, &value, Mode::Put).map(drop),
                    };
                    match done {
                        Ok(()) => {}
                        Err(Error::Schema(SchemaError::DuplicateKey { .. })) => refused += 1,
                        Err(error) => panic!("{error}"),
                    }
                    let mut read = Vec::new();
                    if value::get(&base.clustered, &key, FieldSet::ALL, &mut read).unwrap() {
                        // One version: all bytes of the value are those of its writer.
                        assert!(read[4..].iter().all(|byte| *byte == read[3]), "a torn value");
                    }
                }
                refused
            })
        })
        .collect();
    let refused: u32 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    assert!(refused > 0, "no two rows ever competed");
    let rows = rows(&base);
    let mut unique: Vec<_> = rows.values().filter_map(|value| keys_of(value)[0].clone()).collect();
    unique.sort();
    let count = unique.len();
    unique.dedup();
    assert_eq!(unique.len(), count, "two rows have one unique key");
    base.stop();
    base.compare_purged(&rows).unwrap();
}

#[test]
fn no_increment_is_lost_and_the_log_is_enough() {
    let base = base();
    // A missing row cannot be locked here, so the rows are inserted first.
    for key in 0..3u8 {
        base.put(&[key], &[0; 11], Mode::Insert).unwrap();
    }
    let total = 6 * 400u64;
    let number = |value: &[u8]| u64::from_le_bytes(value[3..11].try_into().unwrap());
    let threads: Vec<_> = (0..6u64)
        .map(|n| {
            let base = base.clone();
            thread::spawn(move || {
                let mut draw = chance(n + 77);
                for _ in 0..400 {
                    let key = [draw(3) as u8];
                    let secondaries = base.secondaries();
                    let target = base.target(&secondaries);
                    let mut trx = Trx::new(&base.transactions);
                    let mut value = vec![0; 11];
                    lock(&mut trx, &target, &key, &mut value).unwrap();
                    value.resize(11, 0);
                    let next = number(&value) + 1;
                    value[2] = next as u8;
                    value[3..].copy_from_slice(&next.to_le_bytes());
                    change(&mut trx, &target, &key, Some(&value)).unwrap();
                    trx.commit().unwrap();
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let rows = rows(&base);
    assert_eq!(rows.values().map(|value| number(value)).sum::<u64>(), total);
    base.stop();
    base.compare_purged(&rows).unwrap();
}

/// Returns constant bytes, and is slow once the index keys are known.
struct Slow;

impl std::io::Read for Slow {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if out.len() < INDEXED_BYTES {
            thread::sleep(core::time::Duration::from_millis(3));
        }
        out.fill(1);
        Ok(out.len())
    }
}

#[test]
fn one_of_several_inserts_of_a_unique_key_succeeds() {
    let base = base();
    for round in 0..8 {
        let insert = |n: u8| {
            let base = base.clone();
            move || {
                let secondaries = base.secondaries();
                // All values are equal, and so is the unique key.
                let value = Value::Source { length: INDEXED_BYTES as u64 + 9, source: &mut Slow };
                base.transactions.write(&base.target(&secondaries), &[n], value, Mode::Insert)
            }
        };
        let threads: Vec<_> = (0..4).map(|n| thread::spawn(insert(n))).collect();
        let mut won = 0;
        for thread in threads {
            match thread.join().unwrap() {
                Ok(_) => won += 1,
                Err(Error::Schema(SchemaError::DuplicateKey { owner, .. })) => {
                    assert_eq!(owner.to_string(), "index unique of table table");
                }
                Err(error) => panic!("round {round}: {error}"),
            }
        }
        assert_eq!(won, 1, "round {round}");
        for n in 0..4 {
            base.delete(&[n]).unwrap();
        }
    }
    base.stop();
    base.compare_purged(&Rows::new()).unwrap();
}

#[test]
fn a_call_from_within_another_one_waits_for_purge() {
    let base = base();
    let gates = [Gate::new(), Gate::new()];
    let over = AtomicBool::new(false);
    let mut long = vec![0, 0, 1];
    long.resize(300_000, 1);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(SeqCst) {
                base.transactions.purge().step().unwrap();
            }
        });
        // As if this were the source of a value.
        let _inside = gates.each_ref().map(|gate| gate.enter_here().unwrap());
        let done: Vec<_> = (0..60).map(|_| base.put(b"row", &long, Mode::Put).map(drop)).collect();
        over.store(true, SeqCst);
        assert!(done.iter().all(Result::is_ok), "{:?}", done.iter().find(|done| done.is_err()));
    });
    base.compare_purged(&Rows::from([(b"row".to_vec(), long)])).unwrap();
}
