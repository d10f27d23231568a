//! Writing pages: by the cleaner, or by a thread that needs a frame and finds only dirty pages.
//!
//! **Purpose.** Keeps some frames free, the share of dirty pages below its limit, and the checkpoint age small.
//!
//! **Invariants.** A page that is being written is pinned (by type), since before the flush list's lock was released,
//! and latched shared from the copy to the end of the write: no thread changes it meanwhile, as with `io_fix` in
//! `InnoDB` (checked by `pool/cleaner.rs::write`). It leaves the flush list when its file is synced, and stays in it if
//! that fails (test: `a_page_whose_sync_fails_stays_dirty`). A dead page is not written: it is removed from the flush
//! list when it is found, and its frame is freed (test: `lazy_mark_flags_and_frees_nothing`). One thread writes at a
//! time, because the queue of writes is in a mutex (by type), which is not one of the servers' and not instrumented.

use core::time::Duration;
use std::{collections::BTreeSet, sync::Arc};

use windfall::{
    disk::{Action, Disk, FileName, IoBuffer, Queue, Request},
    env::{Env, Next, Worker, WorkerClass},
    error::Result,
    ids::{Lsn, SpaceId},
};

use super::{
    ClassicPool,
    access::Pin,
    descriptor::{DIRTY, IO, SYNTHETIC},
    era::Part,
    instance::Instance,
    replace::SEARCHED,
    space::PendingIo,
};
use crate::watch::{self, Purpose, Role};

/// Pages per batch.
const BATCH: usize = 128;
/// The depth to which the cleaner searches the LRU list for pages to write: `innodb_lru_scan_depth`.
const LRU_DEPTH: usize = 1024;
/// The frames that are kept free: one in this many of an instance's frames, and a maximum.
const RESERVE_PART: usize = 32;
const RESERVE_MOST: usize = 1024;
/// From this pressure of the log on, in percent of its size, the pages with the oldest changes are written.
const OLD_PERCENT: u64 = 60;
/// An idle cleaner runs again after this time.
const PAUSE: Duration = Duration::from_millis(20);

/// The state of the writing thread.
pub(super) struct Flusher {
    queue: Box<dyn Queue>,
}

impl core::fmt::Debug for Flusher {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Flusher")
    }
}

impl Flusher {
    pub(super) fn new(disk: &dyn Disk) -> Self {
        Self { queue: disk.queue() }
    }
}

/// A page that is about to be written: pinned, and latched shared.
struct Writing<'a> {
    pin: Pin<'a>,
    lsn: Lsn,
    pending_io: PendingIo,
}

impl ClassicPool {
    /// Starts the cleaner and the log's own worker.
    ///
    /// # Errors
    /// The system cannot start more threads.
    pub fn spawn(self: &Arc<Self>, env: &dyn Env) -> Result<Vec<Worker>> {
        let (log, health) = (self.context.log.clone(), &self.context.health);
        let wake = log.wake();
        // The log owns a reference to the health, so this one is weak.
        let weak_log = Arc::downgrade(&log);
        health.when_stopped(move || {
            if let Some(log) = weak_log.upgrade() {
                log.wake_all_waiters();
            }
        });
        log.set_checkpointer(self.cleaner_wake.clone());
        let writer =
            env.spawn("log", WorkerClass::Service, wake, health.watch("log", Box::new(move || log.step())))?;
        let pool = self.clone();
        let step = move || {
            watch::set_role(Role::Cleaner);
            match pool.clean() {
                Ok(true) => Next::Again,
                Ok(false) => Next::Idle(PAUSE),
                Err(error) => {
                    pool.context.health.poison(&error.to_string());
                    Next::Done
                }
            }
        };
        let step = health.watch("page cleaner", Box::new(step));
        let cleaner = env.spawn("page cleaner", WorkerClass::Service, self.cleaner_wake.clone(), step)?;
        Ok(vec![cleaner, writer])
    }

    /// Runs one step of the cleaner. Returns whether there is more to do.
    ///
    /// # Errors
    /// A page cannot be written.
    pub fn clean(&self) -> Result<bool> {
        let mut more = false;
        for instance in &self.instances {
            more |= self.refill_free_list(instance)?;
            let percent = u64::from(self.options.dirty_percent);
            let most = u64::from(instance.lru.len()) * percent / 100;
            let is_old = self.context.log.pressure() >= OLD_PERCENT;
            if u64::from(instance.flush.len()) > most || is_old {
                more |= self.write_oldest(instance)? > 0;
            }
        }
        self.raise_low_water_mark();
        Ok(more)
    }

    /// Writes all dirty pages.
    ///
    /// # Errors
    /// A page cannot be written.
    pub fn flush_all(&self) -> Result<()> {
        let is_left = |instance: &Instance| {
            let _held = instance.lock(&[Part::Flush], Purpose::Flush);
            instance.flush.changed(&self.frames).next().is_some()
        };
        for instance in &self.instances {
            while is_left(instance) {
                if self.write_oldest(instance)? == 0 {
                    // The remaining pages are latched by other threads.
                    std::thread::yield_now();
                }
            }
        }
        self.raise_low_water_mark();
        Ok(())
    }

    /// Advances the log's low-water mark to the oldest LSN that a dirty page or a group in progress still needs.
    fn raise_low_water_mark(&self) {
        let log = &self.context.log;
        // The groups in progress are read first: a page that one of them dirties later has an LSN at or above this
        // one. The mark does not pass the durable LSN either, because no reader could start beyond it.
        let appending = log.append_low_water_mark().min(log.durable());
        let oldest = self.instances.iter().filter_map(|instance| {
            let _held = instance.lock(&[Part::Flush], Purpose::Flush);
            instance.flush.oldest_change(&self.frames)
        });
        log.raise_low_water_mark(oldest.fold(appending, Ord::min));
    }

    fn reserve(instance: &Instance) -> usize {
        (instance.frames.len() / RESERVE_PART).clamp(1, RESERVE_MOST)
    }

    /// Evicts and writes pages from the old end of the LRU list until enough frames are free. Returns whether there is
    /// more to do.
    fn refill_free_list(&self, instance: &Instance) -> Result<bool> {
        let reserve = Self::reserve(instance);
        let mut freed = 0;
        while (instance.free.len() as usize) < reserve && freed < BATCH {
            let Some(frame) = self.evict_one(instance, SEARCHED) else { break };
            self.free_frame(instance, frame);
            freed += 1;
        }
        if instance.free.len() as usize >= reserve {
            return Ok(false);
        }
        Ok(self.write_at_end(instance, LRU_DEPTH)? + freed > 0)
    }

    /// Writes one page for a thread that needs a frame and finds no clean one. Returns whether there was a page to
    /// write.
    pub(super) fn write_for_a_frame(&self, instance: &Instance) -> Result<bool> {
        let one = {
            let mut held = instance.lock(&[Part::Lru], Purpose::Flush);
            held.acquire(Part::Flush);
            self.pin_dirty(instance.lru.from_oldest(&self.frames), 1)
        };
        Ok(self.write(instance, one)? > 0)
    }

    /// Writes dirty pages from the old end of the LRU list.
    fn write_at_end(&self, instance: &Instance, depth: usize) -> Result<usize> {
        let pins = {
            let mut held = instance.lock(&[Part::Lru], Purpose::Flush);
            held.acquire(Part::Flush);
            self.pin_dirty(instance.lru.from_oldest(&self.frames).take(depth), BATCH)
        };
        self.write(instance, pins)
    }

    /// Writes the pages with the oldest changes.
    fn write_oldest(&self, instance: &Instance) -> Result<usize> {
        let pins = {
            let _held = instance.lock(&[Part::Flush], Purpose::Flush);
            self.pin_dirty(instance.flush.changed(&self.frames), BATCH)
        };
        self.write(instance, pins)
    }

    /// Pins dirty pages without I/O in progress, and marks them as being written. Must be called with the flush list's
    /// lock.
    fn pin_dirty(&self, frames: impl Iterator<Item = u32>, most: usize) -> Vec<Pin<'_>> {
        let writable = |&frame: &u32| {
            let descriptor = &self.frames[frame as usize];
            descriptor.is(DIRTY) && !descriptor.is(IO | SYNTHETIC)
        };
        let pin = |frame: u32| {
            self.frames[frame as usize].set(IO);
            self.frames[frame as usize].pin();
            Pin { pool: self, frame }
        };
        frames.filter(writable).take(most).map(pin).collect()
    }

    /// Writes those of the pinned dirty pages that are not latched exclusively, and frees dead ones. Returns how many
    /// left the flush list.
    fn write(&self, instance: &Instance, pins: Vec<Pin<'_>>) -> Result<usize> {
        let mut flusher = self.flusher.lock();
        let (mut writing, mut dead) = (Vec::new(), Vec::new());
        for pin in pins {
            let descriptor = &self.frames[pin.frame as usize];
            if !pin.latch().try_share() {
                descriptor.clear(IO);
                continue;
            }
            let pending_io = self.space(descriptor.space()).map(PendingIo::new);
            if let Some(pending_io) = pending_io.filter(|_| !self.is_dead(pin.frame)) {
                let lsn = pin.page().lsn();
                writing.push(Writing { pin, lsn, pending_io });
            } else {
                pin.latch().unshare();
                descriptor.clear(IO);
                dead.push((pin.frame, descriptor.tag()));
            }
        }
        for (frame, id) in &dead {
            self.free_dead(*frame, *id);
        }
        let written = self.write_out(&mut flusher, &writing);
        let _held = instance.lock(&[Part::Flush], Purpose::Flush);
        for Writing { pin, .. } in &writing {
            let descriptor = &self.frames[pin.frame as usize];
            debug_assert!(!pin.latch().try_exclusive(), "a page was not latched while it was written");
            if written.is_ok() {
                descriptor.clear(DIRTY);
                instance.flush.remove(&self.frames, pin.frame);
            }
            descriptor.clear(IO);
            pin.latch().unshare();
        }
        written?;
        Ok(writing.len() + dead.len())
    }

    fn write_out(&self, flusher: &mut Flusher, writing: &[Writing<'_>]) -> Result<()> {
        let Some(newest) = writing.iter().map(|w| w.lsn).max() else { return Ok(()) };
        self.context.log.sync_to(newest)?;
        let batch = writing.iter().map(|w| {
            let id = self.frames[w.pin.frame as usize].tag();
            let (page, mut buffer) = (w.pin.page(), IoBuffer::new(self.options.page_size));
            debug_assert!(page.lsn() <= self.context.log.durable(), "a page is written before its log");
            page.read(0, buffer.bytes_mut());
            buffer.bytes_mut()[..4].copy_from_slice(&page.checksum().to_le_bytes());
            let (file, offset) = (FileName::Data(id.space), self.offset(id.page));
            Request { token: 0, file, offset, action: Action::Write, buffer }
        });
        flusher.queue.submit(batch.collect());
        let mut result = Ok(());
        while flusher.queue.pending() > 0 {
            for done in flusher.queue.complete(true) {
                result = result.and(done.result);
            }
        }
        result?;
        let files: BTreeSet<SpaceId> = writing.iter().map(|w| w.pending_io.space().id).collect();
        for file in files {
            self.context.disk.sync(FileName::Data(file))?;
        }
        Ok(())
    }
}
