//! Keys in adverse orders: compared with a model, and with bounds for the number of pages and levels of the tree.

use std::collections::BTreeMap;

use windfall::{Database, FlushLog, Options, Table};

use crate::{Case, assert_sound, guard::mix, in_a_process_of_its_own, seed, sized};

pub(crate) const ORDERS: &str = "keys::nasty_orders_keep_the_tree_sound_and_small";
pub(crate) const LONG_KEYS: &str = "keys::long_keys_that_share_all_but_their_ends";

const PAGE: usize = 4096;

fn open(case: &Case) -> Database {
    let options = Options::default()
        .page_size(PAGE)
        .buffer_pool_size(4 << 20)
        .log_size(16 << 20)
        .log_buffer_size(1 << 20)
        .flush_log_at_trx_commit(FlushLog::Lazy);
    Database::open(&case.folder, options).unwrap()
}

/// Returns a pseudo-random order of `n` numbers.
fn shuffled(n: u64, with: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..n).collect();
    numbers.sort_by_key(|number| mix(&[with, *number]));
    numbers
}

/// Returns the order that alternates between both ends, towards the middle: the next number is between the last two.
fn both_ends(n: u64) -> Vec<u64> {
    (0..n).map(|at| if at % 2 == 0 { at / 2 } else { n - 1 - at / 2 }).collect()
}

/// Returns the order that alternates from the middle towards both ends.
fn inwards(n: u64) -> Vec<u64> {
    both_ends(n).into_iter().rev().collect()
}

fn bit_reversed(n: u64) -> Vec<u64> {
    let bits = n.next_power_of_two().trailing_zeros();
    (0..1 << bits).map(|at: u64| at.reverse_bits() >> (64 - bits)).filter(|at| *at < n).collect()
}

/// Returns every `step`-th number, then those next to them, and so on. A removal in this order leaves all nodes that it
/// has passed equally full.
fn combed(n: u64, step: u64) -> Vec<u64> {
    (0..step).flat_map(|from| (from..n).step_by(step as usize)).collect()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn assert_same(table: &Table, model: &Model, what: &str) {
    let rows = model.iter().map(|(key, value)| (key.clone(), value.clone()));
    assert!(table.rows().unwrap().map(Result::unwrap).eq(rows.clone()), "{what}, forwards");
    assert!(table.rows().unwrap().rev().map(Result::unwrap).eq(rows.rev()), "{what}, backwards");
}

/// Checks everything, and the size of the tree of rows. No two adjacent nodes are small, so there are at most four
/// pages per page of bytes, and one per level. Every node above the leaves has two or more children, except along the
/// edges.
fn assert_small(db: &Database, model: &Model, what: &str) -> (u64, u32) {
    let report = db.check().unwrap();
    assert_eq!(report.findings, Vec::<String>::new(), "{what}");
    let tree = report.trees.iter().find(|tree| tree.table == "t").unwrap();
    assert_eq!(tree.entries, model.len() as u64, "{what}");
    assert_eq!(tree.deleted, 0, "{what}: entries that no view needs are left");
    // An entry with its slot, its lengths and its whole header.
    let bytes: usize = model.iter().map(|(key, value)| 4 + 5 + 14 + key.len() + value.len()).sum();
    let most = 4 * bytes.div_ceil(PAGE) as u64 + u64::from(tree.height);
    assert!(tree.pages <= most, "{what}: {} pages for {bytes} bytes, at most {most}", tree.pages);
    let levels = (tree.pages + 1).ilog2() + 1;
    assert!(
        tree.height <= levels,
        "{what}: {} levels over {} pages, at most {levels}",
        tree.height,
        tree.pages
    );
    (tree.pages, tree.height)
}

/// Puts rows in one order and removes them in another. Returns the number of pages and levels with all rows.
fn run(
    case: &Case,
    what: &str,
    key: &dyn Fn(u64) -> Vec<u8>,
    length: &dyn Fn(u64) -> usize,
    orders: [Vec<u64>; 2],
) -> (u64, u32) {
    let db = open(case);
    let table = db.create_table("t", windfall::TableOptions::default()).unwrap();
    let mut model = Model::new();
    let [put, gone] = orders;
    let half = put.len() / 2;
    for (at, n) in put.iter().enumerate() {
        let (key, value) = (key(*n), vec![*n as u8; length(*n)]);
        table.insert(&key, &value).unwrap();
        assert!(model.insert(key, value).is_none(), "{what}: a key comes twice");
        if at == half {
            assert_same(&table, &model, what);
        }
    }
    assert_same(&table, &model, what);
    let size = assert_small(&db, &model, what);
    for (at, n) in gone.iter().enumerate() {
        let key = key(*n);
        assert!(table.delete(&key).unwrap(), "{what}: row {n} is not there");
        model.remove(&key);
        // With half of the rows left, and with few left: the remaining nodes could not be merged.
        if at == half || at == gone.len() - gone.len() / 16 {
            assert_same(&table, &model, what);
            assert_small(&db, &model, &format!("{what}, {} rows left", model.len()));
        }
    }
    assert_eq!(assert_small(&db, &model, &format!("{what}, empty")), (1, 1), "{what}, empty");
    db.drop_table("t").unwrap();
    db.close().unwrap();
    size
}

#[test]
fn nasty_orders_keep_the_tree_sound_and_small() {
    in_a_process_of_its_own(ORDERS, |case| {
        let n = sized(4_000, 60_000);
        let key = |n: u64| n.to_be_bytes().to_vec();
        let ascending: Vec<u64> = (0..n).collect();
        let descending: Vec<u64> = (0..n).rev().collect();
        let orders = [
            ("ascending", ascending.clone()),
            ("descending", descending.clone()),
            ("bit-reversed", bit_reversed(n)),
            ("alternating ends", both_ends(n)),
            ("always between the last two", inwards(n)),
            ("combed", combed(n, 40)),
            ("shuffled", shuffled(n, seed())),
        ];
        for (at, (name, order)) in orders.iter().enumerate() {
            // The rows are inserted in one order and deleted in another.
            let (_, gone) = &orders[(at + 3) % orders.len()];
            let (pages, height) =
                case.part(name, || run(case, name, &key, &|_| 60, [order.clone(), gone.clone()]));
            println!("    {name}: {pages} pages, {height} levels");
            // Rows take 69 to 75 bytes with their slots, and 6 more until they are frozen: a page holds up to 58.
            // Ascending inserts fill pages.
            let least = n / 59;
            let most = if *name == "ascending" { n / 50 } else { least * 24 / 10 };
            assert!((least..=most).contains(&pages), "{name}: {pages} pages, from {least} to {most}");
            assert!(height <= 3, "{name}: {height} levels");
        }
        // Entries of the largest size that a node keeps, next to the smallest: two of the largest fill a node, and a
        // split never finds its middle.
        let lengths = |n: u64| if mix(&[n, 5]).is_multiple_of(3) { PAGE / 4 } else { 0 };
        for (name, order) in &orders {
            case.part("large beside small", || {
                run(case, name, &key, &lengths, [order.clone(), combed(n, 7)])
            });
        }
    });
}

/// Returns a long key with distinguishing bytes at both ends. Neighbours share a prefix, nodes do not.
fn long_key(n: u64, limit: usize, group: u64) -> Vec<u8> {
    let mut key = vec![0x55; limit];
    key[..8].copy_from_slice(&mix(&[n / group]).to_be_bytes());
    key[limit - 8..].copy_from_slice(&(n % group).to_be_bytes());
    key
}

#[test]
fn long_keys_that_share_all_but_their_ends() {
    in_a_process_of_its_own(LONG_KEYS, |case| {
        let n = sized(1_200, 20_000);
        let limit = PAGE * 3 / 16;
        let all: Vec<u64> = (0..n).collect();
        let orders = [all.clone(), shuffled(n, seed()), bit_reversed(n)];
        // The separators have the full length: nodes have few children, and the tree is as high as possible.
        for group in [2, 3, 5, n] {
            for (at, order) in orders.iter().enumerate() {
                let what = format!("groups of {group}, order {at}");
                let gone = orders[(at + 1) % orders.len()].clone();
                let (pages, height) = case.part(&what, || {
                    run(
                        case,
                        &what,
                        &|n| long_key(n, limit, group),
                        &|n| n as usize % 5 * 250,
                        [order.clone(), gone],
                    )
                });
                println!("    {what}: {pages} pages, {height} levels");
            }
        }
        // Each key is a prefix of the next one, of zeros or of ones, and some keys are in between.
        let limit = limit as u64;
        for (name, key) in [
            ("zeros", &(|n: u64| vec![0u8; n as usize + 1]) as &dyn Fn(u64) -> Vec<u8>),
            ("ones", &|n| vec![0xffu8; n as usize + 1]),
            ("zeros that end with a one", &|n| [vec![0u8; n as usize], vec![0xff]].concat()),
            ("ones that end with a zero", &|n| [vec![0xffu8; n as usize], vec![0]].concat()),
        ] {
            let orders = [shuffled(limit, seed()), both_ends(limit), inwards(limit), (0..limit).collect()];
            for (at, order) in orders.iter().enumerate() {
                let gone = orders[(at + 1) % orders.len()].clone();
                case.part(name, || run(case, name, key, &|n| n as usize % 3 * 500, [order.clone(), gone]));
            }
        }
        assert_sound(&open(case), "at the end");
    });
}
