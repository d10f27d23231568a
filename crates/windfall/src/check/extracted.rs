//! The comparison of an index with what its extractor makes of the rows.
//!
//! **Purpose.** The number of entries of such an index does not follow from that of the rows, and an extractor that
//! makes other entries than it did leaves some that no row has, or misses some.
//!
//! **Invariants.** An index passes if it has the entries that the extractor makes of the rows, with their payloads, and
//! no others (test: `a_check_finds_entries_that_an_extractor_no_longer_makes`). An index of which the extractor is not
//! registered is not compared (test: `without_its_extractor_a_table_can_be_read_and_not_changed`).

use super::pieces::TableTree;
use crate::{
    error::Result,
    keys::shown,
    page::EntryHeader,
    sync::LongWork,
    tree::Seek,
    txn::{Extraction, mvcc::value},
};

/// Returns a description of the difference, if there is one. The trees do not change meanwhile.
///
/// # Errors
/// Errors of the extractor, as of a change of a row; an interrupt; damage, I/O.
pub(super) fn compare(
    rows: &TableTree<'_>,
    index: &TableTree<'_>,
    (extraction, is_unique): (Extraction<'_>, bool),
) -> Result<Option<String>> {
    let TableTree { owner, tree, .. } = index;
    if extraction.extractor(|| owner.clone()).is_err() {
        return Ok(None);
    }
    let (mut made, mut missing, mut first) = (0u64, 0u64, None);
    let (mut value, mut stored) = (Vec::new(), Vec::new());
    let mut cursor = rows.tree.cursor();
    let mut more = cursor.seek(Seek::First)?;
    while more {
        LongWork::check()?;
        if let Some(header) = cursor.header().filter(|header| !header.is_deleted()) {
            value.clear();
            value.extend_from_slice(cursor.value());
            if value::resolve_indexed(rows.tree, cursor.key(), header, &mut value)? {
                for entry in extraction.entries(tree, is_unique, cursor.key(), &value, || owner.clone())? {
                    made += 1;
                    let header = tree.get_into(&entry.key, &mut stored)?;
                    if header.is_none_or(EntryHeader::is_deleted) || stored != entry.value {
                        missing += 1;
                        first.get_or_insert_with(|| shown(cursor.key()));
                    }
                }
            }
        }
        more = cursor.next()?;
    }
    let mut entries = 0u64;
    let mut cursor = tree.cursor();
    let mut more = cursor.seek(Seek::First)?;
    while more {
        LongWork::check()?;
        entries += u64::from(cursor.header().is_some_and(|header| !header.is_deleted()));
        more = cursor.next()?;
    }
    if missing == 0 && entries == made {
        return Ok(None);
    }
    let of_row = first.map_or_else(String::new, |row| format!(", the first of row {row}"));
    Ok(Some(format!(
        "{owner}: {entries} entries, but the extractor \"{}\" makes {made} of the rows, of which {missing} are not there{of_row}; \
         create the index again with the extractor that the application uses",
        extraction.name()
    )))
}
