//! The content of a simulated file, and what is left of it after a crash.
//!
//! **Purpose.** Between two syncs a disk may keep any of the writes, whole or in part, and the file's length
//! independently of its bytes. A file therefore has two contents: the current one, which readers see, and the durable
//! one.
//!
//! **Invariants.** Only syncs change the durable content, except that a test can damage both contents
//! (`Inode::corrupt`) (test: `unsynced_writes_are_visible_but_not_durable`). After a crash the file holds the durable
//! content with some of the changes since the last sync applied (test:
//! `synced_bytes_survive_a_crash_and_no_other_bytes_appear`). The writes between two other changes arrive in any order
//! (test: `an_older_write_may_lie_over_a_younger_one`), and pass no other change (checked by
//! `disk/content.rs::survive`). Of two writes to the same sector either may be the last to arrive, but a sector never
//! holds bytes that were not written there (test: `synced_bytes_survive_a_crash_and_no_other_bytes_appear`).

use std::collections::{BTreeMap, BTreeSet};

use windfall_base::{disk::BLOCK_BYTES, env::Env as _, sync::Arc};

use super::Survive;
use crate::SimulatedEnv;

/// The smallest unit that a device writes atomically, in bytes.
pub(super) const SECTOR: usize = 512;

/// The bytes of a file, in blocks that copies share. Blocks that were never written take no memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Content {
    blocks: BTreeMap<u64, Arc<[u8; BLOCK_BYTES]>>,
    length: u64,
}

fn blocks_of(offset: u64, length: u64) -> core::ops::Range<u64> {
    offset / BLOCK_BYTES as u64
        ..(offset + length).div_ceil(BLOCK_BYTES as u64).max(offset / BLOCK_BYTES as u64)
}

impl Content {
    pub(super) fn length(&self) -> u64 {
        self.length
    }

    /// Space allocated on the device, in bytes.
    pub(super) fn allocated(&self) -> u64 {
        (self.blocks.len() * BLOCK_BYTES) as u64
    }

    /// Additional space on the device that this range would take, in bytes.
    pub(super) fn growth(&self, offset: u64, length: u64) -> u64 {
        let range = blocks_of(offset, length);
        (range.end - range.start - self.blocks.range(range).count() as u64) * BLOCK_BYTES as u64
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> usize {
        let n = self.length.saturating_sub(offset).min(out.len() as u64) as usize;
        let mut at = 0;
        while at < n {
            let (block, within) = place(offset + at as u64);
            let step = (BLOCK_BYTES - within).min(n - at);
            match self.blocks.get(&block) {
                Some(bytes) => out[at..at + step].copy_from_slice(&bytes[within..within + step]),
                None => out[at..at + step].fill(0),
            }
            at += step;
        }
        n
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut at = 0;
        while at < bytes.len() {
            let (block, within) = place(offset + at as u64);
            let step = (BLOCK_BYTES - within).min(bytes.len() - at);
            let to = self.blocks.entry(block).or_insert_with(|| Arc::new([0; BLOCK_BYTES]));
            Arc::make_mut(to)[within..within + step].copy_from_slice(&bytes[at..at + step]);
            at += step;
        }
        if !bytes.is_empty() {
            self.extend_to(offset + bytes.len() as u64);
        }
    }

    pub(super) fn truncate(&mut self, length: u64) {
        if length < self.length {
            self.blocks.split_off(&length.div_ceil(BLOCK_BYTES as u64));
            let (block, within) = place(length);
            if let Some(tail) = self.blocks.get_mut(&block) {
                Arc::make_mut(tail)[within..].fill(0);
            }
        }
        self.length = length;
    }

    pub(super) fn reserve(&mut self, offset: u64, length: u64) {
        let zeros = Arc::new([0; BLOCK_BYTES]);
        for block in blocks_of(offset, length) {
            self.blocks.entry(block).or_insert_with(|| zeros.clone());
        }
        self.extend_to(offset + length);
    }

    /// Offsets of the blocks that are not all zero.
    pub(super) fn filled(&self) -> impl Iterator<Item = u64> {
        let filled = self.blocks.iter().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0));
        filled.map(|(block, _)| block * BLOCK_BYTES as u64)
    }

    pub(super) fn corrupt(&mut self, offset: u64, mask: u8) {
        let (block, within) = place(offset);
        if let Some(bytes) = self.blocks.get_mut(&block) {
            Arc::make_mut(bytes)[within] ^= mask;
        }
    }

    fn extend_to(&mut self, length: u64) {
        self.length = self.length.max(length);
    }

    fn copy_blocks(&mut self, from: &Self, range: core::ops::Range<u64>) {
        for block in range {
            match from.blocks.get(&block) {
                Some(bytes) => drop(self.blocks.insert(block, bytes.clone())),
                None => drop(self.blocks.remove(&block)),
            }
        }
    }
}

fn place(offset: u64) -> (u64, usize) {
    (offset / BLOCK_BYTES as u64, (offset % BLOCK_BYTES as u64) as usize)
}

/// A change of a file's content.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { offset: u64, bytes: Arc<[u8]> },
    Truncate(u64),
    Reserve { offset: u64, length: u64 },
}

impl Change {
    fn apply(&self, content: &mut Content) {
        match self {
            Self::Write { offset, bytes } => content.write(*offset, bytes),
            Self::Truncate(length) => content.truncate(*length),
            Self::Reserve { offset, length } => content.reserve(*offset, *length),
        }
    }
}

/// A file without its name.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    /// The content that readers see.
    pub current: Content,
    durable: Content,
    /// Changes since the last sync.
    changes: Vec<Change>,
    /// Requests that were submitted on this file and have not run yet.
    pub in_progress: u32,
}

impl Inode {
    /// Creates a file that survived a crash with this content.
    pub(super) fn survivor(content: Content) -> Self {
        Self { current: content.clone(), durable: content, ..Self::default() }
    }

    pub(super) fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.changes.push(change);
    }

    /// Writes bytes that readers see but that never become durable.
    pub(super) fn show(&mut self, offset: u64, bytes: &[u8]) {
        self.current.write(offset, bytes);
    }

    /// Makes content and length durable.
    pub(super) fn sync(&mut self) {
        for change in core::mem::take(&mut self.changes) {
            self.keep(&change);
        }
        // The durable content is too long if an earlier failed sync lost a truncation, and too short if it lost a
        // write.
        self.durable.truncate(self.current.length);
    }

    /// Simulates a failed sync: some changes become durable, the others are dropped, and the next sync does not cover
    /// them. Readers still see them, until the crash.
    pub(super) fn sync_fails(&mut self, chance: &SimulatedEnv) {
        for change in core::mem::take(&mut self.changes) {
            if chance.random().is_multiple_of(2) {
                self.keep(&change);
            }
        }
    }

    fn keep(&mut self, change: &Change) {
        match change {
            Change::Write { offset, bytes } => {
                self.durable.copy_blocks(&self.current, blocks_of(*offset, bytes.len() as u64));
                let end = (offset + bytes.len() as u64).min(self.current.length);
                self.durable.extend_to(end);
            }
            Change::Truncate(length) => self.durable.truncate(*length),
            Change::Reserve { .. } => change.apply(&mut self.durable),
        }
    }

    /// Damages a byte in place.
    pub(super) fn corrupt(&mut self, offset: u64, mask: u8) {
        self.current.corrupt(offset, mask);
        self.durable.corrupt(offset, mask);
    }

    /// Returns the content after a crash. Blocks that are unreadable because their write was cut off are added to
    /// `unreadable`; `None` means that no block becomes unreadable.
    pub(super) fn survive(
        &self,
        how: Survive,
        chance: &SimulatedEnv,
        mut unreadable: Option<&mut BTreeSet<u64>>,
    ) -> Content {
        match how {
            Survive::Nothing => self.durable.clone(),
            // Not the current content: readers have also seen changes that a failed sync has dropped.
            Survive::Everything => {
                let mut left = self.durable.clone();
                self.changes.iter().for_each(|change| change.apply(&mut left));
                left
            }
            Survive::Random(_) => {
                let mut left = self.durable.clone();
                // From none to all, so that both extremes occur as well.
                let luck = chance.random() % 5;
                let mut changes: Vec<&Change> = self.changes.iter().collect();
                if chance.random().is_multiple_of(2) {
                    let is_write = |change: &&Change| matches!(change, Change::Write { .. });
                    for writes in changes.chunk_by_mut(|a, b| is_write(a) && is_write(b)) {
                        let is_free = writes.len() == 1 || writes.iter().all(is_write);
                        assert!(is_free, "a write passes another change");
                        shuffle(writes, chance);
                    }
                }
                for change in changes {
                    if chance.random() % 4 < luck {
                        arrive(change, &mut left, chance, unreadable.as_deref_mut());
                    } else if let (Change::Write { offset, bytes }, 0) = (change, chance.random() % 8) {
                        // The length arrived, the bytes did not.
                        left.extend_to(offset + bytes.len() as u64);
                    }
                }
                left
            }
        }
    }
}

fn shuffle<T>(items: &mut [T], chance: &SimulatedEnv) {
    for n in (1..items.len()).rev() {
        items.swap(n, (chance.random() % (n as u64 + 1)) as usize);
    }
}

/// Applies a change; a write may arrive only in part.
fn arrive(
    change: &Change,
    left: &mut Content,
    chance: &SimulatedEnv,
    unreadable: Option<&mut BTreeSet<u64>>,
) {
    let Change::Write { offset, bytes } = change else { return change.apply(left) };
    let grain = match chance.random() % 4 {
        0 => SECTOR,
        1 => BLOCK_BYTES,
        _ => return change.apply(left),
    };
    // A torn write: its beginning, its end, or any of its pieces arrive.
    let pieces = bytes.len().div_ceil(grain) as u64 + 1;
    let (kind, cut) = (chance.random() % 3, chance.random() % pieces);
    let mut at = 0;
    let mut n = 0;
    while at < bytes.len() {
        let to_edge = grain - ((offset + at as u64) % grain as u64) as usize;
        let end = (at + to_edge).min(bytes.len());
        let arrives = match kind {
            0 => n < cut,
            1 => n >= cut,
            _ => chance.random().is_multiple_of(2),
        };
        if arrives {
            left.write(offset + at as u64, &bytes[at..end]);
        }
        at = end;
        n += 1;
    }
    if let Some(unreadable) = unreadable
        && chance.random().is_multiple_of(4)
    {
        let blocks = blocks_of(*offset, bytes.len() as u64);
        unreadable.insert(blocks.start + chance.random() % (blocks.end - blocks.start));
    }
}
