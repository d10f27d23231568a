//! The buffer pool when no frame can be freed, and the log's low-water mark when a value is larger than the log.

use core::time::Duration;

use windfall_sim::{Fault, SimulatedDisk, SimulatedEnv};

use crate::{
    Database, Options, TableOptions,
    disk::{Disk, FileName, Folder},
    env::{Env, Next, WorkerClass},
    sync::{Arc, Event},
};

const ROW: [u8; 1500] = [7; 1500];

fn small() -> Options {
    Options::default().page_size(4096).log_size(256 << 20)
}

#[test]
fn a_caller_gets_an_error_when_no_frame_is_freed_even_during_resizes() {
    let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedEnv::new(1)));
    let options = small().buffer_pool_size(128 * 4096).buffer_pool_max_size(192 * 4096);
    let db = Database::open_on(disk.clone(), env.clone(), &options, &|_| {}).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    // No page can be written any more.
    disk.fail_always_on(FileName::Doublewrite, Fault::WriteFails);
    let (pool, mut times) = (db.engine().pool.clone(), 0);
    let resize = move || {
        times += 1;
        assert!(times < 3000, "a caller waits for a frame, and gets no error");
        pool.resize(if times % 2 == 0 { 128 } else { 192 }).unwrap();
        Next::Idle(Duration::ZERO)
    };
    let resizer =
        env.spawn("resizer", WorkerClass::Service, Arc::new(Event::new()), Box::new(resize)).unwrap();
    let error = (0..1000u32).find_map(|n| table.insert(&n.to_be_bytes(), &ROW).err()).unwrap().to_string();
    assert!(error.contains("doublewrite"), "{error}");
    drop(resizer);
    disk.clear_faults();
    table.insert(b"again", &ROW).unwrap();
}

#[test]
fn a_caller_gets_no_error_of_another_table() {
    for pages in [40u32, 250] {
        let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedEnv::new(1)));
        let db =
            Database::open_on(disk.clone(), env, &small().buffer_pool_size(1024 * 4096), &|_| {}).unwrap();
        let make = |name| {
            let table = db.create_table(name, TableOptions::default()).unwrap();
            table.insert(b"first", &ROW).unwrap();
            db.checkpoint().unwrap();
            (table, disk.list(Folder::Data).unwrap())
        };
        let ((good, before), (bad, behind)) = (make("good"), make("bad"));
        for file in behind.iter().filter(|file| !before.contains(file)) {
            disk.fail_always_on(*file, Fault::WriteFails);
        }
        for n in 0..2 * pages {
            bad.insert(&n.to_be_bytes(), &ROW).unwrap();
        }
        for n in 0..3000u32 {
            good.insert(&n.to_be_bytes(), &ROW)
                .unwrap_or_else(|error| panic!("row {n} beside {pages} pages of another table: {error}"));
        }
    }
}

/// The low-water mark cannot pass the log of the value before there is a record of its file.
#[test]
fn a_wait_for_the_log_ends_with_its_file_recorded() {
    let options = Options::default().page_size(4096).buffer_pool_size(256 * 4096).log_size(4 << 20);
    let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedEnv::new(1)));
    let db = Database::open_on(disk, env, &options, &|_| {}).unwrap();
    let table = db.create_table("t", TableOptions::default()).unwrap();
    table.put(b"k", &vec![7; 20 << 20]).unwrap();
    assert_eq!(table.get(b"k").unwrap().unwrap().len(), 20 << 20);
}
