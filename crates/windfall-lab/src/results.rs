//! What experiments have shown, as data.
//!
//! **Purpose.** One form for all: it is what `--json` gives, what a report is drawn from, and what two runs are
//! compared by. A child process answers with a piece of it.
//!
//! **Invariants.** Times are nanoseconds unless a name says otherwise. Nothing in here is computed from published
//! figures: those belong to the report.
//!
//! **May touch.** `system`, `policy` for its steps, `watch` for its reports, `windfall-measure`.

use serde::{Deserialize, Serialize};
use windfall_measure::{Gap, Latency, Machine, STRETCH, Timeline, flat::Factor};

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
    /// The command that made it.
    pub command: String,
    /// When it was made, in seconds since 1970.
    pub made_at: u64,
    /// How long it took.
    pub seconds: f64,
    /// Where the random numbers began.
    pub seed: u64,
    /// How large everything was: `quick`, `default` or `full`.
    pub scale: String,
    /// The machine.
    pub machine: Machine,
    /// Stalls under load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x1: Option<X1>,
    /// Drops by how full the pool is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x2: Option<X2>,
    /// Many small tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x3: Option<X3>,
    /// The loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x4: Option<X4>,
    /// Drops by how large the pool is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x5: Option<X5>,
    /// Retention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x6: Option<X6>,
    /// The storm of the hash index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x7: Option<X7>,
    /// The file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x8: Option<X8>,
    /// What the cost of a drop does not depend on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub x9: Option<X9>,
}

impl Results {
    /// Of no experiment yet.
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
    /// How many there were.
    pub count: u64,
    /// Half of them took no longer.
    pub p50_us: f64,
    /// 95 of 100.
    pub p95_us: f64,
    /// 99 of 100.
    pub p99_us: f64,
    /// 999 of 1,000.
    pub p999_us: f64,
    /// 9,999 of 10,000.
    pub p9999_us: f64,
    /// The longest.
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

/// A drop, or another statement, amid a load.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Mark {
    /// When it began, from the begin of the run.
    pub at_ns: u64,
    /// How long the statement took.
    pub took_ns: u64,
    /// What it did to the pool.
    pub steps: Steps,
}

/// What a lock has seen, all instances of it together.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LockSeen {
    /// Its name.
    pub name: String,
    /// By whom and for what it was held.
    pub holds: Vec<Held>,
    /// Who has waited, and for whom.
    pub waits: Vec<Waited>,
}

impl LockSeen {
    /// What the reports of several locks of one name say together.
    pub fn of(name: &str, reports: &[Report]) -> Self {
        let mut seen = Self { name: name.to_owned(), holds: Vec::new(), waits: Vec::new() };
        for report in reports {
            seen.add(&report.holds, &report.waits);
        }
        seen
    }

    /// Adds what another lock of the name has seen, or this one at another time.
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

/// The 100 ms behind a statement's begin; without statements, behind the same times.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Window {
    /// When it opened.
    pub at_ns: u64,
    /// Queries per second in it.
    pub rate: f64,
    /// The longest time without a finished query of which a part is in it.
    pub gap_ns: u64,
    /// Of 10,000 queries that were under way in it, 9,999 took no longer.
    pub p9999_ns: u64,
}

/// Clients under a load, with statements amid it.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Load {
    /// How long it ran.
    pub length_ns: u64,
    /// The stretch of time that a value of `rates` and `gaps_ns` stands for.
    pub stretch_ns: u64,
    /// Queries per second in each stretch.
    pub rates: Vec<f64>,
    /// The longest time without a finished query that began in each stretch.
    pub gaps_ns: Vec<f64>,
    /// The longest of all.
    pub longest_gap: Gap,
    /// Queries that finished.
    pub queries: u64,
    /// How long queries took.
    pub latency: Percentiles,
    /// The same of those that were under way in a window.
    pub latency_near: Percentiles,
    /// The windows.
    pub windows: Vec<Window>,
    /// The statements. A baseline has none.
    pub marks: Vec<Mark>,
    /// The locks of the pool; none of Windfall's, which has no such locks.
    pub locks: Vec<LockSeen>,
}

impl Load {
    /// Of no time yet; its queries took so long.
    pub fn new(latency: &Latency) -> Self {
        let stretch_ns = STRETCH.as_nanos() as u64;
        Self { stretch_ns, latency: latency.into(), ..Self::default() }
    }

    /// What came next.
    pub fn follow(&mut self, line: &Timeline, marks: &[Mark], locks: &[LockSeen]) {
        let gap = line.longest_gap();
        if gap.length_ns > self.longest_gap.length_ns {
            self.longest_gap = Gap { from_ns: self.length_ns + gap.from_ns, ..gap };
        }
        self.rates.extend(line.rates(STRETCH));
        self.gaps_ns.extend(line.gap_per(STRETCH));
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

    /// The longest time without a finished query, in nanoseconds.
    pub fn longest_ns(&self) -> f64 {
        self.longest_gap.length_ns as f64
    }

    /// How long the longest of the drops took, in nanoseconds.
    pub fn longest_drop_ns(&self) -> Option<f64> {
        self.marks.iter().map(|mark| mark.took_ns).max().map(|ns| ns as f64)
    }

    /// Queries per second in the windows.
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
    /// Pages in the pool, and how many of them are bookkeeping alone.
    pub pages: u64,
    /// How many of them are bookkeeping alone: descriptors and list entries, without the bytes of a page.
    pub bookkeeping_pages: u64,
    /// Seconds between two drops.
    pub drop_every_s: f64,
    /// Rows of each dropped table.
    pub victim_rows: u64,
    /// One for each system and setting.
    pub runs: Vec<X1Run>,
}

/// A run of X1.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X1Run {
    /// The system.
    pub system: System,
    /// Entries of the LRU list for each of the flush list, at the beginning.
    pub lru_to_flush: u32,
    /// What the clients noticed while nothing was dropped: in phases that took turns with those of `with`.
    pub without: Load,
    /// What they noticed while tables were dropped.
    pub with: Load,
}

/// What each of so many took.
fn mean(ns: u64, count: u32) -> f64 {
    ns as f64 / f64::from(count.max(1))
}

/// X2: tables are made, then dropped, with the pool filled so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X2 {
    /// Tables of each run.
    pub tables: u32,
    /// The runs.
    pub runs: Vec<X2Run>,
}

impl X2 {
    /// Nanoseconds for each drop of a run.
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
    /// Pages in the pool, all of them bookkeeping alone.
    pub pages: u64,
    /// Making all tables.
    pub create_ns: u64,
    /// Dropping all of them.
    pub drop_ns: u64,
    /// When each drop had ended, from the begin of the first.
    pub ended_ns: Vec<u64>,
    /// What all drops did to the pool together.
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
    /// How many tables.
    pub tables: u32,
    /// How many threads drop.
    pub threads: u32,
    /// Making all tables, by one thread.
    pub create_ns: u64,
    /// Dropping all of them.
    pub drop_ns: u64,
    /// How long each drop took.
    pub latency: Percentiles,
    /// What all drops did to the pool together.
    pub steps: Steps,
}

impl X3Run {
    /// Nanoseconds for each drop.
    pub fn each_drop(&self) -> f64 {
        mean(self.drop_ns, self.tables)
    }
}

/// X4: a table is made and dropped, again and again.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X4 {
    /// How often.
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
    /// Gigabytes in the pool: 0, or 60 that are bookkeeping alone.
    pub fill_gb: f64,
    /// How often a table was made and dropped.
    pub loops: u32,
    /// How long all of it took.
    pub total_ns: u64,
    /// The part of it that was dropping.
    pub drop_ns: u64,
    /// What all drops did to the pool together.
    pub steps: Steps,
}

impl X4Run {
    /// Nanoseconds for each drop.
    pub fn each_drop(&self) -> f64 {
        mean(self.drop_ns, self.loops)
    }

    /// Nanoseconds for each loop.
    pub fn each_loop(&self) -> f64 {
        mean(self.total_ns, self.loops)
    }
}

/// X5: tables are made and dropped beside one that fills the pool, by the size of the pool.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X5 {
    /// Threads that make and drop.
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
    /// Pages in the pool, all of them bookkeeping alone.
    pub pages: u64,
    /// Entries of the LRU lists and of the flush lists before the first drop: what the article has a query for.
    pub lru_entries: u64,
    /// Of the flush lists.
    pub flush_entries: u64,
    /// How many tables were made and dropped: 100, or fewer where one takes long.
    pub tables: u32,
    /// How often so many were: more than once where that takes milliseconds.
    pub rounds: u32,
    /// How long a round took, their median.
    pub total_ns: u64,
    /// How long drops took.
    pub drop_latency: Percentiles,
    /// What all drops did to the pool together.
    pub steps: Steps,
}

impl X5Run {
    /// Nanoseconds that 100 tables take.
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
    /// Whether partitions were dropped; else they stay.
    pub drops: bool,
    /// What the inserting threads noticed.
    pub load: Load,
    /// Rows inserted.
    pub rows: u64,
    /// Bytes of pages in use by all partitions, at the begin and when each new partition is there, before the oldest is
    /// dropped: what their files take when everything is written.
    pub used_bytes: Vec<u64>,
}

/// X7: a table is dropped all of whose pages are in the hash index.
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
    /// Entries that the hash index had of it; for Windfall, bytes of its own hash index divided by those of an entry.
    pub entries: u64,
    /// What the clients noticed.
    pub load: Load,
}

/// X8: a table with a large file is dropped while others commit durably.
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
    /// What those who commit noticed.
    pub load: Load,
    /// From the begin of the drop until the file was gone from the disk.
    pub gone_after_ns: u64,
    /// Commits per second before the drop.
    pub rate_before: f64,
    /// Commits per second until the file was gone.
    pub rate_during: f64,
}

/// X9: what a table owns and has around it is varied, one thing at a time. Of Windfall alone, and measured by the
/// command: its processes are traced.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct X9 {
    /// What is varied.
    pub factors: Vec<Factor>,
}
