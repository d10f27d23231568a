//! The header of an undo page, and the change that appends to such a page.
//!
//! **Purpose.** A page of an undo stream begins with the number of its bytes and the place of its first record. An
//! append changes both and the bytes at once.
//!
//! **Invariants.** The page is one of undo and the bytes lie within it, or nothing is changed (checked by
//! `page/fuzz.rs::redo`).

use super::{Page, PageType};

/// The offset of the number of bytes of the stream in the page.
pub const USED: usize = 28;
/// The offset of the field that states where the first record begins, plus one; 0 when none begins in the page.
pub const FIRST: usize = 30;
/// The offset of the bytes.
pub const DATA: usize = 32;

/// Writes bytes, with which the page then ends.
pub(super) fn write(page: Page<'_>, at: u16, begins: bool, bytes: &[u8]) -> Result<(), &'static str> {
    if page.page_type() != PageType::Undo as u8 {
        return Err("undo on a page that is no undo page");
    }
    let end = usize::from(at) + bytes.len();
    if DATA + end > page.len() {
        return Err("undo beyond the end of its page");
    }
    let first = page.u16(FIRST);
    page.set_u16(USED, end as u16);
    page.set_u16(FIRST, if begins && first == 0 { at + 1 } else { first });
    page.write(DATA + usize::from(at), bytes);
    Ok(())
}
