//! What fuzzers and tests share: the targets, the inputs that are kept, and mutations.
//!
//! **Purpose.** The targets themselves stand beside their decoders, in the crates that have them. Here is what feeds
//! them: `src/fuzzer.rs` is a binary of libFuzzer's, `tests/held.rs` runs each target over what was found before.
//!
//! **Invariants.** The same inputs in the same order give the same mutants.
//!
//! **May touch.** The targets of `windfall` and `windfall-cli`, the folders of inputs.

mod mutate;

use std::{
    fs, io,
    path::{Path, PathBuf},
};

pub use mutate::Mutator;
pub use windfall::fuzz::Target;

/// All targets.
pub fn targets() -> impl Iterator<Item = &'static Target> {
    windfall::fuzz::TARGETS.iter().chain(windfall_cli::fuzz::TARGETS)
}

/// The target with this name.
pub fn target(name: &str) -> Option<&'static Target> {
    targets().find(|target| target.name == name)
}

/// An input, and what it is called.
#[derive(Clone, Debug)]
pub struct Input {
    /// The file, or the number among the seeds.
    pub name: String,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// The folder of what a fuzzer has found that was new, of all targets.
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The folder of what was found to be wrong once.
pub fn regressions() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("regressions")
}

/// The files of a target in one of the folders, by name.
///
/// # Errors
/// What the file system says; no folder is no file.
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

/// Everything that a target is known to do something with: its seeds, its corpus, its regressions.
///
/// # Errors
/// What the file system says.
pub fn known(target: &Target) -> io::Result<Vec<Input>> {
    let seeds = (0..).zip((target.seeds)());
    let mut inputs: Vec<Input> = seeds.map(|(n, bytes)| Input { name: format!("seed {n}"), bytes }).collect();
    inputs.extend(kept(&corpus(), target)?);
    inputs.extend(kept(&regressions(), target)?);
    Ok(inputs)
}
