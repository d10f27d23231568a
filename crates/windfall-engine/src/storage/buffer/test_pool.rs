//! A pool for unit tests of this layer and those just above it: a simulated disk, and no workers.

use windfall_sim::{SimulatedDisk, SimulatedEnv};

use super::{BATCH_PAGES, BufferPool, Doublewrite, StorageContext};
use crate::{
    health::Health,
    ids::Lsn,
    log::{Control, ControlFile, Log, LogOptions},
    sync::Arc,
};

pub(crate) const PAGE_SIZE: usize = 4096;

/// Returns a pool of `frames` frames over a new disk.
pub(crate) fn new_pool(frames: usize) -> (SimulatedDisk, Arc<BufferPool>) {
    new_pool_with_room(frames, BATCH_PAGES)
}

/// As [`new_pool`], with a doublewrite file for batches of `room` pages.
pub(crate) fn new_pool_with_room(frames: usize, room: usize) -> (SimulatedDisk, Arc<BufferPool>) {
    let disk = SimulatedDisk::new(1);
    let (shared, env, health) = (Arc::new(disk.clone()), Arc::new(SimulatedEnv::new(1)), Health::new());
    Doublewrite::create(&disk, PAGE_SIZE, room).unwrap();
    let control = Control { page_size: PAGE_SIZE as u32, uuid: [7; 16], ..Control::default() };
    let mut control = ControlFile::create(shared.clone(), health.clone(), control).unwrap();
    let options = LogOptions { size: 16 << 20, segment: 1 << 20, buffer: 1 << 20 };
    let log = Log::open(shared.clone(), env.clone(), health.clone(), options, &mut control, Lsn::ZERO);
    let context = StorageContext { disk: shared, log: Arc::new(log.unwrap()), env, health };
    let pool = BufferPool::new(context, PAGE_SIZE, frames, frames);
    (disk, pool.map(Arc::new).unwrap())
}
