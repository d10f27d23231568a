//! Purge of what temporary tables leave behind.
//!
//! **Purpose.** Undo and replaced values of temporary tables go with the calls that leave them, whatever others look
//! at.
//!
//! **Invariants.** A temporary table is read as it is: no read follows an undo record of it back to an older version,
//! so no view keeps one (`version`). What the session itself still needs is two things. A transaction that has not
//! ended may take its changes back, as a whole, to a savepoint, or those of a statement; all of these walk its own
//! records, and purge leaves these alone until it has ended. And a long value that is being read piece by piece stays
//! until that is over: the reader is entered with the stream before it looks at the row ([`TemporaryRead`]), and
//! whatever replaces the value ends, if ever, behind that. Each call purges as far as it goes, and nothing is left to
//! the worker. So what is kept is that of one session: of its transaction, and of its writes while it reads a long
//! value. It counts for neither the limit on undo nor its metrics.
//!
//! **May touch.** The rest of this floor.

use std::collections::BTreeMap;

use super::{Transactions, active::Horizon, stream::Stream};
use crate::{
    buffer::Durability,
    sync::{Arc, Bug, Mutex, Rank, planted},
};

/// Those that read long values of a session's temporary tables, in the order in which they began.
#[derive(Debug)]
pub(super) struct Readers(Mutex<Entered>);

#[derive(Debug, Default)]
struct Entered {
    next: u64,
    readers: BTreeMap<u64, Arc<Horizon>>,
}

/// A long value of a temporary table is being read: what replaces it is not purged.
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
    fn oldest(&self) -> Option<Arc<Horizon>> {
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
    /// Enters a reader of a temporary table, which has not looked at its row yet.
    pub fn read_temporary(&self, stream: &Arc<Stream>) -> TemporaryRead {
        let horizon = Arc::new(self.active.ended(&self.ids));
        let mut entered = stream.readers.0.lock();
        let number = entered.next;
        entered.next += 1;
        entered.readers.insert(number, horizon);
        drop(entered);
        TemporaryRead { stream: stream.clone(), number }
    }

    /// What purge may take of a stream now.
    pub(super) fn horizon_of(&self, stream: &Stream) -> Arc<Horizon> {
        if stream.durability() == Durability::Logged {
            return self.horizon();
        }
        // First this: a reader that is entered later finds what had ended by now as it is going to stay.
        let ended = Arc::new(self.active.ended(&self.ids));
        stream.readers.oldest().unwrap_or(ended)
    }

    /// Purges what a call on a session's temporary tables has left. The call is done, whatever becomes of this: what
    /// is left even so, the next call takes up.
    pub fn purge_temporary(&self, stream: &Stream) {
        debug_assert!(stream.durability() == Durability::Temporary, "the worker purges what is logged");
        loop {
            #[cfg(test)]
            let step = self.failpoint.pass().and_then(|()| self.purge_stream(stream));
            #[cfg(not(test))]
            let step = self.purge_stream(stream);
            match step {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return tracing::warn!(%error, "temporary tables could not be purged"),
            }
        }
    }
}
