//! A background worker or a thread of the disk panics: no call waits for it forever, and every later call returns an
//! error that names it.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod time_limit;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    thread,
};

use time_limit::HANG;
use windfall::{
    Database, Error, Options, Result, TableOptions,
    disk::{Completion, Disk, FileName, Folder, Queue, Request},
    env::RealEnv,
    error::DiskError,
};
use windfall_base::sync::atomic::AtomicU64;
use windfall_sim::SimulatedDisk;

/// A disk on which one worker panics, once an injected panic (the trap) is set.
#[derive(Debug)]
struct Trap {
    disk: SimulatedDisk,
    worker: String,
    is_set: AtomicBool,
    /// Whether every request of a batch returns the panic.
    in_queues: Arc<AtomicBool>,
}

struct TrappedQueue {
    queue: Box<dyn Queue>,
    is_set: Arc<AtomicBool>,
}

impl Queue for TrappedQueue {
    fn submit(&mut self, batch: Vec<Request>) {
        self.queue.submit(batch);
    }
    fn complete(&mut self, wait: bool) -> Vec<Completion> {
        let mut done = self.queue.complete(wait);
        if self.is_set.load(SeqCst) {
            for completion in &mut done {
                completion.result = Err(DiskError::Panicked { what: "a panic on purpose".into() });
            }
        }
        done
    }
    fn pending(&self) -> usize {
        self.queue.pending()
    }
}

impl Trap {
    fn disk(&self) -> &SimulatedDisk {
        assert!(
            !self.is_set.load(SeqCst) || thread::current().name() != Some(&self.worker),
            "a panic on purpose"
        );
        &self.disk
    }
}

impl Disk for Trap {
    fn path(&self, file: FileName) -> PathBuf {
        self.disk.path(file)
    }
    fn free_percent(&self) -> Option<u64> {
        self.disk.free_percent()
    }
    fn create(&self, file: FileName) -> Result<(), DiskError> {
        self.disk().create(file)
    }
    fn len(&self, file: FileName) -> Result<Option<u64>, DiskError> {
        self.disk().len(file)
    }
    fn list(&self, folder: Folder) -> Result<Vec<FileName>, DiskError> {
        self.disk().list(folder)
    }
    fn read(&self, file: FileName, offset: u64, out: &mut [u8]) -> Result<usize, DiskError> {
        self.disk().read(file, offset, out)
    }
    fn write(&self, file: FileName, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        self.disk().write(file, offset, bytes)
    }
    fn read_page(&self, file: FileName, offset: u64, into: &[AtomicU64]) -> Result<(), DiskError> {
        self.disk().read_page(file, offset, into)
    }
    fn queue(&self) -> Box<dyn Queue> {
        Box::new(TrappedQueue { queue: self.disk.queue(), is_set: self.in_queues.clone() })
    }
    fn sync(&self, file: FileName) -> Result<(), DiskError> {
        self.disk().sync(file)
    }
    fn sync_folder(&self, folder: Folder) -> Result<(), DiskError> {
        self.disk().sync_folder(folder)
    }
    fn preallocate(&self, file: FileName, offset: u64, length: u64) -> Result<(), DiskError> {
        self.disk().preallocate(file, offset, length)
    }
    fn truncate(&self, file: FileName, length: u64) -> Result<(), DiskError> {
        self.disk().truncate(file, length)
    }
    fn rename(&self, from: FileName, to: FileName) -> Result<(), DiskError> {
        self.disk().rename(from, to)
    }
    fn remove(&self, file: FileName) -> Result<(), DiskError> {
        self.disk().remove(file)
    }
}

/// The name of a disk thread in an error.
const IO: &str = "I/O thread";

/// Fills a table, drops another one, and continues until a call is refused.
fn work(worker: &str) -> Error {
    let options = Options::default()
        .page_size(4096)
        .buffer_pool_size(96 * 4096)
        .log_size(1 << 20)
        .log_buffer_size(256 << 10);
    let disk = SimulatedDisk::new(1);
    let trap = Arc::new(Trap {
        disk,
        worker: format!("windfall-{worker}"),
        is_set: AtomicBool::new(false),
        in_queues: Arc::default(),
    });
    let db = Database::open_on(trap.clone(), Arc::new(RealEnv::default()), &options, &|_| {}).unwrap();
    let dropped = db.create_table("dropped", TableOptions::default()).unwrap();
    dropped.put(b"key", b"value").unwrap();
    db.checkpoint().unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    trap.is_set.store(true, SeqCst);
    trap.in_queues.store(worker == IO, SeqCst);
    db.drop_table("dropped").unwrap();
    let mut n = 0u32;
    let error = loop {
        n += 1;
        if let Err(error) = table.put(&n.to_be_bytes(), &[1; 300]) {
            break error;
        }
    };
    // From now on every call returns the same error, and the database can be closed.
    let check_error =
        |error: Error| assert!(matches!(error, Error::Poisoned(_)) && error.to_string().contains(worker));
    check_error(db.create_table("another", TableOptions::default()).unwrap_err());
    check_error(db.checkpoint().unwrap_err());
    check_error(db.drop_table("t").unwrap_err());
    check_error(db.close().unwrap_err());
    error
}

fn error_of_panic_in(worker: &'static str) -> Error {
    let (done, outcome) = mpsc::channel();
    thread::spawn(move || done.send(work(worker)));
    let error = outcome
        .recv_timeout(HANG)
        .unwrap_or_else(|_| panic!("without its {worker} the database keeps running, or waits for ever"));
    assert!(matches!(error, Error::Poisoned(_)), "{error:?}");
    error
}

/// The threads of the real disk report a panic like this: `disk/queue.rs`.
#[test]
fn a_panic_of_an_io_thread_stops_the_database() {
    let message = error_of_panic_in(IO).to_string();
    assert!(message.contains("an I/O thread has panicked: a panic on purpose"), "{message}");
}

/// All workers are started through `Health::watch`. These are certain to access the disk, where the panic is injected.
#[test]
fn a_panic_of_any_worker_stops_the_database() {
    for worker in ["cleaner", "checkpoint", "log", "deleter"] {
        let error = error_of_panic_in(worker);
        let message = format!("the background worker {worker} has panicked: a panic on purpose");
        assert!(error.to_string().contains(&message), "{error}");
    }
}
