//! Ids of transactions and tablespaces, never used twice.
//!
//! **Purpose.** Each id is assigned by one addition. A *ceiling* keeps ids unique across restarts: no id at or above it
//! was ever assigned.
//!
//! **Invariants.** A ceiling is durable in the log before the first id below it is used (checked by
//! `mvcc/ids.rs::raise`). A restart begins at the ceiling, and the ids between are lost (test:
//! `no_id_is_repeated_over_any_number_of_crashes`). [`Ids::ceilings`] is never below the ceilings in the log, so a
//! checkpoint that writes it to the control file makes the log record dispensable (test:
//! `no_id_is_repeated_over_any_number_of_crashes`).

use crate::{
    buffer::BufferPool,
    error::{Result, UsageError},
    ids::{SpaceId, TrxId},
    log::Record,
    mtr::Mtr,
    sync::{
        Arc, Mutex, Rank,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
};

/// The number of ids by which a ceiling rises.
const IDS_PER_CEILING: u64 = 65_536;
/// An upper bound of the log that a ceiling record takes, in bytes.
const CEILING_RECORD_BYTES: u64 = 4096;

#[derive(Debug)]
struct Counter {
    next: AtomicU64,
    /// Ids below this may be used.
    usable: AtomicU64,
    /// The ceiling that is logged, or about to be logged.
    ceiling: AtomicU64,
}

impl Counter {
    fn new(start: u64) -> Self {
        Self { next: AtomicU64::new(start), usable: AtomicU64::new(start), ceiling: AtomicU64::new(start) }
    }

    fn take(&self) -> Option<u64> {
        let below = self.usable.load(SeqCst);
        self.next.fetch_update(SeqCst, SeqCst, |next| (next < below).then_some(next + 1)).ok()
    }

    fn is_short(&self) -> bool {
        self.next.load(SeqCst) >= self.usable.load(SeqCst)
    }
}

/// Assigns ids.
#[derive(Debug)]
pub struct Ids {
    pool: Arc<BufferPool>,
    spaces: Counter,
    trxs: Counter,
    raising: Mutex<()>,
}

impl Ids {
    /// Assigns ids from these on: the ceilings that recovery has found, or the first ids of a new database.
    pub fn new(pool: Arc<BufferPool>, space: SpaceId, trx: TrxId) -> Self {
        Self {
            pool,
            spaces: Counter::new(space.0.max(SpaceId::FIRST.0)),
            trxs: Counter::new(trx.0.max(1)),
            raising: Mutex::new(Rank::Transactions, ()),
        }
    }

    /// Returns a new tablespace id.
    ///
    /// # Errors
    /// If the log accepts no more records.
    pub fn space(&self) -> Result<SpaceId> {
        loop {
            if let Some(id) = self.spaces.take() {
                assert!(id >= SpaceId::FIRST.0, "the ids of the engine are not assigned");
                return Ok(SpaceId(id));
            }
            self.raise()?;
        }
    }

    /// Returns a new transaction id, unless the ceiling is reached: then call [`Ids::raise`], without any lock, and try
    /// again.
    pub(in crate::txn) fn try_trx(&self) -> Option<TrxId> {
        self.trxs.take().map(TrxId)
    }

    /// Returns the next transaction's id: every transaction so far has a lower one.
    pub(in crate::txn) fn next_trx(&self) -> TrxId {
        TrxId(self.trxs.next.load(SeqCst))
    }

    /// Raises the ceilings that are reached, durably.
    ///
    /// # Errors
    /// If the log accepts no more records, or the ids are used up.
    pub(in crate::txn) fn raise(&self) -> Result<()> {
        let _turn = self.raising.lock();
        let both = [&self.spaces, &self.trxs];
        if !both.iter().any(|counter| counter.is_short()) {
            return Ok(());
        }
        // A log without space is reported before a ceiling is raised. The holder of the mutex does not wait for log
        // space, because drops need ids, too.
        let _room = self.pool.context().log.admit_freeing(CEILING_RECORD_BYTES)?;
        for counter in both {
            if counter.is_short() {
                counter.ceiling.fetch_add(IDS_PER_CEILING, SeqCst);
            }
        }
        let (space, trx) = self.ceilings();
        let (space, trx) = (SpaceId(space), TrxId(trx));
        if trx > TrxId::MAX || space > SpaceId::MAX {
            return Err(UsageError::IdsExhausted.into());
        }
        let mut mtr = Mtr::begin(&self.pool)?;
        mtr.record(&Record::Ceilings { space, trx });
        let end = mtr.commit()?.expect("a record is logged");
        self.pool.context().log.sync_to(end)?;
        #[cfg(not(feature = "model"))]
        assert!(
            end <= self.pool.context().log.durable(),
            "ids become usable before their ceiling is durable"
        );
        for counter in both {
            assert!(
                counter.next.load(SeqCst) <= counter.usable.load(SeqCst),
                "an id was assigned before its ceiling was durable"
            );
            assert!(
                counter.usable.load(SeqCst) <= counter.ceiling.load(SeqCst),
                "a ceiling is below ids that may be used"
            );
            counter.usable.store(counter.ceiling.load(SeqCst), SeqCst);
        }
        Ok(())
    }

    /// Returns the ceilings: no tablespace id and no transaction id at or above these was assigned.
    pub(crate) fn ceilings(&self) -> (u64, u64) {
        (self.spaces.ceiling.load(SeqCst), self.trxs.ceiling.load(SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use windfall_sim::{SimulatedDisk, SimulatedEnv, Survive};

    use super::{
        super::super::tests::{Base, Setup},
        *,
    };
    use crate::env::RealEnv;

    /// Takes more than a block, so that the ceiling rises.
    const MANY: u64 = IDS_PER_CEILING + IDS_PER_CEILING / 2;

    #[test]
    fn no_id_is_repeated_over_any_number_of_crashes() {
        let mut disk = SimulatedDisk::new(1);
        let (mut last_space, mut last_trx) = (0, 0);
        for round in 0..6 {
            let base = Base::open(Setup::simulated(&disk, &SimulatedEnv::new(round))).unwrap();
            let ids = base.transactions.ids();
            for n in 0..[1, MANY, 3][round as usize % 3] {
                let space = ids.space().unwrap().0;
                assert!(space > last_space || n > 0, "{space} came before");
                last_space = last_space.max(space);
                let trx = loop {
                    match ids.try_trx() {
                        Some(trx) => break trx,
                        None => ids.raise().unwrap(),
                    }
                };
                assert!(trx.0 > last_trx, "{trx} came before");
                assert!(ids.next_trx() > trx);
                last_trx = trx.0;
            }
            let ceilings = ids.ceilings();
            assert!(last_space < ceilings.0 && last_trx < ceilings.1);
            if round % 2 == 0 {
                // The log record may be removed once the control file has the ceiling.
                base.checkpointer.checkpoint(true).unwrap();
            }
            let survive = [Survive::Nothing, Survive::Everything, Survive::Random(round)];
            drop(base);
            disk = disk.restart(survive[round as usize % 3]);
        }
    }

    #[test]
    fn threads_get_ids_of_their_own() {
        let disk = SimulatedDisk::new(1);
        let mut setup = Setup::simulated(&disk, &SimulatedEnv::new(1));
        setup.env = Arc::new(RealEnv::default());
        let base = Base::open(setup).unwrap();
        let ids = base.transactions.ids();
        let taken: Vec<Vec<u64>> = thread::scope(|scope| {
            let take = || (0..MANY / 3).map(|_| ids.space().unwrap().0).collect();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(taken.iter().all(|ids| ids.is_sorted()));
        assert_eq!(taken.iter().flatten().collect::<BTreeSet<_>>().len() as u64, MANY / 3 * 4);
    }
}
