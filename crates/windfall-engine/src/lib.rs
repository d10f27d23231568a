//! The engine behind Windfall, for the crate `windfall`, which is its API.
//!
//! **Purpose.** Pages between the log and the disk, with checkpoints and recovery (`storage`), transactions (`txn`),
//! tables and DDL (`catalog`), options, and the assembly of an open database (`engine`). They form layers: a module
//! imports only from layers below its own (ARCHITECTURE.md lists them, lowest first). This crate is not a public API.
//!
//! **Invariants.** docs/invariants.md lists them, each with the tests that check it (test:
//! `every_test_that_a_document_names_exists`). The lab (`windfall-lab`) uses the module `lab` alone (test:
//! `the_workspace_keeps_the_house_rules`).
#![cfg_attr(test, allow(clippy::unwrap_used))]

pub mod catalog;
pub mod engine;
#[cfg(feature = "lab")]
pub mod lab;
pub mod options;
pub mod storage;
pub mod txn;

pub use storage::{buffer, checkpoint, log, mtr, recovery, store, system, tablespace};
#[cfg(feature = "fuzz")]
use windfall_base::fuzz_input;
use windfall_base::{composite, disk, env, error, failpoint, health, ids, keys, memory, row, sync};
use windfall_btree::{page, tree};
