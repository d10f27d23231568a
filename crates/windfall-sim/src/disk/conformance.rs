//! Conformance tests for every implementation of [`Disk`].
//!
//! **Purpose.** The engine is tested on the simulated disk and runs on the real one, so both must pass the same tests.
//!
//! **Invariants.** The disk is empty at the start (test: `the_simulated_disk_conforms_with_every_seed`).

use windfall_base::{
    disk::{Action, Completion, Disk, FileName, Folder, IoBuffer, RealDisk, RealDiskOptions, Request},
    error::DiskError,
    ids::SpaceId,
    sync::{
        atomic::{AtomicU64, Ordering::Relaxed},
        work::{self, Work},
    },
};

use super::SimulatedDisk;

const LOG: FileName = FileName::Log(3);

fn data(n: u64) -> FileName {
    FileName::Data(SpaceId(n))
}

/// Runs all conformance tests.
fn check(disk: &dyn Disk) {
    missing_files(disk);
    bytes_come_back(disk);
    lengths_change(disk);
    names_change(disk);
    batches_complete(disk);
    pages_are_read(disk);
    blocks_are_whole(disk);
    work_is_counted(disk);
    for folder in [Folder::Root, Folder::Log, Folder::Data] {
        for file in disk.list(folder).unwrap() {
            disk.remove(file).unwrap();
        }
        disk.sync_folder(folder).unwrap();
    }
}

fn is_missing<T>(result: &Result<T, DiskError>) -> bool {
    matches!(result, Err(DiskError::Missing { .. }))
}

fn missing_files(disk: &dyn Disk) {
    let root = [FileName::Control, FileName::NewControl, FileName::Doublewrite, FileName::NewDoublewrite];
    for file in root.into_iter().chain([LOG, data(9)]) {
        assert_eq!(disk.len(file).unwrap(), None);
        assert!(is_missing(&disk.read(file, 0, &mut [0; 8])));
        assert!(is_missing(&disk.write(file, 0, &[0; 4096])));
        assert!(is_missing(&disk.sync(file)));
        assert!(is_missing(&disk.truncate(file, 0)));
        assert!(is_missing(&disk.preallocate(file, 0, 4096)));
        assert!(is_missing(&disk.rename(file, file)));
        assert!(is_missing(&disk.remove(file)));
        assert!(disk.path(file).ends_with(file.to_string()));
    }
    let mut queue = disk.queue();
    queue.submit(vec![request(1, data(9), 0, Action::Read)]);
    assert!(is_missing(&queue.complete(true).remove(0).result));
    assert_eq!(queue.pending(), 0);
}

fn bytes_come_back(disk: &dyn Disk) {
    for file in [FileName::Control, LOG] {
        disk.create(file).unwrap();
        disk.write(file, 5, b"hello").unwrap();
        disk.write(file, 9000, b"far away").unwrap();
        let mut out = [1; 16];
        assert_eq!(disk.read(file, 3, &mut out).unwrap(), 16);
        assert_eq!(&out, b"\0\0hello\0\0\0\0\0\0\0\0\0");
        assert_eq!(disk.read(file, 9004, &mut out).unwrap(), 4);
        assert_eq!(&out[..4], b"away");
        assert_eq!(disk.read(file, 9008, &mut out).unwrap(), 0);
        assert_eq!(disk.read(file, 1 << 40, &mut out).unwrap(), 0);
        disk.write(file, 7, b"LP").unwrap();
        disk.read(file, 5, &mut out[..5]).unwrap();
        assert_eq!(&out[..5], b"heLPo");
        disk.sync(file).unwrap();
        disk.create(file).unwrap();
        assert_eq!(disk.len(file).unwrap(), Some(0), "created again");
    }
}

fn lengths_change(disk: &dyn Disk) {
    disk.create(LOG).unwrap();
    disk.write(LOG, 0, &[7; 10_000]).unwrap();
    disk.truncate(LOG, 5000).unwrap();
    assert_eq!(disk.len(LOG).unwrap(), Some(5000));
    disk.truncate(LOG, 8000).unwrap();
    let mut out = [1; 8000];
    assert_eq!(disk.read(LOG, 0, &mut out).unwrap(), 8000);
    assert!(out[..5000].iter().all(|b| *b == 7) && out[5000..].iter().all(|b| *b == 0));
    disk.preallocate(LOG, 0, 20_000).unwrap();
    disk.preallocate(LOG, 0, 100).unwrap();
    disk.preallocate(LOG, 50_000, 0).unwrap();
    assert_eq!(disk.len(LOG).unwrap(), Some(20_000));
    assert_eq!(disk.read(LOG, 4999, &mut out).unwrap(), 8000);
    assert!(out[0] == 7 && out[1..].iter().all(|b| *b == 0));
    disk.write(LOG, 0, &[]).unwrap();
    disk.sync(LOG).unwrap();
}

fn names_change(disk: &dyn Disk) {
    for n in [30, 4, 17] {
        disk.create(data(n)).unwrap();
        disk.create(FileName::Log(n)).unwrap();
        disk.write(FileName::Log(n), 0, &[n as u8]).unwrap();
    }
    disk.create(FileName::Doublewrite).unwrap();
    assert_eq!(disk.list(Folder::Data).unwrap(), [data(4), data(17), data(30)]);
    assert_eq!(disk.list(Folder::Root).unwrap(), [FileName::Control, FileName::Doublewrite]);
    disk.rename(FileName::Log(17), FileName::Log(30)).unwrap();
    assert_eq!(disk.list(Folder::Log).unwrap(), [LOG, FileName::Log(4), FileName::Log(30)]);
    let mut out = [0];
    disk.read(FileName::Log(30), 0, &mut out).unwrap();
    assert_eq!(out, [17]);
    disk.rename(FileName::Log(30), FileName::Log(30)).unwrap();
    assert_eq!(disk.len(FileName::Log(30)).unwrap(), Some(1));
    // A file that replaces another one on which a handle is open.
    for (file, byte) in [(FileName::Doublewrite, 1), (FileName::NewDoublewrite, 2)] {
        disk.create(file).unwrap();
        disk.write(file, 0, &[byte; 4096]).unwrap();
    }
    disk.rename(FileName::NewDoublewrite, FileName::Doublewrite).unwrap();
    assert_eq!(disk.list(Folder::Root).unwrap(), [FileName::Control, FileName::Doublewrite]);
    disk.read(FileName::Doublewrite, 0, &mut out).unwrap();
    assert_eq!(out, [2]);
    for n in [4, 17, 30] {
        disk.remove(data(n)).unwrap();
    }
    assert_eq!(disk.list(Folder::Data).unwrap(), []);
    assert!(is_missing(&disk.read(data(4), 0, &mut out)));
    for folder in [Folder::Root, Folder::Log, Folder::Data] {
        disk.sync_folder(folder).unwrap();
    }
}

fn request(token: u64, file: FileName, offset: u64, action: Action) -> Request {
    let mut buffer = IoBuffer::new(8192);
    buffer.bytes_mut().fill(token as u8 + 1);
    Request { token, file, offset, action, buffer }
}

fn finish(disk: &dyn Disk, batch: Vec<Request>) -> Vec<Completion> {
    let mut queue = disk.queue();
    let submitted = batch.len();
    queue.submit(batch);
    let mut done = queue.complete(false);
    while queue.pending() > 0 {
        let more = queue.complete(true);
        assert!(!more.is_empty(), "a wait has returned nothing");
        done.extend(more);
    }
    assert!(queue.complete(true).is_empty(), "no request is in progress, so the call does not wait");
    assert_eq!(done.len(), submitted);
    done.sort_by_key(|completion| completion.token);
    done
}

fn batches_complete(disk: &dyn Disk) {
    for n in 0..5 {
        disk.create(data(n)).unwrap();
    }
    let all = |action| (0..50).map(|n| request(n, data(n % 5), n / 5 * 8192, action)).collect();
    for completion in finish(disk, all(Action::Write)) {
        completion.result.unwrap();
    }
    let doublewrite = finish(disk, vec![request(1, FileName::Doublewrite, 4096, Action::Write)]);
    assert!(doublewrite[0].result.is_ok());
    for completion in finish(disk, all(Action::Read)) {
        completion.result.unwrap();
        assert!(completion.buffer.bytes().iter().all(|b| *b == completion.token as u8 + 1));
    }
    let past =
        vec![request(0, data(0), 9 * 8192 + 4096, Action::Read), request(1, data(1), 1 << 30, Action::Read)];
    let past = finish(disk, past);
    let bytes = past[0].buffer.bytes();
    assert!(bytes[..4096].iter().all(|b| *b == 46) && bytes[4096..].iter().all(|b| *b == 0));
    assert!(past[1].buffer.bytes().iter().all(|b| *b == 0));

    // A request in progress survives the removal of its file.
    let mut queue = disk.queue();
    queue.submit(all(Action::Read));
    for n in 0..5 {
        disk.remove(data(n)).unwrap();
        disk.create(data(n)).unwrap();
    }
    disk.sync_folder(Folder::Data).unwrap();
    while queue.pending() > 0 {
        for completion in queue.complete(true) {
            completion.result.unwrap();
            assert!(completion.buffer.bytes().iter().all(|b| *b == completion.token as u8 + 1));
        }
    }
    assert_eq!(disk.len(data(3)).unwrap(), Some(0));
}

fn pages_are_read(disk: &dyn Disk) {
    disk.create(data(7)).unwrap();
    assert!(finish(disk, vec![request(4, data(7), 0, Action::Write)])[0].result.is_ok());
    // Aligned to its size, as buffer frames are, and one word off, as memory of tests is.
    let words: Vec<AtomicU64> = (0..8192).map(|_| AtomicU64::new(u64::MAX)).collect();
    let aligned = (words.as_ptr().addr().next_multiple_of(16_384) - words.as_ptr().addr()) / 8;
    for skip in [aligned, aligned + 1] {
        let page = &words[skip..skip + 2048];
        let all_are = |words: &[AtomicU64], word| words.iter().all(|found| found.load(Relaxed) == word);
        disk.read_page(data(7), 4096, page).unwrap();
        assert!(all_are(&page[..512], 0x0505_0505_0505_0505) && all_are(&page[512..], 0));
        disk.read_page(data(7), 16_384, page).unwrap();
        assert!(all_are(page, 0));
        assert!(is_missing(&disk.read_page(data(8), 0, page)));
    }
    let mut out = [0; 5000];
    assert_eq!(disk.read(data(7), 4000, &mut out).unwrap(), 4192);
    assert!(out[..4192].iter().all(|b| *b == 5));
    disk.truncate(data(7), 4096).unwrap();
    assert_eq!(disk.read(data(7), 1, &mut out).unwrap(), 4095);
    disk.sync(data(7)).unwrap();
}

fn blocks_are_whole(disk: &dyn Disk) {
    disk.write(data(7), 4096, &[6; 4096]).unwrap();
    assert!(disk.write(data(7), 1, &[6; 4096]).is_err());
    assert!(disk.write(data(7), 0, &[6; 100]).is_err());
    assert_eq!(disk.len(data(7)).unwrap(), Some(8192));
}

fn work_is_counted(disk: &dyn Disk) {
    let before = work::so_far();
    disk.write(LOG, 0, &[1]).unwrap();
    disk.sync(LOG).unwrap();
    disk.sync(data(7)).unwrap();
    disk.sync_folder(Folder::Data).unwrap();
    finish(disk, vec![request(4, data(7), 0, Action::Write), request(5, data(7), 0, Action::Read)]);
    disk.rename(data(7), data(8)).unwrap();
    disk.remove(data(8)).unwrap();
    let counts = work::so_far() - before;
    let kinds = [Work::LogWrite, Work::LogSync, Work::Sync, Work::Write, Work::Read, Work::FileCall];
    assert_eq!(kinds.map(|kind| counts.of(kind)), [1, 1, 2, 1, 1, 2]);
}

#[test]
fn the_simulated_disk_conforms_with_every_seed() {
    (0..20).for_each(|seed| check(&SimulatedDisk::new(seed)));
}

#[test]
fn the_real_disk_conforms_with_and_without_direct_io() {
    for direct in [true, false] {
        let folder = tempfile::tempdir().unwrap();
        let options = RealDiskOptions { direct, ..RealDiskOptions::default() };
        check(&RealDisk::open(folder.path(), options).unwrap());
    }
}

#[test]
fn the_real_disk_conforms_where_no_direct_io_may_be_had() {
    // A file system in memory (tmpfs); older kernels refuse direct I/O there.
    let Ok(folder) = tempfile::tempdir_in("/dev/shm") else { return };
    check(&RealDisk::open(folder.path(), RealDiskOptions::default()).unwrap());
}
