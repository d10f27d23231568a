//! The binary of the command `windfall`: all of it is in the library beside it, where fuzz targets reach it too.
//!
//! **Purpose.** Calls [`windfall_cli::main`].
//!
//! **Invariants.** None.
//!
//! **May touch.** The library.

fn main() -> std::process::ExitCode {
    windfall_cli::main()
}
