//! Making and moving names.

use std::os::fd::AsFd;

use super::refusal::Refusal;
use super::resolve::{Access, Location, Resolver, Walk};
use crate::sys::Errno;
use crate::sys::file;
use crate::wire::message::{FileMkdir, FileMove, FromCell, Ok as Done, code};

/// Permission bits that a request may set.
const MODE_BITS: u32 = 0o777;
/// A link in the last component is itself what is changed.
const CHANGE: Walk = Walk {
    follow: false,
    parents: false,
    access: Access::Write,
};

/// Make a directory.
pub fn make_directory(request: &FileMkdir, resolver: &Resolver) -> Result<FromCell, Refusal> {
    let walk = Walk {
        parents: request.parents,
        // With `parents` an existing directory is no error, and neither is a link to one.
        follow: request.parents,
        ..CHANGE
    };
    let location = resolver.locate(&request.path.0, walk)?;
    let mode = request.mode & MODE_BITS;
    match file::make_directory(location.parent.as_fd(), &location.name, mode) {
        Err(Errno(libc::EEXIST)) if request.parents && is_directory(&location) => {}
        result => result?,
    }
    Ok(FromCell::Ok(Done {}))
}

fn is_directory(location: &Location) -> bool {
    location
        .metadata
        .is_some_and(|found| found.is(libc::S_IFDIR))
}

/// Rename a file or directory.
pub fn rename(request: &FileMove, resolver: &Resolver) -> Result<FromCell, Refusal> {
    let source = locate_changeable(&request.source.0, resolver)?;
    let target = locate_changeable(&request.target.0, resolver)?;
    let from = (source.parent.as_fd(), source.name.as_c_str());
    let to = (target.parent.as_fd(), target.name.as_c_str());
    file::rename(from, to, request.replace)?;
    Ok(FromCell::Ok(Done {}))
}

/// A name that may be moved or removed: not an allowed directory itself.
pub fn locate_changeable(path: &[u8], resolver: &Resolver) -> Result<Location, Refusal> {
    let location = resolver.locate(path, CHANGE)?;
    if resolver.holds_root(&location.path) {
        return Err(Refusal::rule(code::REFUSED, "holds an allowed directory"));
    }
    Ok(location)
}
