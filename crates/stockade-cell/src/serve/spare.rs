//! A process made ahead of the next command: in its cgroups and session, waiting for the rest of START. It takes the
//! clone and the joining of cgroups out of a command's way.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use super::child::{Child, prepare};
use super::confinement::Confinement;
use super::resolve::Resolver;
use super::spawn::program;
use crate::sys::ident::Forked;
use crate::sys::{SysResult, ident, io};
use crate::wire::codec::{Reader, Wire};
use crate::wire::message::{Start, start};

/// Longer requests go to a process of their own. A packet of this size never has to wait for its reader.
const MAX_REQUEST: usize = 32 * 1024;
/// Standard input, output, error, and the status pipe.
const DESCRIPTORS: usize = 4;
/// Exit code when there was nothing to start. A START may have been sent meanwhile: its command has not succeeded.
const UNUSED: libc::c_int = 127;

/// The waiting process; dropped, it ends.
#[derive(Debug)]
pub struct Spare {
    /// Its id, inside.
    pub pid: libc::pid_t,
    pidfd: OwnedFd,
    socket: OwnedFd,
    used: bool,
}

impl Drop for Spare {
    fn drop(&mut self) {
        if !self.used {
            // ESRCH: it has ended already.
            let _ = ident::signal(self.pidfd.as_fd(), libc::SIGKILL);
        }
    }
}

impl Spare {
    /// Make one.
    pub fn fork(confinement: &Confinement, resolver: &Resolver) -> SysResult<Self> {
        let (socket, socket_end) = io::packet_pair()?;
        let cgroup = confinement.work_cgroup.as_ref().map(AsFd::as_fd);
        match ident::fork(0, cgroup)? {
            Forked::Child => {
                drop(socket);
                wait(confinement, resolver, &socket_end)
            }
            Forked::Parent { pid, pidfd } => Ok(Self {
                pid: libc::pid_t::try_from(pid).unwrap_or(0),
                pidfd,
                socket,
                used: false,
            }),
        }
    }

    /// Hand it a command whose START was checked. `None` when it can't take it: then another process must.
    pub fn start(
        mut self,
        request: &Start,
        tag: Option<u32>,
        stdio: [BorrowedFd; 3],
        status: BorrowedFd,
    ) -> Option<libc::pid_t> {
        let mut packet = Vec::new();
        tag.unwrap_or(0).write(&mut packet);
        request.write(&mut packet);
        if packet.len() > MAX_REQUEST {
            return None;
        }
        let [input, output, error] = stdio;
        let fds = [input, output, error, status];
        io::send_packet(self.socket.as_fd(), &packet, &fds).ok()?;
        self.used = true;
        Some(self.pid)
    }
}

/// In the new process: get ready, wait, become the command.
fn wait(confinement: &Confinement, resolver: &Resolver, socket: &OwnedFd) -> ! {
    if keep_only(confinement, resolver, socket).is_err() {
        ident::exit_now(UNUSED);
    }
    // A START may be on its way already: what failed here fails again in `Child::run`, which reports it.
    let prepared = prepare(confinement).is_ok();
    let mut packet = vec![0; MAX_REQUEST];
    let received = io::receive_with_fds(socket.as_fd(), &mut packet, DESCRIPTORS);
    let Ok((count, fds)) = received else {
        ident::exit_now(UNUSED)
    };
    let packet = packet.get(..count).unwrap_or_default();
    let Ok([input, output, error, status]) = <[OwnedFd; DESCRIPTORS]>::try_from(fds) else {
        ident::exit_now(UNUSED)
    };
    let mut reader = Reader::new(packet);
    let (Ok(tag), Ok(request)) = (u32::read(&mut reader), Start::read(&mut reader)) else {
        ident::exit_now(UNUSED)
    };
    let tag = if tag == 0 { None } else { Some(tag) };
    // The cell checked both before it sent them.
    let (Ok(ids), Ok(program)) = (
        confinement.ids(request.uid, request.gid, tag),
        program(&request),
    ) else {
        ident::exit_now(UNUSED)
    };
    Child {
        confinement,
        ids,
        rlimits: &request.rlimits,
        stdio: [input.as_fd(), output.as_fd(), error.as_fd()],
        has_terminal: request.flags & start::PTY != 0,
        cwd: &request.cwd.0,
        resolver,
        program: &program,
        status,
        prepared,
    }
    .run()
}

/// Close the cell's other descriptors: a copy of another command's pipe would keep it open for as long as we wait.
fn keep_only(confinement: &Confinement, resolver: &Resolver, socket: &OwnedFd) -> SysResult<()> {
    let mut kept: Vec<_> = confinement.descriptors().map(AsRawFd::as_raw_fd).collect();
    kept.extend([resolver.root().as_raw_fd(), socket.as_raw_fd(), 0, 1, 2]);
    kept.sort_unstable();
    io::close_all_but(&kept)
}
