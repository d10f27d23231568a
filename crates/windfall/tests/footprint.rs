//! The space that a database takes on disk: little while it is empty, and little again soon after much was dropped. All
//! times are those of a simulated clock.

#![allow(clippy::unwrap_used, reason = "a test panics")]

use core::time::Duration;
use std::sync::Arc;

use windfall::{
    Database, IndexOptions, Options, Table, TableOptions,
    disk::{Disk, Folder},
};
use windfall_sim::{SimulatedDisk, SimulatedEnv};

const EMPTY: u64 = 256 << 10;
const AFTER_A_DROP: u64 = 16 << 20;
const TEN_SECONDS: Duration = Duration::from_secs(10);

struct World {
    disk: SimulatedDisk,
    env: SimulatedEnv,
    db: Database,
}

fn open(disk: SimulatedDisk, options: &Options) -> World {
    let env = SimulatedEnv::new(1);
    let db = Database::open_on(Arc::new(disk.clone()), Arc::new(env.clone()), options, &|_| {}).unwrap();
    World { disk, env, db }
}

/// Returns the length of all files together, in bytes.
fn footprint(disk: &SimulatedDisk) -> u64 {
    let folders = [Folder::Root, Folder::Log, Folder::Data].into_iter();
    let files = folders.flat_map(|folder| disk.list(folder).unwrap());
    files.map(|file| disk.len(file).unwrap().unwrap()).sum()
}

impl World {
    fn footprint(&self) -> u64 {
        footprint(&self.disk)
    }

    /// Lets time pass, and the background workers do what is due.
    fn pass(&self, time: Duration) {
        const STEP: Duration = Duration::from_millis(50);
        for _ in 0..time.as_millis() / STEP.as_millis() {
            self.env.advance(STEP);
            while self.env.step(None) {}
        }
    }

    fn load(&self, name: &str, bytes: usize) -> Table {
        let options = TableOptions::default().index("i", IndexOptions::on_value(0..8));
        let table = self.db.create_table(name, options).unwrap();
        let mut value = vec![7; 6000];
        for n in 0..(bytes / value.len()) as u32 {
            value[..4].copy_from_slice(&n.to_be_bytes());
            table.put(&n.to_be_bytes(), &value).unwrap();
            if n % 64 == 0 {
                self.pass(Duration::from_millis(50));
            }
        }
        table
    }
}

#[test]
fn an_empty_database_is_small() {
    for options in [Options::default(), Options::small(), Options::for_memory(4 << 30)] {
        let world = open(SimulatedDisk::new(1), &options);
        world.pass(TEN_SECONDS);
        assert!(world.footprint() < EMPTY, "{} bytes", world.footprint());
        let World { disk, db, .. } = world;
        db.close().unwrap();
        assert!(footprint(&disk) < EMPTY, "{} bytes when it is closed", footprint(&disk));
        let world = open(disk.next_process(), &options);
        world.pass(TEN_SECONDS);
        assert!(world.footprint() < EMPTY, "{} bytes when it is opened again", world.footprint());
    }
}

#[test]
fn a_database_is_small_ten_seconds_after_a_load_and_a_drop() {
    let world = open(SimulatedDisk::new(1), &Options::default());
    drop(world.load("t", 24 << 20));
    assert!(world.footprint() > 30 << 20, "{} bytes are in the log and in pages", world.footprint());
    world.db.drop_table("t").unwrap();
    world.pass(TEN_SECONDS);
    assert!(world.footprint() < AFTER_A_DROP, "{} bytes", world.footprint());
    // It works on, and what is acknowledged survives a crash.
    let table = world.load("u", 1 << 20);
    table.put(b"last", &[1; 100]).unwrap();
    drop(table);
    world.disk.crash();
    let options = Options::default();
    let world = open(world.disk.restart(windfall_sim::Survive::Nothing), &options);
    assert_eq!(world.db.table("u").unwrap().get(b"last").unwrap(), Some(vec![1; 100]));
    world.db.check().unwrap();
    world.pass(TEN_SECONDS);
    assert!(world.footprint() < AFTER_A_DROP, "{} bytes after the crash", world.footprint());
}

#[test]
fn a_small_database_stays_small_under_load() {
    let world = open(SimulatedDisk::new(1), &Options::small());
    for round in 0..4 {
        let name = format!("t{round}");
        drop(world.load(&name, 4 << 20));
        world.db.drop_table(&name).unwrap();
        world.pass(Duration::from_secs(1));
        assert!(world.footprint() < 48 << 20, "{} bytes under load", world.footprint());
    }
    world.pass(TEN_SECONDS);
    assert!(world.footprint() < AFTER_A_DROP, "{} bytes", world.footprint());
}
