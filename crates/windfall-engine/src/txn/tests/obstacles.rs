//! Calls that meet an obstacle after they have changed something.

use core::ops::Bound::Unbounded;

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{Base, Edit, Mode, Setup, Stop, Trx, UNIQUE, Value, row};
use crate::sync::atomic::{AtomicBool, Ordering::Relaxed};

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
        let target = super::RowTarget { watch: Some(&lock), ..base.target(&secondaries) };
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
