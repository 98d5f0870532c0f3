//! The loop: wait for events, let each part do a bounded piece of work, send what came of it.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use super::Cell;
use super::channel::{Channel, ChannelError};
use super::commands::Commands;
use super::confinement::{Confinement, differing_limits};
use super::event::{Source, source_of, token};
use super::files::Files;
use super::limits::Limits;
use super::processes::ProcessTable;
use super::refusal::Refusal;
use super::resolve::Resolver;
use super::stats;
use super::watch::Watches;
use crate::sys::io::{self, Epoll, Interest, Readiness};
use crate::sys::{Errno, SysResult, file, ident, process};
use crate::wire::message::{
    CHUNK_BYTES, Credit, FromCell, Ping, Pong, ToCell, code, reason, stream,
};
use crate::wire::plan::Identity;

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
    files: Files,
    watches: Watches,
    limits: Limits,
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
        check_file_ids(&cell.identity)?;
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
            files: Files::default(),
            watches: Watches::default(),
            limits: Limits::new(cell.watch),
            scratch: vec![0; CHUNK_BYTES],
        })
    }

    /// Turn until the owner is gone (`Ok`) or the channel is (`Err`).
    pub fn run(mut self) -> Result<(), ChannelError> {
        let mut ready = Vec::new();
        let mut busy = false;
        loop {
            ready.clear();
            if !busy {
                self.commands
                    .refill(&self.confinement, &self.resolver, &self.table);
            }
            self.epoll.wait(self.wait_ms(busy), &mut ready)?;
            for event in &ready {
                if self.on_event(*event)? == Turn::OwnerGone {
                    return Ok(());
                }
            }
            busy = self.work(Instant::now());
            let was_congested = self.channel.is_congested();
            self.channel.flush(&self.epoll)?;
            // What waited for room has it now, and no event will say so.
            busy |= was_congested && !self.channel.is_congested();
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
        let Self {
            commands,
            limits,
            watches,
            ..
        } = self;
        [commands.deadline(), limits.deadline(), watches.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    fn on_event(&mut self, event: Readiness) -> Result<Turn, ChannelError> {
        let Some((source, id)) = source_of(event.token) else {
            return Ok(Turn::Next);
        };
        match source {
            Source::Owner => return Ok(self.check_owner()),
            Source::Channel if event.readable => self.receive()?,
            // Writable: each turn ends with a flush.
            Source::Channel => {}
            Source::Children => self.take_child_signal(),
            Source::Watch => self.watches.mark_ready(id),
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
        match message {
            ToCell::Start(_)
            | ToCell::FileStat(_)
            | ToCell::FileList(_)
            | ToCell::FileRead(_)
            | ToCell::FileWrite(_)
            | ToCell::FileMkdir(_)
            | ToCell::FileMove(_)
            | ToCell::FileRemove(_)
            | ToCell::FileWatch(_) => self.begin(id, &message),
            ToCell::Stdin(_) | ToCell::StdinEnd(_) | ToCell::Data(_) | ToCell::End(_) => {
                self.take_data(id, &message)?;
            }
            ToCell::Credit(credit) => self.grant(id, &credit),
            ToCell::Signal(signal) => {
                let number = libc::c_int::from(signal.number);
                let now = Instant::now();
                self.commands
                    .signal(id, number, signal.tree, &self.table, now);
            }
            ToCell::Resize(size) => {
                if let Some(command) = self.commands.get(id) {
                    command.resize(size.rows, size.cols);
                }
            }
            ToCell::Cancel(_) => {
                self.commands.kill(id, reason::CANCELLED, Instant::now());
                self.files.cancel(id, &mut self.channel);
                self.watches.cancel(id, &mut self.channel);
            }
            ToCell::Stats(_) => {
                let stats = stats::collect(&self.table, self.commands.count());
                self.channel.send(id, &stats);
            }
            ToCell::Ping(Ping { number }) => {
                self.channel.send(id, &FromCell::Pong(Pong { number }));
            }
        }
        Ok(())
    }

    /// A request that takes an id.
    fn begin(&mut self, id: u32, message: &ToCell) {
        let begun = if self.is_live(id) {
            Err(Refusal::rule(code::REFUSED, "id in use"))
        } else {
            self.begin_new(id, message)
        };
        if let Err(refusal) = begun {
            self.channel.send(id, &refusal.message());
        }
    }

    fn begin_new(&mut self, id: u32, message: &ToCell) -> Result<(), Refusal> {
        let Self {
            confinement,
            resolver,
            epoll,
            channel,
            table,
            ..
        } = self;
        match message {
            ToCell::Start(request) => {
                self.commands
                    .start(id, request, confinement, resolver, epoll, table)?;
            }
            ToCell::FileWatch(request) => {
                let watches = &mut self.watches;
                let answer =
                    confinement.as_payload(|| watches.start(id, request, resolver, epoll))?;
                channel.send(id, &answer);
            }
            _ => self
                .files
                .request(id, message, confinement, resolver, channel),
        }
        Ok(())
    }

    /// Bytes for a command or a file, or their end.
    fn take_data(&mut self, id: u32, message: &ToCell) -> Result<(), ChannelError> {
        let Self {
            commands,
            files,
            channel,
            epoll,
            ..
        } = self;
        match message {
            ToCell::Stdin(stdin) => {
                let pushed = commands.push_input(id, &stdin.data.0, channel, epoll);
                return pushed.map_err(|_| ChannelError::CreditExceeded);
            }
            ToCell::StdinEnd(_) => commands.end_input(id, channel, epoll),
            ToCell::Data(data) => return files.push(id, &data.data.0, channel),
            _ => files.finish(id, channel),
        }
        Ok(())
    }

    fn grant(&mut self, id: u32, credit: &Credit) {
        if credit.stream == stream::FILE {
            self.files.grant(id, credit.count);
        } else if let Some(command) = self.commands.get(id) {
            command.grant(credit.stream, credit.count);
        }
    }

    fn is_live(&mut self, id: u32) -> bool {
        self.commands.get(id).is_some() || self.files.is_live(id) || self.watches.is_live(id)
    }

    /// One turn's work. True when there is more to do at once.
    fn work(&mut self, now: Instant) -> bool {
        let Self {
            commands,
            files,
            watches,
            limits,
            confinement,
            resolver,
            table,
            channel,
            epoll,
            scratch,
            ..
        } = self;
        commands.reap(channel, table, now);
        commands.look(channel, epoll, now);
        commands.check_alarms(table, now);
        let walking = limits.check(commands, table, confinement, resolver, now);
        commands.sweep(table, now);
        let pumping = commands.pump(channel, scratch, now);
        let moving = files.step(confinement, channel, scratch);
        let watching = watches.pump(channel, now);
        walking || pumping || moving || watching
    }
}

/// setfsuid(2) tells no error. What works here works always: the capabilities that it needs don't change.
fn check_file_ids(identity: &Identity) -> SysResult<()> {
    if identity.tag_count == 0 {
        return Ok(());
    }
    for (uid, gid) in [
        (identity.payload_uid, identity.payload_gid),
        (identity.cell_uid, identity.cell_gid),
    ] {
        process::set_file_ids(uid, gid);
        if process::file_ids() != (uid, gid) {
            return Err(Errno(libc::EPERM));
        }
    }
    // With a debugging host's fs.suid_dumpable=1 the change made us dumpable.
    ident::prctl(libc::PR_SET_DUMPABLE, 0).map(drop)
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
