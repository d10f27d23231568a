//! Entries that an extractor makes: computed, sparse and multi-valued indexes ([`Extraction`]).
//!
//! **Purpose.** An extractor is a function of the application that makes the entries of a row in an index: none, one or
//! several. It is registered by its name when the database is opened; the definition of an index stores the name.
//!
//! **Invariants.**
//! - The entries of a row are in the order of their keys, each key once (test:
//!   `extracted_entries_are_in_order_and_each_is_there_once`).
//! - Without its extractor no row of the table is changed: a change fails before it changes anything (test:
//!   `without_its_extractor_a_table_can_be_read_and_not_changed`).
//! - An extractor runs before the call that needs it has changed anything, so an error or a panic of it fails the call
//!   alone (test: `an_extractor_that_fails_or_panics_fails_the_call`).
//! - What it calls in the database waits for no other call (test: `an_extractor_cannot_wait_in_the_database`).
//!
//! **Reasons.** A deletion and an update find the old entries by the old value, as with all indexes, so an extractor
//! must make the same entries of the same row and value each time. The undo records, and with them visibility, rollback
//! and purge, name the entries that a change has touched and never run an extractor. If an extractor does not make the
//! entries that the index has, the change that finds out is refused: nothing is damaged, rows stay as they are, and a
//! check compares all entries with what the extractor makes.

use core::fmt;
use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::entry::{Entry, EntryForm, payload_limit};
use crate::{
    composite::{CompositeKey, CompositeParts, END},
    error::{Owner, Result, UsageError},
    store::Tree,
    sync::{Arc, CountedInside},
};

/// The bytes of the entries of a row in one index, in pages: a change must have room for the old and the new ones in
/// one group of the log.
const PAGES_OF_ENTRIES: usize = 4;

/// Makes the entries of a row in an index, given the row's key and the first 64 KiB of its value.
pub type Extract = dyn Fn(&[u8], &[u8], &mut ExtractedEntries) -> Result<()> + Send + Sync;

/// The entries of a row in an index that an extractor makes ([`Options::extractor`]).
///
/// [`Options::extractor`]: ../windfall/struct.Options.html#method.extractor
#[derive(Clone, Debug, Default)]
pub struct ExtractedEntries {
    /// The composite key and the payload of each.
    made: Vec<(CompositeKey, Vec<u8>)>,
}

impl ExtractedEntries {
    /// Adds an entry with a key of these parts. An entry that is there already is added once.
    ///
    /// In a unique index, an entry with a part that is NULL may be that of several rows, as in SQL.
    pub fn add(&mut self, parts: impl CompositeParts) {
        self.add_with(parts, &[]);
    }

    /// As [`ExtractedEntries::add`], with bytes that are stored with the key, for covering reads: at most 1,024, with
    /// pages of 4 KiB at most 1,022.
    pub fn add_with(&mut self, parts: impl CompositeParts, payload: &[u8]) {
        self.made.push((CompositeKey::of(parts), payload.to_vec()));
    }
}

/// The extractors that the application has registered, by their names.
#[derive(Clone, Default)]
pub struct Extractors(BTreeMap<Box<str>, Arc<Extract>>);

impl Extractors {
    /// Registers an extractor.
    pub fn insert(&mut self, name: &str, extract: Arc<Extract>) {
        self.0.insert(name.into(), extract);
    }

    /// Returns the extraction of entries by the extractor of this name, which may be missing.
    pub fn of<'a>(&'a self, name: &'a str) -> Extraction<'a> {
        Extraction { name, extract: self.0.get(name).map(|extract| &**extract) }
    }
}

/// Two are equal if they have the same functions.
impl PartialEq for Extractors {
    fn eq(&self, other: &Self) -> bool {
        let is_same = |((name, one), (other_name, other)): ((_, &Arc<Extract>), (_, &Arc<Extract>))| {
            name == other_name && Arc::ptr_eq(one, other)
        };
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(is_same)
    }
}

impl Eq for Extractors {}

impl fmt::Debug for Extractors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// The extraction of the entries of an index.
#[derive(Clone, Copy)]
pub struct Extraction<'a> {
    name: &'a str,
    extract: Option<&'a Extract>,
}

impl fmt::Debug for Extraction<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extraction({})", self.name)
    }
}

impl Extraction<'_> {
    /// Returns the name of the extractor.
    pub fn name(&self) -> &str {
        self.name
    }

    /// Returns the extractor.
    ///
    /// # Errors
    /// [`UsageError::ExtractorMissing`].
    pub fn extractor(&self, owner: impl FnOnce() -> Owner) -> Result<&Extract> {
        self.extract.ok_or_else(|| {
            UsageError::ExtractorMissing { owner: owner(), extractor: self.name.into() }.into()
        })
    }

    /// Returns the entries of a row with a value that begins with these bytes, in the order of their keys.
    ///
    /// # Errors
    /// [`UsageError::ExtractorMissing`], [`UsageError::ExtractorPanicked`], [`UsageError::ExtractedTwice`],
    /// [`UsageError::ExtractedTooMuch`], [`UsageError::PayloadTooLong`]; those of the extractor.
    pub fn entries(
        &self,
        tree: &Tree,
        is_unique: bool,
        row: &[u8],
        value: &[u8],
        owner: impl Fn() -> Owner,
    ) -> Result<Vec<Entry>> {
        let (extract, mut out) = (self.extractor(&owner)?, ExtractedEntries::default());
        // A key latch may be held.
        let counted = CountedInside::new();
        let extracted = catch_unwind(AssertUnwindSafe(|| extract(row, value, &mut out)));
        drop(counted);
        extracted.unwrap_or_else(|panic| {
            let (extractor, what) = (self.name.into(), text_of(&*panic).into());
            Err(UsageError::ExtractorPanicked { owner: owner(), extractor, what }.into())
        })?;
        self.entries_of(out, is_unique, row, (tree.inline_limit(), tree.store().page_size()), owner)
    }

    fn entries_of(
        &self,
        ExtractedEntries { mut made }: ExtractedEntries,
        is_unique: bool,
        row: &[u8],
        (inline_limit, page_size): (usize, usize),
        owner: impl Fn() -> Owner,
    ) -> Result<Vec<Entry>> {
        made.sort_unstable();
        made.dedup();
        if made.windows(2).any(|two| two[0].0 == two[1].0) {
            return Err(UsageError::ExtractedTwice { owner: owner(), extractor: self.name.into() }.into());
        }
        let bytes = made.iter().map(|(key, payload)| key.len() + 1 + row.len() + payload.len()).sum();
        let limit = PAGES_OF_ENTRIES * page_size;
        if bytes > limit {
            let extractor = self.name.into();
            return Err(UsageError::ExtractedTooMuch { owner: owner(), extractor, bytes, limit }.into());
        }
        let limit = payload_limit(inline_limit);
        let entry = |(key, payload): (CompositeKey, Vec<u8>)| {
            if payload.len() > limit {
                let length = payload.len();
                return Err(UsageError::PayloadTooLong { owner: owner(), length, limit }.into());
            }
            let has_null = || CompositeKey::parts(&key).any(|part| part.is_ok_and(|part| part.is_null()));
            let is_unique = is_unique && !has_null();
            let index_bytes = key.len() + 1;
            let key = [&key[..], &[END], row].concat();
            debug_assert!(
                EntryForm::Composite.split(&key, &payload).is_some_and(|parts| parts.row == row),
                "an extracted entry does not come apart where its row's key begins"
            );
            Ok(Entry { key, index_bytes, value: payload, is_unique })
        };
        made.into_iter().map(entry).collect()
    }
}

/// Returns the text of a panic.
fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("a panic without a text")
}

/// Pairs the entries of a row before and after its change, by their keys. Those that stay as they are are left out.
/// Both are in the order of their keys.
pub(super) fn changed(old: Vec<Entry>, new: Vec<Entry>) -> Vec<[Option<Entry>; 2]> {
    debug_assert!(
        [&old, &new].iter().all(|entries| entries.is_sorted_by(|one, two| one.key < two.key)),
        "the entries of a row are not in order"
    );
    let (mut old, mut new) = (old.into_iter().peekable(), new.into_iter().peekable());
    let mut pairs = Vec::new();
    loop {
        let order = match (old.peek(), new.peek()) {
            (Some(old), Some(new)) => old.key.cmp(&new.key),
            (Some(_), None) => core::cmp::Ordering::Less,
            (None, Some(_)) => core::cmp::Ordering::Greater,
            (None, None) => return pairs,
        };
        let pair = [old.next_if(|_| order.is_le()), new.next_if(|_| order.is_ge())];
        if pair[0] != pair[1] {
            pairs.push(pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::composite::CompositePart;

    fn entries(made: &[(u8, &'static str, u8)]) -> Result<Vec<Entry>> {
        let mut out = ExtractedEntries::default();
        for (number, text, payload) in made {
            out.add_with((*number, *text), &vec![7; usize::from(*payload)]);
        }
        let extraction = Extraction { name: "x", extract: None };
        extraction.entries_of(out, true, b"row", (1024, 4096), || Owner::Unknown)
    }

    fn made() -> impl Strategy<Value = Vec<(u8, &'static str, u8)>> {
        let text = prop_oneof![Just(""), Just("a"), Just("a\0"), Just("b")];
        prop::collection::vec((0..3u8, text).prop_map(|(number, text)| (number, text, number)), 0..8)
    }

    proptest! {
        #[test]
        fn extracted_entries_are_in_order_and_each_is_there_once(made in made()) {
            let expected: BTreeSet<_> = made.iter().copied().collect();
            let keys: Vec<_> = entries(&made).unwrap().into_iter().map(|entry| {
                let parts = EntryForm::Composite.split(&entry.key, &entry.value).unwrap();
                assert_eq!((parts.row, parts.index.len()), (&b"row"[..], entry.index_bytes));
                let key = EntryForm::Composite.index_key(parts.index, &mut Vec::new()).to_vec();
                (key, parts.payload.len())
            }).collect();
            let of = |&(number, text, payload): &(u8, &str, u8)| {
                (CompositeKey::of((number, text)).into_bytes(), usize::from(payload))
            };
            prop_assert_eq!(keys, expected.iter().map(of).collect::<Vec<_>>());
        }

        #[test]
        fn the_entries_that_change_are_paired(old in made(), new in made()) {
            let [old, new] = [entries(&old).unwrap(), entries(&new).unwrap()];
            let pairs = changed(old.clone(), new.clone());
            for [before, after] in &pairs {
                prop_assert!(before != after);
                if let [Some(before), Some(after)] = [before, after] {
                    prop_assert_eq!(&before.key, &after.key);
                }
            }
            let stays = |entry: &&Entry| old.contains(entry) && new.contains(entry);
            let staying = old.iter().filter(stays).count();
            for (side, entries) in [old.clone(), new.clone()].into_iter().enumerate() {
                let mut changed = pairs.iter().filter_map(|pair| pair[side].as_ref());
                prop_assert!(changed.clone().all(|entry| entries.contains(entry)));
                prop_assert_eq!(changed.by_ref().count() + staying, entries.len());
            }
        }
    }

    #[test]
    fn entries_that_cannot_be_are_refused() {
        let refused = |made: &[(u8, &'static str, u8)]| entries(made).unwrap_err().to_string();
        assert!(refused(&[(1, "a", 0), (1, "a", 1)]).contains("two payloads"));
        let long: Vec<_> = (0..255).map(|n| (n, "a text", 100)).collect();
        assert!(refused(&long).contains("at most 16384"), "{}", refused(&long));
        let mut out = ExtractedEntries::default();
        out.add_with((1,), &[7; 1023]);
        let extraction = Extraction { name: "x", extract: None };
        let made = extraction.entries_of(out, true, b"row", (1024, 4096), || Owner::Unknown);
        assert!(made.unwrap_err().to_string().contains("1022"));
    }

    #[test]
    fn null_may_repeat_in_a_unique_index() {
        let mut out = ExtractedEntries::default();
        out.add((1, CompositePart::NULL.descending()));
        out.add((1, 2));
        let extraction = Extraction { name: "x", extract: None };
        let made = extraction.entries_of(out, true, b"row", (1024, 4096), || Owner::Unknown).unwrap();
        assert_eq!(made.iter().map(|entry| entry.is_unique).collect::<Vec<_>>(), [true, false]);
    }
}
