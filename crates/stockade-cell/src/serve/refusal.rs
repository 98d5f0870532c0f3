//! Why a request was not carried out: what an ERROR frame says.

use crate::sys::Errno;
use crate::wire::message::{Error, FromCell, code};

/// A request that failed; the cell itself is well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// `Error.code`
    pub code: u16,
    /// The system call's error, or 0.
    pub errno: Errno,
    /// The step or rule, for the reader of a log.
    pub detail: &'static str,
}

impl Refusal {
    /// Refused by a rule of ours.
    #[must_use]
    pub fn rule(code: u16, detail: &'static str) -> Self {
        Self {
            code,
            errno: Errno(0),
            detail,
        }
    }

    /// A system call failed. Running out of descriptors, processes or memory is LIMIT whatever was asked.
    #[must_use]
    pub fn call(code: u16, errno: Errno, detail: &'static str) -> Self {
        let code = match errno.0 {
            libc::EMFILE | libc::ENFILE | libc::EAGAIN | libc::ENOMEM => code::LIMIT,
            _ => code,
        };
        Self {
            code,
            errno,
            detail,
        }
    }

    /// The frame.
    #[must_use]
    pub fn message(&self) -> FromCell {
        FromCell::Error(Error {
            code: self.code,
            errno: self.errno.number(),
            detail: self.detail.to_owned(),
        })
    }
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::call(code::FILE, errno, "")
    }
}
