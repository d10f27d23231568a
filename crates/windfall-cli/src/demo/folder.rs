//! The folder of the demo.
//!
//! **Purpose.** A fresh database every time, though a demo that was interrupted may have left one behind.
//!
//! **Invariants.** Only what a demo has made is removed: it lies beside a mark, which the running demo keeps locked.
//!
//! **May touch.** The file system.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

use crate::failure::{Failure, Result};

/// The mark.
const MARK: &str = "demo.lock";

/// A folder that belongs to one running demo.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    _mark: File,
}

impl Folder {
    /// Makes the folder, or takes it over from an earlier demo.
    pub fn make(path: &Path) -> Result<Self> {
        let failed = |e| Failure::said(format!("{} cannot be used: {e}; give another --out", path.display()));
        fs::create_dir_all(path).map_err(failed)?;
        let (mark, database) = (path.join(MARK), path.join("database"));
        let known = mark.exists();
        if database.exists() && !known {
            let database = database.display();
            return Err(Failure::said(format!(
                "{database} is there and was not made by a demo: give another --out"
            )));
        }
        let file = File::options().write(true).create(true).truncate(false).open(&mark).map_err(failed)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Failure::said(format!("another demo is running in {}: give another --out", path.display()))
        })?;
        if database.exists() {
            fs::remove_dir_all(&database).map_err(failed)?;
        }
        Ok(Self { path: path.to_path_buf(), _mark: file })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the database goes.
    pub fn database(&self) -> PathBuf {
        self.path.join("database")
    }

    /// Ends with the database removed, or kept: then no later demo takes it for its own.
    pub fn end(&self, keep: bool) -> Result<()> {
        let failed = |e| Failure::said(format!("{} cannot be cleared: {e}", self.path.display()));
        if !keep {
            fs::remove_dir_all(self.database()).map_err(failed)?;
        }
        fs::remove_file(self.path.join(MARK)).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_demo_left_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("database")).unwrap();
        let refused = Folder::make(folder.path()).unwrap_err().to_string();
        assert!(refused.contains("not made by a demo"), "{refused}");
        assert!(Folder::make(folder.path()).is_err(), "the refusal leaves no mark");
        fs::remove_dir(folder.path().join("database")).unwrap();

        let demo = Folder::make(folder.path()).unwrap();
        fs::create_dir(demo.database()).unwrap();
        assert!(Folder::make(folder.path()).unwrap_err().to_string().contains("another demo"));
        drop(demo);
        let again = Folder::make(folder.path()).unwrap();
        assert!(!again.database().exists());
        fs::create_dir(again.database()).unwrap();
        again.end(false).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
