//! What the launcher tells the host: the process it made, how long each phase took, and how it ended.

use std::os::fd::BorrowedFd;
use std::time::Instant;

use super::error::LaunchError;
use crate::sys::{SysResult, io};
use crate::wire::frame;
use crate::wire::message::{Failed, FromCell, StepTime};

/// Send one frame on the channel, with descriptors.
pub fn send(channel: BorrowedFd, message: &FromCell, fds: &[BorrowedFd]) -> SysResult<()> {
    let mut out = Vec::new();
    frame::encode(&mut out, 0, message);
    io::send_with_fds(channel, &out, fds)
}

/// Tell the host why the launch failed. If the channel is gone, so is who would read it.
pub fn fail(channel: BorrowedFd, error: &LaunchError) {
    let message = FromCell::Failed(Failed {
        step: error.step.clone(),
        errno: error.errno.number(),
        detail: error.detail.clone(),
    });
    let _ = send(channel, &message, &[]);
}

/// Measures phases: each ends where the next begins.
#[derive(Debug)]
pub struct Phases {
    last: Instant,
    times: Vec<StepTime>,
}

impl Phases {
    /// The first phase begins now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            last: Instant::now(),
            times: Vec::new(),
        }
    }

    /// The phase `name` ends now.
    pub fn end(&mut self, name: &str) {
        let now = Instant::now();
        let microseconds = u32::try_from((now - self.last).as_micros()).unwrap_or(u32::MAX);
        self.last = now;
        self.times.push(StepTime {
            name: name.to_owned(),
            microseconds,
        });
    }

    /// All phases so far.
    #[must_use]
    pub fn times(self) -> Vec<StepTime> {
        self.times
    }
}
