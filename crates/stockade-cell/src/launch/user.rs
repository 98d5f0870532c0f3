//! Identity: becoming the range's base id, writing the maps, and reading them back.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use super::error::{AtStep, LaunchError, LaunchResult};
use crate::sys::{Errno, file, ident, io, mount};
use crate::wire::plan::{IdMap, Identity, MAP_HELPER, NONE};

const STEP: &str = "identity";

/// Become the range's base id with all capabilities kept, so that the user namespace, and with it every per-user
/// kernel limit, belongs to this sandbox's id and not to root.
pub fn become_base(identity: &Identity) -> LaunchResult<()> {
    if identity.become_uid == NONE {
        return Ok(());
    }
    let caps = ident::permitted_capabilities().at(STEP, "capget")?;
    ident::set_groups(&[]).at(STEP, "setgroups")?;
    ident::set_gid(identity.become_gid).at(STEP, "setresgid")?;
    ident::prctl(libc::PR_SET_KEEPCAPS, 1).at(STEP, "keep capabilities")?;
    ident::set_uid(identity.become_uid).at(STEP, "setresuid")?;
    ident::set_capabilities(caps).at(STEP, "capset")
}

/// Become root again, in the launcher: the v1 cgroups compare whoever opened a `tasks` file with the one who joins.
pub fn become_root(identity: &Identity) -> LaunchResult<()> {
    if identity.become_uid == NONE {
        return Ok(());
    }
    ident::set_uid(0).at(STEP, "setresuid 0")
}

/// Write uid_map and gid_map of process `pid`, then read them back and compare.
pub fn write_maps(pid: u32, identity: &Identity) -> LaunchResult<()> {
    if identity.map_writer == MAP_HELPER {
        run_helper("/usr/bin/newuidmap", pid, &identity.uid_map)?;
        run_helper("/usr/bin/newgidmap", pid, &identity.gid_map)?;
    } else {
        write_own(pid, identity)?;
    }
    check_map(pid, "uid_map", &identity.uid_map)?;
    check_map(pid, "gid_map", &identity.gid_map)
}

fn write_own(pid: u32, identity: &Identity) -> LaunchResult<()> {
    let privileged = identity.become_uid != NONE;
    if !privileged {
        // user_namespaces(7): without CAP_SETGID a gid_map can be written only after this.
        write_proc(pid, "setgroups", "deny")?;
    }
    write_proc(pid, "uid_map", &lines(&identity.uid_map))?;
    write_proc(pid, "gid_map", &lines(&identity.gid_map))
}

fn write_proc(pid: u32, file: &str, text: &str) -> LaunchResult<()> {
    let path = format!("/proc/{pid}/{file}");
    fs::write(&path, text).map_err(|error| io_error(&error, &format!("{path} = {text}")))
}

fn lines(map: &[IdMap]) -> String {
    let line = |entry: &IdMap| format!("{} {} {}\n", entry.inside, entry.outside, entry.count);
    map.iter().map(line).collect()
}

fn run_helper(program: &str, pid: u32, map: &[IdMap]) -> LaunchResult<()> {
    let mut command = Command::new(program);
    command.env_clear().arg(pid.to_string());
    for entry in map {
        command.args([entry.inside, entry.outside, entry.count].map(|id| id.to_string()));
    }
    let output = command
        .output()
        .map_err(|error| io_error(&error, program))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(LaunchError::check(STEP, format!("{program}: {said}")))
}

fn check_map(pid: u32, file: &str, expected: &[IdMap]) -> LaunchResult<()> {
    let path = format!("/proc/{pid}/{file}");
    let text = fs::read_to_string(&path).map_err(|error| io_error(&error, &path))?;
    let numbers = text.split_whitespace().map(str::parse::<u32>);
    let expected = expected.iter().flat_map(|e| [e.inside, e.outside, e.count]);
    if numbers.eq(expected.map(Ok)) {
        return Ok(());
    }
    Err(LaunchError::check(
        STEP,
        format!("{path} reads back as {text:?}"),
    ))
}

fn io_error(error: &std::io::Error, detail: &str) -> LaunchError {
    LaunchError {
        step: STEP.to_owned(),
        errno: Errno(error.raw_os_error().unwrap_or(0)),
        detail: detail.to_owned(),
    }
}

/// The host id of an inside id.
#[must_use]
pub fn outside(map: &[IdMap], inside: u32) -> Option<u32> {
    map.iter()
        .find(|entry| {
            inside
                .checked_sub(entry.inside)
                .is_some_and(|d| d < entry.count)
        })
        .map(|entry| entry.outside + (inside - entry.inside))
}

/// A user namespace whose map shows the on-disk owner `(uid, gid)` as the payload: for an idmapped mount.
pub fn mapped_namespace(identity: &Identity, uid: u32, gid: u32) -> LaunchResult<OwnedFd> {
    let payload = |map, id| {
        outside(map, id).ok_or_else(|| LaunchError::check(STEP, "payload id is not mapped"))
    };
    let uid_line = format!(
        "{uid} {} 1\n",
        payload(&identity.uid_map, identity.payload_uid)?
    );
    let gid_line = format!(
        "{gid} {} 1\n",
        payload(&identity.gid_map, identity.payload_gid)?
    );
    let (stay, leave) = io::pipe(0).at(STEP, "pipe")?;
    let newuser = u64::from(libc::CLONE_NEWUSER.unsigned_abs());
    match ident::fork(newuser, None).at(STEP, "namespace of an idmapped mount")? {
        ident::Forked::Child => {
            drop(leave);
            // Lives until the parent has opened the namespace: the read ends with its copy of the pipe.
            let _ = io::read(stay.as_fd(), &mut [0]);
            ident::exit_now(0)
        }
        ident::Forked::Parent { pid, pidfd } => {
            let opened = write_proc(pid, "uid_map", &uid_line)
                .and_then(|()| write_proc(pid, "gid_map", &gid_line))
                .and_then(|()| open_namespace(pid));
            drop(leave);
            ident::reap(pidfd.as_fd()).at(STEP, "reap")?;
            opened
        }
    }
}

fn open_namespace(pid: u32) -> LaunchResult<OwnedFd> {
    let path = format!("/proc/{pid}/ns/user");
    fs::File::open(&path)
        .map(OwnedFd::from)
        .map_err(|error| io_error(&error, &path))
}

/// Who builds, where an inner user namespace will show inside root as the payload: everything is root's until then.
#[must_use]
pub fn builder(identity: &Identity, inner: bool) -> Identity {
    if !inner {
        return identity.clone();
    }
    Identity {
        cell_uid: 0,
        cell_gid: 0,
        payload_uid: 0,
        payload_gid: 0,
        ..identity.clone()
    }
}

/// Enter the inner user namespace, in which root is the payload's id. Needs a writable /proc, which the sandbox's own
/// is not, so one is mounted that nothing but this function sees.
pub fn enter_inner(identity: &Identity) -> LaunchResult<()> {
    const STEP: &str = "inner user namespace";
    let proc = mount::NewFilesystem::open(c"proc").at(STEP, "fsopen")?;
    let proc = proc.mount(0).at(STEP, "proc")?;
    ident::unshare(libc::CLONE_NEWUSER).at(STEP, "unshare")?;
    // Our /proc/self belongs to us only while we are dumpable; `seal` ends that before anything else runs.
    ident::prctl(libc::PR_SET_DUMPABLE, 1).at(STEP, "dumpable")?;
    for (file, inside) in [
        (c"self/uid_map", identity.payload_uid),
        (c"self/gid_map", identity.payload_gid),
    ] {
        let line = format!("{inside} 0 1\n");
        let map =
            file::open_at(Some(proc.as_fd()), file, libc::O_WRONLY, 0, 0).at(STEP, "open map")?;
        io::write_all(map.as_fd(), line.as_bytes()).at(STEP, "write map")?;
        let map =
            file::open_at(Some(proc.as_fd()), file, libc::O_RDONLY, 0, 0).at(STEP, "open map")?;
        let mut buffer = [0; 128];
        let count = io::read(map.as_fd(), &mut buffer).at(STEP, "read map")?;
        let found = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default());
        if !found.split_whitespace().eq(line.split_whitespace()) {
            return Err(LaunchError::check(
                STEP,
                format!("{file:?} reads back as {found:?}"),
            ));
        }
    }
    Ok(())
}
