//! Undo positions.
//!
//! **Purpose.** A position names a byte of a stream: the stream's number is its highest byte, the rest is the position
//! in that stream.
//!
//! **Invariants.** A position of a logged stream is never used twice (checked by `undo/stream.rs::write`); the streams
//! of temporary tables all have the number zero. Zero is no position of a record (checked by
//! `trx/running.rs::write_undo`).

use crate::ids::UndoPos;

/// Bits of the position in a stream.
const BYTE_BITS: u32 = 56;
/// The limit for the slices of a stream that exist when a database is opened, in bytes: half of the positions. No
/// stream becomes that long, and the slices to come have the other half.
pub(super) const STREAM_BYTES: u64 = 1 << (BYTE_BITS - 1);

/// Returns the undo position of a byte of a stream.
pub(in crate::txn) fn undo_pos(stream: u8, at: u64) -> UndoPos {
    debug_assert!(at >> BYTE_BITS == 0, "a stream has fewer than 2^56 bytes");
    UndoPos(u64::from(stream) << BYTE_BITS | at)
}

/// Returns the byte of an undo position in its stream.
pub(in crate::txn) fn byte_of(pos: UndoPos) -> u64 {
    pos.0 & (u64::MAX >> (u64::BITS - BYTE_BITS))
}

/// Returns the stream number of an undo position.
pub(in crate::txn) fn stream_of(pos: UndoPos) -> u8 {
    (pos.0 >> BYTE_BITS) as u8
}
