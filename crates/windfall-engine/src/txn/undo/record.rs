//! Undo records: one row change each, so that it can be rolled back and its old versions can be purged.
//!
//! **Purpose.** One record covers the clustered entry of a row and every secondary entry that the change touches.
//!
//! **Invariants.** The decoder accepts any bytes and never panics (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`).
//!
//! # Layout, byte by byte
//!
//! In the stream each record begins with its total length in bytes (4) and its state (1: 0 in force, 1 undone). The
//! rest is encoded here:
//!
//! | size | field |
//! | --- | --- |
//! | 1 | kind: 1 insert, 2 update, 3 delete, 4 overflow chain |
//! | 8 | transaction |
//! | 8 | its undo record before this one; 0 is none |
//! | 8 | tablespace: of the clustered tree, or of the chain |
//! | 4 | overflow chain: its first page, and the record ends |
//! | 4 + n | clustered key |
//! | 16 | update, delete: the version header before |
//! | 4 + n | update: the value before, as it was stored |
//! | 8 | update, if that is a list of fields: the chains of these that the entry keeps, a bit each |
//! | 4 | number of secondary entries, then each: |
//! | 8 | its tablespace |
//! | 4 + n | its key |
//! | 1 | what was done: 1 inserted, 2 revived, 3 marked as deleted, 4 given another value; bit 7: it had a value |
//! | 16 | revived, marked, given another value: the version header before |
//! | 4 + n | with bit 7: the value before, at least one byte |
//!
//! A version header is the transaction (6), the flags (2; 1 delete-marked, 2 overflow reference, 4 fields, other bits
//! zero) and the undo position (8), also of an entry that stores less of it.

use crate::{
    ids::{PageNo, SpaceId, TrxId, UndoPos},
    page::EntryHeader,
    tree::{Chains, OverflowRef},
};

/// The change of a secondary entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryChange {
    /// There was no entry.
    Inserted,
    /// There was this delete-marked entry.
    Revived(EntryBefore),
    /// There was this live entry, which is now delete-marked and has the same value.
    Marked(EntryBefore),
    /// There was this live entry, which now has another value.
    Replaced(EntryBefore),
}

/// A secondary entry before a change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryBefore {
    /// Its header.
    pub header: EntryHeader,
    /// Its value.
    pub value: Vec<u8>,
}

impl EntryChange {
    /// Returns the entry before the change; `None` if there was none.
    pub fn before(&self) -> Option<&EntryBefore> {
        match self {
            Self::Inserted => None,
            Self::Revived(before) | Self::Marked(before) | Self::Replaced(before) => Some(before),
        }
    }

    /// Returns whether the entry was live before the change.
    pub fn was_live(&self) -> bool {
        matches!(self, Self::Marked(_) | Self::Replaced(_))
    }
}

/// A secondary entry that a row change touched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The secondary tree.
    pub space: SpaceId,
    /// The entry's key.
    pub key: Vec<u8>,
    /// The change of the entry.
    pub change: EntryChange,
}

/// The change of the clustered entry, with the value before as a `V`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RowChange<V = Vec<u8>> {
    /// There was no entry.
    Insert,
    /// The entry had this header and value; it may have been delete-marked.
    Update {
        /// The header before.
        header: EntryHeader,
        /// The value before, as it was stored: maybe with references to overflow chains.
        value: V,
        /// Those of its chains to which the entry still refers after the change.
        kept: KeptChains,
    },
    /// The entry had this header, and its value stays until purge.
    Delete {
        /// The header before.
        header: EntryHeader,
    },
}

impl RowChange {
    /// Returns the header and the stored value that its rollback gives the entry, which has this value now.
    pub fn restores<'v>(&'v self, stored: &'v [u8]) -> Option<(EntryHeader, &'v [u8])> {
        match self {
            Self::Insert => None,
            Self::Update { header, value, .. } => Some((*header, value)),
            Self::Delete { header } => Some((*header, stored)),
        }
    }
}

/// The overflow chains of a value to which its entry still refers after a change, by their places among those of the
/// value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptChains(u64);

impl KeptChains {
    /// Determines which chains of a value a new one has, too.
    pub fn of(
        before: impl Iterator<Item = OverflowRef>,
        after: impl Iterator<Item = OverflowRef> + Clone,
    ) -> Self {
        let is_kept = |chain: &OverflowRef| after.clone().any(|other| other == *chain);
        let kept = before.enumerate().filter(|(_, chain)| is_kept(chain));
        Self(kept.fold(0, |kept, (place, _)| kept | 1 << place))
    }

    /// Returns the chains of the value that are not kept: they belong to the value before alone.
    pub fn others_of(self, before: Chains<'_>) -> impl Iterator<Item = OverflowRef> {
        before.enumerate().filter(move |(place, _)| self.0 & 1 << place == 0).map(|(_, chain)| chain)
    }

    /// Returns whether a value with this number of chains has one that is not kept.
    fn are_not_all_of(self, chains: usize) -> bool {
        (0..chains).any(|place| self.0 & 1 << place == 0)
    }
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A row changed.
    Row {
        /// The clustered tree.
        space: SpaceId,
        /// The row's key.
        key: Vec<u8>,
        /// The change of the clustered entry.
        change: RowChange,
        /// The changes of secondary entries.
        touches: Vec<Touch>,
    },
    /// An overflow chain was begun. The position of this record is the chain's stamp.
    Overflow {
        /// The tree.
        space: SpaceId,
        /// The chain's first page.
        first: PageNo,
    },
}

/// An undo record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UndoRecord {
    /// The transaction that made the change.
    pub trx: TrxId,
    /// The transaction's record before this one.
    pub previous: Option<UndoPos>,
    /// The content.
    pub body: Body,
}

impl Body {
    /// Returns the table of the record, by its clustered tree.
    pub fn table(&self) -> SpaceId {
        let (Self::Row { space, .. } | Self::Overflow { space, .. }) = self;
        *space
    }
}

const INSERT: u8 = 1;
const UPDATE: u8 = 2;
const DELETE: u8 = 3;
const OVERFLOW: u8 = 4;

const INSERTED: u8 = 1;
const REVIVED: u8 = 2;
const MARKED: u8 = 3;
const REPLACED: u8 = 4;
/// A value follows the header.
const HAD_VALUE: u8 = 0x80;

const SHORT: &str = "an undo record is cut short";
const UNKNOWN_FLAG: &str = "an undo record has an unknown flag of an entry";

/// Bytes before the clustered key.
const FIXED: usize = 1 + 8 + 8 + 8;
/// Bytes of an encoded header.
const HEADER: usize = 16;

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn put_header(out: &mut Vec<u8>, header: EntryHeader) {
    out.extend_from_slice(&(header.trx.0 & TrxId::MAX.0 | u64::from(header.flags) << 48).to_le_bytes());
    out.extend_from_slice(&header.undo.0.to_le_bytes());
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*chunk)
    }

    fn u8(&mut self) -> Result<u8, &'static str> {
        self.chunk().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        self.chunk().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, &'static str> {
        self.chunk().map(u64::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<Vec<u8>, &'static str> {
        self.skip_bytes().map(<[u8]>::to_vec)
    }

    fn skip_bytes(&mut self) -> Result<&[u8], &'static str> {
        let length = self.u32()?;
        let (bytes, rest) = self.0.split_at_checked(length as usize).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn header(&mut self) -> Result<EntryHeader, &'static str> {
        let word = self.u64()?;
        let flags = (word >> 48) as u16;
        let both = EntryHeader::OVERFLOW | EntryHeader::FIELDS;
        if flags & !EntryHeader::KNOWN_FLAGS != 0 || flags & both == both {
            return Err(UNKNOWN_FLAG);
        }
        Ok(EntryHeader { trx: TrxId(word & TrxId::MAX.0), flags, undo: UndoPos(self.u64()?) })
    }

    fn touch(&mut self) -> Result<Touch, &'static str> {
        let space = SpaceId(self.u64()?);
        let key = self.bytes()?;
        let code = self.u8()?;
        let change = match code & !HAD_VALUE {
            INSERTED if code == INSERTED => EntryChange::Inserted,
            REVIVED => EntryChange::Revived(self.before(code)?),
            MARKED => EntryChange::Marked(self.before(code)?),
            REPLACED => EntryChange::Replaced(self.before(code)?),
            _ => return Err("an unknown change of a secondary entry"),
        };
        Ok(Touch { space, key, change })
    }

    fn before(&mut self, code: u8) -> Result<EntryBefore, &'static str> {
        let (header, had_value) = (self.header()?, code & HAD_VALUE != 0);
        let value = if had_value { self.bytes()? } else { Vec::new() };
        if had_value == value.is_empty() {
            return Err("an undo record has an empty value of a secondary entry");
        }
        Ok(EntryBefore { header, value })
    }
}

fn put_fixed(out: &mut Vec<u8>, kind: u8, trx: TrxId, previous: Option<UndoPos>, space: SpaceId) {
    out.push(kind);
    for word in [trx.0, previous.map_or(0, |previous| previous.0), space.0] {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

/// The change of a row, to be encoded: [`Body::Row`] of borrowed parts.
pub(crate) struct ChangedRow<'a, V, T> {
    pub space: SpaceId,
    pub key: &'a [u8],
    pub change: &'a RowChange<V>,
    pub touches: T,
}

/// Returns the maximum length of the record of a changed row, in bytes, if the previous value has at most this length.
pub(crate) fn bound<'a>(key: &[u8], value: usize, touches: impl Iterator<Item = &'a Touch>) -> usize {
    let before = |touch: &Touch| touch.change.before().map_or(0, |before| 4 + before.value.len());
    let touched: usize = touches.map(|touch| 8 + 4 + touch.key.len() + 1 + HEADER + before(touch)).sum();
    FIXED + 4 + key.len() + HEADER + 4 + value + 8 + 4 + touched
}

impl<'a, V: AsRef<[u8]>, T: ExactSizeIterator<Item = &'a Touch> + Clone> ChangedRow<'a, V, T> {
    /// Appends the encoded form, without length and state.
    pub(crate) fn encode(&self, trx: TrxId, previous: Option<UndoPos>, out: &mut Vec<u8>) {
        let Self { space, key, change, ref touches } = *self;
        let (kind, value) = match change {
            RowChange::Insert => (INSERT, 0),
            RowChange::Update { value, .. } => (UPDATE, value.as_ref().len()),
            RowChange::Delete { .. } => (DELETE, 0),
        };
        out.reserve(bound(key, value, touches.clone()));
        put_fixed(out, kind, trx, previous, space);
        put(out, key);
        match change {
            RowChange::Insert => {}
            RowChange::Update { header, value, kept } => {
                put_header(out, *header);
                put(out, value.as_ref());
                debug_assert!(
                    header.has_fields() || kept.0 == 0,
                    "a change keeps chains of a value that has no fields"
                );
                if header.has_fields() {
                    out.extend_from_slice(&kept.0.to_le_bytes());
                }
            }
            RowChange::Delete { header } => put_header(out, *header),
        }
        out.extend_from_slice(&(touches.len() as u32).to_le_bytes());
        for touch in touches.clone() {
            out.extend_from_slice(&touch.space.0.to_le_bytes());
            put(out, &touch.key);
            let code = match touch.change {
                EntryChange::Inserted => INSERTED,
                EntryChange::Revived(_) => REVIVED,
                EntryChange::Marked(_) => MARKED,
                EntryChange::Replaced(_) => REPLACED,
            };
            match touch.change.before() {
                None => out.push(code),
                Some(EntryBefore { header, value }) => {
                    out.push(if value.is_empty() { code } else { code | HAD_VALUE });
                    put_header(out, *header);
                    if !value.is_empty() {
                        put(out, value);
                    }
                }
            }
        }
    }
}

impl UndoRecord {
    /// Returns whether an encoded record leaves nothing to purge, whether it is in force or undone: it has
    /// delete-marked and revived no entry and replaced no chain.
    pub(crate) fn leaves_nothing(bytes: &[u8]) -> bool {
        let mut fields = Fields(bytes);
        let mut read = || {
            let kind = fields.u8()?;
            fields.chunk::<{ FIXED - 1 }>()?;
            if kind != INSERT && kind != UPDATE {
                return Ok(false);
            }
            fields.skip_bytes()?;
            if kind == UPDATE {
                let before = fields.header()?;
                let value = fields.skip_bytes()?;
                if before.is_deleted() || before.is_overflow() {
                    return Ok(false);
                }
                if before.has_fields() {
                    let chains = Chains::of(before, value).ok_or("a list of fields makes no sense")?;
                    let chains = chains.count();
                    if KeptChains(fields.u64()?).are_not_all_of(chains) {
                        return Ok(false);
                    }
                }
            }
            for _ in 0..fields.u32()? {
                fields.chunk::<8>()?;
                fields.skip_bytes()?;
                if fields.u8()? != INSERTED {
                    return Ok(false);
                }
            }
            Ok::<_, &'static str>(true)
        };
        read().unwrap_or(false)
    }

    /// The length of the record of an overflow chain, in bytes.
    pub(crate) const OVERFLOW_LENGTH: usize = FIXED + 4;

    /// Appends the encoded form, without length and state.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let from = out.len();
        match &self.body {
            Body::Overflow { space, first } => {
                put_fixed(out, OVERFLOW, self.trx, self.previous, *space);
                out.extend_from_slice(&first.0.to_le_bytes());
            }
            Body::Row { space, key, change, touches } => {
                let row = ChangedRow { space: *space, key, change, touches: touches.iter() };
                row.encode(self.trx, self.previous, out);
            }
        }
        debug_assert!(
            Self::decode(&out[from..]).as_ref() == Ok(self),
            "the undo record would be read back as another one"
        );
    }

    /// Decodes a record, without length and state.
    ///
    /// # Errors
    /// A description of the damage.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let mut fields = Fields(bytes);
        let kind = fields.u8()?;
        let trx = TrxId(fields.u64()?);
        let previous = Some(UndoPos(fields.u64()?)).filter(|previous| previous.0 != 0);
        let space = SpaceId(fields.u64()?);
        let body = if kind == OVERFLOW {
            Body::Overflow { space, first: PageNo(fields.u32()?) }
        } else {
            let key = fields.bytes()?;
            let change = match kind {
                INSERT => RowChange::Insert,
                UPDATE => {
                    let (header, value) = (fields.header()?, fields.bytes()?);
                    let kept = KeptChains(if header.has_fields() { fields.u64()? } else { 0 });
                    RowChange::Update { header, value, kept }
                }
                DELETE => RowChange::Delete { header: fields.header()? },
                _ => return Err("an unknown kind of undo record"),
            };
            let count = fields.u32()?;
            let touches = (0..count).map(|_| fields.touch()).collect::<Result<_, _>>()?;
            Body::Row { space, key, change, touches }
        };
        if fields.0.is_empty() { Ok(Self { trx, previous, body }) } else { Err("an undo record is too long") }
    }

    /// Returns the transaction of an encoded record, without decoding the rest.
    ///
    /// # Errors
    /// A description of the damage.
    pub(crate) fn trx_of(bytes: &[u8]) -> Result<TrxId, &'static str> {
        Self::head_of(bytes).map(|(trx, _)| trx)
    }

    /// Returns the transaction and the table of an encoded record, without decoding the rest.
    ///
    /// # Errors
    /// A description of the damage.
    pub(crate) fn head_of(bytes: &[u8]) -> Result<(TrxId, SpaceId), &'static str> {
        let mut fields = Fields(bytes);
        fields.u8()?;
        let trx = TrxId(fields.u64()?);
        fields.u64()?;
        Ok((trx, SpaceId(fields.u64()?)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tree::{StoredField, fields::encode_fields};

    fn header() -> impl Strategy<Value = EntryHeader> {
        (0..1u64 << 48, 0..6u16, any::<u64>()).prop_map(|(trx, flags, undo)| EntryHeader {
            trx: TrxId(trx),
            flags,
            undo: UndoPos(undo),
        })
    }

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(any::<u8>(), 0..40)
    }

    #[test]
    fn a_record_leaves_something_if_it_has_replaced_a_chain() {
        let chain = |n: u32| OverflowRef { length: 5000, stamp: n.into(), first: PageNo(n) };
        let fields =
            |n| [StoredField::Chain(chain(1)), StoredField::Inline(b"short"), StoredField::Chain(chain(n))];
        let value = encode_fields(&fields(2));
        for (new, leaves_nothing) in [(2, true), (3, false)] {
            let header = EntryHeader { flags: EntryHeader::FIELDS, ..EntryHeader::default() };
            let new = encode_fields(&fields(new));
            let [before, after] = [&value, &new].map(|value| Chains::of(header, value).unwrap());
            let kept = KeptChains::of(before.clone(), after);
            assert_eq!(
                kept.others_of(before).collect::<Vec<_>>(),
                if leaves_nothing { vec![] } else { vec![chain(2)] }
            );
            let change = RowChange::Update { header, value: value.clone(), kept };
            let body = Body::Row { space: SpaceId(9), key: b"key".to_vec(), change, touches: Vec::new() };
            let mut record = Vec::new();
            UndoRecord { trx: TrxId(5), previous: None, body }.encode(&mut record);
            assert_eq!(UndoRecord::leaves_nothing(&record), leaves_nothing);
        }
    }

    fn touch() -> impl Strategy<Value = Touch> {
        let before = || (header(), bytes()).prop_map(|(header, value)| EntryBefore { header, value });
        let change = prop_oneof![
            Just(EntryChange::Inserted),
            before().prop_map(EntryChange::Revived),
            before().prop_map(EntryChange::Marked),
            before().prop_map(EntryChange::Replaced)
        ];
        (any::<u64>(), bytes(), change).prop_map(|(space, key, change)| Touch {
            space: SpaceId(space),
            key,
            change,
        })
    }

    fn body() -> impl Strategy<Value = Body> {
        let change = prop_oneof![
            Just(RowChange::Insert),
            (header(), bytes(), any::<u64>()).prop_map(|(header, value, kept)| {
                let kept = KeptChains(if header.has_fields() { kept } else { 0 });
                RowChange::Update { header, value, kept }
            }),
            header().prop_map(|header| RowChange::Delete { header })
        ];
        prop_oneof![
            (any::<u64>(), bytes(), change, prop::collection::vec(touch(), 0..4)).prop_map(
                |(space, key, change, touches)| Body::Row { space: SpaceId(space), key, change, touches }
            ),
            (any::<u64>(), any::<u32>())
                .prop_map(|(space, page)| Body::Overflow { space: SpaceId(space), first: PageNo(page) })
        ]
    }

    /// An entry has no place for other flags: a rollback could not restore them.
    #[test]
    fn a_header_with_an_unknown_flag_is_refused() {
        let header = EntryHeader { flags: 3, ..EntryHeader::new(TrxId(5), UndoPos(6)) };
        let before = EntryBefore { header, value: vec![3] };
        let touch = |change| vec![Touch { space: SpaceId(2), key: vec![1], change }];
        for (change, touches) in [
            (RowChange::Delete { header }, Vec::new()),
            (RowChange::Update { header, value: vec![2], kept: KeptChains::default() }, Vec::new()),
            (RowChange::Insert, touch(EntryChange::Revived(before.clone()))),
            (RowChange::Insert, touch(EntryChange::Marked(before.clone()))),
            (RowChange::Insert, touch(EntryChange::Replaced(before))),
        ] {
            let body = Body::Row { space: SpaceId(1), key: Vec::new(), change, touches };
            let mut bytes = Vec::new();
            UndoRecord { trx: TrxId(9), previous: None, body }.encode(&mut bytes);
            let stored = bytes.windows(8).position(|word| word == (5u64 | 3 << 48).to_le_bytes()).unwrap();
            for bit in 2..16 {
                let mut other = bytes.clone();
                other[stored + 6 + bit / 8] |= 1 << (bit % 8);
                assert_eq!(UndoRecord::decode(&other), Err(UNKNOWN_FLAG), "bit {bit}");
            }
        }
    }

    proptest! {
        #[test]
        fn records_come_back(trx in any::<u64>(), previous in prop_oneof![Just(0), any::<u64>()], body in body()) {
            let previous = Some(UndoPos(previous)).filter(|previous| previous.0 != 0);
            let record = UndoRecord { trx: TrxId(trx), previous, body };
            let mut bytes = Vec::new();
            record.encode(&mut bytes);
            let bound = match &record.body {
                Body::Overflow { .. } => UndoRecord::OVERFLOW_LENGTH,
                Body::Row { key, touches, .. } => bound(key, 40, touches.iter()),
            };
            prop_assert!(bytes.len() <= bound);
            prop_assert_eq!(UndoRecord::trx_of(&bytes), Ok(record.trx));
            prop_assert_eq!(UndoRecord::decode(&bytes), Ok(record));
            for cut in 0..bytes.len() {
                prop_assert!(UndoRecord::decode(&bytes[..cut]).is_err());
            }
        }
    }
}
