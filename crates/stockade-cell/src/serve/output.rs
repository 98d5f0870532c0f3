//! One stream of a command's output: read within the host's credit, counted and dropped above the limit.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::channel::Channel;
use crate::sys::Errno;
use crate::sys::io;
use crate::wire::message::CHUNK_BYTES;

/// What a read brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pumped {
    /// Nothing now: no data, no credit, or the host reads too slowly.
    Waiting,
    /// Some bytes; there may be more.
    More,
    /// The end: no process holds the other end.
    Closed,
}

/// The read end of a pipe, or the master of a terminal.
#[derive(Debug)]
pub struct OutputStream {
    fd: OwnedFd,
    stream: u8,
    credit: u64,
    /// Bytes until the limit; `None` is no limit.
    left: Option<u64>,
    dropped: u64,
    /// An edge came and EAGAIN has not been seen since.
    ready: bool,
}

impl OutputStream {
    /// `limit` of 0 is no limit.
    #[must_use]
    pub fn new(fd: OwnedFd, stream: u8, credit: u32, limit: u64) -> Self {
        Self {
            fd,
            stream,
            credit: u64::from(credit),
            left: (limit > 0).then_some(limit),
            dropped: 0,
            ready: false,
        }
    }

    /// An event came, or the command ended: the next read tells what there is.
    pub fn mark_ready(&mut self) {
        self.ready = true;
    }

    /// What to wait for.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Allow more bytes.
    pub fn grant(&mut self, count: u32) {
        self.credit = self.credit.saturating_add(u64::from(count));
    }

    /// Bytes that were read and thrown away.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// From now on nothing is sent; what still comes is counted.
    pub fn discard(&mut self) {
        self.left = Some(0);
    }

    /// True when `pump` would read.
    #[must_use]
    pub fn is_runnable(&self, channel: &Channel) -> bool {
        self.ready && self.wanted(channel) > 0
    }

    fn is_dropping(&self) -> bool {
        self.left == Some(0)
    }

    fn wanted(&self, channel: &Channel) -> usize {
        if self.is_dropping() {
            return CHUNK_BYTES;
        }
        if channel.is_congested() {
            return 0;
        }
        let allowed = self.credit.min(self.left.unwrap_or(u64::MAX));
        usize::try_from(allowed).map_or(CHUNK_BYTES, |bytes| bytes.min(CHUNK_BYTES))
    }

    /// Read once and pass it on.
    pub fn pump(&mut self, id: u32, channel: &mut Channel, scratch: &mut [u8]) -> Pumped {
        let wanted = self.wanted(channel);
        if !self.ready || wanted == 0 {
            return Pumped::Waiting;
        }
        let buffer = scratch.get_mut(..wanted).unwrap_or_default();
        match io::read(self.fd.as_fd(), buffer) {
            Ok(0) => Pumped::Closed,
            Ok(count) => {
                self.pass_on(id, channel, buffer.get(..count).unwrap_or_default());
                Pumped::More
            }
            Err(Errno(libc::EAGAIN)) => {
                self.ready = false;
                Pumped::Waiting
            }
            Err(Errno(libc::EINTR)) => Pumped::More,
            // EIO is how a terminal says that its last slave was closed.
            Err(_) => Pumped::Closed,
        }
    }

    fn pass_on(&mut self, id: u32, channel: &mut Channel, data: &[u8]) {
        let count = u64::try_from(data.len()).unwrap_or(u64::MAX);
        if self.is_dropping() {
            self.dropped = self.dropped.saturating_add(count);
            return;
        }
        channel.send_output(id, self.stream, data);
        self.credit = self.credit.saturating_sub(count);
        self.left = self.left.map(|left| left.saturating_sub(count));
    }

    /// True when the pipe holds nothing now: without credit it can't be read to see that.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        io::pending(self.fd.as_fd()).unwrap_or(0) == 0
    }

    /// True when it is empty and no process holds the other end.
    #[must_use]
    pub fn is_at_end(&self) -> bool {
        // poll(2) reports a hang-up without being asked for one.
        self.is_empty() && io::poll_one(self.fd.as_fd(), 0, 0) == Ok(true)
    }
}
