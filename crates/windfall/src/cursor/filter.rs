//! Conditions on the entries that a cursor finds.
//!
//! **Purpose.** A move of a cursor ends where its range ends, and passes entries of an index over that its caller does
//! not want, before their rows are read or locked: the index condition pushdown of `MySQL` 5.6 and `MariaDB` 5.3.
//!
//! **Invariants.** A condition is evaluated on the version of an entry that the read returns (test:
//! `a_condition_is_evaluated_on_the_version_that_is_returned`). So a payload that another transaction is changing is
//! not taken for the final one.

use super::Cursor;
use crate::error::Result;

/// What becomes of an entry that a cursor has found ([`IndexCursor::next_where`](crate::IndexCursor::next_where)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It is wanted: the cursor stays at it.
    Holds,
    /// It is passed over, and its row is neither read nor locked.
    Fails,
    /// It is not wanted, and neither is any behind it: the move ends without a row.
    Ends,
}

/// A condition on the key and the value of an entry.
type EntryCondition<'f> = dyn FnMut(&[u8], &[u8]) -> Result<Condition> + 'f;

/// The entries that a move wants.
pub(crate) struct Wanted<'f> {
    /// Returns whether a key is within the range: if not, the move ends, and the entry is neither locked nor waited
    /// for.
    is_within: &'f dyn Fn(&[u8]) -> bool,
    condition: Option<&'f mut EntryCondition<'f>>,
}

impl<'f> Wanted<'f> {
    pub(crate) fn within(is_within: &'f dyn Fn(&[u8]) -> bool) -> Self {
        Self { is_within, condition: None }
    }

    pub(crate) fn if_holds(condition: &'f mut EntryCondition<'f>) -> Self {
        Self { is_within: &|_| true, condition: Some(condition) }
    }

    pub(super) fn is_within(&self, key: &[u8]) -> bool {
        (self.is_within)(key)
    }

    pub(super) fn has_condition(&self) -> bool {
        self.condition.is_some()
    }

    /// Evaluates the condition on an entry, in the version that the read returns.
    pub(super) fn evaluate(&mut self, key: &[u8], value: &[u8]) -> Result<Condition> {
        self.condition.as_mut().map_or(Ok(Condition::Holds), |condition| condition(key, value))
    }
}

impl Cursor {
    /// Evaluates the condition on the entry by which the row at the position was found.
    pub(super) fn evaluate(&self, wanted: &mut Wanted<'_>) -> Result<Condition> {
        wanted.evaluate(self.entries.key(), &self.entry_value)
    }
}
