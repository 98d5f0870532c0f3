//! The steps inside the new namespaces: mounts, files, /proc, the host name, the new root.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use super::error::{AtStep, LaunchError, LaunchResult};
use super::text::{c_number, c_string};
use super::tree::{NODEV, NOEXEC, NOSUID, READ_ONLY, Trees};
use crate::sys::{file, ident, io, mount};
use crate::wire::plan::{
    Bind, Devpts, Identity, Mask, Mkdir, OWNER_PAYLOAD, Overlay, Pivot, Proc, RootTree, Step,
    Symlink, Sysfs, Tmpfs, WriteFile,
};

/// Where the new root hangs until pivot_root. A mount's descriptor resolves below itself wherever it hangs, so any
/// directory serves that every host has and that nothing is looked up in after this.
const ROOT_PLACE: &CStr = c"/proc";
/// Where an overlay's layers hang while it is made.
const STAGING_PLACE: &CStr = c"/sys";

/// Never leave the new root, whatever links an image holds.
const IN_ROOT: u64 = libc::RESOLVE_IN_ROOT | libc::RESOLVE_NO_MAGICLINKS;

/// Applies steps in order; holds the new root once it exists.
#[derive(Debug)]
pub struct Builder<'a> {
    identity: &'a Identity,
    trees: Trees,
    root: Option<Rc<OwnedFd>>,
    /// Open directories by path, so that the twentieth file of etc does not walk there again.
    parents: RefCell<HashMap<String, Rc<OwnedFd>>>,
    empty: Option<OwnedFd>,
}

impl<'a> Builder<'a> {
    /// `trees` are the sources of the steps, opened before.
    #[must_use]
    pub fn new(identity: &'a Identity, trees: Trees) -> Self {
        Self {
            identity,
            trees,
            root: None,
            parents: RefCell::default(),
            empty: None,
        }
    }

    /// Apply one step.
    pub fn apply(&mut self, index: usize, step: &Step) -> LaunchResult<()> {
        match step {
            Step::Root(root) => self.root_tmpfs(&root.name, root.size_bytes, root.inodes),
            Step::RootTree(root) => self.root_tree(index, step, root),
            Step::Mkdir(mkdir) => self.mkdir(mkdir),
            Step::Symlink(link) => self.symlink(link),
            Step::WriteFile(file) => self.write_file(file),
            Step::Bind(bind) => self.bind(index, bind),
            Step::Tmpfs(tmpfs) => self.tmpfs(tmpfs),
            Step::Overlay(overlay) => self.overlay(index, step, overlay),
            Step::Devpts(devpts) => self.devpts(devpts),
            Step::Proc(proc) => self.proc(proc),
            Step::Mask(mask) => self.mask(mask),
            Step::Hostname(host) => {
                ident::set_hostname(host.value.as_bytes()).at(&host.name, &host.value)
            }
            // Done by the helper that makes the network namespace.
            Step::Loopback(_) => Ok(()),
            Step::Pivot(pivot) => self.pivot(pivot),
            Step::Sysfs(sysfs) => self.sysfs(sysfs),
        }
    }

    fn root(&self, step: &str) -> LaunchResult<BorrowedFd<'_>> {
        let missing = || LaunchError::check(step, "no root directory before this step");
        self.root
            .as_ref()
            .map(|root| root.as_fd())
            .ok_or_else(missing)
    }

    fn root_tmpfs(&mut self, step: &str, size: u64, inodes: u64) -> LaunchResult<()> {
        let tree = new_tmpfs(step, size, inodes, 0o755, NOSUID | NODEV)?;
        self.set_root(step, tree)
    }

    fn set_root(&mut self, step: &str, tree: OwnedFd) -> LaunchResult<()> {
        let place = file::open_at(None, ROOT_PLACE, libc::O_PATH | libc::O_DIRECTORY, 0, 0)
            .at(step, "place of the new root")?;
        mount::attach(tree.as_fd(), place.as_fd()).at(step, "new root")?;
        self.root = Some(Rc::new(tree));
        Ok(())
    }

    fn root_tree(&mut self, index: usize, step: &Step, root: &RootTree) -> LaunchResult<()> {
        let lower = self.tree(index, step)?;
        if root.overlay_bytes == 0 {
            return self.set_root(&root.name, lower);
        }
        let size = (root.overlay_bytes, root.overlay_inodes);
        let merged = self.merge(&root.name, lower.as_fd(), size, NOSUID | NODEV)?;
        self.set_root(&root.name, merged)
    }

    fn tree(&mut self, index: usize, step: &Step) -> LaunchResult<OwnedFd> {
        self.trees
            .take(index)
            .ok_or_else(|| LaunchError::check(step.name(), "the source is missing"))
    }

    /// An overlay of `lower` below a tmpfs. Its layers are named through a staging tmpfs on the old root, which
    /// pivot_root drops; the overlay holds its layers itself.
    fn merge(
        &self,
        step: &str,
        lower: BorrowedFd,
        (bytes, inodes): (u64, u64),
        attributes: u64,
    ) -> LaunchResult<OwnedFd> {
        let staging = new_tmpfs(step, bytes, inodes, 0o755, NOSUID | NODEV)?;
        let place = file::open_at(None, STAGING_PLACE, libc::O_PATH | libc::O_DIRECTORY, 0, 0)
            .at(step, "place of the staging directory")?;
        mount::attach(staging.as_fd(), place.as_fd()).at(step, "staging")?;
        for name in [c"lower", c"upper", c"work"] {
            file::make_directory(staging.as_fd(), name, 0o755).at(step, "staging")?;
        }
        let upper = open_below(staging.as_fd(), c"upper").at(step, "upper")?;
        self.own_by_payload(step, upper.as_fd())?;
        let target = open_below(staging.as_fd(), c"lower").at(step, "lower")?;
        mount::attach(lower, target.as_fd()).at(step, "lower")?;
        let overlay = mount::NewFilesystem::open(c"overlay").at(step, "fsopen")?;
        overlay.set(c"source", c"overlay").at(step, "source")?;
        overlay
            .set(c"lowerdir", c"/sys/lower")
            .at(step, "lowerdir")?;
        overlay
            .set(c"upperdir", c"/sys/upper")
            .at(step, "upperdir")?;
        overlay.set(c"workdir", c"/sys/work").at(step, "workdir")?;
        overlay.flag(c"userxattr").at(step, "userxattr")?;
        overlay.mount(attributes).at(step, "overlay")
    }

    fn own_by_payload(&self, step: &str, target: BorrowedFd) -> LaunchResult<()> {
        let (uid, gid) = (self.identity.payload_uid, self.identity.payload_gid);
        file::change_owner(target, uid, gid).at(step, "chown to the payload")
    }

    fn mkdir(&self, step: &Mkdir) -> LaunchResult<()> {
        let made = self.directory(&step.name, &step.path, step.mode)?;
        if step.owner == OWNER_PAYLOAD {
            self.own_by_payload(&step.name, made.as_fd())?;
        }
        Ok(())
    }

    /// Make (where missing) and open the directory `path`; the empty path is the root.
    fn directory(&self, step: &str, path: &str, mode: u32) -> LaunchResult<OwnedFd> {
        const FLAGS: libc::c_int = libc::O_PATH | libc::O_DIRECTORY;
        let root = self.root(step)?;
        if path.is_empty() {
            return file::open_at(Some(root), c".", FLAGS, 0, IN_ROOT).at(step, "root");
        }
        let (parent, name) = self.parent(step, path)?;
        match file::make_directory(parent.as_fd(), &name, mode) {
            Ok(()) => {
                let at = Some(parent.as_fd());
                file::open_at(at, &name, FLAGS | libc::O_NOFOLLOW, 0, 0).at(step, path)
            }
            // It may be a link of the image, which leads on from the root.
            Err(error) if [libc::EEXIST, libc::EROFS].contains(&error.0) => {
                file::open_at(Some(root), &c_string(step, path)?, FLAGS, 0, IN_ROOT).at(step, path)
            }
            Err(error) => Err(error).at(step, path),
        }
    }

    /// The open parent directory of `path` (made where missing), and the last name.
    fn parent(&self, step: &str, path: &str) -> LaunchResult<(Rc<OwnedFd>, CString)> {
        let Some((parent, name)) = path.rsplit_once('/') else {
            let missing = || LaunchError::check(step, "no root directory before this step");
            let root = self.root.clone().ok_or_else(missing)?;
            return Ok((root, c_string(step, path)?));
        };
        let name = c_string(step, name)?;
        if let Some(open) = self.parents.borrow().get(parent) {
            return Ok((Rc::clone(open), name));
        }
        let open = Rc::new(self.directory(step, parent, 0o755)?);
        self.parents
            .borrow_mut()
            .insert(parent.to_owned(), Rc::clone(&open));
        Ok((open, name))
    }

    fn symlink(&self, step: &Symlink) -> LaunchResult<()> {
        let target = c_string(&step.name, &step.target)?;
        self.link(&step.name, &target, &step.path)
    }

    fn link(&self, step: &str, target: &CStr, path: &str) -> LaunchResult<()> {
        let (parent, name) = self.parent(step, path)?;
        match file::make_symlink(target, parent.as_fd(), &name) {
            Err(error) if error.0 == libc::EEXIST => Ok(()),
            other => other.at(step, path),
        }
    }

    fn write_file(&self, step: &WriteFile) -> LaunchResult<()> {
        let (parent, name) = self.parent(&step.name, &step.path)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_NOFOLLOW;
        let made = file::open_at(Some(parent.as_fd()), &name, flags, step.mode, 0)
            .at(&step.name, &step.path)?;
        io::write_all(made.as_fd(), &step.content.0).at(&step.name, &step.path)
    }

    /// The mount point `path`, made to match the tree: a directory, or an empty file.
    fn mount_point(&self, step: &str, path: &str, is_directory: bool) -> LaunchResult<OwnedFd> {
        if is_directory {
            return self.directory(step, path, 0o755);
        }
        let (parent, name) = self.parent(step, path)?;
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        match file::open_at(Some(parent.as_fd()), &name, flags, 0o444, 0) {
            Err(error) if [libc::EEXIST, libc::EROFS].contains(&error.0) => {
                let (root, whole) = (self.root(step)?, c_string(step, path)?);
                file::open_at(Some(root), &whole, libc::O_PATH, 0, IN_ROOT).at(step, path)
            }
            made => made.at(step, path),
        }
    }

    fn attach(&self, step: &str, tree: BorrowedFd, path: &str) -> LaunchResult<()> {
        let is_directory = file::is_directory(tree).at(step, path)?;
        let target = self.mount_point(step, path, is_directory)?;
        mount::attach(tree, target.as_fd()).at(step, path)?;
        if is_directory {
            // What was open there lies under the mount now.
            self.parents
                .borrow_mut()
                .retain(|open, _| !lies_in(open, path));
        }
        Ok(())
    }

    fn bind(&mut self, index: usize, bind: &Bind) -> LaunchResult<()> {
        match self.trees.take(index) {
            Some(tree) => self.attach(&bind.name, tree.as_fd(), &bind.path),
            None if bind.optional => Ok(()),
            None => Err(LaunchError::check(&bind.name, "the source is missing")),
        }
    }

    fn tmpfs(&self, step: &Tmpfs) -> LaunchResult<()> {
        let tree = new_tmpfs(
            &step.name,
            step.size_bytes,
            step.inodes,
            step.mode,
            step.attrs | NOSUID | NODEV,
        )?;
        if step.owner == OWNER_PAYLOAD {
            self.own_by_payload(&step.name, tree.as_fd())?;
        }
        self.attach(&step.name, tree.as_fd(), &step.path)
    }

    fn overlay(&mut self, index: usize, step: &Step, overlay: &Overlay) -> LaunchResult<()> {
        let lower = self.tree(index, step)?;
        let size = (overlay.size_bytes, overlay.inodes);
        let merged = self.merge(
            &overlay.name,
            lower.as_fd(),
            size,
            overlay.attrs | NOSUID | NODEV,
        )?;
        self.attach(&overlay.name, merged.as_fd(), &overlay.path)
    }

    fn devpts(&self, step: &Devpts) -> LaunchResult<()> {
        let devpts = mount::NewFilesystem::open(c"devpts").at(&step.name, "fsopen")?;
        devpts.flag(c"newinstance").at(&step.name, "newinstance")?;
        devpts
            .set(c"ptmxmode", c"0666")
            .at(&step.name, "ptmxmode")?;
        devpts.set(c"mode", c"0620").at(&step.name, "mode")?;
        devpts
            .set(c"max", &c_number(u64::from(step.max)))
            .at(&step.name, "max")?;
        let tree = devpts.mount(NOSUID | NOEXEC).at(&step.name, "devpts")?;
        self.attach(&step.name, tree.as_fd(), "dev/pts")?;
        self.link(&step.name, c"pts/ptmx", "dev/ptmx")
    }

    fn proc(&self, step: &Proc) -> LaunchResult<()> {
        let proc = mount::NewFilesystem::open(c"proc").at(&step.name, "fsopen")?;
        proc.set(c"hidepid", c"2").at(&step.name, "hidepid=2")?;
        // The cell is in this group: it counts and ends processes that hidepid hides from each other.
        proc.set(c"gid", &c_number(u64::from(self.identity.cell_gid)))
            .at(&step.name, "gid")?;
        let tree = proc.mount(NOSUID | NODEV | NOEXEC).at(&step.name, "proc")?;
        for sysctl in &step.sysctls {
            write_sysctl(&step.name, tree.as_fd(), sysctl)?;
        }
        mount::set_attributes(tree.as_fd(), READ_ONLY, None, false).at(&step.name, "read-only")?;
        self.attach(&step.name, tree.as_fd(), &step.path)
    }

    fn sysfs(&self, step: &Sysfs) -> LaunchResult<()> {
        let sysfs = mount::NewFilesystem::open(c"sysfs").at(&step.name, "fsopen")?;
        let tree = sysfs
            .mount(NOSUID | NODEV | NOEXEC | READ_ONLY)
            .at(&step.name, "sysfs")?;
        self.attach(&step.name, tree.as_fd(), &step.path)
    }

    fn mask(&mut self, step: &Mask) -> LaunchResult<()> {
        let root = self.root(&step.name)?;
        let path = c_string(&step.name, &step.path)?;
        let target = match file::open_at(Some(root), &path, libc::O_PATH, 0, IN_ROOT) {
            Err(error) if error.0 == libc::ENOENT => return Ok(()),
            other => other.at(&step.name, &step.path)?,
        };
        let cover = if file::is_directory(target.as_fd()).at(&step.name, &step.path)? {
            self.empty_directory(&step.name)?
        } else {
            self.null_device(&step.name)?
        };
        mount::attach(cover.as_fd(), target.as_fd()).at(&step.name, &step.path)
    }

    fn null_device(&self, step: &str) -> LaunchResult<OwnedFd> {
        let root = self.root(step)?;
        let null = file::open_at(Some(root), c"dev/null", libc::O_PATH, 0, IN_ROOT)
            .at(step, "dev/null")?;
        mount::clone_tree(Some(null.as_fd()), c"", false).at(step, "dev/null")
    }

    /// One empty read-only tmpfs serves every masked directory. The first is attached, the others are its copies.
    fn empty_directory(&mut self, step: &str) -> LaunchResult<OwnedFd> {
        if let Some(empty) = &self.empty {
            return mount::clone_tree(Some(empty.as_fd()), c"", false).at(step, "empty directory");
        }
        let tree = new_tmpfs(step, 4096, 1, 0o555, NOSUID | NODEV | NOEXEC | READ_ONLY)?;
        self.empty = Some(
            tree.try_clone()
                .map_err(|_| LaunchError::check(step, "dup"))?,
        );
        Ok(tree)
    }

    fn pivot(&mut self, step: &Pivot) -> LaunchResult<()> {
        let root = self.root(&step.name)?;
        if step.read_only {
            mount::set_attributes(root, READ_ONLY, None, false).at(&step.name, "read-only root")?;
        }
        mount::pivot(root).at(&step.name, "pivot_root")?;
        self.root = None;
        Ok(())
    }
}

fn lies_in(path: &str, directory: &str) -> bool {
    let rest = path.strip_prefix(directory);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn open_below(at: BorrowedFd, name: &CStr) -> crate::sys::SysResult<OwnedFd> {
    file::open_at(Some(at), name, libc::O_PATH | libc::O_DIRECTORY, 0, IN_ROOT)
}

fn new_tmpfs(step: &str, size: u64, inodes: u64, mode: u32, attrs: u64) -> LaunchResult<OwnedFd> {
    let tmpfs = mount::NewFilesystem::open(c"tmpfs").at(step, "fsopen")?;
    tmpfs.set(c"size", &c_number(size)).at(step, "size")?;
    tmpfs
        .set(c"nr_inodes", &c_number(inodes))
        .at(step, "nr_inodes")?;
    let mode = CString::new(format!("{mode:o}")).unwrap_or_default();
    tmpfs.set(c"mode", &mode).at(step, "mode")?;
    tmpfs.mount(attrs).at(step, "tmpfs")
}

/// Write one "name=value" below /proc/sys of the mount `proc`; a leading "-" tolerates a missing file.
fn write_sysctl(step: &str, proc: BorrowedFd, sysctl: &str) -> LaunchResult<()> {
    let (tolerant, setting) = match sysctl.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, sysctl),
    };
    let (name, value) = setting
        .split_once('=')
        .ok_or_else(|| LaunchError::check(step, format!("sysctl {sysctl:?} has no value")))?;
    let path = c_string(step, &format!("sys/{name}"))?;
    match file::open_at(Some(proc), &path, libc::O_WRONLY, 0, IN_ROOT) {
        Err(error) if tolerant && [libc::ENOENT, libc::EACCES, libc::EPERM].contains(&error.0) => {
            Ok(())
        }
        opened => io::write_all(opened.at(step, name)?.as_fd(), value.as_bytes()).at(step, setting),
    }
}
