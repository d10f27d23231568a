//! Checks of the engine's invariants at the yield points of a simulation.
//!
//! **Purpose.** The parts of an open database check themselves while a simulation runs it. The checks are those that an
//! assertion at one place cannot make, because they concern several structures, or every moment and not only a change.
//!
//! **Invariants.** A check changes nothing and waits for nothing: a part that is locked is left out, because the holder
//! may be in the middle of a change. Only tests, and builds with the feature `testing`, have this module.

use super::Engine;
use crate::sync::Arc;

impl Engine {
    /// Has the simulation, if there is one, check the invariants at every yield point.
    pub(super) fn check_at_yield_points(&self) {
        let health = self.pool.context().health.clone();
        let parts =
            (Arc::downgrade(&self.log), Arc::downgrade(&self.pool), Arc::downgrade(&self.transactions));
        let check = move || {
            let (Some(log), Some(pool), Some(transactions)) =
                (parts.0.upgrade(), parts.1.upgrade(), parts.2.upgrade())
            else {
                return false;
            };
            // A stopped database may have stopped in the middle of a change.
            if health.check().is_ok() {
                log.check_invariants();
                pool.check_invariants();
                transactions.check_invariants();
            }
            true
        };
        self.env.at_yield_points(Box::new(check));
    }
}

#[cfg(test)]
mod tests {
    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::{super::test_engine, *};
    use crate::{env::Env, options::Options};

    #[test]
    #[should_panic(expected = "the low-water mark")]
    fn a_simulation_finds_a_violation_at_its_next_yield_point() {
        let (disk, env) = (SimulatedDisk::new(1), SimulatedEnv::new(1));
        let options = Options::default().page_size(4096).buffer_pool_size(256 * 4096).log_size(4 << 20);
        let engine = test_engine::open(&disk, Arc::new(env.clone()), &options);
        test_engine::create_table_with_page(&engine, "t");
        env.yield_point();
        engine.log.misplace_low_water_mark();
        env.yield_point();
    }
}
