//! The disk on a real file system.
//!
//! **Purpose.** The disk of the product: a folder with a lock file, direct I/O for data files where the file system
//! supports it, the page cache for the log and the control file.
//!
//! **Invariants.** The lock is taken before any file is touched, and released after the last request has ended (test:
//! `a_folder_is_opened_once_at_a_time`). After the release nothing is changed: a late call, by a thread that still runs
//! after the database was closed, is refused ([`DiskError::Released`]) (test:
//! `a_call_after_the_release_changes_nothing_of_the_next_owner`).

use std::{
    fs, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::{Errno, retry_on_intr},
};

use super::{
    Disk, FileName, Folder, Queue,
    handles::Handles,
    queue::{IoThreads, RealQueue},
    syscalls::{check_blocks, failed},
};
use crate::{
    error::{DiskError, IoOp, Result, UsageError},
    sync::{
        Arc, Rank, RwLock, RwLockReadGuard,
        atomic::AtomicU64,
        work::{self, Work},
    },
};

/// Options of a database folder.
#[derive(Clone, Copy, Debug)]
pub struct RealDiskOptions {
    /// Maximum number of cached handles of data files; up to twice as many are open while requests on them are in
    /// progress.
    pub open_files: usize,
    /// Maximum number of threads that carry out batches.
    pub io_threads: usize,
    /// Whether data files bypass the page cache, if the file system can.
    pub direct: bool,
    /// Whether a missing folder is created.
    pub create: bool,
}

impl Default for RealDiskOptions {
    fn default() -> Self {
        // Twice as many files stay below the usual limit of 1,024 descriptors per process.
        Self { open_files: 400, io_threads: 8, direct: true, create: true }
    }
}

/// A folder of the file system. It is locked against other processes until [`Disk::release`], or until this object and
/// its queues are dropped.
#[derive(Debug)]
pub struct RealDisk(pub(super) Arc<Inner>);

/// The state that the disk and its queues share. The fields are dropped in this order: the lock is dropped last.
#[derive(Debug)]
pub(super) struct Inner {
    threads: IoThreads,
    handles: Handles,
    /// The folders, in the order of [`Folder`].
    folders: [OwnedFd; 3],
    lock: OwnedFd,
    lease: Arc<FolderLease>,
}

/// Whether this process still holds the folder's lock, and may change the folder.
#[derive(Debug)]
pub(super) struct FolderLease(RwLock<bool>);

impl FolderLease {
    /// Returns a guard that permits changes: the folder is not released while the guard exists.
    pub(super) fn change(&self) -> Result<RwLockReadGuard<'_, bool>, DiskError> {
        let lasts = self.0.read();
        if *lasts { Ok(lasts) } else { Err(DiskError::Released) }
    }

    fn end(&self) {
        *self.0.write() = false;
    }
}

impl Inner {
    pub(super) fn lease(&self) -> &Arc<FolderLease> {
        &self.lease
    }

    pub(super) fn handles(&self) -> &Handles {
        &self.handles
    }

    pub(super) fn threads(&self) -> &IoThreads {
        &self.threads
    }
}

const LOCK: &str = "windfall.lock";
const FOLDERS: [(Folder, &str); 3] = [(Folder::Root, ""), (Folder::Log, "log"), (Folder::Data, "data")];

impl RealDisk {
    /// Opens a database folder, creates the missing parts, and locks it.
    ///
    /// # Errors
    /// [`DiskError::Locked`] when another process, or this one, has it open; [`UsageError::NoDatabase`] when there is
    /// none and the options do not allow creating one; other failures of the system.
    pub fn open(path: impl AsRef<Path>, options: RealDiskOptions) -> Result<Self> {
        let root = path.as_ref();
        if options.create {
            create_folders(root)?;
        } else if !has_files(root)? {
            // A folder of another program stays unchanged.
            return Err(UsageError::NoDatabase { folder: root.to_owned() }.into());
        }
        let lock = lock(root)?;
        for (_, name) in &FOLDERS[1..] {
            create_folders(&root.join(name))?;
        }
        let open = |n: usize| open_folder(&root.join(FOLDERS[n].1));
        let folders = [open(0)?, open(1)?, open(2)?];
        Ok(Self(Arc::new(Inner {
            threads: IoThreads::new(options.io_threads),
            handles: Handles::new(root.to_path_buf(), options.open_files, options.direct),
            folders,
            lock,
            lease: Arc::new(FolderLease(RwLock::new(Rank::Disk, true))),
        })))
    }

    fn folder_path(&self, folder: Folder) -> PathBuf {
        debug_assert_eq!(FOLDERS[folder as usize].0, folder, "the folders are not in their order");
        self.0.handles.root().join(FOLDERS[folder as usize].1)
    }
}

/// Returns whether files of a database are in this folder. If the control file is missing, the database is damaged.
fn has_files(root: &Path) -> Result<bool, DiskError> {
    let control = root.join(FileName::Control.to_string());
    match fs::metadata(&control) {
        Ok(_) => return Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(IoOp::Inspect, &control, error)),
    }
    for (folder, name) in &FOLDERS[1..] {
        let path = root.join(name);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                continue;
            }
            Err(error) => return Err(failed(IoOp::List, &path, error)),
        };
        for entry in entries {
            let entry = entry.map_err(|error| failed(IoOp::List, &path, error))?;
            if entry.file_name().to_str().is_some_and(|name| FileName::parse(*folder, name).is_some()) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}

fn open_folder(path: &Path) -> Result<OwnedFd, DiskError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry_on_intr(|| rustix::fs::open(path, flags, Mode::empty()))
        .map_err(|e| failed(IoOp::Open, path, e.into()))
}

/// Creates a folder and its missing parents, each made durable in its parent.
fn create_folders(path: &Path) -> Result<(), DiskError> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    create_folders(parent)?;
    match fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed(IoOp::Create, path, error));
        }
        _ => {}
    }
    let parent_fd = open_folder(parent)?;
    retry_on_intr(|| rustix::fs::fsync(&parent_fd)).map_err(|error| failed(IoOp::Sync, parent, error.into()))
}

fn lock(root: &Path) -> Result<OwnedFd, DiskError> {
    let path = root.join(LOCK);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP;
    let fd = retry_on_intr(|| rustix::fs::open(&path, flags, mode)).map_err(|error| match error {
        Errno::NOENT => DiskError::Missing { path: root.to_path_buf() },
        error => failed(IoOp::Open, &path, error.into()),
    })?;
    match retry_on_intr(|| rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(fd),
        Err(Errno::WOULDBLOCK) => Err(DiskError::Locked { path: root.to_path_buf() }),
        Err(error) => Err(failed(IoOp::Lock, &path, error.into())),
    }
}

impl Disk for RealDisk {
    fn release(&self) {
        self.0.lease.end();
        let _ = rustix::fs::flock(&self.0.lock, FlockOperation::Unlock);
    }

    fn path(&self, file: FileName) -> PathBuf {
        self.0.handles.path(file)
    }

    fn free_percent(&self) -> Option<u64> {
        work::count(Work::FileCall);
        let stat = rustix::fs::statvfs(self.folder_path(Folder::Data)).ok()?;
        (stat.f_bavail * 100).checked_div(stat.f_blocks)
    }

    fn create(&self, file: FileName) -> Result<(), DiskError> {
        let _change = self.0.lease.change()?;
        self.0.handles.create(file)
    }

    fn len(&self, file: FileName) -> Result<Option<u64>, DiskError> {
        work::count(Work::FileCall);
        let path = self.path(file);
        match fs::metadata(&path) {
            Ok(found) => Ok(Some(found.len())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(IoOp::Inspect, &path, error)),
        }
    }

    fn list(&self, folder: Folder) -> Result<Vec<FileName>, DiskError> {
        work::count(Work::FileCall);
        let path = self.folder_path(folder);
        let mut files = Vec::new();
        for entry in fs::read_dir(&path).map_err(|error| failed(IoOp::List, &path, error))? {
            let entry = entry.map_err(|error| failed(IoOp::List, &path, error))?;
            files.extend(entry.file_name().to_str().and_then(|name| FileName::parse(folder, name)));
        }
        files.sort_unstable();
        Ok(files)
    }

    fn foreign(&self) -> Result<Vec<PathBuf>, DiskError> {
        let mut foreign = Vec::new();
        for (folder, name) in FOLDERS {
            let path = self.folder_path(folder);
            let other =
                |entry: &str| name.is_empty() && (entry == LOCK || FOLDERS.iter().any(|f| f.1 == entry));
            for entry in fs::read_dir(&path).map_err(|error| failed(IoOp::List, &path, error))? {
                let entry = entry.map_err(|error| failed(IoOp::List, &path, error))?;
                let is_ours = |name: &str| FileName::parse(folder, name).is_some() || other(name);
                if !entry.file_name().to_str().is_some_and(is_ours) {
                    foreign.push(entry.path());
                }
            }
        }
        foreign.sort_unstable();
        Ok(foreign)
    }

    fn read(&self, file: FileName, offset: u64, out: &mut [u8]) -> Result<usize, DiskError> {
        work::count(Work::Read);
        self.0.handles.get(file)?.read(offset, out)
    }

    fn write(&self, file: FileName, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let _change = self.0.lease.change()?;
        if file.is_direct() {
            check_blocks(&self.path(file), offset, bytes.len())?;
        }
        work::count(if matches!(file, FileName::Log(_)) { Work::LogWrite } else { Work::Write });
        self.0.handles.get(file)?.write_unaligned(offset, bytes)
    }

    fn read_page(&self, file: FileName, offset: u64, into: &[AtomicU64]) -> Result<(), DiskError> {
        work::count(Work::Read);
        self.0.handles.get(file)?.read_page(offset, into)
    }

    fn queue(&self) -> Box<dyn Queue> {
        Box::new(RealQueue::new(self.0.clone()))
    }

    fn sync(&self, file: FileName) -> Result<(), DiskError> {
        work::count(if matches!(file, FileName::Log(_)) { Work::LogSync } else { Work::Sync });
        self.0.handles.get(file)?.sync()
    }

    fn sync_folder(&self, folder: Folder) -> Result<(), DiskError> {
        work::count(Work::Sync);
        retry_on_intr(|| rustix::fs::fsync(&self.0.folders[folder as usize]))
            .map_err(|error| failed(IoOp::Sync, &self.folder_path(folder), error.into()))
    }

    fn preallocate(&self, file: FileName, offset: u64, length: u64) -> Result<(), DiskError> {
        let _change = self.0.lease.change()?;
        work::count(Work::FileCall);
        // The system rejects an empty range.
        if length == 0 {
            return Ok(());
        }
        self.0.handles.get(file)?.preallocate(offset, length)
    }

    fn truncate(&self, file: FileName, length: u64) -> Result<(), DiskError> {
        let _change = self.0.lease.change()?;
        work::count(Work::FileCall);
        self.0.handles.get(file)?.truncate(length)
    }

    fn rename(&self, from: FileName, to: FileName) -> Result<(), DiskError> {
        debug_assert_eq!(from.folder(), to.folder(), "a file is renamed to another folder");
        let _change = self.0.lease.change()?;
        work::count(Work::FileCall);
        let old = self.path(from);
        let renamed = retry_on_intr(|| rustix::fs::rename(&old, self.path(to)));
        self.0.handles.forget(&[from, to]);
        renamed.map_err(|error| failed(IoOp::Rename, &old, error.into()))?;
        if matches!(to, FileName::Log(_)) {
            // Opened here, so that the leader of a log write finds it open: a failure to open it there would be
            // reported too late.
            self.0.handles.get(to)?;
        }
        Ok(())
    }

    fn remove(&self, file: FileName) -> Result<(), DiskError> {
        let _change = self.0.lease.change()?;
        work::count(Work::FileCall);
        let path = self.path(file);
        let removed = retry_on_intr(|| rustix::fs::unlink(&path));
        self.0.handles.forget(&[file]);
        removed.map_err(|error| failed(IoOp::Remove, &path, error.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        disk::{Action, IoBuffer, Request},
        error::Error,
        ids::SpaceId,
    };

    fn data(n: u64) -> FileName {
        FileName::Data(SpaceId(n))
    }

    fn write(token: u64, n: u64, byte: u8) -> Request {
        let mut buffer = IoBuffer::new(4096);
        buffer.bytes_mut().fill(byte);
        Request { token, file: data(n), offset: 0, action: Action::Write, buffer }
    }

    #[test]
    fn a_folder_is_opened_once_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("deep/below");
        let missing = RealDiskOptions { create: false, ..RealDiskOptions::default() };
        assert!(
            matches!(RealDisk::open(&root, missing), Err(Error::Usage(UsageError::NoDatabase { folder })) if folder == root)
        );
        assert!(!root.exists());
        let disk = RealDisk::open(&root, RealDiskOptions::default()).unwrap();
        let second = RealDisk::open(&root, RealDiskOptions::default()).unwrap_err();
        assert!(matches!(&second, Error::Disk(DiskError::Locked { path }) if *path == root), "{second}");
        let queue = disk.queue();
        drop(disk);
        assert!(RealDisk::open(&root, RealDiskOptions::default()).is_err(), "a queue may still write");
        drop(queue);
        RealDisk::open(&root, RealDiskOptions::default()).unwrap();
    }

    #[test]
    fn another_process_is_kept_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let disk = RealDisk::open(root, RealDiskOptions::default()).unwrap();
        let try_lock = || {
            let script = "exec 9>>\"$0/windfall.lock\"; flock -n 9";
            std::process::Command::new("sh").args(["-c", script]).arg(root).status().map(|s| s.success())
        };
        if let Ok(false) = try_lock() {
            drop(disk);
            assert!(try_lock().unwrap());
        } else {
            panic!("another process got the lock");
        }
    }

    #[test]
    fn few_handles_serve_many_files() {
        let folder = tempfile::tempdir().unwrap();
        let options = RealDiskOptions { open_files: 4, io_threads: 2, ..RealDiskOptions::default() };
        let disk = RealDisk::open(folder.path(), options).unwrap();
        for n in 0..100 {
            disk.create(data(n)).unwrap();
            assert!(disk.0.handles.open_now() <= 4);
        }
        assert_eq!(disk.0.threads.running(), 0, "threads are started when needed");
        let mut queue = disk.queue();
        for round in 0..2 {
            queue.submit((0..100).map(|n| write(n, n, n as u8 + round)).collect());
            assert!(disk.0.handles.open_now() <= 8);
            while queue.pending() > 0 {
                assert!(queue.complete(true).iter().all(|done| done.result.is_ok()));
            }
        }
        assert!((1..=2).contains(&disk.0.threads.running()));
        assert!(disk.0.handles.open_now() <= 4);
        let before = work::so_far();
        for n in [99, 98, 99, 98, 5, 99, 98] {
            let mut out = [0];
            disk.read(data(n), 4095, &mut out).unwrap();
            assert_eq!(out[0], n as u8 + 1);
        }
        let opened = (work::so_far() - before).of(Work::FileCall);
        assert!(opened <= 3, "recently used files stay open, {opened} were opened");
    }

    #[test]
    fn the_handle_of_a_removed_file_is_closed_and_its_requests_end() {
        let folder = tempfile::tempdir().unwrap();
        let options = RealDiskOptions { io_threads: 1, ..RealDiskOptions::default() };
        let disk = RealDisk::open(folder.path(), options).unwrap();
        disk.create(data(1)).unwrap();
        let mut queue = disk.queue();
        queue.submit((0..200).map(|n| write(n, 1, 7)).collect());
        disk.remove(data(1)).unwrap();
        assert!(matches!(disk.read(data(1), 0, &mut [0]), Err(DiskError::Missing { .. })));
        let mut done = 0;
        while queue.pending() > 0 {
            for completion in queue.complete(true) {
                completion.result.unwrap();
                done += 1;
            }
        }
        assert_eq!((done, disk.0.handles.open_now()), (200, 0));
    }

    #[test]
    fn requests_outlive_the_disk_object() {
        let folder = tempfile::tempdir().unwrap();
        let disk = RealDisk::open(folder.path(), RealDiskOptions::default()).unwrap();
        (0..20).for_each(|n| disk.create(data(n)).unwrap());
        let mut queue = disk.queue();
        queue.submit((0..20).map(|n| write(n, n, 9)).collect());
        let path = disk.path(data(19));
        drop((disk, queue));
        assert_eq!(fs::read(path).unwrap(), vec![9; 4096]);
    }

    #[test]
    fn names_and_handles_agree_while_both_change() {
        let folder = tempfile::tempdir().unwrap();
        let options = RealDiskOptions { open_files: 2, ..RealDiskOptions::default() };
        let disk = Arc::new(RealDisk::open(folder.path(), options).unwrap());
        let stop = Arc::new(AtomicU64::new(0));
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let (disk, stop) = (disk.clone(), stop.clone());
                std::thread::spawn(move || {
                    while stop.load(crate::sync::atomic::Ordering::SeqCst) == 0 {
                        for n in 0..4 {
                            let _ = disk.read(data(n), 0, &mut [0; 16]);
                        }
                    }
                })
            })
            .collect();
        for round in 0..300 {
            disk.create(data(round % 4)).unwrap();
            disk.remove(data(round % 4)).unwrap();
        }
        stop.store(1, crate::sync::atomic::Ordering::SeqCst);
        for reader in readers {
            reader.join().unwrap();
        }
        assert_eq!(disk.0.handles.open_now(), 0, "a removed file is still open");
    }

    #[test]
    fn a_call_after_the_release_changes_nothing_of_the_next_owner() {
        let folder = tempfile::tempdir().unwrap();
        let open = || RealDisk::open(folder.path(), RealDiskOptions::default());
        let late = open().unwrap();
        late.create(data(1)).unwrap();
        late.write(data(1), 0, &[1; 4096]).unwrap();
        let mut queue = late.queue();
        assert!(matches!(open(), Err(Error::Disk(DiskError::Locked { .. }))));
        late.release();
        let next = open().unwrap();
        let refused = [
            late.create(data(1)),
            late.create(data(2)),
            late.write(data(1), 0, &[2; 4096]),
            late.preallocate(data(1), 0, 8192),
            late.truncate(data(1), 0),
            late.rename(data(1), data(2)),
            late.remove(data(1)),
        ];
        assert!(refused.iter().all(|done| matches!(done, Err(DiskError::Released))), "{refused:?}");
        assert!(matches!(Error::from(DiskError::Released), Error::Closed));
        queue.submit(vec![write(7, 1, 3)]);
        assert!(matches!(queue.complete(true)[0].result, Err(DiskError::Released)));
        let mut found = [0; 4096];
        next.read(data(1), 0, &mut found).unwrap();
        assert_eq!(found, [1; 4096]);
        assert_eq!(next.list(Folder::Data).unwrap(), [data(1)]);
    }
}
