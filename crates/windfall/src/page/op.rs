//! Changes of one page, as they are made and as they are logged.
//!
//! **Purpose.** A change is a value: the running engine applies it to a page and logs it, recovery decodes it and applies
//! it by the same code. Redo is *physiological*: physical to a page, logical within it.
//!
//! **Invariants.** Applying is deterministic in the page's content and the operation. Applying what was decoded from a
//! log never panics: an operation that does not fit the page is an error.
//!
//! **May touch.** `ids`, the rest of `page`.

use super::{Page, PageType};
use crate::ids::PageId;

/// One change of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageOp<'a> {
    /// Clears the page and makes it one of this type. Whatever the page held before does not matter.
    Format {
        /// What it becomes.
        kind: PageType,
        /// Its level in the tree.
        level: u8,
    },
    /// Overwrites bytes.
    Write {
        /// The first byte's offset in the page.
        at: u32,
        /// The new bytes.
        bytes: &'a [u8],
    },
}

const FORMAT: u8 = 1;
const WRITE: u8 = 2;

impl<'a> PageOp<'a> {
    /// Whether applying it needs nothing of what the page held before: recovery then need not read the page.
    pub fn makes_page_anew(&self) -> bool {
        matches!(self, Self::Format { .. })
    }

    /// Appends the logged form.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Format { kind, level } => out.extend_from_slice(&[FORMAT, kind as u8, level]),
            Self::Write { at, bytes } => {
                out.push(WRITE);
                out.extend_from_slice(&at.to_le_bytes());
                out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
                out.extend_from_slice(bytes);
            }
        }
    }

    /// Reads a logged form back: the operation and what follows it.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn decode(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), &'static str> {
        const SHORT: &str = "a page operation is cut short";
        let (&tag, rest) = bytes.split_first().ok_or(SHORT)?;
        match tag {
            FORMAT => {
                let ([kind, level], rest) = rest.split_first_chunk().ok_or(SHORT)?;
                let kind = PageType::from_u8(*kind).ok_or("an unknown page type")?;
                Ok((Self::Format { kind, level: *level }, rest))
            }
            WRITE => {
                let (at, rest) = rest.split_first_chunk().ok_or(SHORT)?;
                let (len, rest) = rest.split_first_chunk().ok_or(SHORT)?;
                let (bytes, rest) = rest.split_at_checked(u32::from_le_bytes(*len) as usize).ok_or(SHORT)?;
                Ok((Self::Write { at: u32::from_le_bytes(*at), bytes }, rest))
            }
            _ => Err("an unknown page operation"),
        }
    }

    /// Changes the page.
    ///
    /// # Errors
    /// What does not fit. The page is unchanged then.
    pub fn apply(&self, page: Page<'_>, id: PageId) -> Result<(), &'static str> {
        match *self {
            Self::Format { kind, level } => page.format(id, kind, level),
            Self::Write { at, bytes } => {
                if at as usize + bytes.len() > page.len() {
                    return Err("a write beyond the end of the page");
                }
                page.write(at as usize, bytes);
            }
        }
        Ok(())
    }
}
