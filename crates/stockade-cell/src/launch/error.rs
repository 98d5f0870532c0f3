//! Why a wall could not be built.

use std::fmt;

use crate::sys::{Errno, SysResult};

/// A step that failed: its name, the system's error, and what was being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaunchError {
    /// The step's name in the plan, or the phase's.
    pub step: String,
    /// The error number; 0 where no system call failed.
    pub errno: Errno,
    /// The object or the check that failed.
    pub detail: String,
}

impl LaunchError {
    /// A check that failed without a system call.
    pub fn check(step: &str, detail: impl Into<String>) -> Self {
        Self {
            step: step.to_owned(),
            errno: Errno(0),
            detail: detail.into(),
        }
    }
}

impl fmt::Display for LaunchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.step, self.detail, self.errno)
    }
}

/// The result of a launch phase.
pub type LaunchResult<T> = Result<T, LaunchError>;

/// Names the step of a system call that failed.
pub trait AtStep<T> {
    /// Attach the step's name and the object.
    fn at(self, step: &str, detail: &str) -> LaunchResult<T>;
}

impl<T> AtStep<T> for SysResult<T> {
    fn at(self, step: &str, detail: &str) -> LaunchResult<T> {
        self.map_err(|errno| LaunchError {
            step: step.to_owned(),
            errno,
            detail: detail.to_owned(),
        })
    }
}
