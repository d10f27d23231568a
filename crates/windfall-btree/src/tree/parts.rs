//! The parts of a load or of a long value.
//!
//! **Purpose.** A value or tree that is written in parts refuses every call after a failed part, because it lacks it.
//!
//! **Invariants.** From [`Parts::begin`] to [`Parts::end`] the whole is incomplete, and an error or a panic in between
//! leaves it so (test: `nothing_follows_a_part_that_was_not_written`).

use crate::error::{Result, UsageError};

/// Whether something that is written part by part lacks one of them.
#[derive(Debug, Default)]
pub struct Parts {
    is_incomplete: bool,
}

impl Parts {
    /// Must be called before a part is written.
    ///
    /// # Errors
    /// [`UsageError::Incomplete`] if an earlier part could not be written.
    pub fn begin(&mut self) -> Result<()> {
        self.check()?;
        self.is_incomplete = true;
        Ok(())
    }

    /// Must be called after a part was written.
    pub fn end(&mut self) {
        debug_assert!(self.is_incomplete, "the end of a part that was not begun");
        self.is_incomplete = false;
    }

    /// Must be called before the whole is used.
    ///
    /// # Errors
    /// [`UsageError::Incomplete`] if a part could not be written.
    pub fn check(&self) -> Result<()> {
        if self.is_incomplete { Err(UsageError::Incomplete.into()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    #[test]
    fn nothing_follows_a_part_that_was_not_written() {
        let mut parts = Parts::default();
        for _ in 0..2 {
            parts.begin().unwrap();
            parts.end();
        }
        parts.check().unwrap();
        parts.begin().unwrap();
        for refused in [parts.check(), parts.begin(), parts.check()] {
            assert!(matches!(refused, Err(Error::Usage(UsageError::Incomplete))));
        }
    }
}
