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

/// What fstatat(2) tells of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metadata {
    /// Device and inode: which file it is.
    pub identity: (u64, u64),
    /// Type and permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes of content.
    pub size: u64,
    /// Time of the last change of content, nanoseconds since 1970 (earlier is 0).
    pub mtime_ns: u64,
    /// Names.
    pub nlink: u64,
    /// Bytes on disk.
    pub allocated: u64,
}

impl Metadata {
    fn of(stat: &libc::stat) -> Self {
        let seconds = u64::try_from(stat.st_mtime).unwrap_or(0);
        Self {
            identity: (stat.st_dev, stat.st_ino),
            mode: stat.st_mode,
            uid: stat.st_uid,
            gid: stat.st_gid,
            size: stat.st_size as u64,
            mtime_ns: seconds
                .saturating_mul(1_000_000_000)
                .saturating_add(stat.st_mtime_nsec as u64),
            #[allow(clippy::unnecessary_cast)] // 32 bits on aarch64
            nlink: stat.st_nlink as u64,
            allocated: (stat.st_blocks as u64).saturating_mul(512),
        }
    }

    /// True for the type `S_IF*`.
    #[must_use]
    pub fn is(&self, kind: u32) -> bool {
        self.mode & libc::S_IFMT == kind
    }
}

/// fstatat(2) without following a link; an empty name means the descriptor itself.
pub fn metadata(at: BorrowedFd, name: &CStr) -> SysResult<Metadata> {
    let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH;
    // SAFETY: a NUL-terminated name; the kernel fills `stat`, which is plain data.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check_int(libc::fstatat(
            at.as_raw_fd(),
            name.as_ptr(),
            &raw mut stat,
            flags,
        ))?;
        Ok(Metadata::of(&stat))
    }
}

/// readlinkat(2); an empty name means the O_PATH descriptor of the link itself.
pub fn read_link(at: BorrowedFd, name: &CStr) -> SysResult<Vec<u8>> {
    let mut text = vec![0_u8; libc::PATH_MAX as usize];
    // SAFETY: a NUL-terminated name and a buffer with its length.
    let count = check(unsafe {
        libc::readlinkat(
            at.as_raw_fd(),
            name.as_ptr(),
            text.as_mut_ptr().cast(),
            text.len(),
        )
    } as libc::c_long)?;
    text.truncate(count as usize);
    Ok(text)
}

/// unlinkat(2).
pub fn remove(at: BorrowedFd, name: &CStr, directory: bool) -> SysResult<()> {
    let flags = if directory { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: a NUL-terminated name.
    check_int(unsafe { libc::unlinkat(at.as_raw_fd(), name.as_ptr(), flags) }).map(drop)
}

/// renameat2(2); without `replace` an existing target is EEXIST.
pub fn rename(from: (BorrowedFd, &CStr), to: (BorrowedFd, &CStr), replace: bool) -> SysResult<()> {
    let flags = if replace { 0 } else { libc::RENAME_NOREPLACE };
    // SAFETY: NUL-terminated names.
    check(unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            from.0.as_raw_fd(),
            from.1.as_ptr(),
            to.0.as_raw_fd(),
            to.1.as_ptr(),
            flags,
        )
    })
    .map(drop)
}

/// ftruncate(2).
pub fn truncate(fd: BorrowedFd, length: u64) -> SysResult<()> {
    let length = libc::off_t::try_from(length).map_err(|_| super::Errno(libc::EFBIG))?;
    // SAFETY: integers only.
    check_int(unsafe { libc::ftruncate(fd.as_raw_fd(), length) }).map(drop)
}

/// pread(2).
pub fn read_at(fd: BorrowedFd, buffer: &mut [u8], offset: u64) -> SysResult<usize> {
    // An offset that no file can have reads nothing, like one behind the end.
    let Ok(offset) = libc::off_t::try_from(offset) else {
        return Ok(0);
    };
    // SAFETY: the pointer and length describe `buffer`.
    let count = unsafe {
        libc::pread(
            fd.as_raw_fd(),
            buffer.as_mut_ptr().cast(),
            buffer.len(),
            offset,
        )
    };
    check(count as libc::c_long).map(|n| n as usize)
}

/// lseek(2) of a directory to a position that `directory_page` gave.
pub fn seek_directory(fd: BorrowedFd, position: i64) -> SysResult<()> {
    // SAFETY: integers only.
    check(unsafe { libc::lseek(fd.as_raw_fd(), position, libc::SEEK_SET) }).map(drop)
}

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dirent {
    /// The name, without NUL or slash (the kernel's word for it).
    pub name: std::ffi::CString,
    /// `DT_*`; DT_UNKNOWN on file systems that do not tell.
    pub kind: u8,
    /// The position behind it.
    pub next: i64,
}

/// getdents64(2) into `buffer`: some names without `.` and `..`; `None` at the end.
pub fn directory_page(fd: BorrowedFd, buffer: &mut [u8]) -> SysResult<Option<Vec<Dirent>>> {
    // SAFETY: the pointer and length describe `buffer`.
    let count = check(unsafe {
        libc::syscall(
            libc::SYS_getdents64,
            fd.as_raw_fd(),
            buffer.as_mut_ptr(),
            buffer.len(),
        )
    })?;
    if count == 0 {
        return Ok(None);
    }
    let page = buffer.get(..count as usize).unwrap_or_default();
    Ok(Some(names(page)))
}

/// struct linux_dirent64: u64 inode, i64 next, u16 length, u8 type, then the name.
fn names(mut page: &[u8]) -> Vec<Dirent> {
    let mut names = Vec::new();
    while let Some((next, length, kind, text)) = entry(page) {
        if text != c"." && text != c".." {
            let name = text.to_owned();
            names.push(Dirent { name, kind, next });
        }
        page = page.get(length..).unwrap_or_default();
    }
    names
}

fn entry(page: &[u8]) -> Option<(i64, usize, u8, &CStr)> {
    let next = i64::from_ne_bytes(page.get(8..16)?.try_into().ok()?);
    let length = usize::from(u16::from_ne_bytes(page.get(16..18)?.try_into().ok()?));
    let kind = *page.get(18)?;
    let text = CStr::from_bytes_until_nul(page.get(19..length)?).ok()?;
    Some((next, length, kind, text))
}

/// A nonblocking inotify(7) instance.
pub fn inotify() -> SysResult<OwnedFd> {
    // SAFETY: the result is a new descriptor.
    unsafe {
        let fd = check_int(libc::inotify_init1(libc::IN_NONBLOCK | libc::IN_CLOEXEC))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

/// inotify_add_watch(2).
pub fn watch(inotify: BorrowedFd, path: &CStr, mask: u32) -> SysResult<()> {
    // SAFETY: a NUL-terminated path.
    check_int(unsafe { libc::inotify_add_watch(inotify.as_raw_fd(), path.as_ptr(), mask) })
        .map(drop)
}

/// One struct inotify_event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// `IN_*`
    pub mask: u32,
    /// The name in the directory, empty for the directory itself.
    pub name: Vec<u8>,
}

/// Cut what was read from an inotify descriptor into events.
#[must_use]
pub fn changes(mut bytes: &[u8]) -> Vec<Change> {
    const HEADER: usize = 16;
    let mut changes = Vec::new();
    let word = |bytes: &[u8], at: usize| -> Option<u32> {
        Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
    };
    while let (Some(mask), Some(length)) = (word(bytes, 4), word(bytes, 12)) {
        let end = HEADER + length as usize;
        let name = bytes.get(HEADER..end).unwrap_or_default();
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        changes.push(Change {
            mask,
            name: name.to_vec(),
        });
        bytes = bytes.get(end..).unwrap_or_default();
    }
    changes
}
