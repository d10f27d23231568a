//! The values of entries.
//!
//! **Purpose.** Reads the value of an entry, which is in the entry or in overflow pages: as a whole, its first bytes,
//! or piece by piece. Fields that are stored apart read as the encoded row that they make up.
//!
//! **Invariants.** A value is read completely, and belongs to one version (test:
//! `a_reader_never_takes_another_value_for_its_own`). If a chain was freed, the entry has usually changed since the
//! read, so it is read again; a missing chain is damage only if the entry is unchanged (test:
//! `a_row_that_was_inserted_twice_is_read_again`), and a row that was rolled back meanwhile is absent (test:
//! `a_row_that_is_rolled_back_while_it_is_read_is_absent`). A reader with a read view keeps all versions that it sees
//! from purge, with their chains (test: `a_pin_keeps_versions_and_a_reader_its_value`), or gets an error because the
//! view was ended (test: `a_view_is_ended_within_a_long_value`); a reader of a stream has such a view until its end
//! (test: `a_sink_blocks_no_call_and_gets_the_value_that_was_there`).

use core::ops::{Deref, Range};
use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::{
    error::{CorruptError, Error, Owner, Result},
    page::EntryHeader,
    row::{self, FieldSet},
    store::Tree,
    sync::Arc,
    tree::{OverflowRef, StoredField, StoredFields, fields::FIELDS_MAX, overflow::OverflowReader},
};

/// The number of first bytes of a value that index keys are made of.
pub(crate) const INDEXED_BYTES: usize = 64 << 10;
/// What index keys are made of, unless an index is built with other fields.
pub(crate) const INDEXED: FieldSet = FieldSet::ALL.cut_at(INDEXED_BYTES as u32);

pub(in crate::txn) fn overflow_ref(tree: &Tree, stored: &[u8]) -> Result<OverflowRef> {
    OverflowRef::from_bytes(stored)
        .ok_or_else(|| damaged(tree, "a reference to an overflow chain makes no sense"))
}

/// Returns the fields of a stored value.
///
/// # Errors
/// Damage.
pub(in crate::txn) fn stored_fields<'v>(tree: &Tree, stored: &'v [u8]) -> Result<StoredFields<'v>> {
    StoredFields::parse(stored).ok_or_else(|| damaged(tree, "a list of fields makes no sense"))
}

fn damaged(tree: &Tree, what: &str) -> Error {
    CorruptError::Structure { owner: Owner::Unknown, space: tree.space().id(), what: what.into() }.into()
}

/// Reads a row's value into `out`, and replaces its content. Returns `false` if there is no such row.
///
/// # Errors
/// Damage, I/O, a dropped table.
pub fn get(tree: &Tree, key: &[u8], fields: FieldSet, out: &mut Vec<u8>) -> Result<bool> {
    let Some(header) = tree.get_into(key, out)? else { return Ok(false) };
    if header.is_deleted() { Ok(false) } else { resolve(tree, key, header, fields, out) }
}

/// Replaces the stored value of an entry at which a cursor stands, in `out`, by the row's value. Returns `false` if the
/// row was removed meanwhile.
///
/// # Errors
/// As [`get`].
pub fn resolve(
    tree: &Tree,
    key: &[u8],
    header: EntryHeader,
    fields: FieldSet,
    out: &mut Vec<u8>,
) -> Result<bool> {
    Ok(resolve_with_header(tree, key, header, fields, out)?.is_some())
}

/// As [`resolve`], but returns the header of the version that was read, which may be a later one; `None` if the row was
/// removed meanwhile.
///
/// # Errors
/// As [`get`].
pub(in crate::txn) fn resolve_with_header(
    tree: &Tree,
    key: &[u8],
    header: EntryHeader,
    fields: FieldSet,
    out: &mut Vec<u8>,
) -> Result<Option<EntryHeader>> {
    if header.is_plain() { Ok(Some(header)) } else { stored_elsewhere(tree, key, header, fields, out) }
}

/// As [`resolve`], but reads only the [`INDEXED_BYTES`] first bytes of a long value: those that index keys are made of.
///
/// # Errors
/// As [`get`].
pub fn resolve_indexed(tree: &Tree, key: &[u8], header: EntryHeader, out: &mut Vec<u8>) -> Result<bool> {
    resolve(tree, key, header, INDEXED, out)
}

/// Replaces the stored value of an entry by the first bytes of the row's value, regardless of the entry's present
/// state.
///
/// # Errors
/// As [`get`]; a chain that was freed.
pub(crate) fn indexed_of(tree: &Tree, header: EntryHeader, out: &mut Vec<u8>) -> Result<()> {
    follow(tree, header, INDEXED, out)
}

/// As [`get`], but returns the entry's header, whether it is delete-marked or not: that of the version whose value was
/// read. `None` if there is no entry, or the row was rolled back while its value was read.
///
/// # Errors
/// As [`get`].
pub(crate) fn get_with_header(
    tree: &Tree,
    key: &[u8],
    fields: FieldSet,
    out: &mut Vec<u8>,
) -> Result<Option<EntryHeader>> {
    let Some(header) = tree.get_into(key, out)? else { return Ok(None) };
    if header.is_deleted() { Ok(Some(header)) } else { resolve_with_header(tree, key, header, fields, out) }
}

/// Returns whether two versions of a row that both exist, given by their stored values, read as the same if only these
/// fields are read. Reads no chain, so `false` is no answer.
pub(in crate::txn) fn read_alike(
    one: (EntryHeader, &[u8]),
    other: (EntryHeader, &[u8]),
    fields: FieldSet,
) -> bool {
    let kind_of = |(header, _): (EntryHeader, &[u8])| (header.is_overflow(), header.has_fields());
    let [one_selected, other_selected] = [one, other].map(|(header, stored)| {
        let all = header.has_fields().then(|| StoredFields::parse(stored)).flatten()?;
        let selected = |(n, field)| if fields.contains(n) { field } else { StoredField::Inline(&[]) };
        Some(all.enumerate().map(selected))
    });
    match one_selected.zip(other_selected) {
        Some((one, other)) => one.eq(other),
        None => kind_of(one) == kind_of(other) && one.1 == other.1,
    }
}

/// Replaces the stored value in `out` by the row's value, or by that of the entry's present version if a chain was
/// freed, and returns the header of the version. A chain that the entry still refers to was not freed: an error is
/// damage then. Headers do not tell: an entry that was removed and inserted again by one transaction has the header of
/// before.
fn stored_elsewhere(
    tree: &Tree,
    key: &[u8],
    mut header: EntryHeader,
    fields: FieldSet,
    out: &mut Vec<u8>,
) -> Result<Option<EntryHeader>> {
    loop {
        let Err(error) = follow(tree, header, fields, out) else { return Ok(Some(header)) };
        let before = core::mem::take(out);
        let Some(now) = tree.get_into(key, out)?.filter(|now| !now.is_deleted()) else { return Ok(None) };
        if now.flags == header.flags && *out == before {
            return Err(error);
        }
        header = now;
    }
}

/// Replaces the stored value of an entry by the row's value: of fields, by the [encoded](row) row that has the selected
/// ones, and no bytes in the others. No more bytes are read than the set needs. After an error `out` has the stored
/// value again.
///
/// # Errors
/// Damage, I/O; a chain that was freed.
pub(crate) fn follow(tree: &Tree, header: EntryHeader, fields: FieldSet, out: &mut Vec<u8>) -> Result<()> {
    if header.has_fields() {
        return follow_fields(tree, fields, out);
    }
    if header.is_overflow() {
        let chain = overflow_ref(tree, out)?;
        out.clear();
        let read = append(tree, chain, fields.needed(), out);
        if read.is_err() {
            out.clear();
            out.extend_from_slice(&chain.to_bytes());
        }
        return read;
    }
    Ok(())
}

/// As [`follow`]. The value is made after the stored one, in the same buffer: a read that is repeated for row after row
/// allocates nothing.
fn follow_fields(tree: &Tree, selected: FieldSet, out: &mut Vec<u8>) -> Result<()> {
    let (stored, window) = (out.len(), selected.needed());
    let places: SmallVec<[FieldPlace; FIELDS_MAX]> = stored_fields(tree, out)?
        .enumerate()
        .scan(StoredFields::contents_at(out), |at, (n, field)| {
            Some(FieldPlace::next(at, selected.contains(n), field))
        })
        .collect();
    row::encode_ends(places.iter().map(FieldPlace::length), out);
    let most = window.map_or(usize::MAX, |window| stored + window);
    for place in &places {
        match place {
            FieldPlace::Unselected => {}
            FieldPlace::Inline(range) => out.extend_from_within(range.clone()),
            FieldPlace::Chain(chain) => {
                let window = window.map(|_| most.saturating_sub(out.len()));
                if let Err(error) = append(tree, *chain, window, out) {
                    out.truncate(stored);
                    return Err(error);
                }
            }
        }
    }
    out.truncate(most);
    out.drain(..stored);
    Ok(())
}

/// Where a field of a stored value is.
enum FieldPlace {
    Unselected,
    Inline(Range<usize>),
    Chain(OverflowRef),
}

impl FieldPlace {
    /// Returns the place of the field that begins at this offset, and moves the offset behind it.
    fn next(at: &mut usize, is_selected: bool, field: StoredField<'_>) -> Self {
        let start = *at;
        *at += field.stored();
        match field {
            _ if !is_selected => Self::Unselected,
            StoredField::Inline(_) => Self::Inline(start..*at),
            StoredField::Chain(chain) => Self::Chain(chain),
        }
    }

    fn length(&self) -> u64 {
        match self {
            Self::Unselected => 0,
            Self::Inline(range) => range.len() as u64,
            Self::Chain(chain) => chain.length,
        }
    }
}

/// Appends the content of a chain, or its first `window` bytes.
fn append(tree: &Tree, chain: OverflowRef, window: Option<usize>, out: &mut Vec<u8>) -> Result<()> {
    let mut reader = tree.read_overflow(chain);
    let Some(window) = window else {
        reader.read_to_end(out)?;
        debug_assert!(reader.left() == 0, "{} bytes of a value were not read", reader.left());
        return Ok(());
    };
    let start = out.len();
    let length = window.min(usize::try_from(chain.length).unwrap_or(window));
    out.resize(start + length, 0);
    let mut at = start;
    while at < out.len() {
        match reader.read(&mut out[at..])? {
            0 => break,
            n => at += n,
        }
    }
    debug_assert!(at == out.len(), "the first bytes of a value are not all read");
    Ok(())
}

/// Returns the first bytes of the [encoded](row) row of these fields.
///
/// # Errors
/// Damage, I/O.
pub(crate) fn start_of_fields(tree: &Tree, fields: &[StoredField<'_>], window: usize) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    row::encode_ends(fields.iter().map(StoredField::length), &mut out);
    for field in fields {
        let left = window.saturating_sub(out.len());
        match field {
            StoredField::Inline(bytes) => out.extend_from_slice(&bytes[..bytes.len().min(left)]),
            StoredField::Chain(_) if left == 0 => {}
            StoredField::Chain(chain) => append(tree, *chain, Some(left), &mut out)?,
        }
    }
    Ok(out)
}

/// Returns the fields of a stored value as an [encoded](row) row, if the selected ones are all in the entry.
pub fn inline_fields(value: &[u8], selected: FieldSet) -> Option<Vec<u8>> {
    let fields = StoredFields::parse(value)?.enumerate().map(|(n, field)| match field {
        _ if !selected.contains(n) => Some(&[][..]),
        StoredField::Inline(bytes) => Some(bytes),
        StoredField::Chain(_) => None,
    });
    Some(row::encode(&fields.collect::<Option<Vec<_>>>()?))
}

/// A row's value, read piece by piece.
#[derive(Debug)]
pub struct RowReader<T = Arc<Tree>> {
    /// What is left of it.
    pieces: VecDeque<Piece<T>>,
    /// The number of bytes of that which are read.
    left: u64,
}

#[derive(Debug)]
enum Piece<T> {
    /// From memory.
    Inline {
        bytes: Vec<u8>,
        /// The number of bytes already read.
        at: usize,
    },
    /// From its overflow pages.
    Chain(OverflowReader<T>),
}

impl<T: Deref<Target = Tree>> Piece<T> {
    fn left(&self) -> u64 {
        match self {
            Self::Inline { bytes, at } => (bytes.len() - at) as u64,
            Self::Chain(reader) => reader.left(),
        }
    }
}

impl<T: Deref<Target = Tree> + Clone> RowReader<T> {
    /// Creates a reader of the value of an entry: of fields, it reads the [encoded](row) row.
    ///
    /// # Errors
    /// Damage.
    pub(in crate::txn) fn new(
        tree: &T,
        header: EntryHeader,
        value: Vec<u8>,
        selected: FieldSet,
    ) -> Result<Self> {
        let inline = |bytes| Piece::Inline { bytes, at: 0 };
        let chain = |chain| Piece::Chain(OverflowReader::new(tree.clone(), chain));
        let pieces: VecDeque<Piece<T>> = if header.has_fields() {
            let is_selected = |n| selected.contains(n);
            let fields = stored_fields(tree, &value)?;
            let lengths =
                fields.clone().enumerate().map(|(n, field)| if is_selected(n) { field.length() } else { 0 });
            let mut ends = Vec::new();
            row::encode_ends(lengths, &mut ends);
            let selected =
                fields.enumerate().filter(|(n, _)| is_selected(*n)).map(|(_, field)| match field {
                    StoredField::Inline(bytes) => inline(bytes.to_vec()),
                    StoredField::Chain(reference) => chain(reference),
                });
            core::iter::once(inline(ends)).chain(selected).collect()
        } else if header.is_overflow() {
            [chain(overflow_ref(tree, &value)?)].into()
        } else {
            [inline(value)].into()
        };
        let left = pieces.iter().map(Piece::left).sum();
        let is_whole = header.is_plain();
        let most = selected.needed().filter(|_| !is_whole).map_or(u64::MAX, |most| most as u64);
        Ok(Self { pieces, left: most.min(left) })
    }

    /// Returns the number of bytes left.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Reads some bytes. Returns 0 only at the end, or if `out` is empty.
    ///
    /// # Errors
    /// Damage, I/O, a dropped table.
    pub fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        let most = usize::try_from(self.left).map_or(out.len(), |left| left.min(out.len()));
        let n = self.read_piece(&mut out[..most])?;
        self.left -= n as u64;
        Ok(n)
    }

    fn read_piece(&mut self, out: &mut [u8]) -> Result<usize> {
        while self.pieces.front().is_some_and(|piece| piece.left() == 0) {
            self.pieces.pop_front();
        }
        match self.pieces.front_mut() {
            None => Ok(0),
            Some(Piece::Inline { bytes, at }) => {
                debug_assert!(*at <= bytes.len(), "more of a value was read than it has");
                let n = out.len().min(bytes.len() - *at);
                out[..n].copy_from_slice(&bytes[*at..*at + n]);
                *at += n;
                Ok(n)
            }
            Some(Piece::Chain(reader)) => reader.read(out),
        }
    }
}
