//! The sandbox's processes as /proc shows them. All of it is written by the kernel; the payload chooses only
//! its name, which the kernel escapes.

use std::cell::Cell;
use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::sys::process::own_pid;
use crate::sys::{Errno, SysResult, file, io};

/// Processes that are looked at: 16 times the largest process limit that a policy may set.
const MAX_PROCESSES: usize = 65_536;
/// /proc/PID/stat is at most 52 numbers of 20 digits; of status, `Groups:` comes within the first 1,000 bytes.
const RECORD_BYTES: usize = 2048;
const PAGE_BYTES: usize = 32 * 1024;
/// `USER_HZ`: what /proc/PID/stat counts time in, on every architecture that we build for.
const TICK_US: u64 = 10_000;

/// One process of the sandbox, not the cell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Process {
    /// Its id, inside.
    pub pid: libc::pid_t,
    /// Its parent.
    pub parent: libc::pid_t,
    /// Not a zombie: a thread may go on after the first one ended.
    pub alive: bool,
    /// Stopped by a signal.
    pub stopped: bool,
    /// Supplementary groups (from status only).
    pub groups: Vec<u32>,
    /// Resident pages (stat) or bytes / page size (status).
    pub rss_kib: u64,
    /// CPU time of itself and the children that it waited for, in user mode (stat only).
    pub user_us: u64,
    /// The same in the kernel (stat only).
    pub system_us: u64,
}

/// Which file of /proc is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// status: with the groups.
    Groups,
    /// stat: with the times; cheaper.
    Times,
}

/// An open /proc.
#[derive(Debug)]
pub struct ProcessTable {
    proc: OwnedFd,
    hidden: Cell<libc::pid_t>,
}

impl ProcessTable {
    /// Open the mounted /proc.
    pub fn open() -> SysResult<Self> {
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        let proc = file::open_at(None, c"/proc", flags, 0, 0)?;
        Ok(Self {
            proc,
            hidden: Cell::new(0),
        })
    }

    /// Leave one process out of every answer: the spare, which is of no command. 0 hides none.
    pub fn hide(&self, pid: libc::pid_t) {
        self.hidden.set(pid);
    }

    /// Every process but ours, in one pass. What starts or ends meanwhile may or may not be there.
    pub fn scan(&self, detail: Detail) -> SysResult<Vec<Process>> {
        let mut processes = Vec::new();
        for pid in self.pids()? {
            // Ended since it was listed, or hidden: not ours to see.
            if let Ok(process) = self.read(pid, detail) {
                processes.push(process);
            }
        }
        Ok(processes)
    }

    /// The ids of all processes but ours.
    fn pids(&self) -> SysResult<Vec<libc::pid_t>> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let directory = file::open_at(Some(self.proc.as_fd()), c".", flags, 0, 0)?;
        let mut page = vec![0; PAGE_BYTES];
        let own = own_pid();
        let mut pids = Vec::new();
        while let Some(names) = file::directory_page(directory.as_fd(), &mut page)? {
            let numbers = names.iter().filter_map(|entry| entry.name.to_str().ok());
            let numbers = numbers.filter_map(|name| name.parse::<libc::pid_t>().ok());
            pids.extend(numbers.filter(|pid| *pid != own && *pid != self.hidden.get()));
            if pids.len() > MAX_PROCESSES {
                break;
            }
        }
        Ok(pids)
    }

    fn read(&self, pid: libc::pid_t, detail: Detail) -> SysResult<Process> {
        let mut buffer = [0; RECORD_BYTES];
        let process = match detail {
            Detail::Groups => parse_status(self.read_file(&format!("{pid}/status"), &mut buffer)?),
            Detail::Times => parse_stat(self.read_file(&format!("{pid}/stat"), &mut buffer)?),
        };
        let process = process.ok_or(Errno(libc::EINVAL))?;
        Ok(Process { pid, ..process })
    }

    fn read_file<'a>(&self, path: &str, buffer: &'a mut [u8]) -> SysResult<&'a [u8]> {
        let path = CString::new(path).map_err(|_| Errno(libc::EINVAL))?;
        let file = file::open_at(Some(self.proc.as_fd()), &path, libc::O_RDONLY, 0, 0)?;
        let count = io::read(file.as_fd(), buffer)?;
        Ok(buffer.get(..count).unwrap_or_default())
    }

    /// Our own children. Everything that a dead command left behind has one of them as its ancestor.
    pub fn children(&self) -> SysResult<Vec<libc::pid_t>> {
        let path = CString::new(format!("{0}/task/{0}/children", own_pid()));
        let path = path.map_err(|_| Errno(libc::EINVAL))?;
        let file = file::open_at(Some(self.proc.as_fd()), &path, libc::O_RDONLY, 0, 0)?;
        let text = read_to_end(file.as_fd())?;
        let words = text.split(u8::is_ascii_whitespace);
        Ok(words
            .filter_map(number)
            .filter(|pid| *pid != self.hidden.get())
            .collect())
    }

    /// Descriptors that the cell has open.
    pub fn own_descriptors(&self) -> SysResult<usize> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let directory = file::open_at(Some(self.proc.as_fd()), c"self/fd", flags, 0, 0)?;
        let mut page = vec![0; PAGE_BYTES];
        let mut count = 0;
        while let Some(names) = file::directory_page(directory.as_fd(), &mut page)? {
            count += names.len();
        }
        // Without the one that lists them.
        Ok(count.saturating_sub(1))
    }
}

fn read_to_end(file: BorrowedFd) -> SysResult<Vec<u8>> {
    let mut text = Vec::new();
    let mut buffer = [0; RECORD_BYTES];
    while text.len() < MAX_PROCESSES * 8 {
        match io::read(file, &mut buffer)? {
            0 => break,
            count => text.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
    }
    Ok(text)
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// `State:`, `PPid:`, `Groups:`, `VmRSS:` and `Threads:` of `proc_pid_status(5)`.
fn parse_status(text: &[u8]) -> Option<Process> {
    let mut process = Process::default();
    let mut state = b'X';
    let mut threads = 1_u32;
    for line in text.split(|byte| *byte == b'\n') {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let (key, value) = line.split_at_checked(colon + 1)?;
        let value = value.trim_ascii();
        let mut words = value.split(u8::is_ascii_whitespace);
        match key {
            b"State:" => state = *value.first()?,
            b"PPid:" => process.parent = number(value)?,
            b"Groups:" => process.groups = words.filter_map(number).collect(),
            b"VmRSS:" => process.rss_kib = words.next().and_then(number)?,
            b"Threads:" => {
                threads = number(value)?;
                // Nothing after it is needed, and the record may be cut there.
                break;
            }
            _ => {}
        }
    }
    Some(with_state(process, state, threads))
}

/// Fields 3, 4, 14 to 17, 20 and 24 of `proc_pid_stat(5)`; the name before them may hold anything but its own end.
fn parse_stat(text: &[u8]) -> Option<Process> {
    let name_end = text.iter().rposition(|byte| *byte == b')')?;
    let rest = text.get(name_end + 1..)?.trim_ascii();
    let fields: Vec<&[u8]> = rest.split(|byte| *byte == b' ').collect();
    // The state, field 3, is the first of `rest`.
    let field = |index: usize| fields.get(index - 3).copied();
    let ticks = |index: usize| field(index).and_then(number::<u64>);
    let process = Process {
        parent: number(field(4)?)?,
        user_us: (ticks(14)? + ticks(16)?).saturating_mul(TICK_US),
        system_us: (ticks(15)? + ticks(17)?).saturating_mul(TICK_US),
        rss_kib: ticks(24)?.saturating_mul(page_kib()),
        ..Process::default()
    };
    Some(with_state(
        process,
        *field(3)?.first()?,
        number(field(20)?)?,
    ))
}

fn with_state(process: Process, state: u8, threads: u32) -> Process {
    Process {
        // The first thread of a process shows Z when it ended before the others.
        alive: !matches!(state, b'Z' | b'X') || threads > 1,
        stopped: matches!(state, b'T' | b't'),
        ..process
    }
}

fn page_kib() -> u64 {
    u64::try_from(crate::sys::process::page_size() / 1024).unwrap_or(4)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn test_stat_with_a_name_that_looks_like_fields_is_read_from_its_last_parenthesis() {
        let text = b"7 (a) R 1 (b)) S 3 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0 1 0 9 1000 5 0";
        let process = parse_stat(text).unwrap();
        assert_eq!(
            (process.parent, process.user_us, process.system_us),
            (3, 40_000, 60_000)
        );
        assert_eq!(process.rss_kib, 5 * page_kib());
    }

    #[test]
    fn test_a_process_whose_first_thread_ended_is_alive() {
        let text = b"Name:\tx\nState:\tZ (zombie)\nPPid:\t4\nGroups:\t70 71 \nThreads:\t2\n";
        let process = parse_status(text).unwrap();
        assert!(process.alive);
        assert_eq!((process.parent, process.groups), (4, vec![70, 71]));
    }

    #[test]
    fn test_own_children_hold_a_new_child() {
        let mut child = std::process::Command::new("sleep")
            .arg("9")
            .spawn()
            .unwrap();
        let pid = libc::pid_t::try_from(child.id()).unwrap();
        let table = ProcessTable::open().unwrap();
        let found = table.scan(Detail::Groups).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let found = found
            .into_iter()
            .find(|process| process.pid == pid)
            .unwrap();
        assert_eq!((found.parent, found.alive), (own_pid(), true));
    }
}
