//! Every statement on every server, over real files.
//!
//! **Purpose.** Runs the statements of the experiments once on each system. Checks that a dropped table is refused and
//! its file is deleted, that other tables remain, and that the counted work is that of the policy.
//!
//! **Method.** Each test has its own folder, which is deleted afterwards.

use std::{path::Path, time::Duration};

use tempfile::TempDir;
use windfall::{FlushLog, error::Error};

use super::{Dropped, PAGE_SIZE, Server, Start, Table, classic::Classic, product::Product, rows};
use crate::{
    policy::Steps,
    system::{PolicyName, System},
    testing::wait_until,
    watch::Purpose,
};

/// Pages of every pool in these tests.
const PAGES: u64 = 4_000;

/// A test that runs on every system.
trait SystemTest {
    fn run<S: Server>(&self, system: System, server: &S);

    fn on_all(&self) {
        for policy in PolicyName::ALL {
            for hash_index in [false, true] {
                let system = System { policy, hash_index, instances: 1 + u32::from(hash_index) };
                let folder = TempDir::new().unwrap();
                let start = start(system, folder.path());
                if policy == PolicyName::Detach {
                    self.run(system, &Product::start(&start).unwrap());
                } else {
                    self.run(system, &Classic::start(&start).unwrap());
                }
            }
        }
    }
}

fn start(system: System, folder: &Path) -> Start<'_> {
    Start { system, folder, pages: PAGES, log: 64 << 20, flush: FlushLog::Sync }
}

fn key(n: u32) -> [u8; 4] {
    n.to_be_bytes()
}

fn fill<S: Server>(server: &S, table: &Table<S::Store>, count: u32) {
    let mut end = None;
    for n in 0..count {
        end = rows::put(&table.rows, &key(n), &[n as u8; 500]).unwrap();
        if let Some(index) = &table.index {
            end = rows::put(index, &key(n ^ 0xff), b"").unwrap();
        }
    }
    server.commit(end).unwrap();
}

fn has<S: Server>(table: &Table<S::Store>, count: u32) -> bool {
    (0..count).step_by(3).all(|n| rows::get(&table.rows, &key(n)).unwrap() == Some(vec![n as u8; 500]))
}

fn is_gone<S: Server>(table: &Table<S::Store>) -> bool {
    matches!(rows::get(&table.rows, &key(1)), Err(Error::TableDropped(_)))
}

fn await_files<S: Server>(server: &S, most: u64, what: &str) {
    wait_until(&format!("{what}: no more than {most} bytes of files are left"), || {
        server.file_bytes() <= most && !server.is_deleting()
    });
}

struct Drops;

impl SystemTest for Drops {
    fn run<S: Server>(&self, system: System, server: &S) {
        let stays = server.create("stays", true).unwrap();
        fill(server, &stays, 2_000);
        server.flush().unwrap();
        let before = server.file_bytes();
        let goes = server.create("goes", true).unwrap();
        fill(server, &goes, 3_000);
        server.flush().unwrap();
        fill(server, &goes, 300);
        assert!(server.file_bytes() > before, "{system}");
        let dropped = server.drop_table(&goes).unwrap();
        assert!(is_gone::<S>(&goes) && has::<S>(&stays, 2_000), "{system}");
        assert!(dropped.took > Duration::ZERO, "{system}");
        await_files(server, before + 20 * PAGE_SIZE as u64, &system.to_string());
        // The name can be used again.
        let again = server.create("goes", false).unwrap();
        fill(server, &again, 500);
        assert!(has::<S>(&again, 500), "{system}");
    }
}

#[test]
fn a_dropped_table_is_refused_and_its_file_is_deleted() {
    Drops.on_all();
}

struct Truncates;

impl SystemTest for Truncates {
    fn run<S: Server>(&self, system: System, server: &S) {
        let mut table = server.create("t", true).unwrap();
        // An undo tablespace is written in ascending order and truncated again and again.
        for round in 1..=3_u32 {
            fill(server, &table, 700 * round);
            assert!(has::<S>(&table, 700 * round), "{system}");
            if round == 2 {
                server.flush().unwrap();
            }
            let (truncated, _) = server.truncate(&table).unwrap();
            assert!(is_gone::<S>(&table), "{system}");
            assert_eq!(rows::get(&truncated.rows, &key(1)).unwrap(), None, "{system}");
            assert_eq!(truncated.index.is_some(), table.index.is_some());
            table = truncated;
        }
        fill(server, &table, 100);
        server.flush().unwrap();
        assert!(has::<S>(&table, 100), "{system}");
    }
}

#[test]
fn a_truncated_table_is_empty_and_its_old_handle_refused() {
    Truncates.on_all();
}

struct Groups;

impl SystemTest for Groups {
    fn run<S: Server>(&self, system: System, server: &S) {
        let names = |prefix: &str, count: u32| -> Vec<String> {
            (0..count).map(|n| format!("{prefix}{n}")).collect()
        };
        let partitions: Vec<_> =
            names("p", 100).iter().map(|name| server.create(name, false).unwrap()).collect();
        for table in &partitions {
            fill(server, table, 10);
        }
        let together = server.create_together(&names("g", 10)).unwrap();
        let session = server.create_temporary(&names("s", 5)).unwrap();
        for table in together.iter().chain(&session) {
            fill(server, table, 200);
        }
        for table in together.iter().chain(&session) {
            assert!(has::<S>(table, 200), "{system}");
        }
        server.flush().unwrap();
        let one = |dropped: Dropped| dropped.steps.lru_walked;
        let walked = one(server.drop_partitions(&partitions).unwrap());
        let walked_together = one(server.drop_together(&together).unwrap());
        let walked_at_end = one(server.end_session(&session).unwrap());
        for table in partitions.iter().chain(&together).chain(&session) {
            assert!(is_gone::<S>(table), "{system}");
        }
        if system.policy == PolicyName::LruScan {
            assert!(walked > 50 * walked_together, "{system}: a scan for each partition, {walked}");
            assert!(walked_together > walked_at_end && walked_at_end > 0, "{system}: one for a tablespace");
        }
        await_files(server, 40 * PAGE_SIZE as u64, &system.to_string());
    }
}

#[test]
fn partitions_tablespaces_and_sessions_go_with_all_their_tables() {
    Groups.on_all();
}

struct Filled;

impl SystemTest for Filled {
    fn run<S: Server>(&self, system: System, server: &S) {
        server.fill(3_000, 1_000, 7).unwrap();
        let [pages, dirty] = server.entries();
        assert!(pages >= 3_000, "{system}: {pages}");
        let goes = server.create("goes", false).unwrap();
        fill(server, &goes, 200);
        let steps = server.drop_table(&goes).unwrap().steps;
        let (lru, flush) = (steps.lru_walked, steps.flush_walked);
        match system.policy {
            PolicyName::LruScanOnce | PolicyName::LazyMark => assert!((pages..2 * pages).contains(&lru)),
            PolicyName::LruScan => assert!((2 * pages..3 * pages).contains(&lru)),
            PolicyName::FlushList => assert_eq!((lru, flush >= dirty), (0, true)),
            PolicyName::FlushListAhi | PolicyName::ExtentAhi => {
                assert!((pages..2 * pages).contains(&lru) && flush >= dirty);
            }
            PolicyName::StaleVersion | PolicyName::Detach => assert_eq!(steps, Steps::default()),
        }
    }
}

#[test]
fn a_filled_pool_is_walked_by_policies_that_walk_lists() {
    Filled.on_all();
}

struct Hashed;

impl SystemTest for Hashed {
    fn run<S: Server>(&self, system: System, server: &S) {
        let goes = server.create("goes", false).unwrap();
        fill(server, &goes, 1_000);
        // Otherwise the cleaner may be about to write all of it, and find its pages before the drop does.
        server.flush().unwrap();
        (0..1_000).flat_map(|n| [n; 20]).for_each(|n| drop(rows::get(&goes.rows, &key(n)).unwrap()));
        assert_eq!(server.hashed(&goes) >= 900, system.hash_index, "{system}: {}", server.hashed(&goes));
        let entries = server.drop_table(&goes).unwrap().steps.hash_entries;
        let left = server.hashed(&goes);
        match system.policy {
            PolicyName::FlushList => assert_eq!(entries, 0, "{system}"),
            PolicyName::Detach => {
                assert_eq!((entries, left > 0), (0, system.hash_index), "it goes with the handle");
            }
            _ => assert_eq!((entries > 0, left), (system.hash_index, 0), "{system}"),
        }
    }
}

#[test]
fn hashed_tables_are_unhashed_by_policies_that_have_to() {
    Hashed.on_all();
}

struct Watched;

impl SystemTest for Watched {
    fn run<S: Server>(&self, system: System, server: &S) {
        let goes = server.create("goes", false).unwrap();
        fill(server, &goes, 100);
        server.reset_locks();
        let steps = server.drop_table(&goes).unwrap().steps;
        let locks = server.locks();
        if system.policy == PolicyName::Detach {
            assert!(locks.is_empty());
            return;
        }
        let holds = locks.iter().filter(|lock| lock.name == "buffer pool").flat_map(|lock| &lock.holds);
        let drops: u64 =
            holds.filter(|held| held.purpose == Purpose::Drop).map(|held| held.times.count).sum();
        let instances = u64::from(system.instances);
        let expected = match system.policy {
            PolicyName::LazyMark | PolicyName::ExtentAhi | PolicyName::StaleVersion => 0,
            PolicyName::LruScanOnce | PolicyName::LruScan | PolicyName::FlushList => instances,
            _ => 2 * instances,
        };
        assert_eq!(drops, if expected > 0 { expected + steps.repeated } else { 0 }, "{system}: {locks:?}");
    }
}

#[test]
fn the_locks_of_a_drop_are_reported() {
    Watched.on_all();
}
