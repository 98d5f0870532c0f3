//! The mount API of Linux 5.2 and later: trees and file systems as descriptors.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{SysResult, check, check_int};

fn owned(result: libc::c_long) -> SysResult<OwnedFd> {
    // SAFETY: the callers pass the result of a call that returns a new descriptor.
    check(result).map(|fd| unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// open_tree(2) with OPEN_TREE_CLONE: a detached copy of the mount at `path`.
pub fn clone_tree(at: Option<BorrowedFd>, path: &CStr, recursive: bool) -> SysResult<OwnedFd> {
    let mut flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC;
    if recursive {
        flags |= libc::AT_RECURSIVE as libc::c_uint;
    }
    if path.is_empty() {
        flags |= libc::AT_EMPTY_PATH as libc::c_uint;
    }
    let at = at.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // SAFETY: a NUL-terminated path that outlives the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, at, path.as_ptr(), flags) })
}

/// move_mount(2): attach the detached mount `tree` at `target` (an O_PATH descriptor).
pub fn attach(tree: BorrowedFd, target: BorrowedFd) -> SysResult<()> {
    const FROM_EMPTY: libc::c_uint = 0x4;
    const TO_EMPTY: libc::c_uint = 0x40;
    // SAFETY: both paths are empty strings; the descriptors are open.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            FROM_EMPTY | TO_EMPTY,
        )
    })
    .map(drop)
}

/// struct mount_attr of mount_setattr(2).
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

const ATTR_IDMAP: u64 = 0x0010_0000;

/// mount_setattr(2): add attributes to the mount, and with `idmap` shift ownership by a user namespace's map.
pub fn set_attributes(
    mount: BorrowedFd,
    attributes: u64,
    idmap: Option<BorrowedFd>,
    recursive: bool,
) -> SysResult<()> {
    let mut attr = MountAttr {
        attr_set: attributes,
        ..MountAttr::default()
    };
    if let Some(userns) = idmap {
        attr.attr_set |= ATTR_IDMAP;
        attr.userns_fd = userns.as_raw_fd() as u64;
    }
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: `attr` has the kernel's layout and outlives the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// A file system that is being configured: fsopen(2), fsconfig(2), fsmount(2).
#[derive(Debug)]
pub struct NewFilesystem(OwnedFd);

const SET_FLAG: libc::c_uint = 0;
const SET_STRING: libc::c_uint = 1;
const CREATE: libc::c_uint = 6;

impl NewFilesystem {
    /// fsopen(2).
    pub fn open(kind: &CStr) -> SysResult<Self> {
        const FSOPEN_CLOEXEC: libc::c_uint = 1;
        // SAFETY: a NUL-terminated name.
        owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) }).map(Self)
    }

    fn configure(
        &self,
        command: libc::c_uint,
        key: Option<&CStr>,
        value: Option<&CStr>,
    ) -> SysResult<()> {
        let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: key and value are null or NUL-terminated and outlive the call.
        check(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                self.0.as_raw_fd(),
                command,
                pointer(key),
                pointer(value),
                0,
            )
        })
        .map(drop)
    }

    /// Set an option with a value.
    pub fn set(&self, key: &CStr, value: &CStr) -> SysResult<()> {
        self.configure(SET_STRING, Some(key), Some(value))
    }

    /// Set an option without a value.
    pub fn flag(&self, key: &CStr) -> SysResult<()> {
        self.configure(SET_FLAG, Some(key), None)
    }

    /// Make the file system and a detached mount of it with `attributes`.
    pub fn mount(self, attributes: u64) -> SysResult<OwnedFd> {
        const FSMOUNT_CLOEXEC: libc::c_uint = 1;
        self.configure(CREATE, None, None)?;
        // SAFETY: integers only.
        owned(unsafe {
            libc::syscall(
                libc::SYS_fsmount,
                self.0.as_raw_fd(),
                FSMOUNT_CLOEXEC,
                attributes as libc::c_uint,
            )
        })
    }
}

/// Make `new_root` the root directory and detach all that was mounted before.
pub fn pivot(new_root: BorrowedFd) -> SysResult<()> {
    // SAFETY: constant paths; pivot_root(2) describes this "." on "." form.
    unsafe {
        check_int(libc::fchdir(new_root.as_raw_fd()))?;
        check(libc::syscall(
            libc::SYS_pivot_root,
            c".".as_ptr(),
            c".".as_ptr(),
        ))?;
        // The old root is now stacked on the new one at ".", so this detaches the old.
        check_int(libc::umount2(c".".as_ptr(), libc::MNT_DETACH))?;
        check_int(libc::chdir(c"/".as_ptr())).map(drop)
    }
}
