//! The control channel: frames in, frames out, neither ever waited for.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use super::event::{Source, token};
use crate::sys::io::{self, Epoll, Interest};
use crate::sys::{Errno, SysResult};
use crate::wire::codec::ProtocolError;
use crate::wire::frame::{Decoder, encode, encode_output};
use crate::wire::message::{FromCell, ToCell};

/// Unsent bytes above which no pipe or file is read: four chunks, so that a host that reads steadily never waits.
const CONGESTED_BYTES: usize = 256 * 1024;
/// Unsent bytes above which no request is read: answers to requests are small, so only a host that never reads gets here.
const STALLED_BYTES: usize = 1024 * 1024;
/// A buffer that grew beyond this is given back when it is empty.
const KEPT_BYTES: usize = 64 * 1024;

/// Why the channel can't be used any more. The sandbox ends with it.
#[derive(Debug)]
pub enum ChannelError {
    /// The host closed it.
    Closed,
    /// A system call failed.
    Call(Errno),
    /// What came is not a frame that we know.
    Protocol(ProtocolError),
    /// The host sent more than its credit.
    CreditExceeded,
}

impl fmt::Display for ChannelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => write!(f, "the host closed the channel"),
            Self::Call(errno) => write!(f, "{errno}"),
            Self::Protocol(error) => write!(f, "bad frame: {error}"),
            Self::CreditExceeded => write!(f, "the host sent more than its credit"),
        }
    }
}

impl From<Errno> for ChannelError {
    fn from(errno: Errno) -> Self {
        Self::Call(errno)
    }
}

/// Buffers in both directions.
#[derive(Debug)]
pub struct Channel {
    socket: OwnedFd,
    decoder: Decoder,
    out: Vec<u8>,
    sent: usize,
    interest: Interest,
}

impl Channel {
    /// Take over the socket and register it.
    pub fn new(socket: OwnedFd, epoll: &Epoll) -> SysResult<Self> {
        io::set_nonblocking(socket.as_fd(), true)?;
        epoll.add(socket.as_fd(), token(Source::Channel, 0), Interest::Read)?;
        Ok(Self {
            socket,
            decoder: Decoder::default(),
            out: Vec::new(),
            sent: 0,
            interest: Interest::Read,
        })
    }

    /// Take what has arrived, at most one buffer of it.
    pub fn receive(&mut self, scratch: &mut [u8]) -> Result<(), ChannelError> {
        match io::receive(self.socket.as_fd(), scratch) {
            Ok(0) => Err(ChannelError::Closed),
            Ok(count) => {
                self.decoder.feed(scratch.get(..count).unwrap_or_default());
                Ok(())
            }
            Err(Errno(libc::EAGAIN | libc::EINTR)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The next complete request.
    pub fn next(&mut self) -> Result<Option<(u32, ToCell)>, ChannelError> {
        self.decoder.next_message().map_err(ChannelError::Protocol)
    }

    /// Queue a message.
    pub fn send(&mut self, id: u32, message: &FromCell) {
        encode(&mut self.out, id, message);
    }

    /// Queue bytes of a command's output.
    pub fn send_output(&mut self, id: u32, stream: u8, data: &[u8]) {
        encode_output(&mut self.out, id, stream, data);
    }

    /// True while the host reads too slowly for more bulk data.
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.unsent() > CONGESTED_BYTES
    }

    fn unsent(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Send what the socket takes now, and ask to be told when it takes more.
    pub fn flush(&mut self, epoll: &Epoll) -> Result<(), ChannelError> {
        while self.unsent() > 0 {
            let rest = self.out.get(self.sent..).unwrap_or_default();
            match io::send(self.socket.as_fd(), rest) {
                Ok(count) => self.sent += count,
                Err(Errno(libc::EINTR)) => {}
                Err(Errno(libc::EAGAIN)) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.forget_sent();
        self.register(epoll)
    }

    fn forget_sent(&mut self) {
        if self.unsent() == 0 {
            self.out.clear();
            self.out.shrink_to(KEPT_BYTES);
            self.sent = 0;
        } else if self.sent > CONGESTED_BYTES {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    fn register(&mut self, epoll: &Epoll) -> Result<(), ChannelError> {
        let wanted = match self.unsent() {
            0 => Interest::Read,
            1..=STALLED_BYTES => Interest::ReadWrite,
            _ => Interest::Write,
        };
        if wanted != self.interest {
            let token = token(Source::Channel, 0);
            epoll.change(self.socket.as_fd(), token, wanted)?;
            self.interest = wanted;
        }
        Ok(())
    }
}
