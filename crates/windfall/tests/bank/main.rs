//! A bank: transfers between accounts, by transactions of many calls, of every level, some of which are taken back, and
//! some prepared first. Its books agree whenever anybody looks, and what was acknowledged is in them: after crashes at
//! every operation of a simulated disk, and when the process is killed under load.

#![allow(clippy::unwrap_used, reason = "a test panics")]

mod books;
mod crashes;
#[path = "../guard/mod.rs"]
mod guard;
#[path = "../killed/mod.rs"]
mod killed;
mod kills;
mod observer;
#[path = "../soak/mod.rs"]
mod soak;
mod transfer;
