//! Other engines, for comparison.
//!
//! **Purpose.** LMDB and redb with the rows of `bench read`, each used as its documentation recommends.
//!
//! **Method.** Each has the same rows as Windfall; reads go through one read transaction, which is the fastest way that
//! both offer.

use std::{fs, path::Path};

use heed::{
    EnvFlags, EnvOpenOptions,
    types::{Bytes, U64},
};
use redb::{Durability, ReadableDatabase as _, TableDefinition};

use super::rows::{Read, Store, row, sum};
use crate::failure::{Failure, Result};

fn failed(name: &'static str) -> impl Fn(&dyn std::fmt::Display) -> Failure {
    move |e| Failure::message(format!("{name}: {e}"))
}

/// Converts any error of LMDB.
macro_rules! lmdb {
    ($call:expr) => {
        $call.map_err(|e| failed("lmdb")(&e))
    };
}

/// Converts any error of redb.
macro_rules! redb {
    ($call:expr) => {
        $call.map_err(|e| failed("redb")(&e))
    };
}

type Keys = U64<heed::byteorder::BigEndian>;

/// LMDB, through `heed`.
pub(super) struct Lmdb {
    env: heed::Env,
    rows: heed::Database<Keys, Bytes>,
}

impl Lmdb {
    /// Creates and fills a database.
    pub(super) fn load(path: &Path, count: u64) -> Result<Self> {
        fs::create_dir_all(path)?;
        let mut options = EnvOpenOptions::new();
        options.map_size(((count * 320) as usize + (64 << 20)).next_multiple_of(4096));
        // SAFETY: no other code opens or changes the files of this folder, which was created just above; without the
        // flag for syncs a crash may lose rows, which a benchmark creates again.
        let env = unsafe { lmdb!(options.flags(EnvFlags::NO_SYNC).open(path))? };
        let mut write = lmdb!(env.write_txn())?;
        let rows = lmdb!(env.create_database(&mut write, None))?;
        let this = Self { env: env.clone(), rows };
        for id in 0..count {
            lmdb!(this.rows.put(&mut write, &id, &row(id).1))?;
        }
        lmdb!(write.commit())?;
        Ok(this)
    }

    /// Returns a reader by key.
    pub(super) fn reads(&self) -> Result<Read<'_>> {
        let transaction = lmdb!(self.env.clone().static_read_txn())?;
        let rows = self.rows;
        Ok(Box::new(move |key| Ok(lmdb!(rows.get(&transaction, &u64::from_be_bytes(key)))?.map(sum))))
    }
}

/// redb.
pub(super) struct Redb(redb::Database);

const ROWS: TableDefinition<'_, u64, &[u8]> = TableDefinition::new("rows");

impl Redb {
    /// Creates and fills a database, with a cache of `cache` bytes.
    pub(super) fn load(path: &Path, count: u64, cache: u64) -> Result<Self> {
        let db = redb!(redb::Builder::new().set_cache_size(cache as usize).create(path))?;
        for from in (0..count).step_by(1_000_000) {
            let write = redb!(db.begin_write())?;
            {
                let mut rows = redb!(write.open_table(ROWS))?;
                for id in from..count.min(from + 1_000_000) {
                    redb!(rows.insert(id, &row(id).1[..]))?;
                }
            }
            redb!(write.commit())?;
        }
        Ok(Self(db))
    }

    /// Returns a reader by key.
    pub(super) fn reads(&self) -> Result<Read<'_>> {
        let rows = redb!(redb!(self.0.begin_read())?.open_table(ROWS))?;
        Ok(Box::new(move |key| {
            let value = redb!(redb::ReadableTable::get(&rows, u64::from_be_bytes(key)))?;
            Ok(value.map(|value| sum(value.value())))
        }))
    }
}

impl Store for Redb {
    fn read(&self, key: [u8; 8]) -> Result<Option<u64>> {
        let rows = redb!(redb!(self.0.begin_read())?.open_table(ROWS))?;
        let value = redb!(redb::ReadableTable::get(&rows, u64::from_be_bytes(key)))?;
        Ok(value.map(|value| sum(value.value())))
    }

    fn update(&self, key: [u8; 8], value: &[u8]) -> Result<()> {
        let mut write = redb!(self.0.begin_write())?;
        redb!(write.set_durability(Durability::None))?;
        {
            let mut rows = redb!(write.open_table(ROWS))?;
            redb!(rows.insert(u64::from_be_bytes(key), value))?;
        }
        redb!(write.commit())
    }
}
