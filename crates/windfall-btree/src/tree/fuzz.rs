//! Fuzz targets of trees and of overflow chains.
//!
//! **Purpose.** [`tree`] changes bytes of the pages of a tree and reads it in every way; [`overflow`] treats arbitrary
//! bytes as a reference to a chain, and as a page of one.
//!
//! **Invariants.** Every read ends, with an answer or an error, whatever the pages hold (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`). A tree that passes its check returns each entry
//! once, in order, in both directions and by its key, and can be changed (checked by `tree/fuzz.rs::tree`). The changes
//! of any other tree end, too, if its pages pass the header check that a pool makes when it reads them (test:
//! `no_input_that_is_known_and_no_mutant_of_one_breaks_a_target`).

use super::{
    Room, Seek, Tree,
    fields::{Chains, StoredField, StoredFields, encode_fields},
    hash::{HashBudget, TreeHash},
    overflow::{Link, OverflowRef, capacity},
    store::{MiniTransaction, PageStore},
    testpool::TestPool,
};
use crate::{
    error::Result,
    fuzz_input::Input,
    ids::{PageId, PageNo, SpaceId, TrxId, UndoPos},
    page::{
        EntryHeader, Page, check_header,
        fuzz::{SIZE, words},
    },
    sync::{Arc, OnceLock},
};

/// Entries of the tree: three levels of small pages.
const ENTRIES: u64 = 700;
/// The maximum of entries or bytes that a read of this tree may return.
const READ_MAX: usize = 20_000;

fn put(tree: &Tree<TestPool>, key: &[u8], header: EntryHeader, value: &[u8]) -> Result<()> {
    let mut mtr = tree.store().begin()?;
    tree.seek_for_change(&mut mtr, key, Room::Value(value.len()))?.insert(&mut mtr, header, value);
    mtr.commit().map(drop)
}

fn key_of(n: u64) -> Vec<u8> {
    // Long keys: inner nodes with few children, so that there are several levels.
    [&[b'k'; 90][..], &(n * 3).to_be_bytes(), &[b'-'; 100]].concat()
}

fn tree_on(pool: TestPool) -> Tree<TestPool> {
    Tree::new(Arc::new(pool), SpaceId(77), TreeHash::new(Arc::new(HashBudget::new(1 << 20))))
}

/// Creates a tree with a long value.
fn made() -> Result<Tree<TestPool>> {
    let tree = tree_on(TestPool::new(SIZE, false));
    for n in 0..ENTRIES {
        put(
            &tree,
            &key_of(n),
            EntryHeader::new(TrxId(n), UndoPos(n << 7)),
            &[n as u8; 40][..n as usize % 40],
        )?;
    }
    let mut mtr = tree.store().begin()?;
    let mut chain = tree.begin_overflow(&mut mtr, 4711)?;
    mtr.commit()?;
    chain.write(&[9; 10_000])?;
    let (reference, _) = chain.finish()?;
    let header = |flags| EntryHeader { trx: TrxId(1), flags, undo: UndoPos(8) };
    put(&tree, b"long", header(EntryHeader::OVERFLOW), &reference.to_bytes())?;
    let fields = encode_fields(&[StoredField::Inline(b"short"), StoredField::Chain(reference)]);
    put(&tree, b"fields", header(EntryHeader::FIELDS), &fields)?;
    Ok(tree)
}

/// Returns the keys that a cursor returns; `None` if it found damage. The walk must end.
fn walk(tree: &Tree<TestPool>, up: bool) -> Option<Vec<Vec<u8>>> {
    let mut keys = Vec::new();
    let mut cursor = tree.cursor();
    while if up { cursor.next() } else { cursor.prev() }.ok()? {
        keys.push(cursor.key().to_vec());
        assert!(keys.len() <= READ_MAX, "a cursor goes round in circles");
    }
    if !up {
        keys.reverse();
    }
    Some(keys)
}

/// Reads in every way; the content may be damaged.
fn look(tree: &Tree<TestPool>, key: &[u8]) {
    let mut value = Vec::new();
    for seek in [Seek::AtLeast(key), Seek::Above(key), Seek::AtMost(key), Seek::Below(key)] {
        let _ = tree.cursor().seek(seek);
    }
    let chains = match tree.get_into(key, &mut value) {
        Ok(Some(header)) => Chains::of(header, &value),
        _ => None,
    };
    for reference in chains.into_iter().flatten() {
        let mut long = Vec::new();
        let read = tree.read_overflow(reference).read_to_end(&mut long);
        assert!(long.len() <= READ_MAX, "a chain goes round in circles");
        assert!(read.is_err() || long.len() as u64 == reference.length);
    }
    let _ = tree.height();
}

/// Inserts an entry, or removes the one that is there and merges nodes.
fn toggle(tree: &Tree<TestPool>, key: &[u8]) -> Result<()> {
    let value = [5; 600];
    let mut mtr = tree.store().begin()?;
    let mut place = tree.seek_for_change(&mut mtr, key, Room::Value(value.len()))?;
    if place.header().is_none() {
        place.insert(&mut mtr, EntryHeader::new(TrxId(7), UndoPos(9)), &value);
        return mtr.commit().map(drop);
    }
    let merges = place.remove(&mut mtr);
    mtr.commit()?;
    if merges { tree.maintain(key) } else { Ok(()) }
}

/// Changes the tree everywhere, and empties some leaves. Returns whether all changes succeeded.
fn change(tree: &Tree<TestPool>, from: u64) -> bool {
    let new = |n| [&key_of(n)[..], b"."].concat();
    let spread = (0..ENTRIES).step_by(20).map(new);
    let dense = (from..from + 80).map(key_of);
    // A change that fails does not affect the others.
    spread.chain(dense).filter(|key| toggle(tree, key).is_err()).count() == 0
}

/// Tests a tree with some changed bytes.
pub fn tree(data: &[u8]) {
    static MADE: OnceLock<Result<Tree<TestPool>>> = OnceLock::new();
    let Ok(made) = MADE.get_or_init(made) else { panic!("a tree cannot be made") };
    let tree = tree_on(made.store().copy());
    let pages: Vec<_> = tree.store().allocated(*tree.space()).iter().collect();
    let mut input = Input(data);
    while !input.is_empty() {
        let page = pages[usize::from(input.u8()) % pages.len()];
        let at = usize::from(input.u16()) % SIZE;
        let len = usize::from(input.u8()) % 48;
        let bytes = input.take(len);
        let bytes = &bytes[..bytes.len().min(SIZE - at)];
        tree.store().damage(PageId { space: *tree.space(), page }, |page| page.write(at, bytes));
    }
    let (up, down) = (walk(&tree, true), walk(&tree, false));
    for key in [&key_of(0)[..], &key_of(ENTRIES / 2), b"long", b"", &[0xff; 9], data] {
        look(&tree, key);
    }
    let report = tree.check();
    if let Ok(report) = &report {
        let Some(keys) = up else { panic!("the check finds nothing, and a cursor does") };
        assert_eq!(keys.len() as u64, report.entries);
        assert!(keys.is_sorted_by(|a, b| a < b), "keys out of order, and the check finds nothing");
        assert!(down.is_some_and(|down| down == keys), "a cursor finds other keys backwards");
        for key in keys.iter().step_by(7) {
            assert!(tree.get_into(key, &mut Vec::new()).is_ok_and(|found| found.is_some()));
        }
    }
    // A pool refuses pages that fail this check when it reads them.
    let mut is_read_in = true;
    for page in pages {
        tree.store().damage(PageId { space: *tree.space(), page }, |page| {
            is_read_in &= check_header(page).is_ok();
        });
    }
    if is_read_in {
        let all = change(&tree, data.first().map_or(0, |n| u64::from(*n) * 3));
        assert!(report.is_err() || all && tree.check().is_ok(), "a sound tree is not sound after changes");
    }
}

/// Returns seeds: nothing, and bytes of the root, of inner nodes, of leaves, of the chain.
pub fn tree_seeds() -> Vec<Vec<u8>> {
    let patch = |page: u8, at: u16, bytes: &[u8]| {
        [&[page][..], &at.to_le_bytes(), &[bytes.len() as u8], bytes].concat()
    };
    let mut seeds = vec![vec![], [patch(1, 36, &[0, 0]), patch(2, 38, &[3, 0])].concat()];
    for page in [0, 1, 2, 9, 50, 51, 52, 53] {
        seeds.push(patch(page, 28, &[3, 0, 9, 0, 0, 0]));
        seeds.push(patch(page, 40, b"k"));
        seeds.push(patch(page, 4, &[3, 1]));
    }
    seeds
}

/// Tests a reference to a chain, a list of fields, and a page of a chain.
pub fn overflow(data: &[u8]) {
    if let Some(fields) = StoredFields::parse(data) {
        assert_eq!(encode_fields(&fields.collect::<Vec<_>>()), data);
    }
    if let Some(reference) = OverflowRef::from_bytes(data) {
        assert_eq!(reference.to_bytes(), data);
    }
    let mut input = Input(data);
    let (stamp, place) = (input.u64(), u32::from(input.u8()));
    let words = words(input.0);
    let page = Page::new(&words);
    let Some(link) = Link::of(page, stamp, place) else { return };
    assert!(link.len <= capacity(SIZE) && Link::place_of(page) == place);
    assert_eq!(Link::of(page, stamp ^ 1, place).map(|link| link.next), None::<PageNo>);
}

/// Returns references and pages of chains.
pub fn overflow_seeds() -> Vec<Vec<u8>> {
    let mut page = vec![0; 60];
    page[4] = 5;
    page[28..32].copy_from_slice(&7u32.to_le_bytes());
    page[32..40].copy_from_slice(&4711u64.to_le_bytes());
    page[40] = 2;
    page[44] = 12;
    let reference = OverflowRef { length: 10_000, stamp: 4711, first: PageNo(12) };
    let fields = encode_fields(&[StoredField::Chain(reference), StoredField::Inline(b"short")]);
    vec![reference.to_bytes().to_vec(), fields, [&4711u64.to_le_bytes()[..], &[2], &page].concat()]
}
