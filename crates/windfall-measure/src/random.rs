//! Reproducible random numbers.
//!
//! **Purpose.** Keys, rows and arrival times. The generator is small and fast, so that clients measure the engine.
//!
//! **Invariants.** The same seed and stream give the same numbers on every machine (test:
//! `a_seed_repeats_its_numbers`).

/// A generator of the splitmix64 family.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator for a stream; streams of one seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut mixer = Self(seed);
        let start = mixer.bits() ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93);
        Self(start)
    }

    /// Returns the next 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fills a slice of bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for eight in bytes.chunks_mut(8) {
            eight.copy_from_slice(&self.bits().to_le_bytes()[..eight.len()]);
        }
    }

    /// Returns a number below `end`, which must not be 0.
    #[inline]
    pub fn below(&mut self, end: u64) -> u64 {
        debug_assert!(end > 0, "no number is below zero");
        ((u128::from(self.bits()) * u128::from(end)) >> 64) as u64
    }

    /// Puts a slice into a random order.
    pub fn shuffle<T>(&mut self, order: &mut [T]) {
        for n in (1..order.len()).rev() {
            order.swap(n, self.below(n as u64 + 1) as usize);
        }
    }

    /// Returns a number in [0, 1).
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_keeps_all_numbers() {
        let mut numbers: Vec<u32> = (0..1_000).collect();
        Random::new(1, 1).shuffle(&mut numbers);
        assert!(!numbers.is_sorted());
        numbers.sort_unstable();
        assert!(numbers.into_iter().eq(0..1_000));
    }

    #[test]
    fn a_seed_repeats_its_numbers() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            [random.bits(), random.bits()]
        };
        assert_eq!(draw(1, 0), draw(1, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(draw(1, 0), draw(2, 0));
    }

    #[test]
    fn numbers_stay_in_their_range() {
        let mut random = Random::new(7, 7);
        let mut seen = [0; 10];
        for _ in 0..10_000 {
            seen[random.below(10) as usize] += 1;
            assert!((0.0..1.0).contains(&random.unit()));
        }
        assert!(seen.iter().all(|n| (800..1_200).contains(n)), "{seen:?}");
    }
}
