//! Log is reserved for everything that a call appends, and for its rollback.

use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

use super::{Base, Edit, Mode, PAGE_SIZE, Setup, Trx, Value, row};
use crate::{env::Env, log::LogReservation, sync::Arc, txn::trx::two_phase};

#[test]
fn a_call_appends_no_more_than_its_reservation() {
    let mut tight = 0;
    for seed in 0..6 {
        let (disk, env) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
        let setup = Setup { frames: 512, log_size: 64 << 20, purge: false, ..Setup::simulated(&disk, &env) };
        let base = Base::open(setup).unwrap();
        let log = base.pool.context().log.clone();
        let chance = |below: usize| (env.random() % below as u64) as usize;
        let (longest_key, inline) = (base.clustered.key_part_limit(), base.clustered.inline_limit());
        for n in 0..600u16 {
            let mut key = vec![7; [1, 30, longest_key - 2][chance(3)]];
            key.extend([chance(20) as u8, chance(2) as u8]);
            let length = [3, 60, inline - 9, inline, 3 * PAGE_SIZE][chance(5)];
            let mut value = vec![chance(250) as u8; length];
            value[..2].copy_from_slice(&(n * 2 + 257).to_le_bytes());
            let before = (log.end(), log.reserved_ever.sum());
            base.transactions.fail_at(chance(8) as u64);
            let done = if chance(4) == 0 {
                base.delete(&key).map(drop)
            } else {
                base.put(&key, &value, Mode::Put).map(drop)
            };
            base.transactions.fail_at(0);
            let appended = log.end().0 - before.0.0;
            let reserved_bytes = log.reserved_ever.sum() - before.1;
            assert!(
                appended <= reserved_bytes,
                "seed {seed}, {n}: {appended} bytes of {reserved_bytes}; {done:?}"
            );
            tight = tight.max(appended * 100 / reserved_bytes.max(1));
            base.pool.context().health.check().unwrap();
        }
        base.sync().unwrap();
        for tree in [&base.clustered, &base.unique, &base.plain] {
            tree.check().unwrap();
        }
    }
    println!("at most {tight} percent of the reserved bytes are used");
    assert!(tight > 20, "the reservations have nothing to do with what is appended: {tight} percent");
}

/// However much a transaction has changed, a group of its own has its end. The end of a single call is in the group of
/// its last change, which takes less.
#[test]
fn a_commit_logs_nothing_but_its_end() {
    let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
    let base = Base::open(Setup { purge: false, ..Setup::simulated(&disk, &env) }).unwrap();
    let log = &base.pool.context().log;
    let secondaries = base.secondaries();
    let put = |trx: &mut Trx<'_>, n: u16| {
        let mut edit = Edit::write(Value::Bytes(&[0; 100]), Mode::Put);
        let before = log.end();
        row::change(trx, &base.target(&secondaries), &n.to_be_bytes(), &mut edit, false).unwrap();
        log.end().0 - before.0
    };
    let commit = |mut trx: Trx<'_>| {
        let before = log.end();
        assert_eq!(trx.commit().unwrap(), Some(log.end()));
        log.end().0 - before.0
    };
    base.put(&[0, 0], &[0; 100], Mode::Put).unwrap();
    // New rows, and then changes that leave the index entries as they are.
    for _ in 0..2 {
        let mut trx = Trx::new(&base.transactions);
        let in_two_calls = put(&mut trx, 1) + commit(trx);
        let before = log.end();
        base.put(&[0, 2], &[0; 100], Mode::Put).unwrap();
        let in_one_call = log.end().0 - before.0;
        assert!(in_one_call + 8 <= in_two_calls, "{in_one_call} bytes, and {in_two_calls} in two calls");
    }
    for rows in [1, 200] {
        let mut trx = Trx::new(&base.transactions);
        for n in 0..rows {
            put(&mut trx, n);
        }
        let appended = commit(trx);
        assert!((1..64).contains(&appended), "{appended} bytes after {rows} changes");
    }
}

/// Reserves what is left of the log on a full disk, including what is kept for drops.
fn use_up(base: &Base) -> Vec<LogReservation<'_>> {
    let log = &base.pool.context().log;
    let mut reserved = Vec::new();
    for bytes in [4096, 64] {
        while let Ok(more) = log.admit_freeing(bytes) {
            reserved.push(more);
        }
    }
    reserved
}

/// Neither its undo, which is far more than log is reserved for, nor a crash costs it the log of its end.
#[test]
fn a_prepared_transaction_commits_without_any_free_log() {
    for rows in [1u16, 400] {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let base = Base::open(Setup { purge: false, ..Setup::simulated(&disk, &env) }).unwrap();
        let secondaries = base.secondaries();
        let [by_handle, by_name] = [1u8, 2].map(|part| {
            let mut trx = Trx::new(&base.transactions);
            for n in 0..rows {
                let mut edit = Edit::write(Value::Bytes(&[0; 100]), Mode::Put);
                let key = [&[part][..], &n.to_be_bytes()].concat();
                row::change(&mut trx, &base.target(&secondaries), &key, &mut edit, false).unwrap();
            }
            trx.prepare(&Arc::from([part])).unwrap();
            trx.suspend()
        });
        base.sync().unwrap();
        let after_a_crash = disk.survivor(Survive::Everything);
        disk.full_from(Some(0));
        let reserved = use_up(&base);
        base.put(b"other", &[0; 100], Mode::Put).expect_err("the disk is full");
        for state in [by_handle, by_name] {
            Trx::resume(&base.transactions, state).commit().unwrap();
        }
        drop(reserved);
        let base = Base::open(Setup::simulated(&after_a_crash, &SimulatedEnv::new(2))).unwrap();
        after_a_crash.full_from(Some(0));
        let reserved = use_up(&base);
        for name in [1u8, 2] {
            two_phase::commit_prepared(&base.transactions, &[name]).unwrap();
        }
        drop(reserved);
        base.compare(
            &(0..rows)
                .flat_map(|n| [1, 2].map(|part| (part, n)))
                .map(|(part, n)| ([&[part][..], &n.to_be_bytes()].concat(), vec![0; 100]))
                .collect(),
        )
        .unwrap();
    }
}
