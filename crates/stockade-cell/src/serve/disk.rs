//! How much lies beneath the watched disk paths, counted piece by piece.
//!
//! It sees what the payload could list itself: a file that was removed and is still open, or a directory that nobody may
//! read, is not counted.

use std::os::fd::AsFd;

use super::descent::Descent;
use super::resolve::{Access, Resolver, Walk};
use crate::sys::SysResult;
use crate::sys::file::{self, Dirent};

/// Names of one turn: about 1 ms.
const NAMES_PER_TURN: usize = 512;

/// What was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUse {
    /// Allocated bytes; a file with several names counts its share for each.
    pub bytes: u64,
    /// Names.
    pub inodes: u64,
}

/// One walk over all paths.
#[derive(Debug)]
pub struct DiskWalk {
    paths: Vec<String>,
    place: Option<Descent>,
    used: DiskUse,
}

impl DiskWalk {
    /// Begin with the last of `paths`.
    #[must_use]
    pub fn new(paths: &[String]) -> Self {
        Self {
            paths: paths.to_vec(),
            place: None,
            used: DiskUse::default(),
        }
    }

    /// Count some names; the result at the end of the last path.
    pub fn step(&mut self, resolver: &Resolver) -> Option<DiskUse> {
        for _ in 0..NAMES_PER_TURN {
            let Some(place) = &mut self.place else {
                let path = self.paths.pop();
                match path {
                    // A path that can't be opened has nothing of the payload's.
                    Some(path) => self.place = open(&path, resolver),
                    None => return Some(self.used),
                }
                continue;
            };
            // The tree changed under us: what was counted of this path so far has to do until the next walk.
            if !matches!(count_one(place, &mut self.used), Ok(true)) {
                self.place = None;
            }
        }
        None
    }
}

fn open(path: &str, resolver: &Resolver) -> Option<Descent> {
    let walk = Walk {
        follow: false,
        parents: false,
        access: Access::Read,
    };
    let location = resolver.locate(path.as_bytes(), walk).ok()?;
    Descent::open(location.parent.as_fd(), &location.name).ok()
}

/// Count the next name. False at the end of the tree.
fn count_one(place: &mut Descent, used: &mut DiskUse) -> SysResult<bool> {
    match place.next_name()? {
        Some(name) => count(place, name, used),
        None => return Ok(place.leave()?.is_some()),
    }
    Ok(true)
}

fn count(place: &mut Descent, name: Dirent, used: &mut DiskUse) {
    // Gone since its name was read.
    let Ok(found) = file::metadata(place.directory(), &name.name) else {
        return;
    };
    used.inodes += 1;
    let is_directory = found.is(libc::S_IFDIR);
    let names = if is_directory { 1 } else { found.nlink.max(1) };
    used.bytes = used.bytes.saturating_add(found.allocated / names);
    if is_directory {
        // Another mount, or not readable: counted as one name.
        let _ = place.enter(name);
    }
}
