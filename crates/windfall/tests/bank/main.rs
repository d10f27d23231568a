//! A bank: transfers between accounts, by transactions of many calls and of every isolation level. Some are rolled
//! back, and some are prepared first. Every audit finds that the books agree and contain what was acknowledged: after
//! crashes at every operation of a simulated disk, and when the process is killed under load.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod books;
mod crashes;
#[path = "../guard/mod.rs"]
mod guard;
#[path = "../killable_process/mod.rs"]
mod killable_process;
mod kills;
mod observer;
#[path = "../soak/mod.rs"]
mod soak;
mod transfer;
