//! Descriptors, pipes, sockets, polling.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::{SysResult, check, check_int};

/// Take ownership of a descriptor that this process was started with.
///
/// Call it once per number: the caller vouches that nothing else owns it.
#[must_use]
pub fn adopt(fd: RawFd) -> OwnedFd {
    // SAFETY: the launcher's contract names descriptors 3 and 4; each is adopted once, at start.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// close_range(2): close every descriptor from `first` on.
pub fn close_from(first: libc::c_uint) -> SysResult<()> {
    // SAFETY: integers only; called at start, before anything above `first` is owned.
    check_int(unsafe { libc::close_range(first, libc::c_uint::MAX, 0) }).map(drop)
}

/// Close every descriptor whose number is not in `kept`, which is sorted. For a process that will own nothing else.
pub fn close_all_but(kept: &[RawFd]) -> SysResult<()> {
    let mut first: libc::c_uint = 0;
    for fd in kept {
        let number = fd.unsigned_abs();
        if number > first {
            // SAFETY: integers only; the caller's process uses none of these again.
            check_int(unsafe { libc::close_range(first, number - 1, 0) })?;
        }
        first = number + 1;
    }
    close_from(first)
}

/// read(2).
pub fn read(fd: BorrowedFd, buffer: &mut [u8]) -> SysResult<usize> {
    // SAFETY: the pointer and length describe `buffer`, which outlives the call.
    let count = unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) };
    check(count as libc::c_long).map(|n| n as usize)
}

/// write(2); may write less than asked.
pub fn write(fd: BorrowedFd, buffer: &[u8]) -> SysResult<usize> {
    // SAFETY: the pointer and length describe `buffer`, which outlives the call.
    let count = unsafe { libc::write(fd.as_raw_fd(), buffer.as_ptr().cast(), buffer.len()) };
    check(count as libc::c_long).map(|n| n as usize)
}

/// Write all of `buffer` to a blocking descriptor.
pub fn write_all(fd: BorrowedFd, mut buffer: &[u8]) -> SysResult<()> {
    while !buffer.is_empty() {
        match write(fd, buffer) {
            Ok(count) => buffer = buffer.get(count..).unwrap_or_default(),
            Err(error) if error.0 == libc::EINTR => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Most descriptors that one READY frame carries (SCM_MAX_FD is 253; a plan passes out a handful of mounts).
pub const MAX_FDS: usize = 16;

/// Send all of `data` on a blocking stream socket, the descriptors with its first byte.
pub fn send_with_fds(socket: BorrowedFd, data: &[u8], fds: &[BorrowedFd]) -> SysResult<()> {
    let sent = send_message(socket, data, fds, 0)?;
    write_all(socket, data.get(sent..).unwrap_or_default())
}

/// Send one packet with descriptors, or fail without waiting.
pub fn send_packet(socket: BorrowedFd, data: &[u8], fds: &[BorrowedFd]) -> SysResult<()> {
    send_message(socket, data, fds, libc::MSG_DONTWAIT).map(drop)
}

fn send_message(
    socket: BorrowedFd,
    data: &[u8],
    fds: &[BorrowedFd],
    flags: libc::c_int,
) -> SysResult<usize> {
    let raw: Vec<RawFd> = fds.iter().take(MAX_FDS).map(AsRawFd::as_raw_fd).collect();
    let payload = raw.len() * size_of::<RawFd>();
    let mut control = [0_u64; 16]; // CMSG_SPACE(16 descriptors) is 80 bytes; u64 for its alignment
    let mut iov = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    // SAFETY: msghdr is plain data for which zero is valid; every pointer set below outlives the call, and
    // the control buffer holds CMSG_SPACE(payload) bytes because of the cap above.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        if !raw.is_empty() {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(payload as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload as u32) as _;
            std::ptr::copy_nonoverlapping(raw.as_ptr().cast(), libc::CMSG_DATA(header), payload);
        }
        libc::sendmsg(
            socket.as_raw_fd(),
            &raw const message,
            libc::MSG_NOSIGNAL | flags,
        )
    };
    check(sent as libc::c_long).map(|count| count as usize)
}

/// socketpair(2) of stream sockets.
pub fn stream_pair() -> SysResult<(OwnedFd, OwnedFd)> {
    socket_pair(libc::SOCK_STREAM)
}

/// socketpair(2) of sockets that keep packets apart.
pub fn packet_pair() -> SysResult<(OwnedFd, OwnedFd)> {
    socket_pair(libc::SOCK_SEQPACKET)
}

fn socket_pair(kind: libc::c_int) -> SysResult<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    let kind = kind | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel fills the two numbers of `ends`.
    check_int(unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()) })?;
    let [first, second] = ends;
    // SAFETY: both descriptors were just made for us and are owned by nobody else.
    Ok(unsafe { (OwnedFd::from_raw_fd(first), OwnedFd::from_raw_fd(second)) })
}

/// recvmsg(2): bytes, and up to `most` descriptors that came with them.
pub fn receive_with_fds(
    socket: BorrowedFd,
    buffer: &mut [u8],
    most: usize,
) -> SysResult<(usize, Vec<OwnedFd>)> {
    let mut control = [0_u64; 16]; // CMSG_SPACE(16 descriptors) is 80 bytes; u64 for its alignment
    let room = most.min(MAX_FDS) * size_of::<RawFd>();
    let mut iov = libc::iovec {
        iov_base: buffer.as_mut_ptr().cast(),
        iov_len: buffer.len(),
    };
    // SAFETY: msghdr is plain data for which zero is valid; every pointer outlives the call; the header that the
    // kernel wrote says how many descriptors follow it, each new and owned by nobody else.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(room as u32) as _;
        let count = libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC);
        let count = check(count as libc::c_long)? as usize;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Ok((count, Vec::new()));
        }
        let length =
            ((*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
        #[allow(clippy::cast_ptr_alignment)] // read_unaligned below
        let first = libc::CMSG_DATA(header).cast::<RawFd>();
        let fds = (0..length).map(|index| first.add(index).read_unaligned());
        Ok((count, fds.map(|fd| OwnedFd::from_raw_fd(fd)).collect()))
    }
}

/// pipe2(2) with O_CLOEXEC and `flags`: the read end, then the write end.
pub fn pipe(flags: libc::c_int) -> SysResult<(OwnedFd, OwnedFd)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: the kernel fills the two numbers of `ends`.
    check_int(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | flags) })?;
    let [read_end, write_end] = ends;
    // SAFETY: both descriptors were just made for us and are owned by nobody else.
    Ok(unsafe {
        (
            OwnedFd::from_raw_fd(read_end),
            OwnedFd::from_raw_fd(write_end),
        )
    })
}

/// Switch O_NONBLOCK.
pub fn set_nonblocking(fd: BorrowedFd, on: bool) -> SysResult<()> {
    // SAFETY: fcntl with integer arguments touches no memory of ours.
    unsafe {
        let flags = check_int(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL))?;
        let wanted = if on {
            flags | libc::O_NONBLOCK
        } else {
            flags & !libc::O_NONBLOCK
        };
        check_int(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, wanted))?;
    }
    Ok(())
}

/// poll(2) for one descriptor; true when one of `events` (or an error or hang-up) is there.
pub fn poll_one(fd: BorrowedFd, events: libc::c_short, timeout_ms: libc::c_int) -> SysResult<bool> {
    let mut entry = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    // SAFETY: one entry, which outlives the call.
    check_int(unsafe { libc::poll(&raw mut entry, 1, timeout_ms) }).map(|count| count > 0)
}

/// What happened to a registered descriptor.
#[derive(Debug, Clone, Copy)]
pub struct Readiness {
    /// The number that it was registered with.
    pub token: u64,
    /// Anything but EPOLLOUT: data, a hang-up or an error, which a read tells apart.
    pub readable: bool,
}

/// When a registered descriptor is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interest {
    /// As long as it is readable.
    Read,
    /// As long as it is readable or writable.
    ReadWrite,
    /// As long as it is writable.
    Write,
    /// Once per change to readable.
    ReadEdge,
    /// Once per change to writable.
    WriteEdge,
}

impl Interest {
    fn bits(self) -> u32 {
        let bits = match self {
            Self::Read => libc::EPOLLIN,
            Self::ReadWrite => libc::EPOLLIN | libc::EPOLLOUT,
            Self::Write => libc::EPOLLOUT,
            Self::ReadEdge => libc::EPOLLIN | libc::EPOLLET,
            Self::WriteEdge => libc::EPOLLOUT | libc::EPOLLET,
        };
        bits as u32
    }
}

/// Events that one epoll_wait takes; more wait for the next turn.
const EVENTS: usize = 64;

/// An epoll(7) instance.
#[derive(Debug)]
pub struct Epoll(OwnedFd);

impl Epoll {
    /// epoll_create1(2).
    pub fn new() -> SysResult<Self> {
        // SAFETY: the result is a new descriptor.
        unsafe {
            let fd = check_int(libc::epoll_create1(libc::EPOLL_CLOEXEC))?;
            Ok(Self(OwnedFd::from_raw_fd(fd)))
        }
    }

    /// Start to watch `fd`.
    pub fn add(&self, fd: BorrowedFd, token: u64, interest: Interest) -> SysResult<()> {
        self.control(libc::EPOLL_CTL_ADD, fd, token, interest)
    }

    /// Change what is watched.
    pub fn change(&self, fd: BorrowedFd, token: u64, interest: Interest) -> SysResult<()> {
        self.control(libc::EPOLL_CTL_MOD, fd, token, interest)
    }

    fn control(
        &self,
        operation: libc::c_int,
        fd: BorrowedFd,
        token: u64,
        interest: Interest,
    ) -> SysResult<()> {
        let mut event = libc::epoll_event {
            events: interest.bits(),
            u64: token,
        };
        // SAFETY: the kernel reads one event.
        check_int(unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                operation,
                fd.as_raw_fd(),
                &raw mut event,
            )
        })
        .map(drop)
    }

    /// Wait at most `timeout_ms` (-1: for ever) and append what happened. A freeze or a signal ends it early.
    pub fn wait(&self, timeout_ms: libc::c_int, ready: &mut Vec<Readiness>) -> SysResult<()> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        // SAFETY: the kernel fills at most EVENTS entries.
        let count = check_int(unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                EVENTS as libc::c_int,
                timeout_ms,
            )
        });
        let count = match count {
            Ok(count) => count as usize,
            Err(error) if error.0 == libc::EINTR => 0,
            Err(error) => return Err(error),
        };
        for event in events.iter().take(count) {
            let bits = { event.events };
            ready.push(Readiness {
                token: event.u64,
                readable: bits & !(libc::EPOLLOUT as u32) != 0,
            });
        }
        Ok(())
    }
}

/// recv(2) that never waits.
pub fn receive(socket: BorrowedFd, buffer: &mut [u8]) -> SysResult<usize> {
    // SAFETY: the pointer and length describe `buffer`, which outlives the call.
    let count = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT,
        )
    };
    check(count as libc::c_long).map(|n| n as usize)
}

/// send(2) that never waits and raises no SIGPIPE; may send less than asked.
pub fn send(socket: BorrowedFd, buffer: &[u8]) -> SysResult<usize> {
    // SAFETY: the pointer and length describe `buffer`, which outlives the call.
    let count = unsafe {
        libc::send(
            socket.as_raw_fd(),
            buffer.as_ptr().cast(),
            buffer.len(),
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    check(count as libc::c_long).map(|n| n as usize)
}

/// FIONREAD: bytes that a pipe or terminal holds now.
pub fn pending(fd: BorrowedFd) -> SysResult<usize> {
    let mut count: libc::c_int = 0;
    // SAFETY: the kernel fills one int.
    check_int(unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &raw mut count) })?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// fcntl(2) F_DUPFD_CLOEXEC: another descriptor of the same file.
pub fn duplicate(fd: BorrowedFd) -> SysResult<OwnedFd> {
    // SAFETY: integers only; the result is a new descriptor.
    unsafe {
        let fd = check_int(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// The descriptor's number.
#[must_use]
pub fn number(fd: BorrowedFd) -> RawFd {
    fd.as_raw_fd()
}

/// Keep a descriptor open for as long as the process lives.
pub fn leak(fd: OwnedFd) {
    std::mem::forget(fd);
}
