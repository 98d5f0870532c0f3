//! The loop: wait for events, let each part do a bounded piece of work, send what came of it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::Cell;
use super::channel::{Channel, ChannelError};
use super::commands::Commands;
use super::confinement::{Confinement, differing_limits};
use super::event::{Source, source_of, token};
use super::processes::ProcessTable;
use super::refusal::Refusal;
use super::resolve::Resolver;
use crate::sys::io::{self, Epoll, Interest, Readiness};
use crate::sys::{SysResult, file, process};
use crate::wire::message::{CHUNK_BYTES, FromCell, Pong, Start, ToCell, code, reason};

/// Files that the cell and what it starts make are not writable for others.
const UMASK: u32 = 0o022;
/// Turns of one wait: the kernel's largest time-out is 24 days.
const LONGEST_WAIT_MS: u128 = 3_600_000;

/// Everything that lives as long as the sandbox.
#[derive(Debug)]
pub struct EventLoop {
    epoll: Epoll,
    channel: Channel,
    owner: OwnedFd,
    child_signals: OwnedFd,
    confinement: Confinement,
    resolver: Resolver,
    table: ProcessTable,
    commands: Commands,
    scratch: Vec<u8>,
}

/// Why the loop goes on or ends.
#[derive(Debug, PartialEq, Eq)]
enum Turn {
    Next,
    OwnerGone,
}

impl EventLoop {
    /// Take over what the launcher left.
    pub fn new(cell: Cell) -> Result<Self, ChannelError> {
        process::block_signals()?;
        process::set_umask(UMASK);
        let null = occupy_standard_descriptors()?;
        let epoll = Epoll::new()?;
        let child_signals = process::child_signals()?;
        epoll.add(
            child_signals.as_fd(),
            token(Source::Children, 0),
            Interest::ReadEdge,
        )?;
        epoll.add(cell.owner.as_fd(), token(Source::Owner, 0), Interest::Read)?;
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let root = file::open_at(None, c"/", flags, 0, 0)?;
        Ok(Self {
            channel: Channel::new(cell.channel, &epoll)?,
            epoll,
            owner: cell.owner,
            child_signals,
            confinement: Confinement {
                identity: cell.identity,
                work_cgroup: cell.work_cgroup,
                join_cgroups: cell.join_cgroups,
                landlock: cell.landlock,
                seccomp_child: cell.seccomp_child,
                rlimits: differing_limits(cell.rlimits),
                null,
            },
            resolver: Resolver::new(root, &cell.roots),
            table: ProcessTable::open()?,
            commands: Commands::new(),
            scratch: vec![0; CHUNK_BYTES],
        })
    }

    /// Turn until the owner is gone (`Ok`) or the channel is (`Err`).
    pub fn run(mut self) -> Result<(), ChannelError> {
        let mut ready = Vec::new();
        let mut busy = false;
        loop {
            ready.clear();
            self.epoll.wait(self.wait_ms(busy), &mut ready)?;
            for event in &ready {
                if self.on_event(*event)? == Turn::OwnerGone {
                    return Ok(());
                }
            }
            busy = self.work(Instant::now());
            self.channel.flush(&self.epoll)?;
        }
    }

    fn wait_ms(&self, busy: bool) -> libc::c_int {
        let Some(deadline) = self.deadline().filter(|_| !busy) else {
            return if busy { 0 } else { -1 };
        };
        let left = deadline.saturating_duration_since(Instant::now());
        // Rounded up, or the last millisecond would be spent turning.
        let left = left.as_micros().div_ceil(1000).min(LONGEST_WAIT_MS);
        libc::c_int::try_from(left).unwrap_or(libc::c_int::MAX)
    }

    fn deadline(&self) -> Option<Instant> {
        self.commands.deadline()
    }

    fn on_event(&mut self, event: Readiness) -> Result<Turn, ChannelError> {
        let Some((source, id)) = source_of(event.token) else {
            return Ok(Turn::Next);
        };
        match source {
            Source::Owner => return Ok(self.check_owner()),
            Source::Channel if event.readable => self.receive()?,
            Source::Channel => {}
            Source::Children => self.take_child_signal(),
            Source::Watch => {}
            _ => self
                .commands
                .on_event(source, id, &mut self.channel, &self.epoll),
        }
        Ok(Turn::Next)
    }

    fn check_owner(&self) -> Turn {
        // An error here would leave us without a lease, so it counts as its end.
        match io::poll_one(self.owner.as_fd(), libc::POLLIN, 0) {
            Ok(false) => Turn::Next,
            _ => Turn::OwnerGone,
        }
    }

    /// One SIGCHLD may stand for many children; reading it makes the next one an edge again.
    fn take_child_signal(&mut self) {
        let mut record = [0; 128];
        // EAGAIN: taken before. The reaping that follows does not depend on it.
        let _ = io::read(self.child_signals.as_fd(), &mut record);
        self.commands.note_child();
    }

    fn receive(&mut self) -> Result<(), ChannelError> {
        self.channel.receive(&mut self.scratch)?;
        while let Some((id, message)) = self.channel.next()? {
            self.dispatch(id, message)?;
        }
        Ok(())
    }

    /// Carry out a request, or begin to. A frame for an id that is not live crossed our last one and is dropped.
    fn dispatch(&mut self, id: u32, message: ToCell) -> Result<(), ChannelError> {
        let now = Instant::now();
        match message {
            ToCell::Start(request) => self.start(id, &request),
            ToCell::Stdin(stdin) => {
                let Self {
                    commands,
                    channel,
                    epoll,
                    ..
                } = self;
                let pushed = commands.push_input(id, &stdin.data.0, channel, epoll);
                pushed.map_err(|_| ChannelError::CreditExceeded)?;
            }
            ToCell::StdinEnd(_) => {
                if let Some(command) = self.commands.get(id) {
                    command.end_input();
                    command.pump_input(&mut self.channel, &self.epoll);
                }
            }
            ToCell::Credit(credit) => {
                if let Some(command) = self.commands.get(id) {
                    command.grant(credit.stream, credit.count);
                }
            }
            ToCell::Signal(signal) => {
                let number = libc::c_int::from(signal.number);
                self.commands
                    .signal(id, number, signal.tree, &self.table, now);
            }
            ToCell::Resize(size) => {
                if let Some(command) = self.commands.get(id) {
                    command.resize(size.rows, size.cols);
                }
            }
            ToCell::Ping(ping) => {
                let number = ping.number;
                self.channel.send(id, &FromCell::Pong(Pong { number }));
            }
            ToCell::Cancel(_) => self.commands.kill(id, reason::CANCELLED, now),
            _ => self.refuse(id, &Refusal::rule(code::REFUSED, "not yet")),
        }
        Ok(())
    }

    fn start(&mut self, id: u32, request: &Start) {
        let result = if self.is_live(id) {
            Err(Refusal::rule(code::REFUSED, "id in use"))
        } else {
            let Self {
                confinement,
                resolver,
                epoll,
                ..
            } = self;
            self.commands
                .start(id, request, confinement, resolver, epoll)
        };
        if let Err(refusal) = result {
            self.refuse(id, &refusal);
        }
    }

    fn is_live(&mut self, id: u32) -> bool {
        self.commands.get(id).is_some()
    }

    fn refuse(&mut self, id: u32, refusal: &Refusal) {
        self.channel.send(id, &refusal.message());
    }

    /// One turn's work. True when there is more to do at once.
    fn work(&mut self, now: Instant) -> bool {
        self.commands.reap(&mut self.channel, now);
        self.commands.check_alarms(&self.table, now);
        self.commands.sweep(&self.table, now);
        self.commands
            .pump(&mut self.channel, &mut self.scratch, now)
    }
}

/// Make sure that 0, 1 and 2 are taken, so that no pipe of ours gets a number that a child replaces; return /dev/null.
fn occupy_standard_descriptors() -> SysResult<OwnedFd> {
    loop {
        let null = file::open_at(None, c"/dev/null", libc::O_RDWR, 0, 0)?;
        if io::number(null.as_fd()) > 2 {
            return Ok(null);
        }
        io::leak(null);
    }
}
