//! Transactions: their state, their end and their rollback.
//!
//! **Purpose.** A transaction (`running`; between two calls its `state`) owns the id, the locks and the undo of its
//! changes, and ends by a commit or a rollback. `manager` connects the parts of the transaction layer.
//!
//! **Invariants.** A transaction that has begun ends once: by its own call, by the worker that rolls back in the
//! background (`background`), or, once it is prepared, by its name (`two_phase`). Nothing here depends on rows: they
//! are the layer above (`row`).

pub mod background;
pub mod manager;
pub mod prepared;
pub mod quiesce;
pub mod rollbacks;
pub mod running;
pub mod state;
pub mod two_phase;

pub use manager::{LOCK_WAIT, StatementLock, Transactions};
pub use running::{Rules, Trx};
pub use state::{Savepoint, Suspended};
