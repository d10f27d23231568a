//! The fuzz targets: each decoder of bytes that may be anything.
//!
//! **Purpose.** Lists the functions that stand beside the decoders, for whoever feeds them: the fuzzer and the tests of
//! `crates/windfall-fuzz`.
//!
//! **Invariants.** Only builds with the feature `fuzz` have it. A target panics when a decoder breaks its word, and at
//! nothing else; it depends on its input alone.
//!
//! **May touch.** The targets of all floors.

mod database;
pub mod input;

use crate::{buffer, catalog, disk, log, options, page, row, tablespace, transaction, tree};

/// A decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// What it is called, here and in the folders of its inputs.
    pub name: &'static str,
    /// Decodes the bytes and holds what was accepted to its word.
    pub run: fn(&[u8]),
    /// Inputs made of real encodings.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($name:literal: $($at:ident)::+, $($seeds:ident)::+;)*) => {
        [$(Target { name: $name, run: $($at)::+, seeds: $($seeds)::+ },)*]
    };
}

/// All of them, lowest floor first.
pub const TARGETS: &[Target] = &targets! {
    "row": row::fuzz::row, row::fuzz::row_seeds;
    "page": page::fuzz::page, page::fuzz::page_seeds;
    "redo": page::fuzz::redo, page::fuzz::redo_seeds;
    "file-name": disk::fuzz::file_name, disk::fuzz::file_name_seeds;
    "log-records": log::fuzz::records, log::fuzz::records_seeds;
    "log-stream": log::fuzz::stream, log::fuzz::stream_seeds;
    "control": log::fuzz::control, log::fuzz::control_seeds;
    "doublewrite": buffer::fuzz::doublewrite, buffer::fuzz::doublewrite_seeds;
    "map": tablespace::fuzz::map, tablespace::fuzz::map_seeds;
    "overflow": tree::fuzz::overflow, tree::fuzz::overflow_seeds;
    "tree": tree::fuzz::tree, tree::fuzz::tree_seeds;
    "undo-record": transaction::fuzz::undo, transaction::fuzz::undo_seeds;
    "key": transaction::fuzz::key, transaction::fuzz::key_seeds;
    "table-record": catalog::fuzz::table, catalog::fuzz::table_seeds;
    "options": options::fuzz::options, options::fuzz::options_seeds;
    "database": database::database, database::database_seeds;
};
