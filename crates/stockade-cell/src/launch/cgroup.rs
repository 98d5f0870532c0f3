//! The sandbox's cgroup directories: made, limited and opened on the host side, before any right is dropped.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::chown;
use std::path::Path;

use super::error::{AtStep, LaunchError, LaunchResult};
use super::text::c_string;
use crate::sys::{Errno, file};
use crate::wire::plan::{Cgroup, role};

const STEP: &str = "cgroups";

/// Open descriptors of what was made.
#[derive(Debug, Default)]
pub struct Cgroups {
    /// cgroup2: the cell is born here.
    pub cell: Option<OwnedFd>,
    /// cgroup2: commands are born here.
    pub work: Option<OwnedFd>,
}

/// Make and limit the cgroup2 directories: the cell is born in one. `owner` is the cell as the host sees it: it may
/// move what it starts.
pub fn make(plan: &[Cgroup], owner: Option<u32>) -> LaunchResult<Cgroups> {
    let mut made = Cgroups::default();
    for cgroup in plan.iter().filter(|cgroup| cgroup.role != role::JOIN) {
        make_one(cgroup, owner)?;
        match cgroup.role {
            role::CELL => made.cell = Some(open_directory(&cgroup.path)?),
            role::WORK => made.work = Some(open_directory(&cgroup.path)?),
            _ => {}
        }
    }
    Ok(made)
}

/// Make and limit the v1 directories, which commands join: they are needed later, and made beside the cell's own work.
pub fn make_joined(plan: &[Cgroup]) -> LaunchResult<Vec<OwnedFd>> {
    let joined = plan.iter().filter(|cgroup| cgroup.role == role::JOIN);
    let make = |cgroup: &Cgroup| {
        make_one(cgroup, None)?;
        open_tasks(&cgroup.path)
    };
    joined.map(make).collect()
}

/// Remove what `make` made, deepest first; errors are left to the host, which collects by the sandbox's lock file.
pub fn remove(plan: &[Cgroup]) {
    for cgroup in plan.iter().rev() {
        drop(fs::remove_dir(&cgroup.path));
    }
}

fn make_one(cgroup: &Cgroup, owner: Option<u32>) -> LaunchResult<()> {
    io(fs::create_dir(&cgroup.path), &cgroup.path)?;
    for write in &cgroup.writes {
        let path = format!("{}/{}", cgroup.path, write.file);
        io(
            fs::write(&path, &write.value),
            &format!("{path} = {}", write.value),
        )?;
    }
    // CLONE_INTO_CGROUP by the cell asks for write access to cgroup.procs of the target and of the common parent.
    if let (Some(uid), role::PARENT | role::WORK) = (owner, cgroup.role) {
        let procs = format!("{}/cgroup.procs", cgroup.path);
        io(chown(Path::new(&procs), Some(uid), None), &procs)?;
    }
    Ok(())
}

fn open_directory(path: &str) -> LaunchResult<OwnedFd> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    file::open_at(None, &c_string(STEP, path)?, flags, 0, 0).at(STEP, path)
}

/// `tasks` and not `cgroup.procs`: a thread that moves only itself takes no lock on all thread groups, and so does not
/// wait 7 to 24 ms for an RCU grace period after a quiet time (kernel/cgroup/cgroup.c, `cgroup_procs_write_start`).
fn open_tasks(path: &str) -> LaunchResult<OwnedFd> {
    let tasks = format!("{path}/tasks");
    file::open_at(None, &c_string(STEP, &tasks)?, libc::O_WRONLY, 0, 0).at(STEP, &tasks)
}

fn io<T>(result: std::io::Result<T>, detail: &str) -> LaunchResult<T> {
    result.map_err(|error| LaunchError {
        step: STEP.to_owned(),
        errno: Errno(error.raw_os_error().unwrap_or(0)),
        detail: detail.to_owned(),
    })
}

impl Cgroups {
    /// The cell's directory as CLONE_INTO_CGROUP takes it.
    #[must_use]
    pub fn cell_directory(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
        self.cell.as_ref().map(AsFd::as_fd)
    }
}
