//! The folder of the demo.
//!
//! **Purpose.** A fresh database for each run, which is removed at the end, also if the demo is interrupted.
//!
//! **Invariants.** Only files of a demo are removed (test: `only_the_leftovers_of_a_demo_are_removed`): they are next
//! to a lock file, which the running demo keeps locked and removes last. From then on the folder may belong to another
//! demo (test: `a_demo_that_has_ended_leaves_the_next_one_alone`). A database that is kept has no lock file next to it
//! at the end (test: `a_demo_that_has_ended_leaves_the_next_one_alone`).

use std::{
    fs::{self, File},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::{
    failure::{Failure, Result},
    sweep::Sweeper,
};

/// The name of the lock file.
const MARK: &str = "demo.lock";

/// A folder that is owned by one running demo.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    sweeper: Option<Sweeper>,
    _mark: File,
}

impl Folder {
    /// Creates the folder, or takes it over from an earlier demo.
    pub(super) fn make(path: &Path, keep: bool) -> Result<Self> {
        let failed =
            |e| Failure::message(format!("{} cannot be used: {e}; give another --out", path.display()));
        let made = if path.exists() { Vec::new() } else { vec![path.to_path_buf()] };
        fs::create_dir_all(path).map_err(failed)?;
        let (mark, database) = (path.join(MARK), path.join("database"));
        let known = mark.exists();
        if database.exists() && !known {
            let database = database.display();
            return Err(Failure::message(format!(
                "{database} is there and was not made by a demo: give another --out"
            )));
        }
        let file = loop {
            let file =
                File::options().write(true).create(true).truncate(false).open(&mark).map_err(failed)?;
            flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
                Failure::message(format!("another demo is running in {}: give another --out", path.display()))
            })?;
            // A demo that ends may have removed the file before it was locked here; another demo may then lock a new
            // one.
            if is_at(&file, &mark) {
                break file;
            }
        };
        if database.exists() {
            fs::remove_dir_all(&database).map_err(failed)?;
        }
        let sweeper = (!keep).then(|| Sweeper::watch(vec![database, mark], made, Some(&file)));
        Ok(Self { path: path.to_path_buf(), sweeper, _mark: file })
    }

    /// Returns the folder.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the folder of the database.
    pub(super) fn database(&self) -> PathBuf {
        self.path.join("database")
    }

    /// Removes the database, or keeps it so that no later demo removes it.
    pub(super) fn end(mut self) -> Result<()> {
        let cleared = match self.sweeper.take() {
            Some(sweeper) => sweeper.end(),
            None => fs::remove_file(self.path.join(MARK)),
        };
        cleared.map_err(|e| Failure::message(format!("{} cannot be cleared: {e}", self.path.display())))
    }
}

/// Returns whether this open file still has this name.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_leftovers_of_a_demo_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("database")).unwrap();
        let refused = Folder::make(folder.path(), false).unwrap_err().to_string();
        assert!(refused.contains("not made by a demo"), "{refused}");
        assert!(Folder::make(folder.path(), false).is_err(), "the refusal leaves no mark");
        fs::remove_dir(folder.path().join("database")).unwrap();

        let demo = Folder::make(folder.path(), true).unwrap();
        fs::create_dir(demo.database()).unwrap();
        assert!(Folder::make(folder.path(), false).unwrap_err().to_string().contains("another demo"));
        drop(demo);
        let again = Folder::make(folder.path(), false).unwrap();
        assert!(!again.database().exists());
        fs::create_dir(again.database()).unwrap();
        again.end().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_demo_that_has_ended_leaves_the_next_one_alone() {
        let folder = tempfile::tempdir().unwrap();
        let demo = Folder::make(folder.path(), false).unwrap();
        let mark = folder.path().join(MARK);
        let locked = File::open(&mark).unwrap();
        assert!(is_at(&locked, &mark));
        fs::create_dir(demo.database()).unwrap();
        demo.end().unwrap();
        assert!(!is_at(&locked, &mark), "a deleted mark guards nothing");
        let next = Folder::make(folder.path(), true).unwrap();
        assert!(!is_at(&locked, &mark), "nor does it guard the next one's");
        fs::create_dir(next.database()).unwrap();
        assert!(Folder::make(folder.path(), false).is_err());
        next.end().unwrap();
        assert!(folder.path().join("database").exists(), "it was to be kept");
        assert!(!mark.exists(), "a later demo would remove it");
    }
}
