//! Results of experiments, as data.
//!
//! **Purpose.** One format for all uses: the output of `--json`, the input of a report, and the comparison of two runs.
//! A child process prints a part of it. Times are nanoseconds unless a name says otherwise.
//!
//! **Invariants.** Nothing here is computed from published figures, which belong to the report: this module imports
//! nothing from there (test: `modules_import_only_from_those_before_them`).

use serde::{Deserialize, Serialize};
use windfall_measure::{GRAPH_INTERVAL, Gap, Latency, Machine, Timeline, flat::Factor};

use crate::{
    policy::Steps,
    system::System,
    watch::{Held, Report, Waited},
};

/// A run of the lab.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The version of the program.
    pub version: String,
    /// The command that produced the results.
    pub command: String,
    /// The time of the run, in seconds since 1970.
    pub made_at: u64,
    /// The duration in seconds.
    pub seconds: f64,
    /// The seed of the random numbers.
    pub seed: u64,
    /// The scale: `quick`, `default` or `full`.
    pub scale: String,
    /// The machine.
    pub machine: Machine,
    /// Stalls under load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x1: Option<X1>,
    /// Drops by pool fill.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x2: Option<X2>,
    /// Many small tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x3: Option<X3>,
    /// The loop of creates and drops.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x4: Option<X4>,
    /// Drops by pool size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x5: Option<X5>,
    /// Retention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x6: Option<X6>,
    /// The drop of a fully hashed table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x7: Option<X7>,
    /// The drop of a table with a large file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x8: Option<X8>,
    /// The factors that the cost of a drop does not depend on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x9: Option<X9>,
}

impl Results {
    /// Creates results without any experiment.
    pub fn new(machine: Machine, scale: &str, seed: u64) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").into(),
            command: String::new(),
            made_at: 0,
            seconds: 0.0,
            seed,
            scale: scale.into(),
            machine,
            x1: None,
            x2: None,
            x3: None,
            x4: None,
            x5: None,
            x6: None,
            x7: None,
            x8: None,
            x9: None,
        }
    }
}

/// Latencies by percentile, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The number of latencies.
    pub count: u64,
    /// The median.
    pub p50_us: f64,
    /// The 95th percentile.
    pub p95_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p999_us: f64,
    /// The 99.99th percentile.
    pub p9999_us: f64,
    /// The maximum.
    pub max_us: f64,
}

impl From<&Latency> for Percentiles {
    fn from(latency: &Latency) -> Self {
        let us = |percent| latency.percentile(percent) as f64 / 1e3;
        Self {
            count: latency.count(),
            p50_us: us(50.0),
            p95_us: us(95.0),
            p99_us: us(99.0),
            p999_us: us(99.9),
            p9999_us: us(99.99),
            max_us: us(100.0),
        }
    }
}

/// A drop, or another statement, during a load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// The start time, from the start of the run.
    pub at_ns: u64,
    /// The duration of the statement.
    pub took_ns: u64,
    /// The counted work in the pool.
    pub steps: Steps,
}

/// The recorded holds and waits of a lock, all instances together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockSeen {
    /// The name of the lock.
    pub name: String,
    /// The holds by role and purpose.
    pub holds: Vec<Held>,
    /// The waits by waiter and holder.
    pub waits: Vec<Waited>,
}

impl LockSeen {
    /// Merges the reports of several locks of one name.
    pub fn of(name: &str, reports: &[Report]) -> Self {
        let mut seen = Self { name: name.to_owned(), holds: Vec::new(), waits: Vec::new() };
        for report in reports {
            seen.add(&report.holds, &report.waits);
        }
        seen
    }

    /// Adds the holds and waits of another lock of the name, or of this one at another time.
    fn add(&mut self, holds: &[Held], waits: &[Waited]) {
        for held in holds {
            let same = |other: &&mut Held| (other.role, other.purpose) == (held.role, held.purpose);
            match self.holds.iter_mut().find(same) {
                Some(other) => other.times.merge(&held.times),
                None => self.holds.push(*held),
            }
        }
        for waited in waits {
            let key = |w: &Waited| (w.role, w.purpose, w.holder, w.held_for);
            match self.waits.iter_mut().find(|other| key(other) == key(waited)) {
                Some(other) => other.times.merge(&waited.times),
                None => self.waits.push(*waited),
            }
        }
    }
}

/// The 100 ms after the start of a statement; in a baseline, after the same times.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Window {
    /// The start of the window.
    pub at_ns: u64,
    /// Queries per second in the window.
    pub rate: f64,
    /// The longest time without a finished query that overlaps the window.
    pub gap_ns: u64,
    /// The 99.99th percentile of the latency of queries in progress during the window.
    pub p9999_ns: u64,
}

/// Clients under a load, with statements during it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// The duration of the load.
    pub length_ns: u64,
    /// The length of an interval: the time that each value of `rates` and `gaps_ns` covers.
    #[serde(rename = "stretch_ns")]
    pub interval_ns: u64,
    /// Queries per second in each interval.
    pub rates: Vec<f64>,
    /// The longest time without a finished query that began in each interval.
    pub gaps_ns: Vec<f64>,
    /// The longest time without a finished query in the whole load.
    pub longest_gap: Gap,
    /// Queries that finished.
    pub queries: u64,
    /// The latency of all queries.
    pub latency: Percentiles,
    /// The latency of the queries that were in progress in a window.
    pub latency_near: Percentiles,
    /// The windows.
    pub windows: Vec<Window>,
    /// The statements. A baseline has none.
    pub marks: Vec<Mark>,
    /// The locks of the pool; none for Windfall, which has no such locks.
    pub locks: Vec<LockSeen>,
}

impl Load {
    /// Creates an empty load with these query latencies.
    pub fn new(latency: &Latency) -> Self {
        let interval_ns = GRAPH_INTERVAL.as_nanos() as u64;
        Self { interval_ns, latency: latency.into(), ..Self::default() }
    }

    /// Appends the next phase of the load.
    pub fn follow(&mut self, line: &Timeline, marks: &[Mark], locks: &[LockSeen]) {
        let gap = line.longest_gap();
        if gap.length_ns > self.longest_gap.length_ns {
            self.longest_gap = Gap { from_ns: self.length_ns + gap.from_ns, ..gap };
        }
        self.rates.extend(line.rates(GRAPH_INTERVAL));
        self.gaps_ns.extend(line.gap_per(GRAPH_INTERVAL));
        self.queries += line.count();
        self.marks.extend(marks.iter().map(|mark| Mark { at_ns: self.length_ns + mark.at_ns, ..*mark }));
        for seen in locks {
            match self.locks.iter_mut().find(|lock| lock.name == seen.name) {
                Some(lock) => lock.add(&seen.holds, &seen.waits),
                None => self.locks.push(seen.clone()),
            }
        }
        self.length_ns += line.length_ns();
    }

    /// Returns the longest time without a finished query, in nanoseconds.
    pub fn longest_ns(&self) -> f64 {
        self.longest_gap.length_ns as f64
    }

    /// Returns the duration of the longest drop, in nanoseconds.
    pub fn longest_drop_ns(&self) -> Option<f64> {
        self.marks.iter().map(|mark| mark.took_ns).max().map(|ns| ns as f64)
    }

    /// Returns the mean rate of the windows, in queries per second.
    pub fn rate_near(&self) -> f64 {
        self.windows.iter().map(|window| window.rate).sum::<f64>() / self.windows.len() as f64
    }
}

/// X1: tables are dropped under a load of reads and writes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X1 {
    /// Client threads.
    pub threads: u32,
    /// Rows of the clients' table.
    pub rows: u64,
    /// Pages in the pool.
    pub pages: u64,
    /// The number of them that are bookkeeping only: descriptors and list entries, without the bytes of a page.
    pub bookkeeping_pages: u64,
    /// Seconds between two drops.
    pub drop_every_s: f64,
    /// Rows of each dropped table.
    pub victim_rows: u64,
    /// One run per system and setting.
    pub runs: Vec<X1Run>,
}

/// A run of X1.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X1Run {
    /// The system.
    pub system: System,
    /// Entries of the LRU list per entry of the flush list, at the start.
    pub lru_to_flush: u32,
    /// The load of the clients without drops: in phases that alternate with those of `with`.
    pub without: Load,
    /// The load of the clients during drops.
    pub with: Load,
}

/// Returns the mean time per item.
fn mean(ns: u64, count: u32) -> f64 {
    ns as f64 / f64::from(count.max(1))
}

/// X2: tables are created, then dropped, with different fills of the pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X2 {
    /// Tables per run.
    pub tables: u32,
    /// The runs.
    pub runs: Vec<X2Run>,
}

impl X2 {
    /// Returns the nanoseconds per drop of a run.
    pub fn each_drop(&self, run: &X2Run) -> f64 {
        mean(run.drop_ns, self.tables)
    }
}

/// A run of X2.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X2Run {
    /// The system.
    pub system: System,
    /// Gigabytes in the pool: 21, 52, 104.
    pub fill_gb: f64,
    /// Pages in the pool, all of them bookkeeping only.
    pub pages: u64,
    /// The time to create all tables.
    pub create_ns: u64,
    /// The time to drop all tables.
    pub drop_ns: u64,
    /// The end of each drop, from the start of the first.
    pub ended_ns: Vec<u64>,
    /// The counted work of all drops in the pool.
    pub steps: Steps,
}

/// X3: many small tables, dropped by several threads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X3 {
    /// The runs.
    pub runs: Vec<X3Run>,
}

/// A run of X3.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X3Run {
    /// The system.
    pub system: System,
    /// The file system: `disk` or `tmpfs`.
    pub on: String,
    /// The number of tables.
    pub tables: u32,
    /// The number of dropping threads.
    pub threads: u32,
    /// The time to create all tables, by one thread.
    pub create_ns: u64,
    /// The time to drop all tables.
    pub drop_ns: u64,
    /// The latency of the drops.
    pub latency: Percentiles,
    /// The counted work of all drops in the pool.
    pub steps: Steps,
}

impl X3Run {
    /// Returns the nanoseconds per drop.
    pub fn each_drop(&self) -> f64 {
        mean(self.drop_ns, self.tables)
    }
}

/// X4: a table is created and dropped, again and again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X4 {
    /// The number of loops.
    pub loops: u32,
    /// The runs.
    pub runs: Vec<X4Run>,
}

/// A run of X4.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X4Run {
    /// The system.
    pub system: System,
    /// The file system: `disk` or `tmpfs`.
    pub on: String,
    /// Gigabytes in the pool: 0, or 60 that are bookkeeping only.
    pub fill_gb: f64,
    /// The number of times that a table was created and dropped.
    pub loops: u32,
    /// The total time.
    pub total_ns: u64,
    /// The part of it that was spent on drops.
    pub drop_ns: u64,
    /// The counted work of all drops in the pool.
    pub steps: Steps,
}

impl X4Run {
    /// Returns the nanoseconds per drop.
    pub fn each_drop(&self) -> f64 {
        mean(self.drop_ns, self.loops)
    }

    /// Returns the nanoseconds per loop.
    pub fn each_loop(&self) -> f64 {
        mean(self.total_ns, self.loops)
    }
}

/// X5: tables are created and dropped next to one that fills the pool, by the size of the pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X5 {
    /// Threads that create and drop tables.
    pub threads: u32,
    /// The runs.
    pub runs: Vec<X5Run>,
}

/// A run of X5.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X5Run {
    /// The system.
    pub system: System,
    /// The size of the pool in gigabytes: 32, 64, 128, 256, 450.
    pub pool_gb: f64,
    /// Pages in the pool, all of them bookkeeping only.
    pub pages: u64,
    /// Entries of the LRU lists before the first drop; the article has a query for both list lengths.
    pub lru_entries: u64,
    /// Entries of the flush lists before the first drop.
    pub flush_entries: u64,
    /// Tables that were created and dropped per round: 100, or fewer where one takes long.
    pub tables: u32,
    /// The number of rounds: more than one where a round takes milliseconds.
    pub rounds: u32,
    /// The median duration of a round.
    pub total_ns: u64,
    /// The latency of the drops.
    pub drop_latency: Percentiles,
    /// The counted work of all drops in the pool.
    pub steps: Steps,
}

impl X5Run {
    /// Returns the nanoseconds for 100 tables.
    pub fn for_100(&self) -> f64 {
        100.0 * mean(self.total_ns, self.tables)
    }
}

/// X6: the oldest partition of a time series is dropped every second, while the newest is being filled.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X6 {
    /// Threads that insert.
    pub threads: u32,
    /// Partitions that are kept.
    pub kept: u32,
    /// The runs.
    pub runs: Vec<X6Run>,
}

/// A run of X6.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X6Run {
    /// The system.
    pub system: System,
    /// Whether partitions were dropped; otherwise they stay.
    pub drops: bool,
    /// The load of the inserting threads.
    pub load: Load,
    /// Rows inserted.
    pub rows: u64,
    /// Bytes of pages in use by all partitions, at the start and after each new partition is created, before the
    /// oldest is dropped: the size of their files when everything is written.
    pub used_bytes: Vec<u64>,
}

/// X7: a table is dropped whose pages are all in the hash index.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X7 {
    /// Client threads, which read another table.
    pub threads: u32,
    /// The runs.
    pub runs: Vec<X7Run>,
}

/// A run of X7.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X7Run {
    /// The system.
    pub system: System,
    /// Pages of the table.
    pub pages: u64,
    /// Entries of the table in the hash index; for Windfall, the bytes of its own hash index divided by those of an
    /// entry.
    pub entries: u64,
    /// The load of the clients.
    pub load: Load,
}

/// X8: a table with a large file is dropped while other threads commit durably.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X8 {
    /// Threads that commit.
    pub threads: u32,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// The runs.
    pub runs: Vec<X8Run>,
}

/// A run of X8.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X8Run {
    /// The system.
    pub system: System,
    /// The load of the committing threads.
    pub load: Load,
    /// The time from the start of the drop until the file was deleted from the disk.
    pub gone_after_ns: u64,
    /// Commits per second before the drop.
    pub rate_before: f64,
    /// Commits per second until the file was deleted.
    pub rate_during: f64,
}

/// X9: the properties of a table and its environment are varied, one at a time. Only for Windfall, and measured by the
/// command: its processes are traced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X9 {
    /// The factors that are varied.
    pub factors: Vec<Factor>,
}
