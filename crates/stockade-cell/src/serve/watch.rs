//! Directory watches: inotify(7) events as frames, at a bounded rate.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use super::channel::Channel;
use super::event::{Source, token};
use super::refusal::Refusal;
use super::resolve::{Access, Resolver, Walk};
use crate::sys::file::{self, Change};
use crate::sys::io::{self, Epoll, Interest};
use crate::sys::{Errno, SysResult};
use crate::wire::codec::Bytes;
use crate::wire::message::{End, Event, FileWatch, FromCell, Ok as Done, change, code};

/// Live watches: half of the kernel's default limit of inotify instances for one user (128).
pub const MAX_WATCHES: usize = 64;
/// Events of one watch per second, a fifth of a core's worth of frames. What is not read waits in the kernel's queue
/// (16,384 events), which says so when it overflows.
const EVENTS_PER_SECOND: usize = 1000;
const SECOND: Duration = Duration::from_secs(1);
/// One read: an event with the longest name is 272 bytes, so at least 15 events.
const READ_BYTES: usize = 4096;
const STRICT: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_SYMLINKS;
const GONE: u32 = libc::IN_DELETE_SELF | libc::IN_IGNORED | libc::IN_UNMOUNT;
const MASK: u32 = libc::IN_CREATE
    | libc::IN_MODIFY
    | libc::IN_CLOSE_WRITE
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_ATTRIB
    | libc::IN_DELETE_SELF
    | libc::IN_ONLYDIR;

/// Watches by id.
#[derive(Debug, Default)]
pub struct Watches {
    live: BTreeMap<u32, Watch>,
}

#[derive(Debug)]
struct Watch {
    inotify: OwnedFd,
    /// An edge came and EAGAIN has not been seen since.
    ready: bool,
    window: Instant,
    sent: usize,
}

/// What reading a watch came to.
#[derive(Debug, PartialEq, Eq)]
enum Pumped {
    Waiting,
    More,
    Gone,
}

impl Watches {
    /// True when a watch has this id.
    #[must_use]
    pub fn is_live(&self, id: u32) -> bool {
        self.live.contains_key(&id)
    }

    /// Begin to watch a directory.
    pub fn start(
        &mut self,
        id: u32,
        request: &FileWatch,
        resolver: &Resolver,
        epoll: &Epoll,
    ) -> Result<FromCell, Refusal> {
        if self.live.len() >= MAX_WATCHES {
            return Err(Refusal::rule(code::LIMIT, "watches"));
        }
        let inotify = inotify_on(request, resolver)?;
        epoll.add(
            inotify.as_fd(),
            token(Source::Watch, id),
            Interest::ReadEdge,
        )?;
        let watch = Watch {
            inotify,
            ready: false,
            window: Instant::now(),
            sent: 0,
        };
        self.live.insert(id, watch);
        Ok(FromCell::Ok(Done {}))
    }

    /// Stop a watch; END is its last frame.
    pub fn cancel(&mut self, id: u32, channel: &mut Channel) {
        if self.live.remove(&id).is_some() {
            channel.send(id, &FromCell::End(End {}));
        }
    }

    /// An event came.
    pub fn mark_ready(&mut self, id: u32) {
        if let Some(watch) = self.live.get_mut(&id) {
            watch.ready = true;
        }
    }

    /// Send what has happened. True when there is more at once.
    pub fn pump(&mut self, channel: &mut Channel, now: Instant) -> bool {
        let mut more = false;
        self.live.retain(|id, watch| {
            let pumped = watch.pump(*id, channel, now);
            more |= pumped == Pumped::More;
            if pumped == Pumped::Gone {
                channel.send(*id, &FromCell::End(End {}));
            }
            pumped != Pumped::Gone
        });
        more
    }

    /// When a watch that used its rate up may go on.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        let held = self.live.values();
        let held = held.filter(|watch| watch.ready && watch.sent >= EVENTS_PER_SECOND);
        held.map(|watch| watch.window + SECOND).min()
    }
}

fn inotify_on(request: &FileWatch, resolver: &Resolver) -> Result<OwnedFd, Refusal> {
    let walk = Walk {
        follow: true,
        parents: false,
        access: Access::Read,
    };
    let location = resolver.locate(&request.path.0, walk)?;
    let flags = libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let parent = Some(location.parent.as_fd());
    let directory = file::open_at(parent, &location.name, flags, 0, STRICT)?;
    let inotify = file::inotify()?;
    // inotify takes only paths; this one leads to the very directory that we have opened.
    let path = format!("/proc/self/fd/{}", io::number(directory.as_fd()));
    let path = CString::new(path).map_err(|_| Errno(libc::EINVAL))?;
    match file::watch(inotify.as_fd(), &path, MASK) {
        // The user's limit of watches, not of disk space.
        Err(error @ Errno(libc::ENOSPC)) => Err(Refusal {
            code: code::LIMIT,
            errno: error,
            detail: "watches",
        }),
        result => {
            result?;
            Ok(inotify)
        }
    }
}

impl Watch {
    fn pump(&mut self, id: u32, channel: &mut Channel, now: Instant) -> Pumped {
        if now.duration_since(self.window) >= SECOND {
            self.window = now;
            self.sent = 0;
        }
        if !self.ready || self.sent >= EVENTS_PER_SECOND || channel.is_congested() {
            return Pumped::Waiting;
        }
        match self.read() {
            Ok(changes) => self.send(id, channel, &changes),
            Err(Errno(libc::EAGAIN)) => {
                self.ready = false;
                Pumped::Waiting
            }
            Err(_) => Pumped::Gone,
        }
    }

    fn read(&self) -> SysResult<Vec<Change>> {
        let mut buffer = [0; READ_BYTES];
        let count = io::read(self.inotify.as_fd(), &mut buffer)?;
        Ok(file::changes(buffer.get(..count).unwrap_or_default()))
    }

    fn send(&mut self, id: u32, channel: &mut Channel, changes: &[Change]) -> Pumped {
        for change in changes {
            if change.mask & GONE != 0 {
                return Pumped::Gone;
            }
            self.sent += 1;
            channel.send(id, &FromCell::Event(event(change)));
        }
        Pumped::More
    }
}

fn event(change: &Change) -> Event {
    let has = |bits| change.mask & bits != 0;
    let number = if has(libc::IN_CREATE) {
        change::CREATED
    } else if has(libc::IN_DELETE) {
        change::REMOVED
    } else if has(libc::IN_MOVED_FROM | libc::IN_MOVED_TO) {
        change::RENAMED
    } else if has(libc::IN_ATTRIB) {
        change::ATTRIBUTES
    } else {
        change::MODIFIED
    };
    Event {
        change: number,
        name: Bytes(change.name.clone()),
        overflow: has(libc::IN_Q_OVERFLOW),
    }
}
