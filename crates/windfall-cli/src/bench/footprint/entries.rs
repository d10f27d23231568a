//! The bytes that entries take in leaves and in files.
//!
//! **Purpose.** Short entries show the overhead of an entry: a table of 4-byte keys and 4-byte values, with an index on
//! the value, so an entry of the index is a pair of integers. Rows of 200 bytes show how full leaves are that hold few
//! entries. Both are built in random order, by many transactions and by one, in ascending order, and by a bulk load.
//!
//! **Invariants.** The claims are about the mean over numbers of rows that differ by equal factors, and over whole
//! doublings (test: `the_numbers_of_rows_span_two_doublings_in_equal_factors`): how full the leaves of a random build
//! are depends on the number of entries, because leaves that began together split at about the same time, the more so
//! the more entries a leaf has.
//!
//! **Method.** A table is measured when purge has processed all undo and all pages are in its files. A byte of a leaf
//! is one that the entry takes there, its share of what a page needs to find its entries included; a byte of the file
//! is one of its length.

use std::fs;

use serde::Serialize;
use windfall::{CheckedTree, IndexOptions, TransactionOptions};
use windfall_measure::Random;

use super::super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{
    args::Commit,
    engine::{self, Database, Setup, Table},
    failure::{Failure, Result},
    output::Grid,
};

/// The largest number of rows and how many numbers there are, normal and quick. Each is less than the next one by the
/// fourth root of two, so eight of them span two doublings.
const COUNTS: [(u64, u32); 2] = [(500_000, 8), (4_000, 2)];
/// The largest number of bytes of an entry of two integers in a leaf.
const ENTRY: f64 = 16.0;
/// The least share of the leaves that entries take after a random build.
const RANDOM_FILL: f64 = 0.69;
/// The least share after an ordered build.
const ORDERED_FILL: f64 = 0.94;
/// The bytes of file of an entry of two integers in `InnoDB` (`MariaDB` 10.11), in a secondary index that was built in
/// random order: 19 to 23, depending on the number of entries; this is the middle.
const INNODB_ENTRY: f64 = 21.0;
/// The most that the file may be larger than that of `InnoDB`.
const OVER_INNODB: f64 = 1.2;
/// Rows of a transaction, if a build has many.
const ROWS_OF_TRANSACTION: usize = 100;

/// The way in which a table gets its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Build {
    RandomByMany,
    RandomByOne,
    AscendingByMany,
    Bulk,
}

impl Build {
    const ALL: [Self; 4] = [Self::RandomByMany, Self::RandomByOne, Self::AscendingByMany, Self::Bulk];

    fn text(self) -> &'static str {
        match self {
            Self::RandomByMany => "random order, many transactions",
            Self::RandomByOne => "random order, one transaction",
            Self::AscendingByMany => "ascending order, many transactions",
            Self::Bulk => "bulk load",
        }
    }

    fn id(self) -> &'static str {
        match self {
            Self::RandomByMany => "random",
            Self::RandomByOne => "random-one-transaction",
            Self::AscendingByMany => "ascending",
            Self::Bulk => "bulk",
        }
    }

    fn is_random(self) -> bool {
        matches!(self, Self::RandomByMany | Self::RandomByOne)
    }

    /// Returns the least share of the leaves that entries must take.
    fn fill(self) -> f64 {
        if self.is_random() { RANDOM_FILL } else { ORDERED_FILL }
    }
}

/// The sizes of a tree.
#[derive(Clone, Copy, Debug, Serialize)]
struct Sizes {
    entries: u64,
    leaf_bytes: u64,
    leaf_capacity: u64,
    page_bytes: u64,
    file_bytes: u64,
}

impl Sizes {
    /// Returns the bytes of an entry in a leaf.
    fn of_entry(&self) -> f64 {
        self.leaf_bytes as f64 / self.entries as f64
    }

    /// Returns the share of the leaves that entries take.
    fn fill(&self) -> f64 {
        self.leaf_bytes as f64 / self.leaf_capacity as f64
    }

    /// Returns the bytes of the file for each entry.
    fn of_file(&self) -> f64 {
        self.file_bytes as f64 / self.entries as f64
    }

    /// Returns the bytes of the pages that the tree uses for each entry.
    fn of_pages(&self) -> f64 {
        self.page_bytes as f64 / self.entries as f64
    }
}

/// A table that was built, or a tree of it.
#[derive(Clone, Copy, Debug, Serialize)]
struct Built {
    build: Build,
    is_index: bool,
    sizes: Sizes,
}

/// Measures pairs of integers.
pub(super) fn run_entries(bench: &mut Bench) -> Result<()> {
    let built = sweep(bench, "entries", 4)?;
    let index = |build: Build| {
        built.iter().filter(move |built| built.is_index && built.build == build).map(|built| built.sizes)
    };
    for build in Build::ALL {
        let id = build.id();
        let largest = index(build).map(|sizes| sizes.of_entry()).fold(0.0, f64::max);
        bench.claim(format!("{id}-entry-bytes-in-leaf"), largest, Bound::AtMost(ENTRY));
        bench.claim(
            format!("{id}-entry-fill"),
            mean(index(build), Sizes::fill),
            Bound::AtLeast(build.fill()),
        );
        if build.is_random() {
            let over = mean(index(build), Sizes::of_file) / INNODB_ENTRY;
            bench.claim(format!("{id}-entry-file-over-innodb"), over, Bound::AtMost(OVER_INNODB));
        }
    }
    bench.table("entries of two integers in an index, and rows of two integers", grid(&built));
    bench.fact("entries", serde_json::to_value(&built)?);
    Ok(())
}

/// Measures rows of 200 bytes.
pub(super) fn run_rows(bench: &mut Bench) -> Result<()> {
    let built = sweep(bench, "rows", 196)?;
    for build in Build::ALL {
        let of_build = built.iter().filter(|built| built.build == build && !built.is_index);
        let fill = mean(of_build.map(|built| built.sizes), Sizes::fill);
        bench.claim(format!("{}-row-fill", build.id()), fill, Bound::AtLeast(build.fill()));
    }
    bench.table("rows of 200 bytes", grid(&built));
    bench.fact("rows of 200 bytes", serde_json::to_value(&built)?);
    Ok(())
}

/// Returns the mean of a figure.
fn mean(sizes: impl Iterator<Item = Sizes>, figure: impl Fn(&Sizes) -> f64) -> f64 {
    let (sum, count) = sizes.fold((0.0, 0.0), |(sum, count), sizes| (sum + figure(&sizes), count + 1.0));
    sum / count
}

/// Returns the numbers of rows, in rising order.
fn counts((most, count): (u64, u32)) -> Vec<u64> {
    (0..count).rev().map(|n| (most as f64 / 2_f64.powf(f64::from(n) / 4.0)).round() as u64).collect()
}

/// Builds tables of all numbers of rows, in all ways.
fn sweep(bench: &mut Bench, name: &str, value: usize) -> Result<Vec<Built>> {
    let mut all = Vec::new();
    for build in Build::ALL {
        bench.say(&format!("{name}: {}", build.text()));
        for rows in counts(COUNTS[usize::from(bench.options.quick)]) {
            let path = bench.database(&format!("{name}-{}-{rows}", build.id()));
            let setup = Setup { hash: Some(false), ..Setup::with_pool(bench.size(512 * MB, 16 * MB)) };
            let db = setup.commit(Commit::Lazy).log(bench.size(1024 * MB, 64 * MB)).open(&path)?;
            fill(&db, build, rows, value, bench.options.seed)?;
            fixture::await_purge(&db)?;
            db.checkpoint()?;
            for tree in db.check()?.trees.into_iter().filter(|tree| tree.table == TABLE) {
                let file = path.join(format!("data/{:016x}.tree", tree.space.0));
                let sizes = sizes(&tree, db.metrics().page_size, fs::metadata(file)?.len());
                if sizes.entries != rows {
                    return Err(Failure::message(format!("{} of {rows} entries are there", sizes.entries)));
                }
                all.push(Built { build, is_index: tree.index.is_some(), sizes });
            }
            fixture::close(db)?;
            fs::remove_dir_all(&path)?;
        }
    }
    Ok(all)
}

fn sizes(tree: &CheckedTree, page_size: u64, file_bytes: u64) -> Sizes {
    let &CheckedTree { entries, leaf_bytes, leaf_capacity, pages, .. } = tree;
    Sizes { entries, leaf_bytes, leaf_capacity, page_bytes: pages * page_size, file_bytes }
}

/// The table that is built.
const TABLE: &str = "t";

/// Creates a table of rows with 4-byte keys, which are the numbers from 0, and values of this length, whose first 4
/// bytes are the same numbers in another order, or in the same one if the build is ascending. Values of 4 bytes have an
/// index.
fn fill(db: &Database, build: Build, rows: u64, value: usize, seed: u64) -> Result<()> {
    let mut options = engine::with_metadata(Vec::new());
    if value == 4 {
        options = options.index("value", IndexOptions::on_value(0..4));
    }
    let (mut keys, mut values): (Vec<u32>, Vec<u32>) = (0..rows as u32).map(|n| (n, n)).unzip();
    if build != Build::AscendingByMany {
        Random::new(seed, 1).shuffle(&mut values);
    }
    if build.is_random() {
        Random::new(seed, 2).shuffle(&mut keys);
    }
    let row = |(key, first): (u32, u32)| {
        let mut bytes = vec![7; value];
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        (key.to_be_bytes().to_vec(), bytes)
    };
    let pairs: Vec<(u32, u32)> = keys.into_iter().zip(values).collect();
    match build {
        Build::Bulk => {
            drop(db.create_table_from(TABLE, options, pairs.into_iter().map(|pair| Ok(row(pair))))?);
        }
        Build::RandomByOne => insert(db, &db.create_table(TABLE, options)?, pairs.into_iter().map(row))?,
        Build::RandomByMany | Build::AscendingByMany => {
            let table = db.create_table(TABLE, options)?;
            for some in pairs.chunks(ROWS_OF_TRANSACTION) {
                insert(db, &table, some.iter().copied().map(row))?;
            }
        }
    }
    Ok(())
}

/// Inserts rows in one transaction.
fn insert(db: &Database, table: &Table, rows: impl Iterator<Item = (Vec<u8>, Vec<u8>)>) -> Result<()> {
    let trx = db.begin(TransactionOptions::default());
    let within = trx.table(table);
    for (key, value) in rows {
        within.insert(&key, &value)?;
    }
    trx.commit()?;
    Ok(())
}

/// Makes the table of what was built, with the least and the largest of each figure over the numbers of rows.
fn grid(built: &[Built]) -> Grid {
    let mut grid = Grid::new([
        "built in",
        "tree",
        ">bytes in a leaf",
        ">mean fill",
        ">least",
        ">most",
        ">mean bytes of pages",
        ">of file",
        ">least",
        ">most",
    ]);
    for build in Build::ALL {
        for is_index in [false, true] {
            let of_build: Vec<Sizes> = built
                .iter()
                .filter(|built| built.build == build && built.is_index == is_index)
                .map(|built| built.sizes)
                .collect();
            if of_build.is_empty() {
                continue;
            }
            let average = |figure: fn(&Sizes) -> f64| mean(of_build.iter().copied(), figure);
            let least = |figure: fn(&Sizes) -> f64| of_build.iter().map(figure).fold(f64::MAX, f64::min);
            let most = |figure: fn(&Sizes) -> f64| of_build.iter().map(figure).fold(0.0, f64::max);
            let percent = |share: f64| format!("{:.1} %", share * 100.0);
            let bytes = |bytes: f64| format!("{bytes:.1}");
            grid.line([
                build.text().to_owned(),
                if is_index { "index" } else { "rows" }.to_owned(),
                bytes(average(Sizes::of_entry)),
                percent(average(Sizes::fill)),
                percent(least(Sizes::fill)),
                percent(most(Sizes::fill)),
                bytes(average(Sizes::of_pages)),
                bytes(average(Sizes::of_file)),
                bytes(least(Sizes::of_file)),
                bytes(most(Sizes::of_file)),
            ]);
        }
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_rows_span_two_doublings_in_equal_factors() {
        let counts = counts(COUNTS[0]);
        assert_eq!((counts.len(), counts.last()), (8, Some(&500_000)));
        let factors = counts.array_windows().map(|[a, b]| *b as f64 / *a as f64);
        assert!(factors.into_iter().all(|factor| (factor - 2_f64.powf(0.25)).abs() < 1e-4), "{counts:?}");
    }
}
