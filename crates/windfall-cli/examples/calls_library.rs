//! The shared object that `windfall bench calls` measures.
//!
//! **Purpose.** The same calls as in `calls.rs`, in code that a program loads by `dlopen`, as a server loads an engine.
//!
//! **Invariants.** None.

/// Measures the case that the arguments of the process name. Returns 0 if that has succeeded.
// SAFETY: no other function of the shared object has this name.
#[unsafe(no_mangle)]
pub extern "C" fn windfall_measure_calls() -> core::ffi::c_int {
    i32::from(!windfall_cli::measure_calls())
}
