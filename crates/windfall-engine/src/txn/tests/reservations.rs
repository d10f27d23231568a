//! Log is reserved for everything that a call appends, and for its rollback.

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{Base, Mode, PAGE_SIZE, Setup};
use crate::env::Env;

#[test]
fn a_call_appends_no_more_than_its_reservation() {
    let mut tight = 0;
    for seed in 0..6 {
        let (disk, env) = (SimulatedDisk::new(seed), SimulatedEnv::new(seed));
        let setup = Setup { frames: 512, log_size: 64 << 20, purge: false, ..Setup::simulated(&disk, &env) };
        let base = Base::open(setup).unwrap();
        let log = base.pool.context().log.clone();
        let chance = |below: usize| (env.random() % below as u64) as usize;
        let (longest_key, inline) = (base.clustered.key_limit(), base.clustered.inline_limit());
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
