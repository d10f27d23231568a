//! Counters and gauges of a database.
//!
//! **Purpose.** A plain struct for programs, and the same as text for Prometheus.
//!
//! **Invariants.** Counters only grow while the database is open (test: `counters_only_grow`). Reading the metrics
//! latches no page and takes as few locks for many tables and transactions as for one, each for a moment (test:
//! `metrics_of_many_tables_cost_what_those_of_one_cost`). The histogram of lock waits is cumulative (test:
//! `histogram_buckets_are_cumulative`).

use core::fmt::Write;

use crate::txn::locks::WAIT_CLASSES;

macro_rules! metrics {
    ($($(#[$when:meta])* $name:ident $kind:ident $doc:literal,)*) => {
        /// The metrics. Sizes are in bytes or pages, as their names say; times are in microseconds.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Metrics {
            $($(#[$when])* #[doc = $doc] pub $name: u64,)*
            /// The lock waits that have ended, by duration. Class 0 counts those of less than 1 µs; class `n` those of
            /// less than 2 to the `n` µs and not less than the class before; the last class counts all longer ones.
            pub lock_wait_classes: [u64; WAIT_CLASSES],
        }

        impl Metrics {
            /// Returns the metrics in the text format of Prometheus.
            pub fn to_prometheus(&self) -> String {
                let mut text = String::new();
                $(
                    $(#[$when])*
                    {
                        let kind = stringify!($kind);
                        // Prometheus names counters with this suffix.
                        let total = if kind == "counter" { "_total" } else { "" };
                        let name = format!("windfall_{}{total}", stringify!($name));
                        let _ = write!(text, "# HELP {name} {}\n# TYPE {name} {kind}\n{name} {}\n", $doc, self.$name);
                    }
                )*
                self.add_histogram(&mut text);
                text
            }
        }
    };
}

metrics! {
    page_size gauge "The page size in bytes.",
    pool_frames gauge "Frames of the buffer pool.",
    pool_free gauge "Frames that hold no page.",
    pool_dirty gauge "Frames with a page that has changes to be written.",
    pool_dropped gauge "Frames that hold pages of dropped tables: the next to be used.",
    pool_clean gauge "Frames with a page that is as it is on disk.",
    pool_bookkeeping_bytes gauge "The most bytes that the pool's own bookkeeping takes.",
    pool_reads counter "Pages read from data files.",
    pool_reads_ahead counter "Those of them that were read ahead of their use.",
    pool_writes counter "Pages written to data files.",
    pool_foreground_writes counter "Pages that no background worker wrote, but a requested checkpoint or closing.",
    pool_evictions counter "Pages of live tables that were evicted.",
    pool_reclaimed counter "Frames taken from dropped tables.",
    pool_frame_waits counter "How often an operation waited for a frame.",
    hash_index_bytes gauge "Bytes of memory that the hash indexes take.",
    hash_index_limit gauge "Bytes of memory that the hash indexes may take.",
    log_writes counter "Writes of the log.",
    log_syncs counter "Syncs of the log.",
    log_bytes counter "Bytes written to the log.",
    log_groups counter "Groups of changes logged.",
    log_waits counter "How often an operation waited for room in the log.",
    log_longest_wait gauge "The longest of these waits in microseconds.",
    log_last_sync gauge "The duration of the last sync of the log in microseconds.",
    log_age gauge "Bytes of log from its low-water mark to its end.",
    log_size gauge "The limit in bytes below which `log_age` is kept.",
    checkpoints counter "Checkpoints made.",
    temporary_tables gauge "Temporary tables, those of sessions too.",
    files_created counter "Data files created.",
    files_deleted counter "Data files of dropped tables deleted.",
    files_deleted_bytes counter "Bytes of these.",
    files_pending gauge "Dropped tables' files that wait to be deleted.",
    files_pending_bytes gauge "Bytes of these files, as far as their lengths have been read.",
    drops_pending gauge "Dropped trees that the reclaimer has not finished: frames to free, or a file to pass on.",
    tables gauge "Tables.",
    system_tree_height gauge "Levels of the system tree, which has the records of tables: a drop descends through it.",
    active_transactions gauge "Active transactions.",
    prepared_transactions gauge "Those of them that are prepared.",
    rollbacks_pending gauge "Those of them that are being rolled back in the background.",
    commits counter "Transactions that have committed and had changed or locked anything, and calls outside of transactions \
                     that have changed anything.",
    rollbacks counter "Transactions that were rolled back and had changed or locked anything, by themselves, in the background or \
                       as the victim of a deadlock, and calls outside of transactions that have failed half-way; not calls \
                       that have failed before they changed anything, as those that find no row, or a duplicate, or do not \
                       get a lock.",
    locks_held gauge "Locks that transactions and statements hold, except those of rows that they have changed and no other \
                      waits for.",
    lock_waiting gauge "Calls that wait for a lock.",
    lock_waits counter "How often a call waited for a lock.",
    lock_wait_time counter "The total duration of these waits in microseconds.",
    lock_longest_wait gauge "The longest of them in microseconds.",
    lock_timeouts counter "Waits for a lock that ended with a lock timeout.",
    deadlocks counter "Deadlocks: cycles of transactions that waited for each other.",
    undo_slices gauge "Undo slices that purge has not removed, except those of temporary tables.",
    undo_bytes gauge "Bytes of these slices.",
    undo_waits counter "How often a change found that undo takes more than `undo_limit`.",
    views_ended counter "Views that were ended because undo took more than `undo_limit`.",
    history_bytes gauge "Bytes of undo that purge has yet to process.",
    oldest_view gauge "How many transactions have begun since the oldest view was taken; 0 without a view.",
    #[cfg(feature = "drop-waits")]
    drop_waits counter "How often a thread waited for a lock or latch that a dropping thread held, or for a \
                        table that was truncated or lost an index; not for one that was dropped.",
}

impl Metrics {
    /// Writes the histogram of lock waits by duration, with a bucket for every other class.
    fn add_histogram(&self, text: &mut String) {
        let name = "windfall_lock_wait_duration_seconds";
        let _ = write!(text, "# HELP {name} How long calls waited for a lock.\n# TYPE {name} histogram\n");
        let mut waits = 0;
        for (n, class) in self.lock_wait_classes[..WAIT_CLASSES - 1].iter().enumerate() {
            waits += class;
            if n % 2 == 0 {
                let seconds = (1_u64 << n) as f64 / 1e6;
                let _ = writeln!(text, "{name}_bucket{{le=\"{seconds}\"}} {waits}");
            }
        }
        waits += self.lock_wait_classes[WAIT_CLASSES - 1];
        let _ = write!(
            text,
            "{name}_bucket{{le=\"+Inf\"}} {waits}\n{name}_sum {}\n{name}_count {waits}\n",
            self.lock_wait_time as f64 / 1e6
        );
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;
    use std::collections::BTreeMap;

    use windfall_sim::{SimulatedDisk, SimulatedEnv};

    use super::*;
    use crate::{
        Database, Options, TableOptions, TransactionOptions,
        sync::{
            Arc,
            work::{self, Work},
        },
    };

    #[test]
    fn the_text_has_a_line_for_each_number() {
        let text = Metrics { log_syncs: 42, ..Metrics::default() }.to_prometheus();
        assert!(text.contains("# TYPE windfall_log_syncs_total counter\nwindfall_log_syncs_total 42\n"));
        assert!(text.contains("# TYPE windfall_tables gauge\nwindfall_tables 0\n"));
        let (numbers, _) = text.split_once("# HELP windfall_lock_wait_duration_seconds").unwrap();
        assert!(numbers.lines().count().is_multiple_of(3));
    }

    fn open() -> Database {
        let options = Options::default().page_size(4096).buffer_pool_size(256 * 4096).log_size(4 << 20);
        let (disk, env) = (Arc::new(SimulatedDisk::new(1)), Arc::new(SimulatedEnv::new(1)));
        Database::open_on(disk, env, &options, &|_| {}).unwrap()
    }

    #[test]
    fn counters_only_grow() {
        let db = open();
        let counters = || {
            let text = db.metrics().to_prometheus();
            let lines = text.lines().filter_map(|line| line.split_once("_total "));
            let counters =
                lines.filter_map(|(name, value)| Some((name.to_owned(), value.parse::<u64>().ok()?)));
            counters.collect::<BTreeMap<_, _>>()
        };
        let first = counters();
        let mut last = first.clone();
        for round in 0..20u8 {
            let table = db.create_table("t", TableOptions::default()).unwrap();
            (0..50u8).for_each(|n| table.put(&[round, n], &[n; 1000]).unwrap());
            let [one, other] = [(); 2].map(|()| db.begin(TransactionOptions::default()));
            one.table(&table).put(&[round, 1], b"").unwrap();
            other.set_lock_wait_timeout(Some(Duration::from_millis(1)));
            other.table(&table).put(&[round, 1], b"").unwrap_err();
            one.rollback().unwrap();
            other.rollback().unwrap();
            db.checkpoint().unwrap();
            db.drop_table("t").unwrap();
            let now = counters();
            let fallen = last.iter().find(|(name, value)| now.get(*name).is_none_or(|now| now < *value));
            assert_eq!(fallen, None, "round {round}");
            last = now;
        }
        let risen = first.iter().filter(|(name, value)| last[*name] > **value).count();
        assert!(risen >= 12, "{risen} of {} counters: {last:?}", first.len());
    }

    #[test]
    fn metrics_of_many_tables_cost_what_those_of_one_cost() {
        let db = open();
        let cost = || {
            let before = work::so_far();
            let metrics = db.metrics();
            let work = work::so_far() - before;
            for kind in [Work::Frame, Work::Latch, Work::SystemTreeLatch, Work::Wait, Work::ListEntry] {
                assert_eq!(work.of(kind), 0, "{kind:?}: {work:?}");
            }
            (metrics.tables, metrics.active_transactions, work.of(Work::Lock))
        };
        let mut open = Vec::new();
        let mut add = |n: u32| {
            let table = db.create_table(&n.to_string(), TableOptions::default()).unwrap();
            let trx = db.begin(TransactionOptions::default());
            trx.table(&table).put(b"a", b"").unwrap();
            open.push(trx);
        };
        add(0);
        let (_, _, locks) = cost();
        (1..100).for_each(&mut add);
        assert_eq!(cost(), (100, 100, locks));
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let mut metrics = Metrics { lock_wait_time: 2_500_000, ..Metrics::default() };
        for (class, waits) in [(0, 1), (1, 2), (2, 4), (21, 8), (31, 16)] {
            metrics.lock_wait_classes[class] = waits;
        }
        let text = metrics.to_prometheus();
        let value = |name: &str| {
            let line = text
                .lines()
                .find_map(|line| line.strip_prefix(&format!("windfall_lock_wait_duration_seconds{name} ")));
            line.unwrap_or_else(|| panic!("{name} is not in {text}")).to_owned()
        };
        let bucket = |bound: &str| value(&format!("_bucket{{le=\"{bound}\"}}"));
        assert_eq!(["0.000001", "0.000004", "1.048576", "4.194304"].map(bucket), ["1", "7", "7", "15"]);
        assert_eq!([bucket("+Inf"), value("_count"), value("_sum")], ["31", "31", "2.5"]);
    }
}
