//! The fuzz targets: one for each decoder of untrusted bytes.
//!
//! **Purpose.** Lists the target functions, which are next to their decoders, for the fuzzer and the tests of
//! `crates/windfall-fuzz`.
//!
//! **Invariants.** Only builds with the feature `fuzz` have this module (test: `the_list_has_every_public_item`). A
//! target panics only when a decoder violates its contract (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`); it depends on its input alone.

mod database;

use crate::{buffer, catalog, composite, disk, log, options, page, row, tablespace, tree, txn};

/// A decoder under test.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// The name of the target, here and in the folders of its inputs.
    pub name: &'static str,
    /// Decodes the bytes and verifies the contract for what was accepted.
    pub run: fn(&[u8]),
    /// Returns inputs made of real encodings.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($($name:literal: $($at:ident)::+, $($seeds:ident)::+;)*) => {
        [$(Target { name: $name, run: $($at)::+, seeds: $($seeds)::+ },)*]
    };
}

/// All targets, lowest layer first.
pub const TARGETS: &[Target] = &targets! {
    "row": row::fuzz::row, row::fuzz::row_seeds;
    "composite-key": composite::fuzz::composite, composite::fuzz::composite_seeds;
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
    "undo-record": txn::fuzz::undo, txn::fuzz::undo_seeds;
    "key": txn::fuzz::key, txn::fuzz::key_seeds;
    "table-record": catalog::fuzz::table, catalog::fuzz::table_seeds;
    "options": options::fuzz::options, options::fuzz::options_seeds;
    "database": database::database, database::database_seeds;
};
