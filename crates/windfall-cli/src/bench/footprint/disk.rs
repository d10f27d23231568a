//! The disk of a small database.
//!
//! **Purpose.** What a database takes when it is empty, and some seconds after a large table was loaded and dropped:
//! there may be many databases, and most of them are small.
//!
//! **Invariants.** The disk is that of the blocks that the files of the folder have, not the lengths of the files
//! (test: `blocks_count_and_not_lengths`).
//!
//! **Method.** The database has the default options, except for its pool, and is open when it is measured.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, thread, time::Instant};

use super::super::{
    fixture::{self, MB},
    harness::{Bench, Bound},
};
use crate::{args::Commit, engine::Setup, failure::Result};

/// The bytes of the table that is loaded and dropped.
const LOADED: u64 = 82_000_000;
/// The most bytes of an empty database.
const EMPTY: u64 = 256 << 10;
/// The most bytes of a database some seconds after its large table was dropped.
const AFTER_DROP: u64 = 16 * MB;
/// The bytes of a block, in which the system counts.
const BLOCK: u64 = 512;

/// Measures the disk.
pub(super) fn run(bench: &mut Bench) -> Result<()> {
    let path = bench.database("disk");
    let db = Setup::with_pool(bench.size(256 * MB, 16 * MB)).commit(Commit::Lazy).open(&path)?;
    // The workers of an open database prepare files.
    thread::sleep(bench.seconds(1.0, 0.1));
    let empty = taken(&path)?;
    bench.claim("empty-database-bytes", empty as f64, Bound::AtMost(EMPTY as f64));
    let load = bench.size(LOADED, MB);
    bench.say(&format!("loading and dropping {load} bytes"));
    let (table, _) = fixture::big(&db, "loaded", load)?;
    db.checkpoint()?;
    bench.fact("disk with the loaded table, bytes", taken(&path)?);
    drop(table);
    db.drop_table("loaded")?;
    let start = Instant::now();
    // The first second shows how fast it shrinks.
    for seconds in [bench.seconds(1.0, 0.1), bench.seconds(10.0, 0.3)] {
        thread::sleep(seconds.saturating_sub(start.elapsed()));
        bench.fact(format!("disk {} s after the drop, bytes", seconds.as_secs_f64()), taken(&path)?);
    }
    bench.claim("database-bytes-after-drop", taken(&path)? as f64, Bound::AtMost(AFTER_DROP as f64));
    fixture::close(db)?;
    bench.fact("disk of the closed database, bytes", taken(&path)?);
    Ok(fs::remove_dir_all(&path)?)
}

/// Returns the bytes of the blocks of all files in a folder and its subfolders. Files that are deleted meanwhile do not
/// count.
fn taken(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        match entry.metadata() {
            Ok(about) if about.is_dir() => bytes += taken(&entry.path())?,
            Ok(about) => bytes += about.blocks() * BLOCK,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => (),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_count_and_not_lengths() {
        let folder = tempfile::tempdir().unwrap();
        let (full, hollow) = (folder.path().join("full"), folder.path().join("sub"));
        fs::create_dir(&hollow).unwrap();
        let before = taken(folder.path()).unwrap();
        fs::write(full, vec![1; 100_000]).unwrap();
        fs::File::create(hollow.join("hollow")).unwrap().set_len(1 << 30).unwrap();
        // Some file systems allocate blocks only when they write.
        for entry in fs::read_dir(folder.path()).unwrap() {
            fs::File::open(entry.unwrap().path()).unwrap().sync_all().unwrap();
        }
        let grown = taken(folder.path()).unwrap() - before;
        assert!((100_000..200_000).contains(&grown), "{grown}");
    }
}
