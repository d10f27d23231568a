//! A function of a shared object that is loaded at run time.
//!
//! **Purpose.** A server loads an engine by `dlopen`. Code that is loaded so reaches its thread-locals by calls, and
//! takes longer than the same code in a program: it must be measured as a shared object.
//!
//! **Invariants.** A shared object stays loaded until the process ends (test: `a_function_of_a_library_is_called`), so
//! a thread that it has started can outlive the call.

use std::{
    ffi::{CStr, CString, c_int, c_void},
    io, mem,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

/// The type of a function that a shared object exports to be called by [`call`]. It returns 0 if it has succeeded.
pub type Entry = extern "C" fn() -> c_int;

/// Loads a shared object, with all of its symbols resolved, and calls a function of it. Returns what the function
/// returns.
///
/// # Errors
/// The shared object cannot be loaded, or has no function of this name; the error text says why.
///
/// # Safety
/// The function has the type [`Entry`], and the initialisers of the shared object may run in this process.
pub unsafe fn call(library: &Path, function: &CStr) -> io::Result<c_int> {
    let path = CString::new(library.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: the path is a string that ends in a zero byte; the caller permits the initialisers.
    let loaded = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if loaded.is_null() {
        return Err(last_error());
    }
    // SAFETY: the handle is of a shared object that is loaded, and stays so: nothing closes it.
    let found = unsafe { libc::dlsym(loaded, function.as_ptr()) };
    if found.is_null() {
        return Err(last_error());
    }
    // SAFETY: the caller names a function of this type; a function pointer is as large as a data pointer.
    let entry = unsafe { mem::transmute::<*mut c_void, Entry>(found) };
    Ok(entry())
}

/// Returns the reason why the loader failed last in this thread.
fn last_error() -> io::Error {
    // SAFETY: the loader returns a string that is valid until its next call in this thread, or null.
    let text = unsafe {
        let text = libc::dlerror();
        if text.is_null() { None } else { Some(CStr::from_ptr(text).to_string_lossy().into_owned()) }
    };
    io::Error::other(text.unwrap_or_else(|| "a shared object cannot be loaded".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls a function of the C library without arguments.
    fn of_c_library(name: &CStr) -> io::Result<c_int> {
        // SAFETY: the functions named here take no argument and return an integer of this size.
        unsafe { call(Path::new("libc.so.6"), name) }
    }

    #[test]
    fn a_function_of_a_library_is_called() {
        let process = std::process::id();
        for _ in 0..2 {
            assert_eq!(of_c_library(c"getpid").unwrap().cast_unsigned(), process);
        }
    }

    #[test]
    fn a_missing_library_and_a_missing_function_are_named() {
        let error = of_c_library(c"windfall_has_no_such_function").unwrap_err().to_string();
        assert!(error.contains("windfall_has_no_such_function"), "{error}");
        // SAFETY: there is no such file.
        let error = unsafe { call(Path::new("/missing/windfall.so"), c"f") }.unwrap_err().to_string();
        assert!(error.contains("/missing/windfall.so"), "{error}");
        // SAFETY: there is no such file.
        let error = unsafe { call(Path::new("with\0zero"), c"f") }.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Other);
    }
}
