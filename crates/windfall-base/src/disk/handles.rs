//! The cache of open files: a bounded number of handles, evicted in LRU order.
//!
//! **Purpose.** A database may have a hundred thousand files, but a process often has only a thousand descriptors.
//!
//! **Invariants.** The bound leaves a part of the process's limit of open files to other code (test:
//! `the_limit_of_open_files_is_shared_and_is_no_error`). If that limit is reached nevertheless, handles of data files
//! are closed and the call is repeated (test: `the_limit_of_open_files_is_shared_and_is_no_error`). A handle is
//! reference-counted: eviction and removal drop the cache's reference, and the descriptor is closed when the last
//! request on it ends (test: `the_handle_of_a_removed_file_is_closed_and_its_requests_end`). A handle that was opened
//! while names changed is used but not cached: a name never leads to a file that no longer has it, and the blocks of a
//! removed file are freed (test: `a_handle_opened_before_a_removal_is_not_cached_after_it`). Data files have a mutex of
//! their own: a write of the log, which commits wait for, does not wait for a thread that opens or deletes data files
//! (test: `the_log_is_found_while_another_thread_looks_for_a_data_file`).

use std::{
    collections::BTreeMap,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustc_hash::FxHashMap;
use rustix::{
    fs::{Advice, Mode, OFlags},
    io::{Errno, retry_on_intr},
    process::Resource,
};

use super::{
    FileName, Folder,
    syscalls::{File, Open, failed},
};
use crate::{
    error::{DiskError, IoOp},
    sync::{
        Arc, Mutex, Rank,
        atomic::{AtomicBool, Ordering::SeqCst},
        work::{self, Work},
    },
};

/// The cache may hold this fraction (one in `LIMIT_DIVISOR`) of the files that the process may open: up to twice as
/// many are open temporarily, and other code opens files too.
const LIMIT_DIVISOR: usize = 4;

/// The cache of open files.
#[derive(Debug)]
pub(super) struct Handles {
    root: PathBuf,
    limit: usize,
    /// Whether files of the root folder and of the data folder are opened for direct I/O. Each entry is true until the
    /// folder's file system rejects direct I/O.
    direct: [AtomicBool; 2],
    data: Mutex<Cache>,
    /// Handles of the log, the control file and the doublewrite file.
    others: Mutex<Cache>,
    open: Arc<Open>,
}

#[derive(Debug, Default)]
struct Cache {
    /// The maximum number of cached handles. Without a limit, handles stay open: the system may never report a failed
    /// write to the page cache to a descriptor that was opened after the failure.
    limit: Option<usize>,
    files: FxHashMap<FileName, CachedFile>,
    /// The names in the order of their last use, if there is a limit.
    by_use: BTreeMap<u64, FileName>,
    clock: u64,
    /// Counts the changes of names. A thread that opened a file compares it to detect that the name may refer to
    /// another file by now.
    changes: u64,
}

#[derive(Debug)]
struct CachedFile {
    file: Arc<File>,
    used: u64,
}

impl Cache {
    fn get(&mut self, name: FileName) -> Option<Arc<File>> {
        self.clock += 1;
        let entry = self.files.get_mut(&name)?;
        let was_listed = self.by_use.remove(&entry.used).is_some();
        debug_assert!(was_listed == self.limit.is_some(), "a cached handle was not in the order of use");
        if was_listed {
            self.by_use.insert(self.clock, name);
        }
        entry.used = self.clock;
        Some(entry.file.clone())
    }

    fn take(&mut self, name: FileName) -> Option<CachedFile> {
        let entry = self.files.remove(&name)?;
        let was_listed = self.by_use.remove(&entry.used).is_some();
        debug_assert!(was_listed == self.limit.is_some(), "a cached handle was not in the order of use");
        Some(entry)
    }

    fn take_all(&mut self) -> Vec<CachedFile> {
        self.by_use.clear();
        self.files.drain().map(|(_, entry)| entry).collect()
    }

    /// Adds a handle and returns the evicted ones.
    fn put(&mut self, name: FileName, file: Arc<File>) -> Vec<CachedFile> {
        let mut evicted: Vec<CachedFile> = self.take(name).into_iter().collect();
        self.clock += 1;
        self.files.insert(name, CachedFile { file, used: self.clock });
        let Some(limit) = self.limit else { return evicted };
        self.by_use.insert(self.clock, name);
        while self.by_use.len() > limit {
            let oldest = self.by_use.pop_first().and_then(|(_, name)| self.files.remove(&name));
            evicted.extend(oldest);
        }
        debug_assert_eq!(self.by_use.len(), self.files.len(), "a cached handle is not in the order of use");
        evicted
    }
}

impl Handles {
    /// Returns an empty cache for a database folder.
    pub(super) fn new(root: PathBuf, limit: usize, direct: bool) -> Self {
        let most = rustix::process::getrlimit(Resource::Nofile)
            .current
            .map_or(limit, |most| most as usize / LIMIT_DIVISOR);
        let limit = limit.min(most).max(1);
        Self {
            root,
            limit,
            direct: [AtomicBool::new(direct), AtomicBool::new(direct)],
            data: Mutex::new(Rank::Handles, Cache { limit: Some(limit), ..Cache::default() }),
            others: Mutex::new(Rank::Handles, Cache::default()),
            open: Arc::default(),
        }
    }

    /// Returns the database folder.
    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of a file.
    pub(super) fn path(&self, name: FileName) -> PathBuf {
        self.root.join(name.to_string())
    }

    /// Returns the cache that holds the handle of this file.
    fn cache(&self, name: FileName) -> &Mutex<Cache> {
        if matches!(name, FileName::Data(_)) { &self.data } else { &self.others }
    }

    /// Returns the file, and opens it if it is not open.
    pub(super) fn get(&self, name: FileName) -> Result<Arc<File>, DiskError> {
        let changes = {
            let mut cache = self.cache(name).lock();
            if let Some(file) = cache.get(name) {
                return Ok(file);
            }
            cache.changes
        };
        let file = Arc::new(self.open_file(name, IoOp::Open, OFlags::empty())?);
        self.keep(name, &file, changes);
        Ok(file)
    }

    /// Caches a handle that was opened when the counter of name changes had this value, unless it has changed since.
    fn keep(&self, name: FileName, file: &Arc<File>, changes: u64) {
        let mut cache = self.cache(name).lock();
        let evicted = if cache.changes == changes { cache.put(name, file.clone()) } else { Vec::new() };
        drop(cache);
        // Closing may free the blocks of a removed file: never under the mutex.
        drop(evicted);
    }

    /// Returns the file for a request that may wait in a queue. Waits while twice as many files are open as the cache
    /// may hold: the other handles belong to requests in progress, which end by themselves.
    pub(super) fn get_for_queue(&self, name: FileName) -> Result<Arc<File>, DiskError> {
        self.open.fewer.wait(|| self.open.count.load(SeqCst) < self.limit * 2);
        self.get(name)
    }

    /// Creates the file, or truncates it to length zero.
    pub(super) fn create(&self, name: FileName) -> Result<(), DiskError> {
        let file = Arc::new(self.open_file(name, IoOp::Create, OFlags::CREATE | OFlags::TRUNC)?);
        let mut cache = self.cache(name).lock();
        cache.changes += 1;
        let evicted = cache.put(name, file);
        drop(cache);
        drop(evicted);
        Ok(())
    }

    /// Records that these names refer to other files now, or to none.
    pub(super) fn forget(&self, names: &[FileName]) {
        for &name in names {
            let mut cache = self.cache(name).lock();
            cache.changes += 1;
            let evicted = cache.take(name);
            drop(cache);
            drop(evicted);
        }
    }

    fn open_file(&self, name: FileName, action: IoOp, extra: OFlags) -> Result<File, DiskError> {
        work::count(Work::FileCall);
        let path = self.path(name);
        let flags = OFlags::RDWR | OFlags::CLOEXEC | extra;
        let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
        let direct_allowed = &self.direct[usize::from(name.folder() == Folder::Data)];
        let mut direct = name.is_direct() && direct_allowed.load(SeqCst);
        let mut fd = Err(Errno::INVAL);
        if direct {
            fd = self.call_open(&path, flags | OFlags::DIRECT, mode);
        }
        if fd.as_ref().err() == Some(&Errno::INVAL) {
            fd = self.call_open(&path, flags, mode);
            if direct && fd.is_ok() {
                tracing::info!(
                    target: "windfall::storage",
                    path = %path.display(), "no direct I/O on this file system: the page cache is used",
                );
                direct_allowed.store(false, SeqCst);
            }
            direct = false;
        }
        let fd = fd.map_err(|error| failed(action, &path, error.into()))?;
        if matches!(name, FileName::Log(_)) {
            // Read-ahead would put large folios into the page cache, and a small write to a folio then processes all
            // its blocks. The log's reader reads in large pieces anyway.
            let _ = rustix::fs::fadvise(&fd, 0, None, Advice::Random);
        }
        let open = matches!(name, FileName::Data(_)).then(|| self.open.clone());
        Ok(File::new(fd, path, direct, open))
    }

    /// Opens a file. If too many files are open, closes the cached handles of data files and tries again.
    fn call_open(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        let open = || retry_on_intr(|| rustix::fs::open(path, flags, mode));
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                let evicted = self.data.lock().take_all();
                drop(evicted);
                open()
            }
            opened => opened,
        }
    }

    #[cfg(test)]
    pub(super) fn open_now(&self) -> usize {
        self.open.count.load(SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SpaceId;

    #[test]
    fn a_handle_opened_before_a_removal_is_not_cached_after_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("log")).unwrap();
        let handles = Handles::new(folder.path().into(), 4, false);
        let name = FileName::Log(1);
        handles.create(name).unwrap();
        handles.forget(&[name]);
        let changes = handles.others.lock().changes;
        let file = Arc::new(handles.open_file(name, IoOp::Open, OFlags::empty()).unwrap());
        handles.forget(&[name]);
        handles.keep(name, &file, changes);
        assert!(handles.others.lock().files.is_empty(), "the name may lead elsewhere now");
        handles.keep(name, &file, changes + 1);
        assert!(Arc::ptr_eq(&handles.get(name).unwrap(), &file));
    }

    #[test]
    fn the_log_is_found_while_another_thread_looks_for_a_data_file() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("log")).unwrap();
        let handles = Arc::new(Handles::new(folder.path().into(), 4, false));
        handles.create(FileName::Log(1)).unwrap();
        let looking = handles.data.lock();
        let (found, is_found) = std::sync::mpsc::channel();
        let other = handles.clone();
        let thread = std::thread::spawn(move || found.send(other.get(FileName::Log(1)).is_ok()));
        let is_found = is_found.recv_timeout(std::time::Duration::from_mins(10));
        assert_eq!(is_found, Ok(true), "the log waits for a data file");
        drop(looking);
        thread.join().unwrap().unwrap();
    }

    /// Runs in a process of its own, because the limit is that of the whole process.
    #[test]
    fn the_limit_of_open_files_is_shared_and_is_no_error() {
        const ITSELF: &str = "disk::handles::tests::the_limit_of_open_files_is_shared_and_is_no_error";
        const IS_CHILD: &str = "WINDFALL_LIMITED_PROCESS";
        const LIMIT: u64 = 64;
        if std::env::var_os(IS_CHILD).is_none() {
            let mut test = std::process::Command::new(std::env::current_exe().unwrap());
            let done = test.args(["--exact", ITSELF]).env(IS_CHILD, "").output().unwrap();
            let output = String::from_utf8_lossy(&done.stdout);
            assert!(done.status.success() && output.contains("1 passed"), "{output}");
            return;
        }
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let limit = rustix::process::Rlimit { current: Some(LIMIT), maximum };
        rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("data")).unwrap();
        let handles = Handles::new(folder.path().into(), 1000, false);
        let data = |n| FileName::Data(SpaceId(n));
        (0..100).for_each(|n| handles.create(data(n)).unwrap());
        let cached = handles.open_now();
        assert!(cached > 1);
        let others: Vec<_> =
            core::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).take(1000).collect();
        assert!(others.len() > LIMIT as usize / 2, "{} files of other code next to {cached}", others.len());
        assert!(handles.get(data(0)).is_ok(), "no descriptor is left");
        assert_eq!(handles.open_now(), 1);
    }
}
