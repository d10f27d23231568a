//! The indexes of the histories. The first letter of an index's name is the form of its entries, and the entry of a row
//! is a function of the row: the model of a table needs only the names.

use std::collections::BTreeSet;

use windfall::{
    Access, CompositeKey, CompositePart, ExtractedEntries, FieldChange, IndexOptions, MadeEntry, Options,
    Result, SuppliedChange, SuppliedEntry, Table, TableLoad, TableOptions, row,
};

use super::Rows;

/// The extractor of the indexes with extracted entries.
pub(super) const EXTRACTOR: &str = "tags";
/// The bytes of a supplied key with the key of a row such as "key 001".
pub(super) const USUAL: u16 = 10;

/// The names of a table's indexes. [`indexes`] makes them of their letters.
pub(crate) type Indexes = BTreeSet<String>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Of the first eight bytes of the value.
    Value,
    /// Supplied by the caller: unique, except that the keys of some rows may repeat, and without some rows.
    Supplied,
    /// Made by the extractor: any number of entries of a row.
    Extracted,
}

impl Form {
    pub(crate) fn of(index: &str) -> Self {
        match index.as_bytes() {
            [b'i', ..] => Self::Value,
            [b's', ..] => Self::Supplied,
            [b'x', ..] => Self::Extracted,
            _ => panic!("an index {index:?} is not of the histories"),
        }
    }
}

/// Returns the options with which a database of the histories is opened.
pub(crate) fn with_extractor(options: &Options) -> Options {
    options.clone().extractor(EXTRACTOR, extract)
}

/// Returns the names of the indexes with these letters.
pub(crate) fn indexes(letters: &str) -> Indexes {
    letters.chars().map(String::from).collect()
}

/// Returns the options of an index with this name.
pub(super) fn options_of(index: &str) -> IndexOptions {
    match Form::of(index) {
        Form::Value => super::index(),
        Form::Supplied => IndexOptions::supplied(USUAL).unique(),
        Form::Extracted => IndexOptions::extracted(EXTRACTOR),
    }
}

/// Returns the definition of a table with indexes of these letters.
pub(super) fn definition(letters: &str) -> TableOptions {
    let all = indexes(letters);
    all.iter().fold(TableOptions::default(), |options, name| options.index(name, options_of(name)))
}

/// Returns one of six classes of rows. A change of a row often changes its class.
fn class_of(value: &[u8]) -> u64 {
    value.iter().take(12).map(|byte| u64::from(*byte)).sum::<u64>() % 6
}

/// Makes the supplied entry of a row. Returns whether the row has one.
#[expect(clippy::unnecessary_wraps, reason = "a maker of entries may fail")]
pub(super) fn supplied(key: &[u8], value: &[u8], made: &mut MadeEntry) -> Result<bool> {
    let class = class_of(value);
    made.key.clear();
    made.payload.clear();
    made.may_repeat = class == 1;
    if made.may_repeat {
        made.key.push(0);
    } else {
        // Without the value the key of most rows stays, and only the payload changes.
        made.key.extend([1, (class % 2) as u8, key.len() as u8]);
        made.key.extend_from_slice(key);
    }
    let length = [0, 20, 0, 30, 0, 300][class as usize];
    made.payload.extend_from_slice(&value[..value.len().min(length)]);
    Ok(class != 2)
}

/// Returns the supplied entry of a row that has one.
pub(super) fn supplied_of(key: &[u8], value: &[u8]) -> Option<MadeEntry> {
    let mut made = MadeEntry::default();
    supplied(key, value, &mut made).unwrap().then_some(made)
}

/// An extracted entry, before it is encoded: a text of one byte, a number in descending order, and the payload.
pub(super) type Tag = (u8, i64, Vec<u8>);

/// Returns the extracted entries of a row: none of some, and several of most.
pub(super) fn tags(key: &[u8], value: &[u8]) -> Vec<Tag> {
    let class = class_of(value);
    let bytes: BTreeSet<u8> = value.iter().skip(6).take(6).copied().collect();
    let number = i64::try_from(value.len()).unwrap() - 300;
    let payload = if class == 3 { key } else { &[] };
    let tags = bytes.into_iter().filter(|_| class != 2);
    tags.map(|byte| (byte, number, payload.to_vec())).collect()
}

#[expect(clippy::unnecessary_wraps, reason = "an extractor may fail")]
fn extract(key: &[u8], value: &[u8], entries: &mut ExtractedEntries) -> Result<()> {
    for (byte, number, payload) in tags(key, value) {
        entries.add_with((&[byte][..], CompositePart::descending_of(number)), &payload);
    }
    Ok(())
}

/// Returns the row's fields, if its value is that of a row of at most three.
pub(crate) fn fields_of(value: &[u8]) -> Option<Vec<&[u8]>> {
    let fields: Vec<_> =
        (0..row::count(value).min(3)).map(|n| row::field(value, n)).collect::<Option<_>>()?;
    (row::encode(&fields) == value).then_some(fields)
}

/// Returns the value of a row of two fields after a change of them: a field that is not set stays, and is empty if the
/// row has none.
pub(super) fn after_change(before: Option<&[u8]>, set: &[Option<Vec<u8>>; 2]) -> Vec<u8> {
    let kept = before.and_then(fields_of).filter(|fields| fields.len() == 2);
    let kept = kept.unwrap_or_else(|| vec![&[][..]; 2]);
    let fields: Vec<&[u8]> = set.iter().zip(kept).map(|(set, kept)| set.as_deref().unwrap_or(kept)).collect();
    row::encode(&fields)
}

/// The entries of a row before and after a change of it, in the indexes that take them from the caller.
#[derive(Debug, Default)]
struct Supplied(Vec<(&'static str, Option<MadeEntry>, Option<MadeEntry>)>);

impl Supplied {
    /// The names that an index with supplied entries may have.
    const NAMES: [&str; 2] = ["s", "s2"];

    fn new(table: &Table<impl Access>, old: Option<(&[u8], &[u8])>, new: Option<(&[u8], &[u8])>) -> Self {
        let of = |row: Option<(&[u8], &[u8])>| row.and_then(|(key, value)| supplied_of(key, value));
        let names = Self::NAMES.into_iter().filter(|name| table.index_number(name).is_ok());
        Self(names.map(|name| (name, of(old), of(new))).collect())
    }

    fn changes(&self) -> Vec<SuppliedChange<'_>> {
        fn entry(made: &MadeEntry) -> SuppliedEntry<'_> {
            let entry = SuppliedEntry::new(&made.key).payload(&made.payload);
            if made.may_repeat { entry.may_repeat() } else { entry }
        }
        let changes = self.0.iter().map(|(name, old, new)| {
            SuppliedChange::new(*name, old.as_ref().map(entry), new.as_ref().map(entry))
        });
        changes.collect()
    }
}

fn takes_entries(table: &Table<impl Access>) -> bool {
    Supplied::NAMES.iter().any(|name| table.index_number(name).is_ok())
}

/// Puts a row: field by field, if its value is that of such a row, and with its entries.
pub(super) fn put(table: &Table<impl Access>, key: &[u8], value: &[u8]) -> Result<()> {
    let fields = fields_of(value);
    if !takes_entries(table) {
        return match fields {
            Some(fields) => table.put_fields(key, &fields),
            None => table.put(key, value),
        };
    }
    let old = table.get(key)?;
    let entries = Supplied::new(table, old.as_deref().map(|old| (key, old)), Some((key, value)));
    let entries = entries.changes();
    match (fields, old) {
        (Some(fields), None) => table.insert_fields(key, &fields, &entries),
        (Some(fields), Some(_)) => {
            let fields: Vec<_> = fields.into_iter().map(FieldChange::Set).collect();
            table.update_fields(key, &fields, &entries)
        }
        (None, None) => table.insert_with(key, value, &entries),
        (None, Some(_)) => table.update_with(key, value, &entries),
    }
}

pub(super) fn delete(table: &Table<impl Access>, key: &[u8]) -> Result<bool> {
    if !takes_entries(table) {
        return table.delete(key);
    }
    let old = table.get(key)?;
    table.delete_with(key, &Supplied::new(table, old.as_deref().map(|old| (key, old)), None).changes())
}

/// Inserts a row.
pub(super) fn insert(table: &Table<impl Access>, key: &[u8], value: &[u8]) -> Result<()> {
    table.insert_with(key, value, &Supplied::new(table, None, Some((key, value))).changes())
}

/// Changes fields of a row as [`after_change`] says, and inserts the row if it does not exist. A field that stays is
/// kept where it is.
pub(super) fn change_fields(
    table: &Table<impl Access>,
    key: &[u8],
    set: &[Option<Vec<u8>>; 2],
) -> Result<()> {
    let old = table.get(key)?;
    let value = after_change(old.as_deref(), set);
    let entries = Supplied::new(table, old.as_deref().map(|old| (key, old)), Some((key, &value)));
    let entries = entries.changes();
    let Some(old) = old else {
        return table.insert_fields(key, &fields_of(&value).unwrap(), &entries);
    };
    let has_two = fields_of(&old).is_some_and(|fields| fields.len() == 2);
    let fields: Vec<_> = set
        .iter()
        .map(|set| match set {
            Some(field) => FieldChange::Set(field),
            None if has_two => FieldChange::Keep,
            None => FieldChange::Set(b""),
        })
        .collect();
    table.update_fields(key, &fields, &entries)
}

/// Gives a row another key and value.
pub(super) fn change_key(table: &Table<impl Access>, old: &[u8], new: &[u8], value: &[u8]) -> Result<()> {
    let before = table.get(old)?;
    let entries = Supplied::new(table, before.as_deref().map(|before| (old, before)), Some((new, value)));
    table.change_key_with(old, new, value, &entries.changes())
}

/// Loads rows into an empty table, with their entries.
pub(super) fn push(load: &mut TableLoad, table: &Table<impl Access>, key: &[u8], value: &[u8]) -> Result<()> {
    load.push(key, value, &Supplied::new(table, None, Some((key, value))).changes())
}

/// An entry as the API returns it: its index key, the key and the value of the row, and the payload.
type Found = (Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>);

/// Asserts that an index has the entries of these rows, and no others.
pub(super) fn assert_entries(table: &Table, index: &str, rows: &Rows) -> Result<()> {
    let found = table.index(index)?.range::<&[u8]>(..)?;
    let found: Vec<Found> = found
        .map(|row| row.map(|row| (row.index_key, row.key, row.value, row.payload)))
        .collect::<Result<_>>()?;
    let of_row = |(key, value): (&Vec<u8>, &Vec<u8>)| -> Vec<Found> {
        let entries: Vec<(Vec<u8>, Vec<u8>)> = match Form::of(index) {
            Form::Value => vec![(value[..value.len().min(8)].to_vec(), Vec::new())],
            Form::Supplied => {
                supplied_of(key, value).map(|made| (made.key, made.payload)).into_iter().collect()
            }
            Form::Extracted => {
                let key_of =
                    |byte, number| CompositeKey::of((&[byte][..], CompositePart::descending_of(number)));
                let tags = tags(key, value).into_iter();
                tags.map(|(byte, number, payload)| (key_of(byte, number).into_bytes(), payload)).collect()
            }
        };
        let found = |(index_key, payload)| (index_key, key.clone(), value.clone(), payload);
        entries.into_iter().map(found).collect()
    };
    let expected: BTreeSet<Found> = rows.iter().flat_map(of_row).collect();
    let is_same = found.len() == expected.len() && found.iter().all(|entry| expected.contains(entry));
    let brief =
        |(index_key, key, ..): &Found| (index_key.escape_ascii().to_string(), key.escape_ascii().to_string());
    assert!(
        is_same,
        "the index {index} of {} has {:?} in place of {:?}",
        table.name(),
        found.iter().filter(|entry| !expected.contains(*entry)).map(brief).collect::<Vec<_>>(),
        expected.iter().filter(|entry| !found.contains(entry)).map(brief).collect::<Vec<_>>()
    );
    Ok(())
}
