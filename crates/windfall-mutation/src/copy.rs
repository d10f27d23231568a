//! The copy of the workspace that has the planted bugs.
//!
//! **Purpose.** Writes the copy, and brings it up to date.
//!
//! **Invariants.** A file of the copy is written only if its content changes, so that a build after it compiles no more
//! than is necessary (test: `every_bug_applies_and_unchanged_files_are_not_rewritten`); files that the workspace no
//! longer has are removed (test: `every_bug_applies_and_unchanged_files_are_not_rewritten`).

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{Bug, Change, bugs};

/// The module that is added to the copy of `windfall-base`.
const MODULE: &str = include_str!("../template/planted.rs");
/// The crate that gets the module.
const BASE: &str = "crates/windfall-base/";
/// The parts of the workspace's folder that are copied: those that a build reads. Databases of demos and benchmarks may
/// be next to them.
const COPIED: [&str; 9] = [
    ".cargo",
    "ARCHITECTURE.md",
    "Cargo.lock",
    "Cargo.toml",
    "README.md",
    "clippy.toml",
    "crates",
    "rust-toolchain.toml",
    "rustfmt.toml",
];

type Files = BTreeMap<PathBuf, Vec<u8>>;

/// Makes the copy of this workspace in its target folder, as [`plant`] does. Returns its folder, and the bugs.
///
/// # Errors
/// The errors of [`plant`].
pub fn plant_in_target() -> io::Result<(PathBuf, Vec<Bug>)> {
    let workspace = workspace()?;
    let copy = workspace.join("target/mutation");
    let bugs = plant(&workspace, &copy)?;
    Ok((copy, bugs))
}

/// Returns the folder of the workspace that this package belongs to.
///
/// # Errors
/// The folder does not exist.
pub fn workspace() -> io::Result<PathBuf> {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()
}

/// Makes a copy of a workspace with all bugs in it, or brings it up to date. A build in the copy uses the target folder
/// of the workspace, and shares the compiled dependencies with it. Returns the bugs.
///
/// # Errors
/// I/O; a change whose text is not in its file exactly once.
fn plant(workspace: &Path, copy: &Path) -> io::Result<Vec<Bug>> {
    let bugs = bugs();
    let mut files = Files::new();
    read(workspace, Path::new(""), &mut files)?;
    if let Some(path) = files.iter().find_map(|(path, bytes)| uses_planted(path, bytes).then_some(path)) {
        return Err(io::Error::other(format!("{} asks for a planted bug: only diffs do", path.display())));
    }
    for (bug, change) in bugs.iter().flat_map(|bug| bug.changes.iter().map(move |change| (bug, change))) {
        apply(&mut files, change)
            .map_err(|wrong| io::Error::other(format!("{}: {wrong}: adapt the bug to the code", bug.name)))?;
    }
    let names: Vec<&str> = bugs.iter().map(|bug| &*bug.name).collect();
    let module = MODULE.replace("&[&str] = &[]", &format!("&[&str] = &{names:?}"));
    files.insert(format!("{BASE}src/planted.rs").into(), module.into());
    for change in in_base() {
        apply(&mut files, &change).map_err(io::Error::other)?;
    }
    let target = workspace.join("target");
    // TOML has the same escapes in strings as Rust.
    let config = format!("[build]\ntarget-dir = {:?}\n", target.to_string_lossy());
    files.insert(".cargo/config.toml".into(), config.into());
    let next_version = version(&files).map_err(io::Error::other)?;
    apply(&mut files, &next_version).map_err(io::Error::other)?;
    lock(&mut files, &next_version);
    write(copy, &files)?;
    Ok(bugs)
}

/// Returns the changes that declare the module, and let the models search for the bugs that they name.
fn in_base() -> [Change; 2] {
    let change = |file: &str, old: &str, new: &str| Change {
        file: format!("{BASE}src/{file}"),
        old: old.into(),
        new: new.into(),
    };
    let module = "pub mod sync;\n";
    [
        change("lib.rs", module, &format!("/// Planted bugs.\npub mod planted;\n{module}")),
        change(
            "sync/model/explore.rs",
            "const BUGS: &[&str] = &[];\n",
            "const BUGS: &[&str] = crate::planted::NAMES;\n",
        ),
    ]
}

/// Returns whether a file of a crate, other than this one, asks for a planted bug: the product must have no trace of
/// them.
fn uses_planted(path: &Path, bytes: &[u8]) -> bool {
    let is_of_this = path.starts_with("crates/windfall-mutation");
    let is_source = path.extension().is_some_and(|extension| extension == "rs");
    is_source && !is_of_this && bytes.windows(9).any(|word| word == b"planted!(")
}

/// Returns the change that gives the packages of the copy the next version. In a target folder that two workspaces
/// share, Cargo distinguishes their packages by name and version, and not by path: it would use the build output of one
/// for the other.
fn version(files: &Files) -> Result<Change, String> {
    const FILE: &str = "Cargo.toml";
    let manifest = files.get(Path::new(FILE)).and_then(|bytes| str::from_utf8(bytes).ok());
    let line = manifest.and_then(|text| text.lines().find(|line| line.starts_with("version = ")));
    let parts = line.and_then(|line| line.trim_end_matches('"').rsplit_once('.'));
    let next = parts.and_then(|(rest, last)| Some(format!("{rest}.{}\"\n", last.parse::<u64>().ok()? + 1)));
    let (Some(line), Some(new)) = (line, next) else { return Err(format!("{FILE} has no version")) };
    Ok(Change { file: FILE.into(), old: format!("{line}\n"), new })
}

/// Changes the version in the lock file, too: otherwise Cargo does, and the copy is never up to date. Only packages of
/// the workspace have no source.
fn lock(files: &mut Files, version: &Change) {
    let Some(bytes) = files.get_mut(Path::new("Cargo.lock")) else { return };
    let text = String::from_utf8_lossy(bytes);
    let mut entries: Vec<String> = text.split("\n\n").map(str::to_owned).collect();
    for entry in entries.iter_mut().filter(|entry| !entry.contains("\nsource = ")) {
        *entry = entry.replace(version.old.trim_end(), version.new.trim_end());
    }
    *bytes = entries.join("\n\n").into();
}

/// Applies a change. The macro `planted!` gets its path in `windfall-base`.
fn apply(files: &mut Files, change: &Change) -> Result<(), String> {
    let Change { file, old, new } = change;
    let bytes = files.get_mut(Path::new(file)).ok_or_else(|| format!("there is no {file}"))?;
    let text = str::from_utf8(bytes).map_err(|_| format!("{file} is no text"))?;
    let is_at_line = |at: &usize| *at == 0 || text.as_bytes()[at - 1] == b'\n';
    let places: Vec<usize> = text.match_indices(old).map(|(at, _)| at).filter(is_at_line).collect();
    let [at] = places[..] else {
        return Err(format!("{file} has these lines {} times instead of once:\n{old}", places.len()));
    };
    let of = if file.starts_with(BASE) { "crate" } else { "windfall_base" };
    let new = new.replace("planted!(", &format!("{of}::planted!("));
    *bytes = [&text[..at], &new, &text[at + old.len()..]].concat().into();
    Ok(())
}

/// Reads the files of a folder of the workspace.
fn read(workspace: &Path, folder: &Path, files: &mut Files) -> io::Result<()> {
    for entry in fs::read_dir(workspace.join(folder))? {
        let entry = entry?;
        let path = folder.join(entry.file_name());
        if folder == Path::new("") && !COPIED.iter().any(|copied| path == Path::new(copied)) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            read(workspace, &path, files)?;
        } else {
            files.insert(path, fs::read(entry.path())?);
        }
    }
    Ok(())
}

/// Makes the copy consist of these files.
fn write(copy: &Path, files: &Files) -> io::Result<()> {
    fs::create_dir_all(copy)?;
    let mut before = Files::new();
    read(copy, Path::new(""), &mut before)?;
    for path in before.keys().filter(|path| !files.contains_key(*path)) {
        fs::remove_file(copy.join(path))?;
    }
    for (path, bytes) in files.iter().filter(|(path, bytes)| before.get(*path) != Some(bytes)) {
        let path = copy.join(path);
        fs::create_dir_all(path.parent().unwrap_or(copy))?;
        fs::write(path, bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Suite;

    #[test]
    fn every_bug_applies_and_unchanged_files_are_not_rewritten() {
        let workspace = workspace().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let bugs = plant(&workspace, folder.path()).unwrap();
        for bug in &bugs {
            let text = fs::read_to_string(folder.path().join(&bug.changes[0].file)).unwrap();
            assert!(text.contains(&format!("::planted!({})", bug.name)), "{}", bug.name);
        }
        let manifest = fs::read_to_string(folder.path().join("Cargo.toml")).unwrap();
        let version = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
        assert!(!manifest.contains(&version));
        let lock = fs::read_to_string(folder.path().join("Cargo.lock")).unwrap();
        let is_own = |entry: &&str| entry.contains("name = \"windfall");
        let mut own = lock.split("\n\n").filter(is_own);
        assert!(own.clone().count() > 5 && !own.any(|entry| entry.contains(&version)));
        assert!(!folder.path().join("target").exists() && !folder.path().join(".git").exists());
        let [kept, gone] = ["Cargo.toml", "crates/gone.rs"].map(|name| folder.path().join(name));
        fs::write(&gone, "").unwrap();
        let modified = || fs::metadata(&kept).unwrap().modified().unwrap();
        let before = modified();
        plant(&workspace, folder.path()).unwrap();
        assert!(modified() == before && !gone.exists());
    }

    /// A renamed test would otherwise be noticed only by a run of the whole mutation suite.
    #[test]
    fn every_suite_names_tests_that_exist() {
        let mut files = Files::new();
        read(&workspace().unwrap(), Path::new(""), &mut files).unwrap();
        let is_defined = |is_in: &dyn Fn(&str) -> bool, filter: &str| {
            let path: Vec<&str> = filter.split("::").collect();
            let (modules, defined) = match &path[..] {
                [modules @ .., module, ""] => (modules, format!("mod {module};")),
                [modules @ .., name] => (modules, format!("fn {name}")),
                [] => unreachable!("a text has a part"),
            };
            files.iter().any(|(path, bytes)| {
                let path = path.to_string_lossy();
                // A module `tests` may be within its file.
                let is_module =
                    |name: &&str| path.split(['/', '.']).any(|part| part == *name) || *name == "tests";
                let text = String::from_utf8_lossy(bytes);
                is_in(&path) && modules.iter().all(is_module) && text.contains(&defined)
            })
        };
        let is_of_units = |path: &str| path.starts_with("crates/") && path.contains("/src/");
        for Bug { name, found_by, .. } in bugs() {
            for suite in found_by {
                let exists = match &suite {
                    Suite::Tests { target, filter } => {
                        let program = format!("crates/windfall/tests/{target}");
                        is_defined(&|path| path.starts_with(&program), filter)
                    }
                    Suite::Units(filter) => is_defined(&is_of_units, filter),
                    // The suite itself refuses an unknown target, and another test checks the scenarios.
                    Suite::Fuzz(_) | Suite::Model(_) => true,
                };
                assert!(exists, "{name} is found by {suite:?}, which is no test");
            }
        }
        assert!(!is_defined(&is_of_units, "tests::no_such_test") && !is_defined(&is_of_units, "no_module::"));
    }

    #[test]
    fn only_the_diffs_ask_for_bugs() {
        let uses = |path: &str| uses_planted(Path::new(path), b"if planted!(A) {");
        assert!(uses("crates/windfall-base/src/lib.rs"));
        assert!(!uses("crates/windfall-mutation/src/lib.rs") && !uses("crates/a.diff"));
        assert!(!uses_planted(Path::new("crates/a.rs"), b"bugs are planted"));
    }

    #[test]
    fn a_change_that_does_not_fit_is_refused() {
        let file = |text: &str| Files::from([("a.rs".into(), text.into())]);
        let change =
            |file: &str| Change { file: file.into(), old: "one\n".into(), new: "planted!(A)\n".into() };
        let mut files = file("zero\none\n");
        apply(&mut files, &change("a.rs")).unwrap();
        assert_eq!(files, file("zero\nwindfall_base::planted!(A)\n"));
        assert!(apply(&mut file("one\none\n"), &change("a.rs")).unwrap_err().contains("2 times"));
        assert!(apply(&mut file("no one\n"), &change("a.rs")).unwrap_err().contains("0 times"));
        assert!(apply(&mut files, &change("a.rs")).is_err() && apply(&mut files, &change("b.rs")).is_err());
    }
}
