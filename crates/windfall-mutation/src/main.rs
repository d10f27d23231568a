//! The command that makes the copy of the workspace with the planted bugs.
//!
//! **Purpose.** Makes the copy, and prints the command that runs a test in it with one of the bugs.

use std::io;

use windfall_mutation::{VARIABLE, plant_in_target};

fn main() -> io::Result<()> {
    let (copy, bugs) = plant_in_target()?;
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
