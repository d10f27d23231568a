//! A disk in memory with crashes, torn writes, lost writes and failures on command.
//!
//! **Purpose.** Every crash that a real disk may suffer, at a chosen operation (crash point), and the damage that it
//! may do, replayable from a seed.
//!
//! **Invariants.** Operations are counted from 1 (checked by `disk/mod.rs::operate`): creations, writes, syncs of files
//! and folders, preallocations, truncations, renames, removals, and each request of a batch when it runs; plain reads
//! are not counted. From the chosen operation on everything fails (test:
//! `a_crash_during_a_batch_fails_the_rest_of_it`), and [`SimulatedDisk::restart`] returns the disk as the machine finds
//! it afterwards (test: `one_run_gives_the_disk_of_every_crash`). Every random decision is drawn from the seed, in the
//! order of the calls (test: `a_seed_decides_the_order_of_completions`).
//!
//! *The state after a crash.* The engine relies on the following rules only (test:
//! `first_runs_crash_at_every_operation`).
//!
//! 1. Everything synced survives: of a file its content and length (test:
//!    `synced_bytes_survive_a_crash_and_no_other_bytes_appear`), of a folder its names (test:
//!    `a_removed_file_may_come_back_until_its_folder_is_synced`). Neither sync covers the other (test:
//!    `a_synced_file_whose_name_is_not_synced_may_be_lost`), and no sync covers a request that has not completed (test:
//!    `a_sync_does_not_cover_requests_that_have_not_completed`).
//! 2. Of the writes since the sync of their file any may arrive, in any order, including the one that was cut off: an
//!    older write may overwrite a newer one (test: `an_older_write_may_lie_over_a_younger_one`).
//! 3. A write may arrive in part, at sectors of 512 bytes or at blocks of 4 KiB: its beginning, its end, or any pieces;
//!    a sector is never torn (test: `large_writes_tear_at_sectors_and_blocks`). The length that a write gives a file
//!    may arrive without the bytes, which are then zeros (test: `unsynced_writes_are_visible_but_not_durable`).
//! 4. Truncations and reservations may each arrive or not, but writes are not reordered across them (checked by
//!    `disk/content.rs::survive`).
//! 5. Of the names changed since the sync of their folder any change may arrive: creations, renames, removals (test:
//!    `a_removed_file_may_come_back_until_its_folder_is_synced`). A rename is atomic (test:
//!    `a_rename_is_whole_or_has_not_happened`). A change of a name arrives only after the earlier changes of that name
//!    (test: `a_name_given_again_does_not_cost_the_renamed_file_its_own`). No change of a name waits for content (test:
//!    `a_synced_file_whose_name_is_not_synced_may_be_lost`).
//! 6. Nothing is invented: no sector holds bytes that were not written there (test:
//!    `synced_bytes_survive_a_crash_and_no_other_bytes_appear`), and no name refers to a file to which it never
//!    referred (test: `a_name_leads_where_it_led_since_the_sync`).
//! 7. A sync that is cut off or fails guarantees nothing (test: `a_sync_that_is_cut_off_guarantees_nothing`). After a
//!    failed sync the disk drops the changes that it has not made durable: readers see them, later syncs succeed
//!    without them, and they are missing after a crash (test: `a_failed_sync_is_not_made_good_by_the_next`).
//! 8. A block of 4 KiB of a data file or of the doublewrite file may be unreadable if its write was cut off: reads of
//!    it fail until it is written again (test: `a_block_whose_write_was_cut_off_may_be_unreadable`).
//!
//! The log and the control file are exempt from the last rule: there a device must leave the block partly old and
//! partly new (test: `a_block_whose_write_was_cut_off_may_be_unreadable`), because they overwrite blocks with live
//! content: commits share the last block of the log, and an open writes the control record that it has found.
//!
//! **Damage.** [`Fault::is_damage`] and [`SimulatedDisk::flip`] break these rules: a write that is acknowledged and
//! lost, either at once or at the crash although it was synced; a write that lands elsewhere, in this file or in
//! another; bits that flip at rest. No engine survives all of that. The faults that this one detects, and those that it
//! cannot, are listed in docs/testing.md.

#[cfg(test)]
mod conformance;
mod content;
mod fault;
mod names;
mod queue;
#[cfg(test)]
mod tests;

use core::{fmt, str::FromStr};
use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    ops::RangeInclusive,
    path::PathBuf,
};

use content::{Change, Inode, SECTOR};
pub use fault::Fault;
use fault::{OperationKind, Plan};
use names::{InodeId, Names};
use windfall_base::{
    disk::{BLOCK_BYTES, Disk, FileName, Folder, Queue, check_blocks, failed},
    env::Env as _,
    error::{DiskError, IoOp},
    ids::SpaceId,
    memory::store_words,
    sync::{
        Arc, Event, Mutex, Rank,
        atomic::AtomicU64,
        work::{self, Work},
    },
};

use crate::SimulatedEnv;

/// The part of the unsynced changes that survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survive {
    /// Nothing: exactly the synced state is left.
    Nothing,
    /// All of them, including the operation that was cut off.
    Everything,
    /// Some of them, as this seed decides: any of the writes, whole or torn, and any of the names.
    Random(u64),
}

/// Formats as a word, or as the seed.
impl fmt::Display for Survive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Everything => f.write_str("everything"),
            Self::Random(seed) => seed.fmt(f),
        }
    }
}

/// Parses the format of `Display`.
impl FromStr for Survive {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "nothing" => Ok(Self::Nothing),
            "everything" => Ok(Self::Everything),
            seed => seed
                .parse()
                .map(Self::Random)
                .map_err(|_| format!("{text:?} is neither \"nothing\" nor \"everything\" nor a seed")),
        }
    }
}

/// A simulated disk. Clones share its state.
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    state: Arc<Mutex<State>>,
    /// Notified when syncs are no longer held.
    released: Arc<Event>,
}

#[derive(Clone, Debug)]
struct State {
    chance: SimulatedEnv,
    names: Names,
    inodes: BTreeMap<InodeId, Inode>,
    next_inode: InodeId,
    operations: u64,
    crash_at: Option<u64>,
    crashed: bool,
    faults: Vec<Plan>,
    /// Operations that have failed, by plan or because the disk was full, and the last of them.
    failures: u64,
    failed: Option<(IoOp, FileName)>,
    unreadable: BTreeSet<(InodeId, u64)>,
    capacity: Option<u64>,
    /// The disk is full from this operation on.
    full_from: Option<u64>,
    /// Whether syncs of the log are held, and how many are.
    holds_log_syncs: bool,
    held_log_syncs: usize,
    crash_points: Option<CrashPoints>,
}

/// Copies of the disk as a crash at each of these operations (crash points) would have left it.
#[derive(Clone, Debug)]
struct CrashPoints {
    at: RangeInclusive<u64>,
    taken: Vec<(u64, SimulatedDisk)>,
}

impl SimulatedDisk {
    /// Creates an empty disk.
    pub fn new(seed: u64) -> Self {
        Self::with(State::new(SimulatedEnv::new(seed), Names::default(), BTreeMap::new()))
    }

    fn with(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(Rank::Handles, state)), released: Arc::new(Event::new()) }
    }

    /// Returns the number of operations so far.
    pub fn operations(&self) -> u64 {
        self.state.lock().operations
    }

    /// Crashes at this operation, counted from 1. It fails with [`DiskError::Released`], as does everything after it.
    pub fn crash_at(&self, operation: u64) {
        self.state.lock().crash_at = Some(operation);
    }

    /// Keeps, from now on, the disk as a crash at each of these operations would leave it, so that one run of a history
    /// yields all its crash points. [`SimulatedDisk::take_crash_points`] returns them.
    pub fn record_crash_points(&self, at: RangeInclusive<u64>) {
        self.state.lock().crash_points = Some(CrashPoints { at, taken: Vec::new() });
    }

    /// Returns the disks kept since the last call, each with its operation. They have crashed:
    /// [`SimulatedDisk::restart`] returns what is left.
    pub fn take_crash_points(&self) -> Vec<(u64, Self)> {
        let mut state = self.state.lock();
        state
            .crash_points
            .as_mut()
            .map(|crash_points| core::mem::take(&mut crash_points.taken))
            .unwrap_or_default()
    }

    /// Crashes now.
    pub fn crash(&self) {
        self.state.lock().crashed = true;
    }

    /// Returns whether the disk has crashed.
    pub fn is_crashed(&self) -> bool {
        self.state.lock().crashed
    }

    /// Plans a failure of this operation, or of the first one after it that the fault fits.
    pub fn fail_at(&self, operation: u64, fault: Fault) {
        self.plan(Plan { from: operation, on: None, spared: 0, lasting: false, fault });
    }

    /// Plans a failure of the `n`-th operation from now on that the fault fits, counted from 1, and of all later ones
    /// that it fits if it is `lasting`.
    pub fn fail_nth(&self, n: u64, fault: Fault, lasting: bool) {
        assert!(n > 0, "operations are counted from 1: the fault would never occur");
        self.plan(Plan { from: 0, on: None, spared: n - 1, lasting, fault });
    }

    /// Returns the number of operations that have failed, by plan or because the disk was full.
    pub fn failures(&self) -> u64 {
        self.state.lock().failures
    }

    /// Returns the last operation that has failed, and its file.
    pub fn failed(&self) -> Option<(IoOp, FileName)> {
        self.state.lock().failed
    }

    /// Drops all planned faults.
    pub fn clear_faults(&self) {
        self.state.lock().faults.clear();
    }

    fn plan(&self, plan: Plan) {
        let mut state = self.state.lock();
        state.faults.push(plan);
        state.faults.sort_by_key(|plan| plan.from);
    }

    /// Plans a failure of the next operation on this file that the fault fits.
    pub fn fail_on(&self, file: FileName, fault: Fault) {
        self.plan(Plan { from: 0, on: Some(file), spared: 0, lasting: false, fault });
    }

    /// Plans a failure of every operation on this file that the fault fits.
    pub fn fail_always_on(&self, file: FileName, fault: Fault) {
        self.plan(Plan { from: 0, on: Some(file), spared: 0, lasting: true, fault });
    }

    /// Holds the syncs of log segments that begin from now on, or releases them. A held sync has not happened yet. It
    /// blocks its thread, so simulations, which have one thread, cannot use this.
    pub fn hold_log_syncs(&self, hold: bool) {
        self.state.lock().holds_log_syncs = hold;
        self.released.notify();
    }

    /// Returns the number of syncs that are held.
    pub fn held_log_syncs(&self) -> usize {
        self.state.lock().held_log_syncs
    }

    /// Waits for as long as syncs of the log are held.
    fn wait_while_held(&self) {
        if !self.state.lock().holds_log_syncs {
            return;
        }
        self.state.lock().held_log_syncs += 1;
        self.released.wait(|| !self.state.lock().holds_log_syncs);
        self.state.lock().held_log_syncs -= 1;
    }

    /// Limits the space for content: from now on a write that needs more finds the disk full. `None` means no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.state.lock().capacity = bytes;
    }

    /// Makes the disk full from this operation on, counted from 1; `None` means never.
    pub fn full_from(&self, operation: Option<u64>) {
        self.state.lock().full_from = operation;
    }

    /// Returns the space that the content of all files takes, in bytes of whole blocks.
    pub fn used(&self) -> u64 {
        self.state.lock().used()
    }

    /// Flips bits of one byte of a file on the disk. Returns whether the file has such a byte.
    pub fn corrupt(&self, file: FileName, offset: u64, mask: u8) -> bool {
        let mut state = self.state.lock();
        let Some(inode) = state.names.get(file).and_then(|id| state.inodes.get_mut(&id)) else {
            return false;
        };
        inode.corrupt(offset, mask);
        offset < inode.current.length()
    }

    /// Flips one random bit, in a file that `fits` and in a block that is not all zero. Returns the file and the
    /// offset.
    pub fn flip(&self, fits: impl Fn(FileName) -> bool) -> Option<(FileName, u64)> {
        let mut state = self.state.lock();
        let files = state.names.current().iter().filter(|(file, _)| fits(**file));
        let blocks: Vec<(FileName, InodeId, u64)> = files
            .flat_map(|(file, id)| state.inodes[id].current.filled().map(|block| (*file, *id, block)))
            .collect();
        let luck = state.chance.random();
        let (file, id, block) = *blocks.get(luck.checked_rem(blocks.len() as u64)? as usize)?;
        let (byte, bit) = (state.chance.random() % BLOCK_BYTES as u64, state.chance.random() % 8);
        state.inode(id).corrupt(block + byte, 1 << bit);
        Some((file, block + byte))
    }

    /// Makes a block of 4 KiB unreadable: reads of it fail until it is written again.
    pub fn make_unreadable(&self, file: FileName, offset: u64) {
        let mut state = self.state.lock();
        if let Some(id) = state.names.get(file) {
            state.unreadable.insert((id, offset / BLOCK_BYTES as u64));
        }
    }

    /// Makes an unreadable block readable again.
    pub fn make_readable(&self, file: FileName, offset: u64) {
        let mut state = self.state.lock();
        if let Some(id) = state.names.get(file) {
            state.unreadable.remove(&(id, offset / BLOCK_BYTES as u64));
        }
    }

    /// Returns the disk as the machine finds it after a crash. This disk crashes now if it has not before. Planned
    /// crashes and faults are dropped; damage and the capacity are kept. Operations count from 1 again.
    #[must_use]
    pub fn restart(&self, survive: Survive) -> Self {
        self.crash();
        self.survivor(survive)
    }

    /// Returns the disk as the machine would find it after a crash now. This disk continues to work.
    #[must_use]
    pub fn survivor(&self, survive: Survive) -> Self {
        let old = self.state.lock();
        let chance = SimulatedEnv::new(match survive {
            Survive::Nothing => 0,
            Survive::Everything => 1,
            Survive::Random(seed) => seed,
        });
        let names = old.names.survive(survive, &chance);
        let linked: BTreeSet<InodeId> = names.values().copied().collect();
        let spared: BTreeSet<InodeId> =
            names.iter().filter(|(file, _)| !file.is_direct()).map(|(_, id)| *id).collect();
        let mut unreadable = BTreeSet::new();
        let mut inodes = BTreeMap::new();
        for (id, inode) in old.inodes.iter().filter(|(id, _)| linked.contains(id)) {
            let mut blocks = BTreeSet::new();
            let content = inode.survive(survive, &chance, (!spared.contains(id)).then_some(&mut blocks));
            unreadable.extend(blocks.into_iter().map(|block| (*id, block)));
            inodes.insert(*id, Inode::survivor(content));
        }
        let mut next = old.followed_by(chance, Names::survivors(names), inodes);
        next.unreadable.extend(unreadable);
        Self::with(next)
    }

    /// Returns the disk as the next process finds it after this one was killed. The machine keeps running: readers see
    /// all that was written, and changes that were not synced are still not durable.
    #[must_use]
    pub fn next_process(&self) -> Self {
        self.crash();
        let old = self.state.lock();
        let mut inodes = old.inodes.clone();
        for inode in inodes.values_mut() {
            inode.in_progress = 0;
        }
        Self::with(old.followed_by(SimulatedEnv::new(old.operations), old.names.clone(), inodes))
    }

    /// Counts an operation and runs it, unless a fault is due. At a crash the operation still begins: its changes may
    /// survive, except that a sync has made nothing durable.
    fn operate<T>(
        &self,
        action: IoOp,
        file: FileName,
        kind: OperationKind,
        run: impl FnOnce(&mut State, Option<Fault>) -> Result<T, DiskError>,
    ) -> Result<T, DiskError> {
        assert!(kind != OperationKind::PlainRead, "a plain read is counted as an operation");
        let mut state = self.state.lock();
        state.check()?;
        state.operations += 1;
        let now = state.operations;
        if state.crash_at.is_some_and(|at| at <= now) {
            if kind != OperationKind::Sync {
                let _ = run(&mut state, None);
            }
            state.crashed = true;
            return Err(DiskError::Released);
        }
        // As above: the crash comes before a sync, but after any other operation.
        if kind == OperationKind::Sync {
            state.record_crash_point();
        }
        let result = match state.strike(action, kind, file) {
            Some(Fault::Full) => Err(full(action, file)),
            Some(Fault::Fails | Fault::WriteFails | Fault::ReadFails) if kind != OperationKind::Sync => {
                Err(eio(action, file))
            }
            Some(Fault::LateFailure) => run(&mut state, None).and(Err(eio(action, file))),
            fault => run(&mut state, fault),
        };
        if kind != OperationKind::Sync {
            state.record_crash_point();
        }
        result
    }

    /// Runs an operation on the content of a file.
    fn operate_on(
        &self,
        action: IoOp,
        file: FileName,
        kind: OperationKind,
        run: impl FnOnce(&mut State, InodeId, Option<Fault>) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        self.operate(action, file, kind, |state, fault| {
            let id = state.find(file)?;
            run(state, id, fault)
        })
    }
}

fn path(file: FileName) -> PathBuf {
    PathBuf::from("/simulated").join(file.to_string())
}

fn eio(action: IoOp, file: FileName) -> DiskError {
    failed(action, &path(file), io::Error::from_raw_os_error(libc::EIO))
}

fn full(action: IoOp, file: FileName) -> DiskError {
    failed(action, &path(file), io::ErrorKind::StorageFull.into())
}

/// Returns the error of a sync that fails with this fault.
fn unsynced(action: IoOp, file: FileName, fault: Fault) -> DiskError {
    if fault == Fault::SyncFull { full(action, file) } else { eio(action, file) }
}

impl State {
    /// Creates a state before its first operation, with nothing planned.
    fn new(chance: SimulatedEnv, names: Names, inodes: BTreeMap<InodeId, Inode>) -> Self {
        Self {
            chance,
            names,
            inodes,
            next_inode: 1,
            operations: 0,
            crash_at: None,
            crashed: false,
            faults: Vec::new(),
            failures: 0,
            failed: None,
            unreadable: BTreeSet::new(),
            capacity: None,
            full_from: None,
            holds_log_syncs: false,
            held_log_syncs: 0,
            crash_points: None,
        }
    }

    /// Keeps what a crash at this operation would leave, if requested.
    fn record_crash_point(&mut self) {
        let now = self.operations;
        if self.crash_points.as_ref().is_none_or(|crash_points| !crash_points.at.contains(&now)) {
            return;
        }
        let crash_points = self.crash_points.take();
        let left = Self { crashed: true, ..self.clone() };
        self.crash_points = crash_points;
        if let Some(crash_points) = &mut self.crash_points {
            crash_points.taken.push((now, SimulatedDisk::with(left)));
        }
    }

    /// Returns the successor of this state, with these names and files: damage and capacity are kept.
    fn followed_by(&self, chance: SimulatedEnv, names: Names, inodes: BTreeMap<InodeId, Inode>) -> Self {
        Self {
            next_inode: self.next_inode,
            unreadable: self.unreadable.clone(),
            capacity: self.capacity,
            ..Self::new(chance, names, inodes)
        }
    }

    fn check(&self) -> Result<(), DiskError> {
        if self.crashed { Err(DiskError::Released) } else { Ok(()) }
    }

    /// Returns the fault that happens to this operation, if one is due.
    fn strike(&mut self, action: IoOp, kind: OperationKind, file: FileName) -> Option<Fault> {
        let now = self.operations;
        let n = self.faults.iter_mut().position(|plan| plan.strikes(now, kind, file))?;
        self.failures += 1;
        self.failed = Some((action, file));
        let plan = if self.faults[n].lasting { self.faults[n] } else { self.faults.remove(n) };
        Some(plan.fault)
    }

    fn find(&self, file: FileName) -> Result<InodeId, DiskError> {
        self.check()?;
        self.names.get(file).ok_or_else(|| DiskError::Missing { path: path(file) })
    }

    /// Returns the inode of a name or a request.
    fn inode(&mut self, id: InodeId) -> &mut Inode {
        self.inodes.get_mut(&id).expect("what a name or a request leads to is kept")
    }

    fn used(&self) -> u64 {
        self.names
            .current()
            .values()
            .filter_map(|id| self.inodes.get(id))
            .map(|i| i.current.allocated())
            .sum()
    }

    fn check_space(
        &mut self,
        action: IoOp,
        file: FileName,
        id: InodeId,
        offset: u64,
        length: u64,
    ) -> Result<(), DiskError> {
        let is_full = self.full_from.is_some_and(|from| from <= self.operations);
        if self.capacity.is_none() && !is_full {
            return Ok(());
        }
        let growth = self.inode(id).current.growth(offset, length);
        if growth > 0 && (is_full || self.capacity.is_some_and(|most| self.used() + growth > most)) {
            self.failures += 1;
            self.failed = Some((action, file));
            return Err(full(action, file));
        }
        Ok(())
    }

    fn write(
        &mut self,
        file: FileName,
        id: InodeId,
        offset: u64,
        bytes: &[u8],
        fault: Option<Fault>,
    ) -> Result<(), DiskError> {
        let (id, offset) = match fault {
            Some(Fault::LostWrite) => return Ok(()),
            Some(Fault::ForgottenWrite) => {
                self.inode(id).show(offset, bytes);
                return Ok(());
            }
            Some(Fault::MisdirectedWrite { file, offset }) => {
                // It lands in whichever file has the name. If there is none, the write is lost.
                let Some(id) = file.map_or(Some(id), |file| self.names.get(file)) else { return Ok(()) };
                (id, offset)
            }
            _ => (id, offset),
        };
        let mut arriving = bytes;
        if fault == Some(Fault::TornPage) {
            let sectors = (bytes.len() / SECTOR) as u64;
            arriving = &bytes[..(1 + self.chance.random() % (sectors - 1)) as usize * SECTOR];
        }
        self.check_space(IoOp::Write, file, id, offset, bytes.len() as u64)?;
        let block = BLOCK_BYTES as u64;
        let blocks = offset / block..(offset + bytes.len() as u64).div_ceil(block);
        self.unreadable.retain(|(inode, block)| *inode != id || !blocks.contains(block));
        self.inode(id).change(Change::Write { offset, bytes: arriving.into() });
        if arriving.len() < bytes.len() { Err(eio(IoOp::Write, file)) } else { Ok(()) }
    }

    fn read(&mut self, file: FileName, id: InodeId, offset: u64, out: &mut [u8]) -> Result<usize, DiskError> {
        let block = BLOCK_BYTES as u64;
        let end = (offset + out.len() as u64).div_ceil(block).max(offset / block);
        if self.unreadable.range((id, offset / block)..(id, end)).next().is_some() {
            return Err(eio(IoOp::Read, file));
        }
        Ok(self.inode(id).current.read(offset, out))
    }

    /// Drops files that can no longer be reached.
    fn collect(&mut self) {
        let reachable = self.names.reachable();
        self.inodes.retain(|id, inode| inode.in_progress > 0 || reachable.contains(id));
        let inodes = &self.inodes;
        self.unreadable.retain(|(id, _)| inodes.contains_key(id));
    }
}

impl Disk for SimulatedDisk {
    fn path(&self, file: FileName) -> PathBuf {
        path(file)
    }

    fn free_percent(&self) -> Option<u64> {
        let state = self.state.lock();
        let capacity = state.capacity?;
        (capacity.saturating_sub(state.used()) * 100).checked_div(capacity)
    }

    fn create(&self, file: FileName) -> Result<(), DiskError> {
        work::count(Work::FileCall);
        self.operate(IoOp::Create, file, OperationKind::Grow, |state, _| {
            if let Some(id) = state.names.get(file) {
                state.inode(id).change(Change::Truncate(0));
            } else {
                let id = state.next_inode;
                state.next_inode += 1;
                state.inodes.insert(id, Inode::default());
                state.names.link(file, id);
            }
            Ok(())
        })
    }

    fn len(&self, file: FileName) -> Result<Option<u64>, DiskError> {
        work::count(Work::FileCall);
        let mut state = self.state.lock();
        state.check()?;
        Ok(state.names.get(file).map(|id| state.inode(id).current.length()))
    }

    fn list(&self, folder: Folder) -> Result<Vec<FileName>, DiskError> {
        work::count(Work::FileCall);
        let state = self.state.lock();
        state.check()?;
        Ok(state.names.current().keys().copied().filter(|file| file.folder() == folder).collect())
    }

    fn read(&self, file: FileName, offset: u64, out: &mut [u8]) -> Result<usize, DiskError> {
        work::count(Work::Read);
        let mut state = self.state.lock();
        let id = state.find(file)?;
        match state.strike(IoOp::Read, OperationKind::PlainRead, file) {
            Some(_) => Err(eio(IoOp::Read, file)),
            None => state.read(file, id, offset, out),
        }
    }

    fn write(&self, file: FileName, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        if file.is_direct() {
            check_blocks(&path(file), offset, bytes.len())?;
        }
        work::count(if matches!(file, FileName::Log(_)) { Work::LogWrite } else { Work::Write });
        self.operate_on(IoOp::Write, file, OperationKind::Write, |state, id, fault| {
            state.write(file, id, offset, bytes, fault)
        })
    }

    fn read_page(&self, file: FileName, offset: u64, into: &[AtomicU64]) -> Result<(), DiskError> {
        let mut bytes = vec![0; size_of_val(into)];
        self.read(file, offset, &mut bytes)?;
        store_words(into, &bytes);
        Ok(())
    }

    fn queue(&self) -> Box<dyn Queue> {
        Box::new(queue::SimulatedQueue::new(self.clone()))
    }

    fn sync(&self, file: FileName) -> Result<(), DiskError> {
        if matches!(file, FileName::Log(_)) {
            work::count(Work::LogSync);
            self.wait_while_held();
        } else {
            work::count(Work::Sync);
        }
        self.operate_on(IoOp::Sync, file, OperationKind::Sync, |state, id, fault| {
            if let Some(fault) = fault {
                let chance = state.chance.clone();
                state.inode(id).sync_fails(&chance);
                return Err(unsynced(IoOp::Sync, file, fault));
            }
            state.inode(id).sync();
            Ok(())
        })
    }

    fn sync_folder(&self, folder: Folder) -> Result<(), DiskError> {
        work::count(Work::Sync);
        // For an error message any file of the folder will do.
        let file = match folder {
            Folder::Root => FileName::Control,
            Folder::Log => FileName::Log(0),
            Folder::Data => FileName::Data(SpaceId::NONE),
        };
        self.operate(IoOp::SyncFolder, file, OperationKind::Sync, |state, fault| {
            if let Some(fault) = fault {
                let chance = state.chance.clone();
                state.names.sync_fails(folder, &chance);
                return Err(unsynced(IoOp::SyncFolder, file, fault));
            }
            state.names.sync(folder);
            state.collect();
            Ok(())
        })
    }

    fn preallocate(&self, file: FileName, offset: u64, length: u64) -> Result<(), DiskError> {
        work::count(Work::FileCall);
        self.operate_on(IoOp::Preallocate, file, OperationKind::Grow, |state, id, _| {
            if length > 0 {
                state.check_space(IoOp::Preallocate, file, id, offset, length)?;
                state.inode(id).change(Change::Reserve { offset, length });
            }
            Ok(())
        })
    }

    fn truncate(&self, file: FileName, length: u64) -> Result<(), DiskError> {
        work::count(Work::FileCall);
        self.operate_on(IoOp::Truncate, file, OperationKind::Other, |state, id, _| {
            state.inode(id).change(Change::Truncate(length));
            Ok(())
        })
    }

    fn rename(&self, from: FileName, to: FileName) -> Result<(), DiskError> {
        work::count(Work::FileCall);
        self.operate_on(IoOp::Rename, from, OperationKind::Other, |state, id, _| {
            state.names.rename(from, to, id);
            Ok(())
        })
    }

    fn remove(&self, file: FileName) -> Result<(), DiskError> {
        work::count(Work::FileCall);
        self.operate_on(IoOp::Remove, file, OperationKind::Other, |state, _, _| {
            state.names.unlink(file);
            Ok(())
        })
    }
}
