//! Host directories as detached mounts: opened by the launcher while it still has the host's rights (root), or by
//! the new namespace's first process under the user's own (rootless).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, OwnedFd};

use super::error::{AtStep, LaunchResult};
use super::text::c_string;
use super::user;
use crate::sys::mount;
use crate::wire::plan::{Identity, NONE, Step};

/// What `open` needs of a step.
struct Source<'a> {
    step: &'a str,
    path: &'a str,
    attributes: u64,
    recursive: bool,
    optional: bool,
    owner: (u32, u32),
}

impl<'a> Source<'a> {
    fn of(step: &'a Step) -> Option<Self> {
        match step {
            Step::Bind(bind) => Some(Self {
                step: &bind.name,
                path: &bind.source,
                attributes: bind.attrs,
                recursive: bind.recursive,
                optional: bind.optional,
                owner: (bind.map_uid, bind.map_gid),
            }),
            Step::RootTree(root) => Some(Self {
                step: &root.name,
                path: &root.source,
                attributes: READ_ONLY | NOSUID | NODEV,
                recursive: false,
                optional: false,
                owner: (root.map_uid, root.map_gid),
            }),
            Step::Overlay(overlay) => Some(Self {
                step: &overlay.name,
                path: &overlay.source,
                attributes: READ_ONLY | NOSUID | NODEV,
                recursive: false,
                optional: false,
                owner: (overlay.map_uid, overlay.map_gid),
            }),
            _ => None,
        }
    }
}

/// MOUNT_ATTR_RDONLY
pub const READ_ONLY: u64 = 0x1;
/// MOUNT_ATTR_NOSUID
pub const NOSUID: u64 = 0x2;
/// MOUNT_ATTR_NODEV
pub const NODEV: u64 = 0x4;
/// MOUNT_ATTR_NOEXEC
pub const NOEXEC: u64 = 0x8;

/// Detached mounts by the index of their step.
#[derive(Debug, Default)]
pub struct Trees {
    opened: HashMap<usize, OwnedFd>,
    namespaces: HashMap<(u32, u32), OwnedFd>,
}

impl Trees {
    /// Open the source of every step that has one.
    pub fn open_all(steps: &[Step], identity: &Identity) -> LaunchResult<Self> {
        let mut trees = Self::default();
        for (index, step) in steps.iter().enumerate() {
            if let Some(tree) = trees.open(step, identity)? {
                trees.opened.insert(index, tree);
            }
        }
        Ok(trees)
    }

    /// The mount of a step; `None` for an optional source that is missing.
    pub fn take(&mut self, index: usize) -> Option<OwnedFd> {
        self.opened.remove(&index)
    }

    fn open(&mut self, step: &Step, identity: &Identity) -> LaunchResult<Option<OwnedFd>> {
        let Some(source) = Source::of(step) else {
            return Ok(None);
        };
        let path = c_string(source.step, source.path)?;
        let tree = match mount::clone_tree(None, &path, source.recursive) {
            Err(error) if error.0 == libc::ENOENT && source.optional => return Ok(None),
            other => other.at(source.step, source.path)?,
        };
        let idmap = self.namespace(identity, source.owner)?;
        mount::set_attributes(tree.as_fd(), source.attributes, idmap, source.recursive)
            .at(source.step, source.path)?;
        Ok(Some(tree))
    }

    fn namespace(
        &mut self,
        identity: &Identity,
        owner: (u32, u32),
    ) -> LaunchResult<Option<std::os::fd::BorrowedFd<'_>>> {
        if owner.0 == NONE {
            return Ok(None);
        }
        let namespace: &OwnedFd = match self.namespaces.entry(owner) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                entry.insert(user::mapped_namespace(identity, owner.0, owner.1)?)
            }
        };
        Ok(Some(namespace.as_fd()))
    }
}
