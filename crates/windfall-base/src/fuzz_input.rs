//! Takes fields from the bytes of a fuzzer.
//!
//! **Purpose.** The input of a decoder is built from a few fields, so that a mutation changes one thing at a time.
//!
//! **Invariants.** Any bytes are an input: missing fields are zero or empty (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`).

/// The remaining bytes.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Returns whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the next `most` bytes, or as many as are left.
    pub fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.take(N);
        core::array::from_fn(|n| taken.get(n).copied().unwrap_or(0))
    }

    /// Returns the next byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Returns the next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Returns the next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}
