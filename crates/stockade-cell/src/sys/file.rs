//! Opening and changing files relative to descriptors.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{SysResult, check, check_int};

/// struct open_how of openat2(2).
#[repr(C)]
#[derive(Default)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// openat2(2); O_CLOEXEC is added. `at` of `None` is the working directory.
pub fn open_at(
    at: Option<BorrowedFd>,
    path: &CStr,
    flags: libc::c_int,
    mode: u32,
    resolve: u64,
) -> SysResult<OwnedFd> {
    let how = OpenHow {
        flags: (flags | libc::O_CLOEXEC) as u64,
        mode: u64::from(mode),
        resolve,
    };
    let at = at.map_or(libc::AT_FDCWD, |fd| fd.as_raw_fd());
    // SAFETY: a NUL-terminated path and a struct of the kernel's layout, which outlive the call.
    let fd = check(unsafe {
        libc::syscall(
            libc::SYS_openat2,
            at,
            path.as_ptr(),
            &raw const how,
            size_of::<OpenHow>(),
        )
    })?;
    // SAFETY: the result is a new descriptor.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
}

/// mkdirat(2).
pub fn make_directory(at: BorrowedFd, name: &CStr, mode: u32) -> SysResult<()> {
    // SAFETY: a NUL-terminated name.
    check_int(unsafe { libc::mkdirat(at.as_raw_fd(), name.as_ptr(), mode) }).map(drop)
}

/// symlinkat(2).
pub fn make_symlink(target: &CStr, at: BorrowedFd, name: &CStr) -> SysResult<()> {
    // SAFETY: NUL-terminated texts.
    check_int(unsafe { libc::symlinkat(target.as_ptr(), at.as_raw_fd(), name.as_ptr()) }).map(drop)
}

/// fchownat(2) on the object of an O_PATH descriptor.
pub fn change_owner(fd: BorrowedFd, uid: u32, gid: u32) -> SysResult<()> {
    // SAFETY: an empty path with AT_EMPTY_PATH means the descriptor itself.
    check_int(unsafe {
        libc::fchownat(fd.as_raw_fd(), c"".as_ptr(), uid, gid, libc::AT_EMPTY_PATH)
    })
    .map(drop)
}

/// True when the descriptor refers to a directory.
pub fn is_directory(fd: BorrowedFd) -> SysResult<bool> {
    // SAFETY: the kernel fills `stat`, which is plain data.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check_int(libc::fstat(fd.as_raw_fd(), &raw mut stat))?;
        Ok(stat.st_mode & libc::S_IFMT == libc::S_IFDIR)
    }
}
