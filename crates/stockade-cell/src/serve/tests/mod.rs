//! The cell as a whole: a real one, PID 1 of a PID namespace, behind a socketpair.
//!
//! A cell is this test program again, told to run only `cell_process`; its channel is standard input, and its
//! owner the other end of standard error.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod commands;
mod files;
mod limits;

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::{Cell, run};
use crate::sys::{file, ident, io, mount};
use crate::wire::codec::{Bytes, Wire};
use crate::wire::message::{FromCell, Start, ToCell, stream};
use crate::wire::plan::{FileRoot, Identity, Watch};

const MODE: &str = "STOCKADE_TEST_CELL";
const ROOT: &str = "STOCKADE_TEST_ROOT";
/// Far above what anything here takes, far below what a person waits for.
const PATIENCE: Duration = Duration::from_secs(15);

/// How the cell tells commands apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Payload 1000, a tag for each command; needs root.
    Tags,
    /// Cell and payload are one user.
    SingleId,
}

/// Who runs the tests.
pub fn own_uid() -> u32 {
    std::fs::metadata("/proc/self").unwrap().uid()
}

/// Every mode that this user can test.
pub fn modes() -> Vec<Mode> {
    if own_uid() == 0 {
        vec![Mode::Tags, Mode::SingleId]
    } else {
        vec![Mode::SingleId]
    }
}

pub struct TestCell {
    channel: UnixStream,
    pub owner: Option<UnixStream>,
    process: Child,
    received: Vec<u8>,
}

impl TestCell {
    pub fn new(mode: Mode) -> Self {
        Self::with_root(mode, "/tmp", &[])
    }

    /// `root` is the writable root of file operations; `settings` are environment variables of `cell_process`.
    pub fn with_root(mode: Mode, root: &str, settings: &[(&str, &str)]) -> Self {
        let (channel, cell_end) = UnixStream::pair().unwrap();
        let (owner, owner_end) = UnixStream::pair().unwrap();
        channel.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new("unshare");
        if own_uid() != 0 {
            command.arg("--map-root-user");
        }
        command
            .arg("--mount")
            .arg(std::env::current_exe().unwrap())
            .args(["serve::tests::cell_process", "--exact", "--ignored"])
            .args(["--nocapture", "--test-threads=1"])
            .env(MODE, format!("{mode:?}"))
            .env(ROOT, root)
            .envs(settings.iter().copied())
            .stdin(OwnedFd::from(cell_end))
            .stdout(Stdio::null())
            .stderr(OwnedFd::from(owner_end));
        let process = command.spawn().unwrap();
        Self {
            channel,
            owner: Some(owner),
            process,
            received: Vec::new(),
        }
    }

    pub fn send(&mut self, id: u32, message: &ToCell) {
        let mut body = Vec::new();
        message.write(&mut body);
        let mut frame = Vec::new();
        u32::try_from(body.len() + 5).unwrap().write(&mut frame);
        message.kind().write(&mut frame);
        id.write(&mut frame);
        frame.extend(body);
        self.channel.write_all(&frame).unwrap();
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.channel.write_all(bytes).unwrap();
    }

    /// The next frame; `None` when the cell is gone.
    pub fn next(&mut self) -> Option<(u32, FromCell)> {
        loop {
            if let Some(length) = self.received.get(..4) {
                let end =
                    4 + usize::try_from(u32::from_le_bytes(length.try_into().unwrap())).unwrap();
                if self.received.len() >= end {
                    let frame: Vec<u8> = self.received.drain(..end).collect();
                    let id = u32::from_le_bytes(frame[5..9].try_into().unwrap());
                    return Some((id, FromCell::read(frame[4], &frame[9..]).unwrap()));
                }
            }
            let mut buffer = vec![0; 65536];
            match self.channel.read(&mut buffer) {
                Ok(0) => return None,
                Ok(count) => self.received.extend(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the cell says nothing: {error}"),
            }
        }
    }

    /// Run a command to its last frame.
    pub fn run(&mut self, id: u32, request: Start) -> Outcome {
        self.send(id, &ToCell::Start(request));
        self.outcome(id)
    }

    /// Collect a command's frames up to the last one.
    pub fn outcome(&mut self, id: u32) -> Outcome {
        self.collect(id, Outcome::default())
    }

    /// The same for one whose STARTED was read already.
    pub fn outcome_after_start(&mut self, id: u32) -> Outcome {
        let started = true;
        self.collect(
            id,
            Outcome {
                started,
                ..Outcome::default()
            },
        )
    }

    fn collect(&mut self, id: u32, mut outcome: Outcome) -> Outcome {
        loop {
            let (from, message) = self.next().unwrap();
            assert_eq!(from, id, "{message:?}");
            match message {
                FromCell::Started(_) => outcome.started = true,
                FromCell::Output(output) if output.stream == stream::STDOUT => {
                    assert!(outcome.started);
                    outcome.stdout.extend(output.data.0);
                }
                FromCell::Output(output) => outcome.stderr.extend(output.data.0),
                FromCell::Credit(_) => {}
                last => {
                    outcome.last = Some(last);
                    return outcome;
                }
            }
        }
    }
}

impl Drop for TestCell {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Debug, Default)]
pub struct Outcome {
    pub started: bool,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub last: Option<FromCell>,
}

impl Outcome {
    pub fn exited(&self) -> &crate::wire::message::Exited {
        match &self.last {
            Some(FromCell::Exited(exited)) => exited,
            other => panic!("{other:?}"),
        }
    }

    pub fn error(&self) -> &crate::wire::message::Error {
        match &self.last {
            Some(FromCell::Error(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

/// A START for the payload of `mode`.
pub fn start(mode: Mode, argv: &[&str]) -> Start {
    let bytes = |text: &&str| Bytes(text.as_bytes().to_vec());
    let uid = if mode == Mode::Tags { 1000 } else { own_uid() };
    let uid = if own_uid() == 0 { uid } else { 0 };
    Start {
        argv: argv.iter().map(bytes).collect(),
        env: vec![bytes(&"PATH=/usr/bin:/bin")],
        cwd: bytes(&"/"),
        flags: 0,
        rows: 24,
        cols: 80,
        uid,
        gid: uid,
        rlimits: vec![],
        timeout_ms: 0,
        grace_ms: 0,
        credit: u32::MAX,
        output_limit: 0,
    }
}

pub fn shell(mode: Mode, script: &str) -> Start {
    start(mode, &["sh", "-c", script])
}

fn number(name: &str) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(0)
}

fn text(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
}

/// Go on as PID 1 of a new PID namespace with its own /proc, in the mount namespace that unshare(1) made. The new
/// process has one thread, as the cell has; the test program had two.
fn become_init() {
    let namespace = u64::try_from(libc::CLONE_NEWPID).unwrap();
    match ident::fork(namespace, None).unwrap() {
        ident::Forked::Parent { pidfd, .. } => {
            ident::reap(pidfd.as_fd()).unwrap();
            ident::exit_now(0);
        }
        ident::Forked::Child => {}
    }
    let proc = mount::NewFilesystem::open(c"proc")
        .unwrap()
        .mount(0)
        .unwrap();
    let target = file::open_at(None, c"/proc", libc::O_PATH, 0, 0).unwrap();
    mount::attach(proc.as_fd(), target.as_fd()).unwrap();
}

/// Not a test: the cell that the tests talk to.
#[test]
#[ignore = "started by the tests as their cell"]
fn cell_process() {
    let tags = match text(MODE).as_str() {
        "Tags" => true,
        "SingleId" => false,
        _ => return,
    };
    let payload = if tags { 1000 } else { 0 };
    become_init();
    let channel = io::adopt(0);
    let owner = io::adopt(2);
    run(Cell {
        channel: io::duplicate(channel.as_fd()).unwrap(),
        owner: io::duplicate(owner.as_fd()).unwrap(),
        identity: Identity {
            uid_map: vec![],
            gid_map: vec![],
            map_writer: 0,
            become_uid: 0,
            become_gid: 0,
            cell_uid: 0,
            cell_gid: 0,
            payload_uid: payload,
            payload_gid: payload,
            tag_gid: if tags { 5000 } else { 0 },
            tag_count: if tags { 256 } else { 0 },
        },
        work_cgroup: None,
        join_cgroups: vec![],
        landlock: None,
        seccomp_child: vec![],
        rlimits: vec![],
        roots: vec![
            FileRoot {
                path: text(ROOT),
                writable: true,
            },
            FileRoot {
                path: "/usr".to_owned(),
                writable: false,
            },
        ],
        watch: Watch {
            memory_bytes: number("WATCH_MEMORY"),
            cpu_millicores: u32::try_from(number("WATCH_CPU")).unwrap(),
            cpu_window_ms: 200,
            disk_paths: vec![text(ROOT)],
            disk_bytes: number("WATCH_DISK"),
            disk_inodes: number("WATCH_INODES"),
        },
    })
}
