//! A disk in memory for the tests of the log.
//!
//! **Purpose.** It models what the simulated disk does not: the end of the process alone, after which all that was
//! written is read back, but a later crash of the machine may still lose what was never synced. A crash leaves the disk
//! usable. Synced content survives. Of the rest each 512-byte sector of each write survives or not, and a folder is as
//! one of its changes since its last sync has left it (test: `a_crash_keeps_what_was_synced_and_any_of_the_rest`).

use std::{collections::BTreeMap, path::PathBuf};

use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    disk::{Disk, FileName, Folder, Queue},
    error::{DiskError, IoOp},
    sync::{Arc, Mutex, Rank, atomic::AtomicU64},
};

#[derive(Clone, Debug, Default)]
struct File {
    now: Vec<u8>,
    durable: Vec<u8>,
    pending: Vec<(usize, Vec<u8>)>,
    /// A sync has failed: nothing becomes durable any more, whatever later ones report.
    lost: bool,
}

/// The outcome of syncs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SyncOutcome {
    #[default]
    Work,
    Fail,
    /// The next sync of the log fails, and its bytes are lost.
    #[cfg(feature = "model")]
    LoseOne,
}

type Names = BTreeMap<FileName, u64>;

#[derive(Clone, Debug, Default)]
struct TestDiskState {
    files: BTreeMap<u64, File>,
    names: Names,
    /// The names of each folder as they were after each change since its last sync.
    history: Vec<Names>,
    next: u64,
    syncs: u64,
    fate: SyncOutcome,
    /// Syncs block while this is set.
    slow_sync: bool,
    full: bool,
}

#[derive(Debug)]
pub(super) struct TestDisk(Mutex<TestDiskState>);

impl TestDisk {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(
            Rank::Handles,
            TestDiskState { history: vec![Names::new()], ..TestDiskState::default() },
        )))
    }

    /// Returns the disk as found after the machine has stopped; with `seed` 0 after the process alone has.
    pub(super) fn crash(&self, seed: u64) -> Arc<Self> {
        let mut state = self.0.lock().clone();
        (state.fate, state.full) = (SyncOutcome::Work, false);
        if seed != 0 {
            let mut chance = StdRng::seed_from_u64(seed);
            state.names = state.history[chance.random_range(0..state.history.len())].clone();
            for file in state.files.values_mut() {
                for (at, bytes) in core::mem::take(&mut file.pending) {
                    let mut from = 0;
                    while from < bytes.len() {
                        let to = (from + 512 - (at + from) % 512).min(bytes.len());
                        if chance.random_bool(0.6) {
                            if file.durable.len() < at + to {
                                file.durable.resize(at + to, 0);
                            }
                            file.durable[at + from..at + to].copy_from_slice(&bytes[from..to]);
                        }
                        from = to;
                    }
                }
                file.now = file.durable.clone();
            }
        }
        state.history = vec![state.names.clone()];
        Arc::new(Self(Mutex::new(Rank::Handles, state)))
    }

    pub(super) fn flip(&self, name: FileName, at: usize, mask: u8) {
        self.with(name, |file| {
            file.now[at] ^= mask;
            file.durable = file.now.clone();
        })
        .unwrap();
    }

    pub(super) fn syncs(&self) -> u64 {
        self.0.lock().syncs
    }

    pub(super) fn fail_sync(&self) {
        self.0.lock().fate = SyncOutcome::Fail;
    }

    #[cfg(feature = "model")]
    pub(super) fn lose_one_sync(&self) {
        self.0.lock().fate = SyncOutcome::LoseOne;
    }

    pub(super) fn set_slow_sync(&self, slow: bool) {
        self.0.lock().slow_sync = slow;
    }

    pub(super) fn set_full(&self, full: bool) {
        self.0.lock().full = full;
    }

    fn with<T>(&self, name: FileName, run: impl FnOnce(&mut File) -> T) -> Result<T, DiskError> {
        let mut state = self.0.lock();
        let missing = DiskError::Missing { path: self.path(name) };
        let id = *state.names.get(&name).ok_or(missing)?;
        Ok(run(state.files.get_mut(&id).unwrap()))
    }

    fn rename_all(
        &self,
        change: impl FnOnce(&mut TestDiskState) -> Result<(), DiskError>,
    ) -> Result<(), DiskError> {
        let mut state = self.0.lock();
        change(&mut state)?;
        let names = state.names.clone();
        state.history.push(names);
        Ok(())
    }
}

impl Disk for TestDisk {
    fn path(&self, file: FileName) -> PathBuf {
        file.to_string().into()
    }

    fn create(&self, file: FileName) -> Result<(), DiskError> {
        self.rename_all(|state| {
            state.next += 1;
            state.files.insert(state.next, File::default());
            state.names.insert(file, state.next);
            Ok(())
        })
    }

    fn len(&self, file: FileName) -> Result<Option<u64>, DiskError> {
        match self.with(file, |file| file.now.len() as u64) {
            Err(DiskError::Missing { .. }) => Ok(None),
            other => other.map(Some),
        }
    }

    fn list(&self, folder: Folder) -> Result<Vec<FileName>, DiskError> {
        Ok(self.0.lock().names.keys().copied().filter(|name| name.folder() == folder).collect())
    }

    fn read(&self, file: FileName, offset: u64, out: &mut [u8]) -> Result<usize, DiskError> {
        self.with(file, |file| {
            let there = file.now.get(offset as usize..).unwrap_or_default();
            let n = there.len().min(out.len());
            out[..n].copy_from_slice(&there[..n]);
            n
        })
    }

    fn write(&self, file: FileName, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.with(file, |file| {
            let (at, end) = (offset as usize, offset as usize + bytes.len());
            if file.now.len() < end {
                file.now.resize(end, 0);
            }
            file.now[at..end].copy_from_slice(bytes);
            file.pending.push((at, bytes.to_vec()));
        })
    }

    fn read_page(&self, _: FileName, _: u64, _: &[AtomicU64]) -> Result<(), DiskError> {
        unreachable!("the log reads no pages")
    }

    fn queue(&self) -> Box<dyn Queue> {
        unreachable!("the log uses no queue")
    }

    fn sync(&self, file: FileName) -> Result<(), DiskError> {
        while self.0.lock().slow_sync {
            std::thread::yield_now();
        }
        let mut state = self.0.lock();
        let failed = || Err(DiskError::Full { action: IoOp::Sync, path: self.path(file) });
        if state.fate == SyncOutcome::Fail {
            return failed();
        }
        let is_log = file.folder() == Folder::Log;
        state.syncs += u64::from(is_log);
        #[cfg(feature = "model")]
        if is_log && state.fate == SyncOutcome::LoseOne {
            state.fate = SyncOutcome::Work;
            drop(state);
            self.with(file, |file| (file.lost, file.pending) = (true, Vec::new()))?;
            return failed();
        }
        drop(state);
        self.with(file, |file| {
            file.pending.clear();
            if !file.lost {
                file.durable.clone_from(&file.now);
            }
        })
    }

    fn sync_folder(&self, _: Folder) -> Result<(), DiskError> {
        let mut state = self.0.lock();
        state.history = vec![state.names.clone()];
        Ok(())
    }

    fn preallocate(&self, name: FileName, offset: u64, length: u64) -> Result<(), DiskError> {
        if self.0.lock().full {
            return Err(DiskError::Full { action: IoOp::Preallocate, path: self.path(name) });
        }
        self.with(name, |file| file.now.resize(file.now.len().max((offset + length) as usize), 0))
    }

    fn truncate(&self, file: FileName, length: u64) -> Result<(), DiskError> {
        self.with(file, |file| file.now.truncate(length as usize))
    }

    fn rename(&self, from: FileName, to: FileName) -> Result<(), DiskError> {
        self.rename_all(|state| {
            let id = state.names.remove(&from).ok_or(DiskError::Missing { path: self.path(from) })?;
            state.names.insert(to, id);
            Ok(())
        })
    }

    fn remove(&self, file: FileName) -> Result<(), DiskError> {
        self.rename_all(|state| {
            state.names.remove(&file).ok_or(DiskError::Missing { path: self.path(file) }).map(drop)
        })
    }
}

#[test]
fn a_crash_keeps_what_was_synced_and_any_of_the_rest() {
    let [one, other] = [0, 1 << 20].map(FileName::Log);
    let disk = TestDisk::new();
    disk.create(one).unwrap();
    disk.sync_folder(Folder::Log).unwrap();
    disk.write(one, 0, &[1; 2048]).unwrap();
    disk.sync(one).unwrap();
    disk.write(one, 512, &[2; 1536]).unwrap();
    disk.create(other).unwrap();
    let (mut sectors, mut names) = (0, 0);
    for seed in 1..100 {
        let left = disk.crash(seed);
        let mut bytes = [0; 2048];
        assert_eq!(left.read(one, 0, &mut bytes).unwrap(), 2048, "seed {seed}: a synced file is shorter");
        assert_eq!(bytes[..512], [1; 512], "seed {seed}: synced content is lost");
        for sector in bytes[512..].chunks(512) {
            assert!([[1; 512], [2; 512]].iter().any(|whole| sector == whole), "seed {seed}: half a sector");
            sectors += usize::from(sector[0] == 2);
        }
        names += left.list(Folder::Log).unwrap().len() - 1;
    }
    assert!((100..200).contains(&sectors), "{sectors} of 297 sectors have survived");
    assert!((20..80).contains(&names), "{names} of 99 names have survived");
    assert_eq!(disk.crash(0).list(Folder::Log).unwrap(), [one, other], "the process alone has ended");
}
