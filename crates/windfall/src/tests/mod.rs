//! Tests of the engine through the API, with access to the engine of a database: DDL statements that are paused at
//! points within them, tables that are created with their rows or get them at once, keys as long as they may be, and a
//! pool that has no frame to give, and announcements of table locks.

mod existing_load;
mod fields;
mod load;
mod long_keys;
mod pool;
mod statements;
mod table_locks;
