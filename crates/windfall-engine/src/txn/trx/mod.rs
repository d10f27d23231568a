//! Transactions: their state, their end and their rollback.
//!
//! **Purpose.** A transaction (`running`; between two calls its `state`) owns the id, the locks and the undo of its
//! changes, and ends by a commit or a rollback. `manager` connects the parts of the transaction layer.
//!
//! A transaction has five types:
//!
//! | type | what it is |
//! | --- | --- |
//! | `windfall::Transaction` | the handle of the API |
//! | `windfall::scope::Scope` | what the handle and all its calls share |
//! | [`Trx`] | the transaction within a call |
//! | [`Suspended`] | the transaction between two calls, in its `Scope` or in the queue of background rollback |
//! | [`LockOwner`](crate::txn::locks::LockOwner) | the transaction as the lock manager knows it |
//!
//! The other structs are guards of a call, or entries in the tables of active, prepared and waiting transactions.
//!
//! **Invariants.** A transaction that has begun ends once: by its own call, by the worker that rolls back in the
//! background (`background_rollback`), or, once it is prepared, by its name (`two_phase`) (checked by
//! `mvcc/active.rs::end`). Nothing here depends on rows: they are the layer above (`row`) (test:
//! `the_workspace_keeps_the_house_rules`).

pub mod background_rollback;
pub mod manager;
pub mod prepared;
pub mod quiesce;
pub(crate) mod rollback_queue;
pub mod running;
pub mod state;
pub mod two_phase;

pub use manager::{LOCK_WAIT, StatementLock, Transactions};
pub use running::{Rules, Trx};
pub use state::{Savepoint, Suspended};
