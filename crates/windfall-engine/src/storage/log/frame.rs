//! Frames: the layout of a group in the stream, and how it is recognised.
//!
//! **Purpose.** One frame per group: a header of 24 bytes, the payload, zeros up to a multiple of 8. In little endian:
//!
//! | bytes | field |
//! | --- | --- |
//! | 0..4 | length of header and payload, without padding; never 0, so the first word of a frame is never 0 |
//! | 4..8 | CRC-32C over the database's uuid, bytes 0..4, bytes 8..24 and the payload |
//! | 8..16 | LSN of the frame's first byte |
//! | 16..20 | incarnation of the log that wrote it |
//! | 20..24 | distance from the durable end to this frame then, in units of 8 bytes; all ones: not stated |
//!
//! A frame without payload is a *marker*: it only states which position is durable.
//!
//! **Invariants.** A frame is valid only at its own LSN, for its own database, in a matching incarnation; its padding
//! is zero (tests: `any_flipped_bit_is_noticed`, `a_remnant_that_fits_exactly_is_not_taken_for_new`). Decoding accepts
//! any bytes and never panics (test: `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`).

use crate::ids::Lsn;

/// The length of a header in bytes.
pub(super) const HEADER: usize = 24;
/// Frames begin at multiples of this, in bytes.
pub(super) const ALIGN: u64 = 8;
/// The maximum length of a frame, in bytes: bounds what a damaged length can make a reader allocate.
pub(super) const MAX_FRAME_BYTES: usize = 64 << 20;
/// The size of a block that is sealed with a checksum (segment header, control slot).
pub(super) const LOG_BLOCK_BYTES: usize = 4096;
/// The lag value that states nothing.
const NO_STATEMENT: u32 = u32::MAX;

/// The contribution of the database to every checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seed(u32);

impl Seed {
    /// Returns the seed of a database.
    pub(super) fn new(uuid: &[u8; 16]) -> Self {
        Self(crc32c::crc32c(uuid))
    }
}

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The length of header and payload in bytes, without padding.
    len: u32,
    crc: u32,
    /// The LSN of the frame's first byte.
    pub(super) lsn: Lsn,
    /// The incarnation that wrote it.
    pub(super) incarnation: u32,
    lag: u32,
}

impl Header {
    /// Returns the header of this payload. The caller has bounded its length.
    pub(super) fn new(seed: Seed, lsn: Lsn, incarnation: u32, durable: Lsn, payload: &[u8]) -> Self {
        debug_assert!(HEADER + payload.len() <= MAX_FRAME_BYTES, "the frame is too long for every reader");
        debug_assert!(lsn.0.is_multiple_of(ALIGN), "a frame begins at a multiple of 8");
        let lag = u32::try_from(lsn.0.saturating_sub(durable.0) / ALIGN).unwrap_or(NO_STATEMENT);
        let len = (HEADER + payload.len()) as u32;
        let mut header = Self { len, crc: 0, lsn, incarnation, lag };
        header.crc = header.sum(seed, payload);
        debug_assert!(header.payload() == payload.len(), "the header states another length");
        debug_assert!(header.durable() <= Some(durable.min(lsn)), "the header states more than was durable");
        header
    }

    /// Returns the words as they are stored; storing the first one makes the frame visible.
    pub(super) fn words(&self) -> [u64; 3] {
        [
            u64::from(self.len) | u64::from(self.crc) << 32,
            self.lsn.0,
            u64::from(self.incarnation) | u64::from(self.lag) << 32,
        ]
    }

    /// Decodes a header; `None` when there are too few bytes or the length is impossible.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let (first, lsn, third) = (word(0)?, word(8)?, word(16)?);
        let header = Self {
            len: first as u32,
            crc: (first >> 32) as u32,
            lsn: Lsn(lsn),
            incarnation: third as u32,
            lag: (third >> 32) as u32,
        };
        let possible = (HEADER..=MAX_FRAME_BYTES).contains(&(header.len as usize));
        (possible && lsn.is_multiple_of(ALIGN) && lsn.checked_add(header.span() as u64).is_some())
            .then_some(header)
    }

    /// Returns the length of the payload in bytes.
    pub(super) fn payload(&self) -> usize {
        (self.len as usize).saturating_sub(HEADER)
    }

    /// Returns the length of the whole frame with its padding, in bytes.
    pub(super) fn span(&self) -> usize {
        span(self.payload())
    }

    /// Returns the position up to which the log was durable when the frame was made, if the frame states it.
    pub(super) fn durable(&self) -> Option<Lsn> {
        (self.lag != NO_STATEMENT).then(|| Lsn(self.lsn.0.saturating_sub(u64::from(self.lag) * ALIGN)))
    }

    /// Returns whether these bytes, header and padding included, are the complete, valid frame.
    pub(super) fn holds(&self, seed: Seed, frame: &[u8]) -> bool {
        let Some((payload, padding)) =
            frame.get(HEADER..self.span()).and_then(|rest| rest.split_at_checked(self.payload()))
        else {
            return false;
        };
        padding.iter().all(|byte| *byte == 0) && self.sum(seed, payload) == self.crc
    }

    fn sum(&self, seed: Seed, payload: &[u8]) -> u32 {
        let [first, second, third] = self.words();
        let mut head = [0; 20];
        head[..4].copy_from_slice(&(first as u32).to_le_bytes());
        head[4..12].copy_from_slice(&second.to_le_bytes());
        head[12..].copy_from_slice(&third.to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c_append(seed.0, &head), payload)
    }
}

/// Returns the length of a frame with this payload, padded, in bytes.
pub(super) const fn span(payload: usize) -> usize {
    (HEADER + payload).next_multiple_of(ALIGN as usize)
}

/// Seals a block: its last four bytes become the CRC-32C of all the bytes before them.
pub(super) fn seal(block: &mut [u8; LOG_BLOCK_BYTES]) {
    let crc = crc32c::crc32c(&block[..LOG_BLOCK_BYTES - 4]);
    block[LOG_BLOCK_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    debug_assert!(sealed(block), "a block does not match its own seal");
}

/// Returns whether a block matches its seal.
pub(super) fn sealed(block: &[u8; LOG_BLOCK_BYTES]) -> bool {
    block[LOG_BLOCK_BYTES - 4..] == crc32c::crc32c(&block[..LOG_BLOCK_BYTES - 4]).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes_of(header: &Header, payload: &[u8]) -> Vec<u8> {
        let mut bytes: Vec<u8> = header.words().iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.extend_from_slice(payload);
        bytes.resize(header.span(), 0);
        bytes
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(
            payload in prop::collection::vec(any::<u8>(), 0..40), lsn in 0u64..1 << 40, behind in 0u64..1 << 40,
            flip in any::<prop::sample::Index>(),
        ) {
            let (seed, lsn) = (Seed::new(&[7; 16]), Lsn(lsn * 8));
            let durable = Lsn(lsn.0.saturating_sub(behind * 8));
            let header = Header::new(seed, lsn, 3, durable, &payload);
            let mut bytes = bytes_of(&header, &payload);
            prop_assert_eq!(Header::decode(&bytes), Some(header));
            prop_assert!(header.holds(seed, &bytes));
            prop_assert!(!header.holds(Seed::new(&[8; 16]), &bytes));
            let known = header.durable();
            prop_assert!(known == Some(durable) || (known.is_none() && lsn.0 - durable.0 >= 8 * u64::from(u32::MAX)));
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(!Header::decode(&bytes).is_some_and(|h| h.lsn == lsn && h.holds(seed, &bytes)));
        }
    }
}
