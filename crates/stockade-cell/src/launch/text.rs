//! Texts for system calls.

use std::ffi::CString;

use super::error::{LaunchError, LaunchResult};

/// A NUL-terminated copy; a NUL inside is an error of `step`.
pub fn c_string(step: &str, text: &str) -> LaunchResult<CString> {
    CString::new(text).map_err(|_| LaunchError::check(step, format!("NUL in {text:?}")))
}

/// A number as a mount option's value.
pub fn c_number(number: u64) -> CString {
    CString::new(number.to_string()).unwrap_or_default()
}
