//! Memory for I/O.
//!
//! **Purpose.** Direct I/O needs memory aligned to the device's blocks. An [`IoBuffer`] owns such memory.
//!
//! **Invariants.** The address is a multiple of 4 KiB, and the length is a whole number of 4 KiB blocks (by type).

/// The alignment of direct I/O, in bytes.
pub const BLOCK_BYTES: usize = 4096;

#[derive(Clone)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// Owned, zeroed, aligned memory.
#[derive(Clone, Default)]
pub struct IoBuffer(Vec<Block>);

impl core::fmt::Debug for IoBuffer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "IoBuffer({} bytes)", self.0.len() * BLOCK_BYTES)
    }
}

impl IoBuffer {
    /// Returns zeroed memory of this many bytes, rounded up to whole blocks.
    pub fn new(bytes: usize) -> Self {
        Self(vec![Block([0; BLOCK_BYTES]); bytes.div_ceil(BLOCK_BYTES)])
    }

    /// Resizes the buffer to this many bytes, rounded up to whole blocks. Added bytes are zero, the others keep their
    /// content.
    pub fn resize(&mut self, bytes: usize) {
        self.0.resize(bytes.div_ceil(BLOCK_BYTES), Block([0; BLOCK_BYTES]));
        debug_assert!(self.bytes().len() >= bytes, "a buffer is shorter than requested");
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.as_flattened_bytes()
    }

    /// Returns the bytes for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_flattened_bytes_mut()
    }
}

trait Flatten {
    fn as_flattened_bytes(&self) -> &[u8];
    fn as_flattened_bytes_mut(&mut self) -> &mut [u8];
}

impl Flatten for Vec<Block> {
    fn as_flattened_bytes(&self) -> &[u8] {
        // SAFETY: `Block` is `repr(C)` with a size equal to its alignment, so a slice of blocks is a slice of bytes
        // without padding; every byte is initialised.
        unsafe { core::slice::from_raw_parts(self.as_ptr().cast(), self.len() * BLOCK_BYTES) }
    }

    fn as_flattened_bytes_mut(&mut self) -> &mut [u8] {
        debug_assert!(
            self.as_ptr().addr().is_multiple_of(BLOCK_BYTES),
            "memory for I/O does not begin at a block"
        );
        // SAFETY: as above; the vector is borrowed exclusively, and every byte value is valid.
        unsafe { core::slice::from_raw_parts_mut(self.as_mut_ptr().cast(), self.len() * BLOCK_BYTES) }
    }
}
