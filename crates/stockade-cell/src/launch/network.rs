//! The network namespace, made by a helper while the root file system is built: on two cores that takes 0.8 ms out of
//! a launch (the namespace 0.4, bringing loopback up 0.4, mostly waiting for locks that all namespaces share).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::error::{AtStep, LaunchError, LaunchResult};
use crate::sys::{Errno, SysResult, ident, io};

const STEP: &str = "network namespace";

/// A helper that makes a namespace and sends it.
#[derive(Debug)]
pub struct NewNetwork {
    pidfd: OwnedFd,
    /// Carries the helper's errno, 0 for success, and with it the namespace.
    answer: OwnedFd,
}

impl NewNetwork {
    /// Start the helper. `loopback` brings lo up.
    pub fn start(loopback: bool) -> LaunchResult<Self> {
        let (answer, answer_end) = io::stream_pair().at(STEP, "socketpair")?;
        match ident::fork(0, None).at(STEP, "fork")? {
            ident::Forked::Child => {
                drop(answer);
                // A reader that is gone has failed, and told the host why.
                let _ = make(loopback, answer_end.as_fd());
                ident::exit_now(0)
            }
            ident::Forked::Parent { pidfd, .. } => Ok(Self { pidfd, answer }),
        }
    }

    /// Wait until the namespace is ready, enter it, and reap the helper.
    pub fn join(self) -> LaunchResult<()> {
        let mut record = [0; 4];
        let (count, mut fds) =
            io::receive_with_fds(self.answer.as_fd(), &mut record, 1).at(STEP, "receive")?;
        ident::reap(self.pidfd.as_fd()).at(STEP, "reap")?;
        let errno = Errno(i32::from_le_bytes(record));
        match (count, errno, fds.pop()) {
            (4, Errno(0), Some(namespace)) => {
                ident::join_namespace(namespace.as_fd(), libc::CLONE_NEWNET).at(STEP, "setns")
            }
            (4, errno, _) => Err(errno).at(STEP, "make it and bring loopback up"),
            _ => Err(LaunchError::check(STEP, "the helper died")),
        }
    }
}

/// In the helper. The namespace goes out as a descriptor: a pidfd would need ptrace rights over us, whose memory was
/// made in the host's user namespace.
fn make(loopback: bool, answer: BorrowedFd) -> SysResult<()> {
    let made = ident::unshare(libc::CLONE_NEWNET)
        .and_then(|()| {
            if loopback {
                ident::loopback_up()
            } else {
                Ok(())
            }
        })
        .and_then(|()| ident::network_namespace());
    match made {
        Ok(namespace) => io::send_with_fds(answer, &0_i32.to_le_bytes(), &[namespace.as_fd()]),
        Err(errno) => io::send_with_fds(answer, &errno.0.to_le_bytes(), &[]),
    }
}
