//! A page in memory and on disk: its header, its checksum, and its words.
//!
//! **Purpose.** Every page of every tablespace begins with the same 32 bytes, so that any page found anywhere
//! identifies itself: its tablespace and number, its type, and its last change.
//!
//! **Invariants.** A page in memory is a slice of `AtomicU64`, of which safe code makes no `&[u8]` (by type), and is
//! accessed only by relaxed loads and stores of words. An optimistic reader may thus read a page while it changes, and
//! detects the change afterwards (test: `readers_and_cursors_during_splits_and_merges`). Bytes are numbered
//! little-endian within words (test: `behaves_as_bytes_do`).
//!
//! # Header, byte by byte
//!
//! | offset | size | field |
//! | --- | --- | --- |
//! | 0 | 4 | CRC-32C of the rest of the page (bytes 4..page size), set when the page is written to disk |
//! | 4 | 1 | page type ([`PageType`]) |
//! | 5 | 1 | level in the tree (0 is a leaf), else 0 |
//! | 6 | 2 | flags of the page type |
//! | 8 | 8 | tablespace incarnation |
//! | 16 | 8 | page LSN: the end of the mini-transaction that changed the page last |
//! | 24 | 4 | page number |
//! | 28 | 4 | used by the page type |

pub(crate) mod fence;
#[cfg(feature = "fuzz")]
pub mod fuzz;
pub mod node;
pub(crate) mod node_build;
mod node_change;
mod node_check;
pub mod op;
pub(crate) mod record;
pub mod undo;
mod words;

pub use node::Node;
pub use node_build::NodeList;
pub use node_change::{check_change, freezable_bytes};
pub use node_check::{check_entries, check_header, validate};
pub use op::PageOp;
pub use record::EntryHeader;
pub use words::{Page, blank};

use crate::{
    ids::{Lsn, PageId, PageNo, SpaceId},
    sync::atomic::Ordering::Relaxed,
};

/// Bytes of the header that all pages share.
pub const HEADER: usize = 32;
/// Page sizes with which a database can be created.
pub const SIZES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];
/// The default page size.
pub const DEFAULT_SIZE: usize = 16_384;

/// The type of a page, by its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum PageType {
    /// Never written, or freed: its content has no meaning.
    Free = 0,
    /// An allocation map; page 0 of a tablespace is also its header.
    Map = 1,
    /// A leaf of a tree.
    Leaf = 2,
    /// An inner node of a tree.
    Inner = 3,
    /// A piece of a long value, which is stored outside its leaf.
    Overflow = 4,
    /// A page of undo records.
    Undo = 5,
}

/// The expected use of a page; a hint for page replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A look-up: the page is likely to be needed again.
    Point,
    /// A scan: the page is one of many and unlikely to be needed again.
    Scan,
}

impl PageType {
    /// Returns the type with this number, if there is one.
    pub(crate) fn from_u8(n: u8) -> Option<Self> {
        [Self::Free, Self::Map, Self::Leaf, Self::Inner, Self::Overflow, Self::Undo]
            .into_iter()
            .find(|t| *t as u8 == n)
    }
}

/// Bytes of a page that are copied out for its checksum at a time: a multiple of 768, because the CRC code processes
/// three streams of 256 bytes in parallel.
const CHECKSUM_PIECE_BYTES: usize = 4 * 768;

impl Page<'_> {
    /// Returns the page type's number.
    pub fn page_type(self) -> u8 {
        self.u8(4)
    }

    /// Returns the level in the tree; 0 is a leaf.
    #[inline]
    pub fn level(self) -> u8 {
        self.u8(5)
    }

    /// Returns the identity of the page, as recorded in its own header.
    #[inline]
    pub fn id(self) -> PageId {
        PageId { space: SpaceId(self.u64(8)), page: PageNo(self.u32(24)) }
    }

    /// Returns the end of the mini-transaction that changed the page last.
    #[inline]
    pub fn lsn(self) -> Lsn {
        Lsn(self.u64(16))
    }

    /// Sets the LSN, the end of the mini-transaction that changed the page.
    #[inline]
    pub fn set_lsn(self, lsn: Lsn) {
        self.set_u64(16, lsn.0);
    }

    /// Clears the page and writes a new header. The LSN is zero until the mini-transaction commits.
    pub fn format(self, id: PageId, kind: PageType, level: u8) {
        debug_assert!(self.len() >= HEADER, "a page is shorter than its header");
        self.fill_zero(0, self.len());
        self.set_u8(4, kind as u8);
        self.set_u8(5, level);
        self.set_u64(8, id.space.0);
        self.set_u32(24, id.page.0);
    }

    /// Computes the checksum of the current content.
    pub fn checksum(self) -> u32 {
        let mut piece = [0; CHECKSUM_PIECE_BYTES];
        // After the checksum itself, up to the first whole word.
        self.read(0, &mut piece[..8]);
        let mut crc = crc32c::crc32c(&piece[4..8]);
        let mut at = 8;
        while at < self.len() {
            let piece = &mut piece[..(self.len() - at).min(CHECKSUM_PIECE_BYTES)];
            self.read(at, piece);
            crc = crc32c::crc32c_append(crc, piece);
            at += piece.len();
        }
        crc
    }

    /// Sets the checksum, as the last step before the page is written to disk.
    pub fn seal(self) {
        self.set_u32(0, self.checksum());
    }

    /// Returns whether every byte is zero: a page of a file that was never written.
    pub fn is_zero(self) -> bool {
        self.words().iter().all(|w| w.load(Relaxed) == 0)
    }

    /// Checks a page that was read from disk: checksum first, then identity.
    ///
    /// # Errors
    /// A description of the defect, for [`CorruptError::Page`](crate::error::CorruptError::Page).
    pub fn verify(self, id: PageId) -> Result<(), &'static str> {
        if self.u32(0) != self.checksum() {
            Err("its checksum is wrong")
        } else if self.id() != id {
            Err("it is another page's content")
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::atomic::AtomicU64;

    #[test]
    fn the_checksum_is_that_of_the_bytes() {
        let words: Vec<AtomicU64> = (0..512).map(AtomicU64::new).collect();
        let page = Page::new(&words);
        let mut bytes = vec![0; 4096];
        page.read(0, &mut bytes);
        assert_eq!(page.checksum(), crc32c::crc32c(&bytes[4..]));
    }

    #[test]
    fn a_flipped_bit_anywhere_is_found() {
        let words: Vec<AtomicU64> = (0..512).map(AtomicU64::new).collect();
        let page = Page::new(&words);
        let id = PageId { space: SpaceId(77), page: PageNo(3) };
        page.format(id, PageType::Leaf, 0);
        page.set_u64(2048, 0x0123_4567_89ab_cdef);
        page.seal();
        assert_eq!(page.verify(id), Ok(()));
        for bit in 0..4096 * 8 {
            let at = bit / 8;
            page.set_u8(at, page.u8(at) ^ (1 << (bit % 8)));
            assert!(page.verify(id).is_err(), "bit {bit} was flipped unseen");
            page.set_u8(at, page.u8(at) ^ (1 << (bit % 8)));
        }
        assert!(page.verify(PageId { space: SpaceId(77), page: PageNo(4) }).is_err());
    }
}
