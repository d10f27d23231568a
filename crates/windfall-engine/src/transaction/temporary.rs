//! Purge of temporary tables.
//!
//! **Purpose.** Undo and replaced values of temporary tables are purged by the calls that leave them, regardless of
//! read views.
//!
//! **Invariants.** A temporary table is read in its current version: no read follows its undo records to an older
//! version, so no read view keeps one (`version`). The session itself may still need two things. An unfinished
//! transaction may roll back its changes as a whole, to a savepoint, or those of a statement. All of these walk its own
//! records, and purge keeps these until it has ended. And a long value that is read piece by piece stays until the read
//! is over: the reader is registered with the stream before it reads the row ([`TemporaryRead`]), and a transaction
//! that replaces the value that it reads ends, if at all, after this registration.
//!
//! Each call purges as far as possible, and nothing is left to the worker. So the undo that is kept is that of one
//! session: of its transaction, and of its writes while it reads a long value. It counts neither for the limit on undo
//! nor for its metrics.

use std::collections::BTreeMap;

use super::{Transactions, active::Snapshot, stream::Stream};
use crate::{
    buffer::Durability,
    sync::{Arc, Bug, Mutex, Rank, planted},
};

/// The readers of long values of a session's temporary tables, in the order in which they began.
#[derive(Debug)]
pub(super) struct Readers(Mutex<Entered>);

#[derive(Debug, Default)]
struct Entered {
    next: u64,
    readers: BTreeMap<u64, Arc<Snapshot>>,
}

/// A read of a long value of a temporary table: what replaces the value is not purged.
#[derive(Debug)]
pub struct TemporaryRead {
    stream: Arc<Stream>,
    number: u64,
}

impl Default for Readers {
    fn default() -> Self {
        Self(Mutex::new(Rank::Leaf, Entered::default()))
    }
}

impl Readers {
    fn oldest(&self) -> Option<Arc<Snapshot>> {
        let entered = self.0.lock();
        let oldest = entered.readers.first_key_value().filter(|_| !planted(Bug::TemporaryReadersUnseen));
        oldest.map(|(_, horizon)| horizon.clone())
    }
}

impl Drop for TemporaryRead {
    fn drop(&mut self) {
        self.stream.readers.0.lock().readers.remove(&self.number);
    }
}

impl Transactions {
    /// Registers a reader of a temporary table, which has not read its row yet.
    pub fn read_temporary(&self, stream: &Arc<Stream>) -> TemporaryRead {
        debug_assert!(
            stream.durability() == Durability::Temporary,
            "readers of logged tables have read views"
        );
        let horizon = Arc::new(self.active.ended(&self.ids));
        let mut entered = stream.readers.0.lock();
        let number = entered.next;
        entered.next += 1;
        entered.readers.insert(number, horizon);
        drop(entered);
        TemporaryRead { stream: stream.clone(), number }
    }

    /// Returns the snapshot that limits purge of a stream now.
    pub(super) fn horizon_of(&self, stream: &Stream) -> Arc<Snapshot> {
        if stream.durability() == Durability::Logged {
            return self.horizon();
        }
        // This comes first: a reader that is registered later finds final versions of the transactions that have ended
        // by now.
        let ended = Arc::new(self.active.ended(&self.ids));
        stream.readers.oldest().unwrap_or(ended)
    }

    /// Purges what a call on a session's temporary tables has left. The call has succeeded in any case: the rest is
    /// left to the next call.
    pub fn purge_temporary(&self, stream: &Stream) {
        debug_assert!(stream.durability() == Durability::Temporary, "the worker purges what is logged");
        loop {
            #[cfg(any(test, feature = "testing"))]
            let step = self.failpoint.pass().and_then(|()| self.purge_stream(stream));
            #[cfg(not(any(test, feature = "testing")))]
            let step = self.purge_stream(stream);
            match step {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return tracing::warn!(%error, "temporary tables could not be purged"),
            }
        }
    }
}
