//! Look-ups by the first bytes of a key.
//!
//! **Purpose.** They find what a cursor finds.
//!
//! **Invariants.** Those of `tree/look_up.rs`.

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{header, put, remove, tree};
use crate::tree::{LookUp, Seek};

#[test]
fn entries_are_found_by_their_first_bytes() {
    let (tree, mut random, mut found) = (tree(4096), StdRng::seed_from_u64(5), LookUp::default());
    assert_eq!(tree.first_with(b"a", &mut found).unwrap(), None, "the tree has no page");
    let mut across = 0;
    for round in 0..400u64 {
        for _ in 0..10 {
            let length = random.random_range(1..6);
            let key: Vec<u8> = (0..length).map(|_| random.random_range(b'a'..b'd')).collect();
            match random.random_range(0..4) {
                0 => drop(remove(&tree, &key)),
                _ => put(&tree, &key, header(round), &vec![round as u8; random.random_range(0..700)]),
            }
        }
        let prefix: Vec<u8> =
            (0..random.random_range(0..5)).map(|_| random.random_range(b'a'..b'd')).collect();
        let mut cursor = tree.cursor();
        let mut more = cursor.seek(Seek::AtLeast(&prefix)).unwrap() && cursor.key().starts_with(&prefix);
        let mut next = tree.first_with(&prefix, &mut found).unwrap();
        while let Some(header) = next {
            assert!(more, "{:?} was found by {prefix:?}", found.key());
            assert_eq!((found.key(), found.value()), (cursor.key(), cursor.value()));
            assert_eq!(Some(header), cursor.header());
            more = cursor.next().unwrap() && cursor.key().starts_with(&prefix);
            next = tree.next_with(&prefix, &mut found).unwrap();
            assert!(found.leaves() >= 2);
        }
        assert!(!more, "{:?} was not found by {prefix:?}", cursor.key());
        let first = tree.first_with(&prefix, &mut found).unwrap();
        assert!(found.leaves() <= 2, "one descent, or two at the end of a leaf");
        across += u32::from(first.is_some() && found.leaves() == 2);
    }
    assert!(across > 0, "no entry was the first one of the next leaf");
}
