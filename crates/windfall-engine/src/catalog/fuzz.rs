//! The fuzz target of a table's record.
//!
//! **Purpose.** Decodes arbitrary bytes as a record of the system tree.
//!
//! **Invariants.** A record that is accepted has exactly one stored form, and names each tree once (checked by
//! `catalog/fuzz.rs::table`).

use std::collections::BTreeSet;

use super::{IndexRecord, KeyPart, KeySpec, Metadata, TableRecord};
use crate::{ids::SpaceId, txn::EntryForm};

/// Decodes a table's record.
pub fn table(data: &[u8]) {
    let Some(record) = TableRecord::decode(data) else { return };
    assert_eq!(record.encode(), data);
    let spaces: BTreeSet<_> = record.spaces().collect();
    let names: BTreeSet<_> = record.indexes.iter().map(|index| index.name.clone()).collect();
    let trees = 1 + record.indexes.len() + usize::from(matches!(record.metadata, Metadata::Long(_)));
    assert!(spaces.len() == trees && names.len() == record.indexes.len());
}

/// Returns records of tables with and without indexes.
pub fn table_seeds() -> Vec<Vec<u8>> {
    let index = |n: u64, parts: Vec<_>| IndexRecord {
        name: format!("index {n}").into(),
        space: SpaceId(n),
        unique: n.is_multiple_of(2),
        form: match n {
            93 => EntryForm::Composite,
            _ if parts.is_empty() => EntryForm::Supplied { usual: 4, payloads: n % 2 == 1 },
            _ => EntryForm::Terminated,
        },
        extractor: (n == 93).then(|| "tags".into()),
        key: KeySpec { parts },
    };
    let parts = vec![KeyPart::Value { offset: 3, length: 4 }, KeyPart::Field { number: 9 }];
    [
        vec![],
        vec![index(91, parts)],
        vec![index(91, vec![]), index(92, vec![KeyPart::Field { number: 0 }])],
        vec![index(93, vec![])],
    ]
    .into_iter()
    .map(|indexes| {
        let metadata = match indexes.len() {
            1 => Metadata::Long(SpaceId(99)),
            n => Metadata::Inline(b"rows\x01anything"[..n * 5].to_vec()),
        };
        TableRecord { id: 4, version: 7, clustered: SpaceId(90), metadata, indexes }.encode()
    })
    .collect()
}
