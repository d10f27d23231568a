//! The table of sysbench.
//!
//! **Purpose.** Rows as sysbench defines them, encoded so that keys sort and `k` can be indexed.
//!
//! **Invariants.** Numbers are big-endian, so that their bytes sort numerically (test: `numbers_sort_by_their_bytes`).
//! The value of an `sbtest` row is `k` (4 bytes), `c` (120 characters), `pad` (60 characters) (test:
//! `rows_look_like_those_of_sysbench`).

use core::ops::Range;

use crate::Random;

/// The table that the clients work on.
pub const SBTEST: &str = "sbtest1";
/// The bytes of `k` in a value.
pub const K: Range<usize> = 0..4;
/// The bytes of `c` in a value.
pub const C: Range<usize> = 4..124;
/// The length of a value.
pub const VALUE: usize = 184;

/// Returns the key of a row.
pub fn key(id: u32) -> [u8; 4] {
    id.to_be_bytes()
}

/// Returns the number `k` of a row.
pub fn k(value: &[u8]) -> u32 {
    value.first_chunk::<4>().map_or(0, |k| u32::from_be_bytes(*k))
}

/// Changes `k`.
pub fn set_k(value: &mut [u8], k: u32) {
    value[K].copy_from_slice(&k.to_be_bytes());
}

/// Fills a `CHAR` column as sysbench does: groups of eleven digits with dashes between, blanks at the end.
pub fn fill(column: &mut [u8], random: &mut Random) {
    let length = column.len() - 1;
    let (mut bits, mut left) = (0, 0);
    for (at, byte) in column.iter_mut().enumerate() {
        *byte = match at {
            _ if at >= length => b' ',
            _ if at % 12 == 11 => b'-',
            _ => {
                if left == 0 {
                    (bits, left) = (random.bits(), 16);
                }
                let digit = b'0' + (bits % 10) as u8;
                bits /= 10;
                left -= 1;
                digit
            }
        };
    }
}

/// Returns a row as sysbench generates it.
pub fn value(rows: u32, random: &mut Random) -> [u8; VALUE] {
    let mut value = [b' '; VALUE];
    set_k(&mut value, random.below(u64::from(rows)) as u32 + 1);
    let (c, pad) = value[C.start..].split_at_mut(C.len());
    fill(c, random);
    fill(pad, random);
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_look_like_those_of_sysbench() {
        let value = value(1_000, &mut Random::new(1, 0));
        let c = std::str::from_utf8(&value[C]).unwrap();
        let groups: Vec<&str> = c.trim_end().split('-').collect();
        assert_eq!((c.len(), groups.len()), (120, 10));
        assert!(groups.iter().all(|g| g.len() == 11 && g.bytes().all(|b| b.is_ascii_digit())), "{c}");
        let pad = std::str::from_utf8(&value[C.end..]).unwrap();
        assert_eq!((pad.len(), pad.trim_end().split('-').count()), (60, 5));
        assert!((1..=1_000).contains(&k(&value)));
    }

    #[test]
    fn numbers_sort_by_their_bytes() {
        let numbers = [0, 1, 255, 256, 65_535, 65_536, u32::MAX];
        assert!(numbers.map(key).is_sorted());
        let values = numbers.map(|k| {
            let mut value = [b'9'; VALUE];
            set_k(&mut value, k);
            value
        });
        assert!(values.is_sorted_by_key(|value| value[K].to_vec()), "{values:?}");
    }

    #[test]
    fn k_can_be_changed() {
        let mut value = value(10, &mut Random::new(1, 0));
        set_k(&mut value, 77);
        assert_eq!(k(&value), 77);
    }
}
