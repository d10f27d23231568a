//! Fuzz targets of undo records and of keys.
//!
//! **Purpose.** [`undo`] decodes any bytes as an undo record, [`key`] as the key of a secondary entry or of an undo
//! slice.
//!
//! **Invariants.** Accepted input has exactly one stored form (checked by `txn/fuzz.rs::undo`).

use super::{
    row::{
        entry::{EntryForm, EntryParts},
        secondary::{entry_key, index_key_of, prefix_of, split},
    },
    undo::{
        record::{Body, EntryBefore, EntryChange, KeptChains, RowChange, Touch, UndoRecord, bound},
        stream::{key_of, slice_of},
    },
};
use crate::{
    composite::{CompositeKey, END},
    ids::{PageNo, SpaceId, TrxId, UndoPos},
    page::EntryHeader,
    tree::{OverflowRef, StoredField, fields::encode_fields},
};

/// Decodes an undo record.
pub fn undo(data: &[u8]) {
    let Ok(record) = UndoRecord::decode(data) else { return };
    let mut again = Vec::new();
    record.encode(&mut again);
    assert_eq!(again, data);
    assert_eq!(UndoRecord::trx_of(data), Ok(record.trx));
    let bound = match &record.body {
        Body::Overflow { .. } => UndoRecord::OVERFLOW_LENGTH,
        Body::Row { key, change, touches, .. } => {
            let value = if let RowChange::Update { value, .. } = change { value.len() } else { 0 };
            bound(key, value, touches.iter())
        }
    };
    assert!(data.len() <= bound, "a record is longer than the log space reserved for it");
}

/// Returns undo records of every kind.
pub fn undo_seeds() -> Vec<Vec<u8>> {
    let header = EntryHeader::new(TrxId(9), UndoPos(700));
    let touch = |n, change| Touch { space: SpaceId(n), key: vec![n as u8; 3], change };
    let touches = vec![
        touch(1, EntryChange::Inserted),
        touch(2, EntryChange::Revived(EntryBefore { header, value: b"payload".to_vec() })),
        touch(3, EntryChange::Marked(EntryBefore { header, value: Vec::new() })),
        touch(4, EntryChange::Replaced(EntryBefore { header, value: b"other".to_vec() })),
    ];
    let row = |change, touches| Body::Row { space: SpaceId(40), key: b"key".to_vec(), change, touches };
    let chain = OverflowRef { length: 10_000, stamp: 4711, first: PageNo(12) };
    let bodies = [
        row(RowChange::Insert, vec![]),
        row(
            RowChange::Update { header, value: b"before".to_vec(), kept: KeptChains::default() },
            touches.clone(),
        ),
        row(
            RowChange::Update {
                header: EntryHeader { flags: EntryHeader::FIELDS, ..header },
                value: encode_fields(&[StoredField::Inline(b"short"), StoredField::Chain(chain)]),
                kept: KeptChains::of([chain].into_iter(), [chain].into_iter()),
            },
            vec![],
        ),
        row(RowChange::Delete { header }, touches),
        Body::Overflow { space: SpaceId(40), first: PageNo(3) },
    ];
    bodies
        .into_iter()
        .map(|body| {
            let mut bytes = Vec::new();
            UndoRecord { trx: TrxId(5), previous: Some(UndoPos(8)), body }.encode(&mut bytes);
            bytes
        })
        .collect()
}

/// Decodes the key of a secondary entry, or of an undo slice.
pub fn key(data: &[u8]) {
    assert!(data.starts_with(index_key_of(data)));
    if let Some((index_key, row)) = split(data) {
        assert_eq!(entry_key(&index_key, row), data);
        assert_eq!(index_key_of(data), prefix_of(&index_key));
    }
    // The first half is the key of an entry, and the second its value.
    let (entry, value) = data.split_at(data.len() / 2);
    let supplied = [true, false].map(|payloads| EntryForm::Supplied { usual: 2, payloads });
    for form in [EntryForm::Terminated, EntryForm::Composite].into_iter().chain(supplied) {
        if let Some(EntryParts { index, row, payload }) = form.split(entry, value) {
            assert_eq!([index, row].concat(), entry);
            assert_eq!(form.value_of(index, payload), value);
            let mut start = form.start_of(form.index_key(index, &mut Vec::new()));
            if form == EntryForm::Composite {
                start.push(END);
            }
            assert_eq!(start, index);
        }
    }
    if let Some((stream, slice)) = slice_of(data) {
        assert_eq!(key_of(stream, slice), data);
    }
}

/// Returns keys of entries and of slices.
pub fn key_seeds() -> Vec<Vec<u8>> {
    let supplied = b"town\x04\0pay".to_vec();
    let extracted = [&CompositeKey::of(("town", 4))[..], &[END], b"rpayload of this row"].concat();
    vec![
        extracted,
        entry_key(b"town", b"row"),
        entry_key(b"a\0b\xff", b"\0"),
        entry_key(b"", b""),
        key_of(3, 77),
        supplied,
    ]
}
