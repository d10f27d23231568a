//! The binary of the command `windfall`: all of its code is in the library of this crate, so that fuzz targets can use
//! it.
//!
//! **Purpose.** Calls [`windfall_cli::main`], and installs a counting allocator.

/// `windfall bench drop` counts what a drop allocates and frees.
#[global_allocator]
static ALLOCATOR: windfall::CountingAllocator = windfall::CountingAllocator;

fn main() -> std::process::ExitCode {
    windfall_cli::main()
}
