//! Removing a name or, piece by piece, a tree.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

use super::change::locate_changeable;
use super::descent::Descent;
use super::files::Progress;
use super::refusal::Refusal;
use super::resolve::Resolver;
use crate::sys::file::{self, Dirent};
use crate::sys::{Errno, SysResult};
use crate::wire::message::{FileRemove, FromCell, Ok as Done};

/// Names of one turn: `..` costs up to 1 ms in the deepest trees, because the kernel checks that the mount is above it.
const NAMES_PER_TURN: usize = 64;
/// Directories that were found filled again after they had been emptied; more is a race that we give up.
const MAX_REFILLED: u32 = 1000;

/// What a REMOVE does at first sight.
#[derive(Debug)]
pub enum Removed {
    /// It is gone.
    Now,
    /// It is a tree, which takes turns.
    Tree(Box<Removal>),
}

/// A tree that is being removed. An error leaves what is left of it.
#[derive(Debug)]
pub struct Removal {
    parent: OwnedFd,
    name: CString,
    place: Descent,
    refilled: u32,
}

/// Remove a file, a link, an empty directory, or begin with a tree.
pub fn remove(request: &FileRemove, resolver: &Resolver) -> Result<Removed, Refusal> {
    let location = locate_changeable(&request.path.0, resolver)?;
    let found = location.metadata.ok_or(Errno(libc::ENOENT))?;
    let (parent, name) = (location.parent, location.name);
    let is_directory = found.is(libc::S_IFDIR);
    match file::remove(parent.as_fd(), &name, is_directory) {
        Err(Errno(libc::ENOTEMPTY | libc::EEXIST)) if is_directory && request.recursive => {}
        result => {
            result?;
            return Ok(Removed::Now);
        }
    }
    let place = Descent::open(parent.as_fd(), &name)?;
    Ok(Removed::Tree(Box::new(Removal {
        parent,
        name,
        place,
        refilled: 0,
    })))
}

impl Removal {
    /// Remove some names.
    pub fn step(&mut self) -> Result<Progress, Refusal> {
        for _ in 0..NAMES_PER_TURN {
            match self.place.next_name()? {
                Some(name) => self.remove_name(name)?,
                None if self.leave()? => return Ok(Progress::Done(FromCell::Ok(Done {}))),
                None => {}
            }
        }
        Ok(Progress::More)
    }

    fn remove_name(&mut self, name: Dirent) -> SysResult<()> {
        let here = self.place.directory();
        let is_directory = name.kind == libc::DT_DIR;
        match file::remove(here, &name.name, is_directory) {
            Ok(()) | Err(Errno(libc::ENOENT)) => Ok(()),
            Err(Errno(libc::ENOTEMPTY | libc::EEXIST)) => self.place.enter(name),
            // A file system that tells no types, or a race; entering it fails if it is no directory.
            Err(Errno(libc::EISDIR | libc::ENOTDIR)) => {
                match file::remove(here, &name.name, !is_directory) {
                    Err(Errno(libc::ENOTEMPTY | libc::EEXIST)) => self.place.enter(name),
                    result => result,
                }
            }
            Err(error) => Err(error),
        }
    }

    /// The directory that we are in is empty: remove it from above. True when it was the top.
    fn leave(&mut self) -> SysResult<bool> {
        let level = self.place.leave()?;
        let removed = match &level {
            Some(level) => file::remove(self.place.directory(), &level.name, true),
            None => file::remove(self.parent.as_fd(), &self.name, true),
        };
        match removed {
            Ok(()) | Err(Errno(libc::ENOENT)) => Ok(level.is_none()),
            // Reading from the start finds it again: names came meanwhile, or deleting made the reading skip some.
            Err(Errno(libc::ENOTEMPTY | libc::EEXIST)) if self.refilled < MAX_REFILLED => {
                self.refilled += 1;
                self.place.rewind()?;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}
