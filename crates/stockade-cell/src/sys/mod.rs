//! The system calls that this program makes, each wrapped once. The only place with `unsafe`.
//!
//! A wrapper takes and returns owned types and an `Errno`; it decides nothing. Raw system calls are used where libc
//! has no wrapper, and where glibc's would act on all threads (setuid and the like) or touch errno in a child.
#![allow(unsafe_code)]
#![allow(clippy::as_conversions)] // the kernel's ABI is made of casts; values from the peer never get here unchecked
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_sign_loss
)] // likewise
#![allow(clippy::doc_markdown)] // the kernel's names for flags, as its man pages print them

pub mod file;
pub mod ident;
pub mod io;
pub mod mount;
pub mod process;

use std::fmt;

/// An error number of a failed system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The calling thread's errno.
    #[must_use]
    pub fn last() -> Self {
        Self(std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    }

    /// The number for a frame.
    #[must_use]
    pub fn number(self) -> u32 {
        u32::try_from(self.0).unwrap_or(0)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", std::io::Error::from_raw_os_error(self.0))
    }
}

/// The result of a system call.
pub type SysResult<T> = Result<T, Errno>;

/// Turn -1 into the errno.
fn check(result: libc::c_long) -> SysResult<libc::c_long> {
    if result < 0 {
        Err(Errno::last())
    } else {
        Ok(result)
    }
}

fn check_int(result: libc::c_int) -> SysResult<libc::c_int> {
    if result < 0 {
        Err(Errno::last())
    } else {
        Ok(result)
    }
}
