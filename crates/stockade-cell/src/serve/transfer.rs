//! Reading and writing one regular file in chunks, within credit.

use std::os::fd::{AsFd, OwnedFd};

use super::channel::{Channel, ChannelError};
use super::files::Progress;
use super::refusal::Refusal;
use super::resolve::{Access, Location, Resolver, Walk};
use crate::sys::file::{self, Metadata};
use crate::sys::{Errno, SysResult, io};
use crate::wire::codec::Bytes;
use crate::wire::message::{
    CHUNK_BYTES, Credit, Data, End, FileRead, FileWrite, FromCell, code, stream, write,
};

/// Bytes that the host may have under way to a file: four chunks.
const WINDOW_BYTES: u32 = 256 * 1024;
/// Credit is given back in pieces of one chunk.
const GRANT_BYTES: u32 = 64 * 1024;
/// Permission bits that a request may set: no set-uid, set-gid or sticky bit.
const MODE_BITS: u32 = 0o777;
/// Never wait for a FIFO's other end, never follow, never get a terminal.
const OPEN: libc::c_int = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY;
const STRICT: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS;

/// A file that is being sent to the host.
#[derive(Debug)]
pub struct FileReader {
    file: OwnedFd,
    offset: u64,
    left: u64,
    credit: u64,
}

impl FileReader {
    /// Open the file; a length of 0 is all that there is.
    pub fn open(request: &FileRead, resolver: &Resolver) -> Result<Self, Refusal> {
        let walk = Walk {
            follow: true,
            parents: false,
            access: Access::Read,
        };
        let location = resolver.locate(&request.path.0, walk)?;
        let (file, _) = open_regular(&location, libc::O_RDONLY, 0)?;
        Ok(Self {
            file,
            offset: request.offset,
            left: if request.length == 0 {
                u64::MAX
            } else {
                request.length
            },
            credit: u64::from(request.credit),
        })
    }

    /// Allow more bytes.
    pub fn grant(&mut self, count: u32) {
        self.credit = self.credit.saturating_add(u64::from(count));
    }

    /// True when `step` would do something.
    #[must_use]
    pub fn is_runnable(&self, channel: &Channel) -> bool {
        self.credit > 0 && !channel.is_congested()
    }

    /// Send one chunk.
    pub fn step(
        &mut self,
        id: u32,
        channel: &mut Channel,
        scratch: &mut [u8],
    ) -> Result<Progress, Refusal> {
        let allowed = usize::try_from(self.left.min(self.credit)).unwrap_or(CHUNK_BYTES);
        let buffer = scratch
            .get_mut(..allowed.min(CHUNK_BYTES))
            .unwrap_or_default();
        let count = file::read_at(self.file.as_fd(), buffer, self.offset)?;
        if count > 0 {
            let data = Bytes(buffer.get(..count).unwrap_or_default().to_vec());
            channel.send(id, &FromCell::Data(Data { data }));
        }
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        self.offset = self.offset.saturating_add(count);
        self.left = self.left.saturating_sub(count);
        self.credit = self.credit.saturating_sub(count);
        if count == 0 || self.left == 0 || self.is_at_end()? {
            return Ok(Progress::Done(FromCell::End(End {})));
        }
        Ok(Progress::More)
    }

    /// Without credit the end could not be read.
    fn is_at_end(&self) -> SysResult<bool> {
        if self.credit > 0 {
            return Ok(false);
        }
        let size = file::metadata(self.file.as_fd(), c"")?.size;
        Ok(self.offset >= size)
    }
}

/// A file that is being received from the host.
#[derive(Debug)]
pub struct FileWriter {
    file: OwnedFd,
    window: u32,
    taken: u32,
}

impl FileWriter {
    /// Open or make the file, and give the first credit. Nothing of an existing file is lost before every check passed.
    pub fn open(
        id: u32,
        request: &FileWrite,
        resolver: &Resolver,
        channel: &mut Channel,
    ) -> Result<Self, Refusal> {
        let has = |flag| request.flags & flag != 0;
        let walk = Walk {
            // An exclusive create fails on a link, wherever it leads.
            follow: !has(write::EXCLUSIVE),
            parents: has(write::PARENTS),
            access: Access::Write,
        };
        let location = resolver.locate(&request.path.0, walk)?;
        let mut flags = libc::O_WRONLY;
        for (wanted, flag) in [
            (has(write::CREATE), libc::O_CREAT),
            (has(write::EXCLUSIVE), libc::O_CREAT | libc::O_EXCL),
            (has(write::APPEND), libc::O_APPEND),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        let (file, metadata) = open_regular(&location, flags, request.mode & MODE_BITS)?;
        if metadata.nlink > 1 {
            return Err(Refusal::rule(code::HARD_LINK, "the file has another name"));
        }
        if has(write::TRUNCATE) && metadata.size > 0 {
            file::truncate(file.as_fd(), 0)?;
        }
        grant(id, channel, WINDOW_BYTES);
        Ok(Self {
            file,
            window: WINDOW_BYTES,
            taken: 0,
        })
    }

    /// Write what the host sent.
    pub fn push(
        &mut self,
        id: u32,
        data: &[u8],
        channel: &mut Channel,
    ) -> Result<Result<(), Refusal>, ChannelError> {
        let count = u32::try_from(data.len()).map_err(|_| ChannelError::CreditExceeded)?;
        let window = self.window.checked_sub(count);
        self.window = window.ok_or(ChannelError::CreditExceeded)?;
        if let Err(error) = io::write_all(self.file.as_fd(), data) {
            return Ok(Err(error.into()));
        }
        self.taken += count;
        if self.taken >= GRANT_BYTES {
            grant(id, channel, self.taken);
            self.window += self.taken;
            self.taken = 0;
        }
        Ok(Ok(()))
    }
}

/// Open the last name of `location`, which must be a regular file now, whatever it was when it was looked at.
fn open_regular(
    location: &Location,
    flags: libc::c_int,
    mode: u32,
) -> Result<(OwnedFd, Metadata), Refusal> {
    let refusal = |errno| Refusal::call(code::NOT_REGULAR, errno, "not a regular file");
    let refused = refusal(Errno(0));
    let exclusive = flags & libc::O_EXCL != 0;
    // Opening a device or a FIFO may do something by itself.
    if location
        .metadata
        .is_some_and(|found| !exclusive && !found.is(libc::S_IFREG))
    {
        let is_directory = location
            .metadata
            .is_some_and(|found| found.is(libc::S_IFDIR));
        return Err(if is_directory {
            refusal(Errno(libc::EISDIR))
        } else {
            refused
        });
    }
    let parent = Some(location.parent.as_fd());
    // openat2(2) refuses a mode where nothing is made.
    let mode = if flags & libc::O_CREAT == 0 { 0 } else { mode };
    let file = match file::open_at(parent, &location.name, flags | OPEN, mode, STRICT) {
        Err(Errno(libc::EISDIR | libc::ENXIO)) => return Err(refused),
        result => result?,
    };
    let metadata = file::metadata(file.as_fd(), c"")?;
    if metadata.is(libc::S_IFREG) {
        Ok((file, metadata))
    } else {
        Err(refused)
    }
}

fn grant(id: u32, channel: &mut Channel, count: u32) {
    let stream = stream::FILE;
    channel.send(id, &FromCell::Credit(Credit { stream, count }));
}
