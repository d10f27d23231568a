//! The names of simulated files, and what is left of them after a crash.
//!
//! **Purpose.** A name becomes durable independently of the file's content: a synced file may lose its name, a name may
//! refer to a file without the content that was written, and a removed file may reappear.
//!
//! **Invariants.** Durable names change only by syncs of their folder (test:
//! `a_removed_file_may_come_back_until_its_folder_is_synced`). A change of a name is atomic, renames included (test:
//! `a_rename_is_whole_or_has_not_happened`). Changes of the same name arrive in order (test:
//! `a_name_given_again_does_not_cost_the_renamed_file_its_own`), changes of different names in any order.

use std::collections::{BTreeMap, BTreeSet};

use windfall_base::{
    disk::{FileName, Folder},
    env::Env as _,
};

use super::Survive;
use crate::SimulatedEnv;

/// The number that identifies a file, even one that has lost its name.
pub(super) type InodeId = u64;

#[derive(Clone, Copy, Debug)]
enum Change {
    Link(FileName, InodeId),
    Unlink(FileName),
    Rename { from: FileName, to: FileName, inode: InodeId },
}

impl Change {
    fn names(self) -> [FileName; 2] {
        match self {
            Self::Link(name, _) | Self::Unlink(name) => [name; 2],
            Self::Rename { from, to, .. } => [from, to],
        }
    }

    fn folder(self) -> Folder {
        self.names()[0].folder()
    }

    fn apply(self, names: &mut BTreeMap<FileName, InodeId>) {
        match self {
            Self::Link(name, inode) => drop(names.insert(name, inode)),
            Self::Unlink(name) => drop(names.remove(&name)),
            Self::Rename { from, to, inode } => {
                names.remove(&from);
                names.insert(to, inode);
            }
        }
    }
}

/// All names of a disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Names {
    current: BTreeMap<FileName, InodeId>,
    durable: BTreeMap<FileName, InodeId>,
    changes: Vec<Change>,
}

impl Names {
    /// Creates the names after a crash, all of them durable.
    pub(super) fn survivors(names: BTreeMap<FileName, InodeId>) -> Self {
        Self { current: names.clone(), durable: names, changes: Vec::new() }
    }

    pub(super) fn get(&self, name: FileName) -> Option<InodeId> {
        self.current.get(&name).copied()
    }

    pub(super) fn current(&self) -> &BTreeMap<FileName, InodeId> {
        &self.current
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.current);
        self.changes.push(change);
    }

    pub(super) fn link(&mut self, name: FileName, inode: InodeId) {
        self.change(Change::Link(name, inode));
    }

    pub(super) fn unlink(&mut self, name: FileName) {
        self.change(Change::Unlink(name));
    }

    pub(super) fn rename(&mut self, from: FileName, to: FileName, inode: InodeId) {
        assert_eq!(from.folder(), to.folder(), "a rename stays in its folder");
        self.change(Change::Rename { from, to, inode });
    }

    /// Makes the names in a folder durable.
    pub(super) fn sync(&mut self, folder: Folder) {
        let durable = &mut self.durable;
        self.changes.retain(|change| {
            let arrives = change.folder() == folder;
            if arrives {
                change.apply(durable);
            }
            !arrives
        });
    }

    /// Simulates a failed sync of a folder: some changes become durable, the others are dropped.
    pub(super) fn sync_fails(&mut self, folder: Folder, chance: &SimulatedEnv) {
        let (now, later): (Vec<_>, Vec<_>) = self.changes.drain(..).partition(|c| c.folder() == folder);
        self.changes = later;
        arrive(&now, &mut self.durable, 2, chance);
    }

    /// Returns every file to which a name refers, or may refer after a crash.
    pub(super) fn reachable(&self) -> BTreeSet<InodeId> {
        let changed = self.changes.iter().filter_map(|change| match change {
            Change::Link(_, inode) | Change::Rename { inode, .. } => Some(*inode),
            Change::Unlink(_) => None,
        });
        self.current.values().chain(self.durable.values()).copied().chain(changed).collect()
    }

    /// Returns the names that are left after a crash.
    pub(super) fn survive(&self, how: Survive, chance: &SimulatedEnv) -> BTreeMap<FileName, InodeId> {
        let with = |changes: &[Change]| {
            let mut left = self.durable.clone();
            for change in changes {
                change.apply(&mut left);
            }
            left
        };
        match how {
            Survive::Nothing => with(&[]),
            Survive::Everything => with(&self.changes),
            Survive::Random(_) => {
                if chance.random().is_multiple_of(2) {
                    // As with a journal: the changes before some point in time.
                    let until = (chance.random() % (self.changes.len() as u64 + 1)) as usize;
                    return with(&self.changes[..until]);
                }
                let (mut left, luck) = (self.durable.clone(), chance.random() % 5);
                arrive(&self.changes, &mut left, luck, chance);
                left
            }
        }
    }
}

/// Applies some of the changes, each with a chance of `luck` in four. A change is lost too if an earlier change of its
/// name is lost.
fn arrive(changes: &[Change], left: &mut BTreeMap<FileName, InodeId>, luck: u64, chance: &SimulatedEnv) {
    let mut lost = BTreeSet::new();
    for change in changes {
        let names = change.names();
        if chance.random() % 4 < luck && !names.iter().any(|name| lost.contains(name)) {
            change.apply(left);
        } else {
            lost.extend(names);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use windfall_base::ids::SpaceId;

    use super::*;

    fn name(n: u64) -> FileName {
        if n < 3 { FileName::Data(SpaceId(n)) } else { FileName::Log(n) }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn a_name_leads_where_it_led_since_the_sync(
            steps in prop::collection::vec((0u8..5, 0u64..6, 0u64..6), 1..40), seed in any::<u64>(),
        ) {
            let mut names = Names::default();
            let mut possible: BTreeMap<FileName, BTreeSet<Option<InodeId>>> =
                (0..6).map(|n| (name(n), BTreeSet::from([None]))).collect();
            let mut next = 0;
            for (step, a, b) in steps {
                let (a, b) = (name(a), name(b));
                match step {
                    0 | 1 => {
                        next += 1;
                        names.link(a, next);
                    }
                    2 => names.unlink(a),
                    3 => {
                        if let Some(inode) = names.get(a).filter(|_| a.folder() == b.folder()) {
                            names.rename(a, b, inode);
                        }
                    }
                    _ => {
                        names.sync(a.folder());
                        for (name, ways) in possible.iter_mut().filter(|(n, _)| n.folder() == a.folder()) {
                            *ways = BTreeSet::from([names.get(*name)]);
                        }
                    }
                }
                for (name, ways) in &mut possible {
                    ways.insert(names.get(*name));
                }
            }
            let chance = SimulatedEnv::new(seed);
            let reachable = names.reachable();
            for _ in 0..10 {
                let left = names.survive(Survive::Random(seed), &chance);
                for (name, ways) in &possible {
                    let found = left.get(name).copied();
                    prop_assert!(ways.contains(&found), "{name} leads to {found:?}, of {ways:?}");
                    prop_assert!(found.is_none_or(|inode| reachable.contains(&inode)));
                }
            }
            prop_assert_eq!(&names.survive(Survive::Everything, &chance), names.current());
            names.sync(Folder::Data);
            names.sync(Folder::Log);
            prop_assert_eq!(&names.survive(Survive::Nothing, &chance), names.current());
        }
    }

    #[test]
    fn a_name_given_again_does_not_cost_the_renamed_file_its_own() {
        let chance = SimulatedEnv::new(3);
        let mut names = Names::default();
        names.link(name(3), 1);
        names.sync(Folder::Log);
        names.rename(name(3), name(4), 1);
        names.link(name(3), 2);
        for _ in 0..200 {
            let left = names.survive(Survive::Random(0), &chance);
            assert!(left.values().any(|inode| *inode == 1), "{left:?}");
        }
    }

    #[test]
    fn a_rename_is_whole_or_has_not_happened() {
        let chance = SimulatedEnv::new(3);
        let mut names = Names::default();
        names.link(name(3), 1);
        names.link(name(4), 2);
        names.sync(Folder::Log);
        names.rename(name(3), name(4), 1);
        let mut seen = BTreeSet::new();
        for _ in 0..100 {
            let left = names.survive(Survive::Random(0), &chance);
            seen.insert((left.get(&name(3)).copied(), left.get(&name(4)).copied()));
        }
        assert_eq!(seen, BTreeSet::from([(Some(1), Some(2)), (None, Some(1))]));
    }
}
