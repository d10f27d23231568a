//! The binary of the command `windfall`: all of it is in the library beside it, where fuzz targets reach it too.
//!
//! **Purpose.** Calls [`windfall_cli::main`], and has an allocator that counts.
//!
//! **Invariants.** None.
//!
//! **May touch.** The library.

/// `windfall bench drop` counts what a drop allocates and frees.
#[global_allocator]
static ALLOCATOR: windfall::CountingAllocator = windfall::CountingAllocator;

fn main() -> std::process::ExitCode {
    windfall_cli::main()
}
