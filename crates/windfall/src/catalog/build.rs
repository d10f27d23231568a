//! Filling a new secondary tree from the rows of its table.
//!
//! **Purpose.** Entries are collected in bounded memory, sorted, and put into the tree: by bulk load when all of them fit in
//! memory, else piece by piece in key order.
//!
//! **Invariants.** The table's gate is closed, so rows neither come nor go. Until the table's record names the tree nobody
//! knows it: on a failure, and after a crash, it is dropped like any tree.
//!
//! **May touch.** The rest of `catalog`, and what it may touch.

use super::{
    ddl::Catalog,
    record::{IndexRecord, KeyPart, KeySpec},
    table::Shape,
};
use crate::{
    error::{Error, Result, SchemaError, UsageError},
    mtr::Mtr,
    page::EntryHeader,
    row,
    store::Tree,
    sync::Arc,
    transaction::{
        indexed_value,
        secondary::{entry_key, split},
    },
    tree::Seek,
};

/// How many bytes of entries are sorted in memory at a time.
const PIECE: usize = 64 << 20;
/// How full bulk load makes the pages, in percent: room for what comes later.
const FILL: usize = 90;

impl KeySpec {
    /// The key of a row with this value.
    pub fn key_of(&self, value: &[u8]) -> Vec<u8> {
        let mut key = Vec::new();
        for part in &self.parts {
            match *part {
                KeyPart::Value { offset, length } => {
                    let start = (offset as usize).min(value.len());
                    let end = start.saturating_add(length as usize).min(value.len());
                    key.extend_from_slice(&value[start..end]);
                }
                KeyPart::Field { number } => {
                    key.extend_from_slice(row::field(value, number as usize).unwrap_or_default());
                }
            }
        }
        key
    }
}

impl Catalog {
    pub(super) fn build_index(&self, table: &str, shape: &Shape, index: &IndexRecord) -> Result<Arc<Tree>> {
        let tree = self.tree(self.attach_new(index.space));
        match self.fill(table, shape, index, &tree) {
            Ok(()) => Ok(tree),
            Err(error) => {
                self.discard(&tree)?;
                Err(error)
            }
        }
    }

    fn fill(&self, table: &str, shape: &Shape, index: &IndexRecord, tree: &Tree) -> Result<()> {
        let mut entries: Vec<Vec<u8>> = Vec::new();
        let mut bytes = 0;
        let mut whole = true;
        let mut cursor = shape.clustered.cursor();
        let mut more = cursor.seek(Seek::First)?;
        while more {
            if let Some(header) = cursor.header().filter(|header| !header.is_deleted()) {
                let start = indexed_value(&shape.clustered, header, cursor.value())?;
                let entry = entry_key(&index.key.key_of(&start), cursor.key());
                check_length(tree, &entry)?;
                bytes += entry.len() + size_of::<Vec<u8>>();
                entries.push(entry);
                if bytes >= PIECE {
                    whole = false;
                    self.put_piece(table, index, tree, &mut entries)?;
                    bytes = 0;
                }
            }
            more = cursor.next()?;
        }
        if !whole {
            return self.put_piece(table, index, tree, &mut entries);
        }
        entries.sort_unstable();
        let mut loader = tree.bulk_load(FILL)?;
        let mut last: Option<&[u8]> = None;
        for entry in &entries {
            let prefix = prefix_len(entry);
            if index.unique && last == Some(&entry[..prefix]) {
                return Err(duplicate(table, index));
            }
            last = Some(&entry[..prefix]);
            self.pool.ground().log.admit(entry.len() as u64 * 2)?;
            loader.push(entry, EntryHeader::default(), &[])?;
        }
        loader.finish()?;
        Ok(())
    }

    /// Puts sorted entries into a tree that holds others already.
    fn put_piece(
        &self,
        table: &str,
        index: &IndexRecord,
        tree: &Tree,
        entries: &mut Vec<Vec<u8>>,
    ) -> Result<()> {
        entries.sort_unstable();
        for entry in entries.drain(..) {
            self.pool.ground().log.admit(entry.len() as u64 * 2)?;
            if index.unique {
                let prefix = &entry[..prefix_len(&entry)];
                let mut cursor = tree.cursor();
                if cursor.seek(Seek::AtLeast(prefix))? && cursor.key().starts_with(prefix) {
                    return Err(duplicate(table, index));
                }
            }
            let mut mtr = Mtr::begin(&self.pool)?;
            let mut place = tree.seek_for_change(&mut mtr, &entry, Some(0))?;
            place.insert(&mut mtr, EntryHeader::default(), &[]);
            mtr.commit()?;
        }
        Ok(())
    }
}

/// How much of an entry is the index key's part.
fn prefix_len(entry: &[u8]) -> usize {
    split(entry).map_or(entry.len(), |(_, row)| entry.len() - row.len())
}

fn duplicate(table: &str, index: &IndexRecord) -> Error {
    SchemaError::DuplicateKey(format!("index {} of table {table}", index.name).into()).into()
}

fn check_length(tree: &Tree, entry: &[u8]) -> Result<()> {
    let (length, limit) = (entry.len(), tree.key_limit());
    if length > limit { Err(UsageError::KeyTooLong { length, limit }.into()) } else { Ok(()) }
}
