//! The program that `windfall bench calls` measures: the command without its counting allocator, built without
//! link-time optimisation.
//!
//! **Purpose.** Makes calls as a program does that uses the library with default settings of its build.
//!
//! **Invariants.** None.

fn main() -> std::process::ExitCode {
    windfall_cli::main()
}
