//! The B+tree, an algorithm over pages.
//!
//! **Purpose.** Written against the traits of [`store`].
//!
//! **Invariants.** See [`store`].
//!
//! **May touch.** `ids`, `error`, `page`, `sync`.

pub mod store;
