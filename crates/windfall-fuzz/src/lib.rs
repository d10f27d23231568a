//! The parts that fuzzers and tests share: the targets, the stored inputs, and mutations.
//!
//! **Purpose.** The targets themselves are next to their decoders, in the crates that contain them. This crate feeds
//! them: `src/fuzzer.rs` is a libFuzzer binary, and `tests/held.rs` runs each target over the inputs found before.
//!
//! **Invariants.** The same inputs in the same order give the same mutants.

mod mutate;

use std::{
    fs, io,
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
    /// The file, or the number among the seeds.
    pub name: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Returns the folder of inputs that were new to a fuzzer, of all targets.
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Returns the folder of inputs that once revealed a bug.
pub fn regressions() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

/// Reads the files of a target in one of the folders, sorted by name. A missing folder counts as empty.
///
/// # Errors
/// I/O errors of the file system.
pub fn kept(folder: &Path, target: &Target) -> io::Result<Vec<Input>> {
    let entries = match fs::read_dir(folder.join(target.name)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
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
pub fn known(target: &Target) -> io::Result<Vec<Input>> {
    let seeds = (0..).zip((target.seeds)());
    let mut inputs: Vec<Input> = seeds.map(|(n, bytes)| Input { name: format!("seed {n}"), bytes }).collect();
    inputs.extend(kept(&corpus(), target)?);
    inputs.extend(kept(&regressions(), target)?);
    Ok(inputs)
}
