//! Lists of what is under way, for who wants to know who holds something up.
//!
//! **Purpose.** Which transactions there are, how old they are and what they are at; and which views, whose versions
//! purge leaves alone.
//!
//! **Invariants.** A list is of one moment, but for what is taken back in the background, which is asked for behind
//! that. Making one disturbs nobody for longer than it takes to copy the table.
//!
//! **May touch.** `ids`, `env`, the rest of this floor.

use core::time::Duration;

use super::Transactions;
use crate::ids::TrxId;

/// A transaction that has changed or locked something and not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionInfo {
    /// Its number, as in lists of locks.
    pub id: TrxId,
    /// For how long it has had that number: since its first change or lock, or since the database was opened.
    pub age: Duration,
    /// Whether it has changed anything that outlives the process.
    pub has_changes: bool,
    /// What it is at.
    pub state: TransactionState,
}

/// What a transaction is at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionState {
    /// Its handle, or a call of its own, may do more.
    Open,
    /// It was prepared by this name, and waits for its end.
    Prepared(Vec<u8>),
    /// It is being rolled back in the background.
    RollingBack,
}

/// A view of what was committed at one time. While it is there purge leaves alone what it may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewInfo {
    /// How long ago it was made.
    pub age: Duration,
    /// How many transactions have got a number since.
    pub behind: u64,
}

impl Transactions {
    /// All transactions with a number that have not ended, by number.
    pub fn listing(&self) -> Vec<TransactionInfo> {
        let mut list = self.active.listing(self.now());
        let going_back = self.rollbacks.all();
        for info in list.iter_mut().filter(|info| going_back.contains(&info.id)) {
            info.state = TransactionState::RollingBack;
        }
        list
    }

    /// All views, the oldest first.
    pub fn views(&self) -> Vec<ViewInfo> {
        self.active.views(&self.ids, self.now())
    }
}
