//! Purge.
