//! A command's standard input: what the host sent and the command has not yet taken.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::channel::Channel;
use super::event::{Source, token};
use crate::sys::io::{self, Epoll, Interest};
use crate::sys::{Errno, SysResult};
use crate::wire::message::{Credit, FromCell, stream};

/// Bytes that the host may have under way: four chunks, so that it never waits for a reader that keeps up.
const WINDOW_BYTES: u32 = 256 * 1024;
/// Credit is given back in pieces of one chunk, not per write.
const GRANT_BYTES: u32 = 64 * 1024;
/// ^D: end of input for a terminal in its normal mode.
const END_OF_INPUT: u8 = 4;

/// The host sent more than it was allowed to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CreditExceeded;

/// The write end of a pipe, or the master of a terminal.
#[derive(Debug)]
pub struct Input {
    /// `None` once the command closed its end: what still comes is thrown away.
    fd: Option<OwnedFd>,
    is_terminal: bool,
    waiting: Vec<u8>,
    written: usize,
    ended: bool,
    registered: bool,
    /// What the host may still send.
    window: u32,
    /// Taken by the command and not yet given back as credit.
    taken: u32,
}

impl Input {
    /// Nothing may be sent before `open`.
    #[must_use]
    pub fn new(fd: OwnedFd, is_terminal: bool) -> Self {
        Self {
            fd: Some(fd),
            is_terminal,
            waiting: Vec::new(),
            written: 0,
            ended: false,
            registered: false,
            window: 0,
            taken: 0,
        }
    }

    /// The command runs: give the first credit.
    pub fn open(&mut self, id: u32, channel: &mut Channel) {
        self.window = WINDOW_BYTES;
        grant(id, channel, WINDOW_BYTES);
    }

    /// Take bytes from the host.
    pub fn push(&mut self, data: &[u8]) -> Result<(), CreditExceeded> {
        let count = u32::try_from(data.len()).map_err(|_| CreditExceeded)?;
        self.window = self.window.checked_sub(count).ok_or(CreditExceeded)?;
        if !self.ended {
            self.waiting.extend_from_slice(data);
        }
        Ok(())
    }

    /// Close after what is waiting; a terminal gets ^D.
    pub fn end(&mut self) {
        if self.is_terminal && !self.ended {
            self.waiting.push(END_OF_INPUT);
        }
        self.ended = true;
    }

    /// Write what the command takes now. True when this input is done with.
    pub fn pump(&mut self, id: u32, channel: &mut Channel, epoll: &Epoll) -> SysResult<bool> {
        while let Some(fd) = &self.fd {
            let rest = self.waiting.get(self.written..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            match io::write(fd.as_fd(), rest) {
                Ok(count) => self.written += count,
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::EAGAIN)) => {
                    self.register(id, epoll)?;
                    break;
                }
                Err(_) => self.fd = None,
            }
        }
        self.give_back(id, channel);
        Ok(self.ended && self.waiting.is_empty() && !self.is_terminal)
    }

    fn register(&mut self, id: u32, epoll: &Epoll) -> SysResult<()> {
        if let (Some(fd), false) = (&self.fd, self.registered) {
            epoll.add(fd.as_fd(), token(Source::Stdin, id), Interest::WriteEdge)?;
            self.registered = true;
        }
        Ok(())
    }

    fn give_back(&mut self, id: u32, channel: &mut Channel) {
        if self.fd.is_none() {
            self.written = self.waiting.len();
        }
        // ^D is ours and was not paid for; the window's limit takes care of it.
        let count = u32::try_from(self.written).unwrap_or(u32::MAX);
        self.taken = self.taken.saturating_add(count);
        self.waiting.drain(..self.written);
        self.written = 0;
        if self.taken >= GRANT_BYTES && !self.ended {
            let count = self.taken.min(WINDOW_BYTES - self.window);
            self.window += count;
            self.taken = 0;
            grant(id, channel, count);
        }
    }

    /// The terminal, for its size.
    #[must_use]
    pub fn terminal(&self) -> Option<BorrowedFd<'_>> {
        self.fd
            .as_ref()
            .filter(|_| self.is_terminal)
            .map(AsFd::as_fd)
    }
}

fn grant(id: u32, channel: &mut Channel, count: u32) {
    let stream = stream::STDIN;
    channel.send(id, &FromCell::Credit(Credit { stream, count }));
}
