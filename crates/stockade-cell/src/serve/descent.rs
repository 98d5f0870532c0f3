//! Going down and up a directory tree of any depth with one descriptor.
//!
//! The payload may move a directory while we are in it; `..` then leads elsewhere. So each level's identity is
//! kept, and a way up that ends in another directory is an error.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::file::{self, Dirent};
use crate::sys::{Errno, SysResult};

/// Deepest tree that is walked: at most 50 MB for names and identities, more than any inode limit lets a payload make.
const MAX_DEPTH: usize = 200_000;
/// One getdents64(2).
const PAGE_BYTES: usize = 8 * 1024;
const DIRECTORY: libc::c_int = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
/// Another mount is not part of the tree.
const STRICT: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_XDEV;

/// A directory on the way from the top to here.
#[derive(Debug)]
pub struct Level {
    identity: (u64, u64),
    /// Its name in the level above.
    pub name: CString,
    /// Where reading goes on in the level above.
    resume: i64,
}

/// A place in a tree.
#[derive(Debug)]
pub struct Descent {
    directory: OwnedFd,
    levels: Vec<Level>,
    names: std::vec::IntoIter<Dirent>,
}

impl Descent {
    /// Begin at the directory `name` in `parent`.
    pub fn open(parent: BorrowedFd, name: &CStr) -> SysResult<Self> {
        let strict = STRICT & !libc::RESOLVE_NO_XDEV;
        let directory = file::open_at(Some(parent), name, DIRECTORY, 0, strict)?;
        let level = Level {
            identity: file::metadata(directory.as_fd(), c"")?.identity,
            name: name.to_owned(),
            resume: 0,
        };
        Ok(Self {
            directory,
            levels: vec![level],
            names: Vec::new().into_iter(),
        })
    }

    /// The directory that we are in.
    #[must_use]
    pub fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// The next name in it; `None` at its end.
    pub fn next_name(&mut self) -> SysResult<Option<Dirent>> {
        loop {
            if let Some(name) = self.names.next() {
                return Ok(Some(name));
            }
            let mut buffer = [0; PAGE_BYTES];
            match file::directory_page(self.directory.as_fd(), &mut buffer)? {
                Some(names) => self.names = names.into_iter(),
                None => return Ok(None),
            }
        }
    }

    /// Go into a directory of this one.
    pub fn enter(&mut self, name: Dirent) -> SysResult<()> {
        if self.levels.len() >= MAX_DEPTH {
            return Err(Errno(libc::ELOOP));
        }
        let here = Some(self.directory.as_fd());
        let directory = file::open_at(here, &name.name, DIRECTORY, 0, STRICT)?;
        self.levels.push(Level {
            identity: file::metadata(directory.as_fd(), c"")?.identity,
            name: name.name,
            resume: name.next,
        });
        self.directory = directory;
        self.names = Vec::new().into_iter();
        Ok(())
    }

    /// Go up, and on behind the directory that we were in. `None` at the top.
    pub fn leave(&mut self) -> SysResult<Option<Level>> {
        let above = self.levels.iter().rev().nth(1).map(|level| level.identity);
        let Some(above) = above else {
            return Ok(None);
        };
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let directory = file::open_at(Some(self.directory.as_fd()), c"..", flags, 0, 0)?;
        if file::metadata(directory.as_fd(), c"")?.identity != above {
            return Err(Errno(libc::ESTALE));
        }
        self.directory = directory;
        self.names = Vec::new().into_iter();
        let level = self.levels.pop();
        file::seek_directory(
            self.directory.as_fd(),
            level.as_ref().map_or(0, |l| l.resume),
        )?;
        Ok(level)
    }

    /// Read the directory that we are in from its start.
    pub fn rewind(&mut self) -> SysResult<()> {
        self.names = Vec::new().into_iter();
        file::seek_directory(self.directory.as_fd(), 0)
    }
}
