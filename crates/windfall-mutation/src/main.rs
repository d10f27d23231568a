//! The command that makes the copy of the workspace with the planted bugs.
//!
//! **Purpose.** Makes the copy and prints how to run a test in it, with one of the bugs.
//!
//! **Invariants.** Those of the library.

use std::{io, path::Path};

use windfall_mutation::{VARIABLE, plant};

fn main() -> io::Result<()> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let copy = workspace.join("target/mutation");
    let bugs = plant(&workspace, &copy)?;
    let bug = &bugs[0];
    println!(
        "{} has {} planted bugs, which crates/windfall-mutation/bugs lists.",
        copy.display(),
        bugs.len()
    );
    println!("A process has the one that {VARIABLE} names:");
    println!(
        "    cd {} && {VARIABLE}={} cargo test -p windfall --test crash_points",
        copy.display(),
        bug.name
    );
    Ok(())
}
