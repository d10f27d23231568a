//! Mutations of inputs.
//!
//! **Purpose.** Mutation without coverage guidance: it finds known bugs again, and similar ones. The checksum of a
//! mutant is wrong; the targets themselves correct it.
//!
//! **Invariants.** The seed determines every mutant (test: `a_mutator_changes_nearly_all_and_repeats_itself`).

/// The maximum length of a mutant.
const LONGEST: usize = 8192;

/// Boundary values, at which counts, lengths and offsets tend to go wrong.
const EDGES: [u64; 12] = [0, 1, 7, 8, 0x7f, 0x80, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX];

/// A generator of mutants.
#[derive(Clone, Debug)]
pub struct Mutator {
    state: u64,
}

impl Mutator {
    /// Returns a mutator that takes all random choices from this seed.
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// `SplitMix64` (Steele, Lea, Flood 2014).
    fn draw(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, n: usize) -> usize {
        (self.draw() % n.max(1) as u64) as usize
    }

    /// Returns a range within `length` bytes, more often a short one.
    fn range(&mut self, length: usize) -> core::ops::Range<usize> {
        let from = self.below(length + 1);
        let most = if self.below(4) == 0 { length } else { 16 };
        from..(from + self.below(most + 1)).min(length)
    }

    /// Returns a mutant of one input, with parts of another.
    pub fn mutant(&mut self, of: &[u8], other: &[u8]) -> Vec<u8> {
        let mut bytes = of.to_vec();
        for _ in 0..=self.below(4) {
            self.change(&mut bytes, other);
        }
        bytes.truncate(LONGEST);
        bytes
    }

    fn change(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len());
        match self.below(9) {
            0 if !bytes.is_empty() => bytes[at] ^= 1 << self.below(8),
            1 if !bytes.is_empty() => bytes[at] = self.draw() as u8,
            // A boundary value, or one less, as a number of 1, 2, 4 or 8 bytes.
            2 | 3 => {
                let value = EDGES[self.below(EDGES.len())].wrapping_sub(self.draw() % 2);
                let width = (1 << self.below(4)).min(bytes.len() - at);
                bytes[at..at + width].copy_from_slice(&value.to_le_bytes()[..width]);
            }
            4 => {
                let range = self.range(bytes.len());
                bytes.drain(range);
            }
            5 => {
                let copy = bytes[self.range(bytes.len())].to_vec();
                bytes.splice(at..at, copy);
            }
            6 => {
                let from = self.range(other.len());
                let over = at..(at + from.len() * self.below(2)).min(bytes.len());
                bytes.splice(over, other[from].iter().copied());
            }
            7 => {
                let new: Vec<u8> = (0..=self.below(6)).map(|_| self.draw() as u8).collect();
                bytes.splice(at..at, new);
            }
            _ => {
                let length = self.below(bytes.len() + 1);
                bytes.truncate(length.max(bytes.len().saturating_sub(64)));
            }
        }
    }
}
