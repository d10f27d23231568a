//! The parts that fuzzers and tests share: the targets, the stored inputs, and mutations.
//!
//! **Purpose.** The targets themselves are next to their decoders, in the crates that contain them. This crate feeds
//! them: `src/fuzzer.rs` is a libFuzzer binary, and `tests/held.rs` runs each target over the inputs found before.
//!
//! **Invariants.** The same inputs in the same order give the same mutants (test:
//! `a_mutator_changes_nearly_all_and_repeats_itself`).

mod mutate;

use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

pub use mutate::Mutator;
pub use windfall::fuzz::Target;

/// Returns all targets.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    windfall::fuzz::TARGETS.iter().chain(windfall_cli::fuzz::TARGETS)
}

/// Returns the target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    targets().find(|target| target.name == name)
}

/// An input with its name.
#[derive(Clone, Debug)]
pub struct Input {
    /// The file, with the member of an archive, or the number among the seeds.
    pub name: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Returns the folder of inputs that were new to a fuzzer: a tar archive for each target, as they are many and small.
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Returns the folder of inputs that once revealed a bug: a folder of files for each target.
pub fn regressions() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

/// Returns the archive of a target's corpus.
pub fn archive(target: &Target) -> PathBuf {
    corpus().join(target.name).with_extension("tar")
}

/// Returns `None` for a file or folder that does not exist.
fn found<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// Reads a target's corpus, in the order of its archive, which is sorted by name. A missing archive counts as empty.
///
/// # Errors
/// I/O errors of the file system; an archive that cannot be read.
pub fn corpus_inputs(target: &Target) -> io::Result<Vec<Input>> {
    let path = archive(target);
    let Some(file) = found(File::open(&path))? else { return Ok(Vec::new()) };
    let mut inputs = Vec::new();
    for member in tar::Archive::new(io::BufReader::new(file)).entries()? {
        let mut member = member?;
        let name = format!("{}: {}", path.display(), member.path()?.display());
        let mut bytes = Vec::new();
        member.read_to_end(&mut bytes)?;
        inputs.push(Input { name, bytes });
    }
    Ok(inputs)
}

/// Reads a target's regressions, sorted by name. A missing folder counts as empty.
///
/// # Errors
/// I/O errors of the file system.
pub fn regression_inputs(target: &Target) -> io::Result<Vec<Input>> {
    let Some(entries) = found(fs::read_dir(regressions().join(target.name)))? else { return Ok(Vec::new()) };
    let mut inputs = Vec::new();
    for entry in entries {
        let path = entry?.path();
        inputs.push(Input { name: path.display().to_string(), bytes: fs::read(path)? });
    }
    inputs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(inputs)
}

/// Returns all known inputs of a target: its seeds, its corpus, its regressions.
///
/// # Errors
/// I/O errors of the file system.
pub fn all_inputs(target: &Target) -> io::Result<Vec<Input>> {
    let seeds = (0..).zip((target.seeds)());
    let mut inputs: Vec<Input> = seeds.map(|(n, bytes)| Input { name: format!("seed {n}"), bytes }).collect();
    inputs.extend(corpus_inputs(target)?);
    inputs.extend(regression_inputs(target)?);
    Ok(inputs)
}
