//! Keys in orders that are made to be nasty: against a model, and with bounds for the pages and levels of the tree.

use std::collections::BTreeMap;

use windfall::{Database, FlushLog, Options, Table};

use crate::{Case, assert_sound, guard::mix, in_a_process_of_its_own, seed, sized};

pub const ORDERS: &str = "keys::nasty_orders_keep_the_tree_sound_and_small";
pub const LONG_KEYS: &str = "keys::long_keys_that_share_all_but_their_ends";

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

/// Some order of so many numbers that is as good as random.
fn shuffled(n: u64, with: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..n).collect();
    numbers.sort_by_key(|number| mix(&[with, *number]));
    numbers
}

/// From both ends towards the middle.
fn both_ends(n: u64) -> Vec<u64> {
    (0..n).map(|at| if at % 2 == 0 { at / 2 } else { n - 1 - at / 2 }).collect()
}

/// From the middle towards both ends: the next one always falls between the two that came last.
fn inwards(n: u64) -> Vec<u64> {
    both_ends(n).into_iter().rev().collect()
}

fn bit_reversed(n: u64) -> Vec<u64> {
    let bits = n.next_power_of_two().trailing_zeros();
    (0..1 << bits).map(|at: u64| at.reverse_bits() >> (64 - bits)).filter(|at| *at < n).collect()
}

/// Every `step`-th: a removal in this order leaves the nodes it has passed just so full, one as the other.
fn combed(n: u64, step: u64) -> Vec<u64> {
    (0..step).flat_map(|from| (from..n).step_by(step as usize)).collect()
}

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

fn assert_same(table: &Table, model: &Model, what: &str) {
    let rows = model.iter().map(|(key, value)| (key.clone(), value.clone()));
    assert!(table.rows().unwrap().map(Result::unwrap).eq(rows.clone()), "{what}, forwards");
    assert!(table.rows().unwrap().rev().map(Result::unwrap).eq(rows.rev()), "{what}, backwards");
}

/// Checks everything, and that the tree of the rows is not larger than it may be: no two neighbours are small, so there
/// are at most four pages for the bytes of one and one for each level; and every node above the leaves has two children
/// or more, but on the way along the edges.
fn assert_small(db: &Database, model: &Model, what: &str) -> (u64, u32) {
    let report = db.check().unwrap();
    assert_eq!(report.findings, Vec::<String>::new(), "{what}");
    let tree = report.trees.iter().find(|tree| tree.table == "t").unwrap();
    assert_eq!(tree.entries, model.len() as u64, "{what}");
    assert_eq!(tree.deleted, 0, "{what}: entries that nobody needs are left");
    // An entry with its slot and the head of its record, in whole words.
    let bytes: usize =
        model.iter().map(|(key, value)| (8 + 18 + key.len() + value.len()).next_multiple_of(8)).sum();
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

/// Puts rows in one order and removes them in another. Gives how many pages and levels there were when they were all
/// there.
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
        // Half of it, and next to all of it: what is left are nodes that could not be merged.
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
            // Each is put by one order and goes by the next.
            let (_, gone) = &orders[(at + 3) % orders.len()];
            let (pages, height) =
                case.part(name, || run(case, name, &key, &|_| 60, [order.clone(), gone.clone()]));
            println!("    {name}: {pages} pages, {height} levels");
            // Rows of 96 bytes with their slots: 40 and more in a page. In order they fill it.
            let least = n / 42;
            let most = if *name == "ascending" { least * 11 / 10 } else { least * 22 / 10 };
            assert!((least..=most).contains(&pages), "{name}: {pages} pages, from {least} to {most}");
            assert!(height <= 3, "{name}: {height} levels");
        }
        // Entries of the largest size that a node keeps, beside the smallest: two of the former fill a node, and a
        // split never finds its middle.
        let lengths = |n: u64| if mix(&[n, 5]).is_multiple_of(3) { PAGE / 4 } else { 0 };
        for (name, order) in &orders {
            case.part("large beside small", || {
                run(case, name, &key, &lengths, [order.clone(), combed(n, 7)])
            });
        }
    });
}

/// Bytes of a long key: what tells it apart stands at both ends. Neighbours share the beginning, nodes do not.
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
        // Separators of the full length: nodes have few children, and the tree is as high as it can be.
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
        // Each key is the beginning of the next one, of zeros or of ones; and some in between.
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
