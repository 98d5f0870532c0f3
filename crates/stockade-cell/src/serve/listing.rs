//! Metadata of one file, and listings of directories in pages.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::channel::Channel;
use super::files::Progress;
use super::refusal::Refusal;
use super::resolve::{Access, Resolver, Walk};
use crate::sys::file::{self, Dirent, Metadata};
use crate::sys::{Errno, SysResult};
use crate::wire::codec::Bytes;
use crate::wire::message::{End, Entries, Entry, FileList, FileStat, FromCell, file_type};

/// Entries of one frame.
const PAGE_ENTRIES: usize = 256;
/// Names and link texts of one frame: with 60 bytes for each entry's numbers it stays below the host's 256 KiB.
const PAGE_BYTES: usize = 128 * 1024;
/// One getdents64(2).
const NAMES_BYTES: usize = 32 * 1024;
const STRICT: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS;

/// Answer STAT: one entry.
pub fn stat(request: &FileStat, resolver: &Resolver) -> Result<FromCell, Refusal> {
    let walk = Walk {
        follow: request.follow,
        parents: false,
        access: Access::Read,
    };
    let location = resolver.locate(&request.path.0, walk)?;
    let entry = entry(location.parent.as_fd(), &location.name)?;
    let entries = vec![entry];
    Ok(FromCell::Entries(Entries { entries }))
}

/// A directory that is being listed.
#[derive(Debug)]
pub struct Listing {
    directory: OwnedFd,
    names: VecDeque<Dirent>,
}

impl Listing {
    /// Open the directory.
    pub fn open(request: &FileList, resolver: &Resolver) -> Result<Self, Refusal> {
        let walk = Walk {
            follow: true,
            parents: false,
            access: Access::Read,
        };
        let location = resolver.locate(&request.path.0, walk)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let parent = Some(location.parent.as_fd());
        Ok(Self {
            directory: file::open_at(parent, &location.name, flags, 0, STRICT)?,
            names: VecDeque::new(),
        })
    }

    /// Send one page.
    pub fn step(&mut self, id: u32, channel: &mut Channel) -> Result<Progress, Refusal> {
        let mut entries = Vec::new();
        let mut bytes = 0;
        while entries.len() < PAGE_ENTRIES && bytes < PAGE_BYTES {
            let Some(name) = self.next_name()? else {
                break;
            };
            match entry(self.directory.as_fd(), &name.name) {
                Ok(entry) => {
                    bytes += entry.name.0.len() + entry.target.0.len();
                    entries.push(entry);
                }
                // Removed since its name was read.
                Err(Errno(libc::ENOENT)) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if entries.is_empty() {
            return Ok(Progress::Done(FromCell::End(End {})));
        }
        channel.send(id, &FromCell::Entries(Entries { entries }));
        Ok(Progress::More)
    }

    fn next_name(&mut self) -> SysResult<Option<Dirent>> {
        while self.names.is_empty() {
            let mut buffer = vec![0; NAMES_BYTES];
            match file::directory_page(self.directory.as_fd(), &mut buffer)? {
                Some(names) => self.names.extend(names),
                None => return Ok(None),
            }
        }
        Ok(self.names.pop_front())
    }
}

fn entry(directory: BorrowedFd, name: &CStr) -> SysResult<Entry> {
    let metadata = file::metadata(directory, name)?;
    let target = if metadata.is(libc::S_IFLNK) {
        file::read_link(directory, name)?
    } else {
        Vec::new()
    };
    Ok(Entry {
        name: Bytes(name.to_bytes().to_vec()),
        kind: kind(&metadata),
        mode: metadata.mode & 0o7777,
        uid: metadata.uid,
        gid: metadata.gid,
        size: metadata.size,
        mtime_ns: metadata.mtime_ns,
        nlink: u32::try_from(metadata.nlink).unwrap_or(u32::MAX),
        target: Bytes(target),
    })
}

fn kind(metadata: &Metadata) -> u8 {
    match metadata.mode & libc::S_IFMT {
        libc::S_IFREG => file_type::FILE,
        libc::S_IFDIR => file_type::DIRECTORY,
        libc::S_IFLNK => file_type::SYMLINK,
        _ => file_type::OTHER,
    }
}
