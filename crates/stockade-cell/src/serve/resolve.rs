//! From a path in a request to a directory descriptor and a last name, without trusting anything on the way.
//!
//! The kernel follows no link for us: each is read here and its text walked like the rest, so the path that is
//! checked is the path that was opened. What the payload renames in the meantime changes where a name leads, never
//! where a descriptor does.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::refusal::Refusal;
use crate::sys::file::{self, Metadata};
use crate::sys::{Errno, SysResult};
use crate::wire::message::code;
use crate::wire::plan::FileRoot;

/// Links on one path, as in the kernel.
const MAX_LINKS: u32 = 40;
/// Length of one path, as in the kernel.
const MAX_PATH_BYTES: usize = 4096;
/// Where no file operation goes and no command starts: what is there are not files, and /proc leads elsewhere.
const FORBIDDEN: [&[u8]; 3] = [b"proc", b"dev", b"sys"];
/// A single name, or a canonical path: no link of either kind, no way up.
const STRICT: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS | libc::RESOLVE_NO_MAGICLINKS;
const DIRECTORY: libc::c_int = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;

/// What an operation wants to do at its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Look.
    Read,
    /// Change.
    Write,
}

/// How to walk a path.
#[derive(Debug, Clone, Copy)]
pub struct Walk {
    /// Resolve a link in the last component.
    pub follow: bool,
    /// Make directories that are missing before the last component.
    pub parents: bool,
    /// What the place must allow.
    pub access: Access,
}

/// Where a path leads.
#[derive(Debug)]
pub struct Location {
    /// The directory that holds the last name.
    pub parent: OwnedFd,
    /// The last name, not a link when links were followed. `.` for the root directory.
    pub name: CString,
    /// All names from the root.
    pub path: Vec<Vec<u8>>,
    /// What was there when we looked; `None` when nothing was.
    pub metadata: Option<Metadata>,
}

#[derive(Debug)]
struct Root {
    path: Vec<Vec<u8>>,
    writable: bool,
}

/// Walks paths from the sandbox's root directory.
#[derive(Debug)]
pub struct Resolver {
    root: OwnedFd,
    roots: Vec<Root>,
}

impl Resolver {
    /// `root` is a descriptor of the directory that paths start at.
    #[must_use]
    pub fn new(root: OwnedFd, roots: &[FileRoot]) -> Self {
        let roots = roots
            .iter()
            .map(|root| Root {
                path: split(root.path.as_bytes()),
                writable: root.writable,
            })
            .collect();
        Self { root, roots }
    }

    /// Walk `path`; the end must be beneath a root that allows `walk.access`.
    pub fn locate(&self, path: &[u8], walk: Walk) -> Result<Location, Refusal> {
        let location = Walker::new(self, path, walk)?.run()?;
        self.permit(&location.path, walk.access)?;
        Ok(location)
    }

    /// Open a command's working directory: anywhere but in a forbidden file system.
    pub fn directory(&self, path: &[u8]) -> Result<OwnedFd, Refusal> {
        let names = split(path);
        let is_plain = path.first() == Some(&b'/') && !names.iter().any(|name| name == b"..");
        if is_plain
            && refuse_forbidden(&names).is_ok()
            && let Ok(directory) = self.open_canonical(&names)
        {
            return Ok(directory);
        }
        let walk = Walk {
            follow: true,
            parents: false,
            access: Access::Read,
        };
        let location = Walker::new(self, path, walk)?.run()?;
        let parent = location.parent.as_fd();
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        Ok(file::open_at(
            Some(parent),
            &location.name,
            flags,
            0,
            STRICT,
        )?)
    }

    /// The descriptor of /.
    #[must_use]
    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// True when the path is one of the roots or above one: it may be looked at, not moved or removed.
    #[must_use]
    pub fn holds_root(&self, path: &[Vec<u8>]) -> bool {
        self.roots.iter().any(|root| root.path.starts_with(path))
    }

    fn permit(&self, path: &[Vec<u8>], access: Access) -> Result<(), Refusal> {
        let root = self
            .root_of(path)
            .ok_or_else(|| Refusal::rule(code::OUTSIDE, "outside the allowed directories"))?;
        if access == Access::Write && !root.writable {
            return Err(Refusal::rule(code::REFUSED, "read-only directory"));
        }
        Ok(())
    }

    /// The innermost root decides, as the innermost mount does.
    fn root_of(&self, path: &[Vec<u8>]) -> Option<&Root> {
        let above = self
            .roots
            .iter()
            .filter(|root| path.starts_with(&root.path));
        above.max_by_key(|root| root.path.len())
    }

    /// Open the directory with these canonical names.
    fn open_canonical(&self, path: &[Vec<u8>]) -> SysResult<OwnedFd> {
        let text = if path.is_empty() {
            b".".to_vec()
        } else {
            path.join(&b'/')
        };
        file::open_at(
            Some(self.root.as_fd()),
            &name_of(&text)?,
            DIRECTORY,
            0,
            STRICT,
        )
    }
}

/// One walk: where it is, and what is still to go.
struct Walker<'a> {
    resolver: &'a Resolver,
    walk: Walk,
    /// `None` is the root directory.
    directory: Option<OwnedFd>,
    path: Vec<Vec<u8>>,
    left: VecDeque<Vec<u8>>,
    links: u32,
}

/// What one component was.
enum Step {
    /// A directory that was entered, or a link whose text is to be walked.
    GoOn,
    /// The last one.
    Found(Metadata),
    /// The last one, which is not there.
    Missing,
}

impl<'a> Walker<'a> {
    fn new(resolver: &'a Resolver, path: &[u8], walk: Walk) -> Result<Self, Refusal> {
        if path.first() != Some(&b'/') || path.contains(&0) {
            return Err(Refusal::rule(
                code::REFUSED,
                "path is not absolute, or holds NUL",
            ));
        }
        if path.len() >= MAX_PATH_BYTES {
            return Err(Errno(libc::ENAMETOOLONG).into());
        }
        let mut walker = Self {
            resolver,
            walk,
            directory: None,
            path: Vec::new(),
            left: split(path).into(),
            links: 0,
        };
        walker.leap()?;
        Ok(walker)
    }

    /// All but the last component at once, when there is neither link nor `..` in them: the usual case.
    fn leap(&mut self) -> Result<(), Refusal> {
        let Some(last) = self.left.pop_back() else {
            return Ok(());
        };
        let plain = last != b".." && !self.left.iter().any(|part| part == b"..");
        let path: Vec<Vec<u8>> = self.left.iter().cloned().collect();
        if plain
            && !path.is_empty()
            && let Ok(directory) = self.resolver.open_canonical(&path)
        {
            self.left.clear();
            self.enter(directory, path)?;
        }
        self.left.push_back(last);
        Ok(())
    }

    fn enter(&mut self, directory: OwnedFd, path: Vec<Vec<u8>>) -> Result<(), Refusal> {
        refuse_forbidden(&path)?;
        self.directory = (!path.is_empty()).then_some(directory);
        self.path = path;
        Ok(())
    }

    fn run(mut self) -> Result<Location, Refusal> {
        loop {
            let Some(part) = self.left.pop_front() else {
                return self.at_directory();
            };
            if part == b".." {
                self.go_up()?;
                continue;
            }
            let mut path = self.path.clone();
            path.push(part);
            refuse_forbidden(&path)?;
            match self.step(&path) {
                Ok(Step::Found(metadata)) => return self.at_name(path, Some(metadata)),
                Ok(Step::Missing) => return self.at_name(path, None),
                Ok(Step::GoOn) => {}
                // Nothing is told about places that the request may not see.
                Err(refusal) if self.resolver.root_of(&path).is_some() => return Err(refusal),
                Err(refusal) if refusal.code == code::FILE => {
                    let detail = "outside the allowed directories";
                    return Err(Refusal::call(code::OUTSIDE, refusal.errno, detail));
                }
                Err(refusal) => return Err(refusal),
            }
        }
    }

    fn here(&self) -> BorrowedFd<'_> {
        self.directory
            .as_ref()
            .unwrap_or(&self.resolver.root)
            .as_fd()
    }

    /// Look at the last name of `path`.
    fn step(&mut self, path: &[Vec<u8>]) -> Result<Step, Refusal> {
        let name = name_of(path.last().map_or(&[], Vec::as_slice))?;
        let is_last = self.left.is_empty();
        let flags = libc::O_PATH | libc::O_NOFOLLOW;
        let node = match file::open_at(Some(self.here()), &name, flags, 0, STRICT) {
            Err(Errno(libc::ENOENT)) if is_last => return Ok(Step::Missing),
            Err(Errno(libc::ENOENT)) if self.walk.parents => self.make(path, &name)?,
            result => result?,
        };
        let metadata = file::metadata(node.as_fd(), c"")?;
        if metadata.is(libc::S_IFLNK) && (!is_last || self.walk.follow) {
            self.follow(node.as_fd())?;
            return Ok(Step::GoOn);
        }
        if is_last {
            return Ok(Step::Found(metadata));
        }
        if !metadata.is(libc::S_IFDIR) {
            return Err(Errno(libc::ENOTDIR).into());
        }
        self.enter(node, path.to_vec())?;
        Ok(Step::GoOn)
    }

    fn make(&self, path: &[Vec<u8>], name: &CString) -> Result<OwnedFd, Refusal> {
        self.resolver.permit(path, Access::Write)?;
        match file::make_directory(self.here(), name, 0o777) {
            Ok(()) | Err(Errno(libc::EEXIST)) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(file::open_at(
            Some(self.here()),
            name,
            DIRECTORY,
            0,
            STRICT,
        )?)
    }

    /// Put a link's text before what is left.
    fn follow(&mut self, link: BorrowedFd) -> Result<(), Refusal> {
        self.links += 1;
        if self.links > MAX_LINKS {
            return Err(Errno(libc::ELOOP).into());
        }
        let text = file::read_link(link, c"")?;
        if text.first() == Some(&b'/') {
            self.directory = None;
            self.path.clear();
        }
        for part in split(&text).into_iter().rev() {
            self.left.push_front(part);
        }
        Ok(())
    }

    /// Our own `..`: the canonical path without its last name, opened again from the root.
    fn go_up(&mut self) -> Result<(), Refusal> {
        let mut path = self.path.clone();
        path.pop();
        let directory = self.resolver.open_canonical(&path)?;
        self.enter(directory, path)
    }

    /// The walk ended in a directory that was entered: find its name in its parent.
    fn at_directory(mut self) -> Result<Location, Refusal> {
        let path = self.path.clone();
        let metadata = Some(file::metadata(self.here(), c"")?);
        self.go_up()?;
        let name = name_of(path.last().map_or(b".", Vec::as_slice))?;
        let parent = self.take_directory()?;
        Ok(Location {
            parent,
            name,
            path,
            metadata,
        })
    }

    fn at_name(
        mut self,
        path: Vec<Vec<u8>>,
        metadata: Option<Metadata>,
    ) -> Result<Location, Refusal> {
        let name = name_of(path.last().map_or(b".", Vec::as_slice))?;
        let parent = self.take_directory()?;
        Ok(Location {
            parent,
            name,
            path,
            metadata,
        })
    }

    fn take_directory(&mut self) -> SysResult<OwnedFd> {
        match self.directory.take() {
            Some(directory) => Ok(directory),
            None => self.resolver.open_canonical(&[]),
        }
    }
}

fn refuse_forbidden(path: &[Vec<u8>]) -> Result<(), Refusal> {
    match path.first() {
        Some(first) if FORBIDDEN.contains(&first.as_slice()) => {
            Err(Refusal::rule(code::OUTSIDE, "forbidden file system"))
        }
        _ => Ok(()),
    }
}

/// Components without empty ones and `.`; `..` stays, because what it means depends on links.
fn split(path: &[u8]) -> Vec<Vec<u8>> {
    path.split(|byte| *byte == b'/')
        .filter(|part| !part.is_empty() && *part != b".")
        .map(<[u8]>::to_vec)
        .collect()
}

fn name_of(bytes: &[u8]) -> SysResult<CString> {
    CString::new(bytes).map_err(|_| Errno(libc::EINVAL))
}
