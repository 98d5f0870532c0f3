//! Every message and its number. The dialogues are told in `docs/protocol.md`; the Python side is
//! `src/stockade/wire/frames.py`, where each field is described.

use crate::wire::codec::{Bytes, ProtocolError, Reader, Wire};
use crate::wire_struct;

/// The version that HELLO's fields belong to; the two sides must agree.
pub const PROTOCOL_VERSION: u16 = 1;
/// Largest payload of one DATA, OUTPUT or STDIN frame.
pub const CHUNK_BYTES: usize = 64 * 1024;

wire_struct!(
    /// One resource limit for setrlimit(2).
    Rlimit { resource: u32, soft: u64, hard: u64 });
wire_struct!(
    /// How long a named phase of the launch took.
    StepTime { name: String, microseconds: u32 });
wire_struct!(
/// One file's metadata.
Entry {
    name: Bytes,
    /// `TYPE_*`
    kind: u8,
    mode: u32,
    uid: u32,
    gid: u32,
    size: u64,
    mtime_ns: u64,
    nlink: u32,
    target: Bytes,
});

wire_struct!(
/// Start a command.
Start {
    argv: Vec<Bytes>,
    env: Vec<Bytes>,
    cwd: Bytes,
    flags: u32,
    rows: u16,
    cols: u16,
    uid: u32,
    gid: u32,
    rlimits: Vec<Rlimit>,
    timeout_ms: u64,
    grace_ms: u32,
    credit: u32,
    output_limit: u64,
});
wire_struct!(Stdin { data: Bytes });
wire_struct!(StdinEnd {});
wire_struct!(Credit {
    stream: u8,
    count: u32
});
wire_struct!(Signal {
    number: u8,
    tree: bool
});
wire_struct!(Resize {
    rows: u16,
    cols: u16
});
wire_struct!(FileStat {
    path: Bytes,
    follow: bool
});
wire_struct!(FileList { path: Bytes });
wire_struct!(FileRead {
    path: Bytes,
    offset: u64,
    length: u64,
    credit: u32
});
wire_struct!(FileWrite {
    path: Bytes,
    flags: u32,
    mode: u32
});
wire_struct!(FileMkdir {
    path: Bytes,
    mode: u32,
    parents: bool
});
wire_struct!(FileMove {
    source: Bytes,
    target: Bytes,
    replace: bool
});
wire_struct!(FileRemove {
    path: Bytes,
    recursive: bool
});
wire_struct!(FileWatch { path: Bytes });
wire_struct!(Stats {});
wire_struct!(Ping { number: u64 });
wire_struct!(Cancel {});

wire_struct!(Spawned { pid: u32 });
wire_struct!(Failed {
    step: String,
    errno: u32,
    detail: String
});
wire_struct!(Ready { version: u16, protections: Vec<String>, timings: Vec<StepTime>, fds: Vec<String> });
wire_struct!(Started { pid: u32 });
wire_struct!(Output {
    stream: u8,
    data: Bytes
});
wire_struct!(Exited {
    code: i32,
    signal: u8,
    reason: u8,
    last_signal: u8,
    duration_us: u64,
    user_us: u64,
    system_us: u64,
    max_rss_kib: u64,
    stdout_dropped: u64,
    stderr_dropped: u64,
    leftovers: u32,
});
wire_struct!(Ok {});
wire_struct!(Error {
    code: u16,
    errno: u32,
    detail: String
});
wire_struct!(Entries { entries: Vec<Entry> });
wire_struct!(Data { data: Bytes });
wire_struct!(End {});
wire_struct!(Event {
    change: u8,
    name: Bytes,
    overflow: bool
});
wire_struct!(StatsResult {
    processes: u32,
    commands: u32,
    rss_kib: u64,
    user_us: u64,
    system_us: u64,
    open_fds: u32,
});
wire_struct!(Pong { number: u64 });

macro_rules! wire_messages {
    ($(#[$meta:meta])* $name:ident { $($variant:ident = $kind:literal),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[allow(dead_code)] // OUTPUT is encoded without its struct, see `frame::encode_output`
        pub enum $name { $($variant($variant)),* }
        // Each table goes one way in the product, both ways in the golden tests.
        #[allow(dead_code)]
        impl $name {
            /// The number on the wire.
            #[must_use]
            pub fn kind(&self) -> u8 {
                match self { $(Self::$variant(_) => $kind),* }
            }
            /// Append the body.
            pub fn write(&self, out: &mut Vec<u8>) {
                match self { $(Self::$variant(message) => message.write(out)),* }
            }
            /// Decode the body of a message of this kind.
            pub fn read(kind: u8, body: &[u8]) -> Result<Self, ProtocolError> {
                let mut reader = Reader::new(body);
                let message = match kind {
                    $($kind => Self::$variant(Wire::read(&mut reader)?),)*
                    other => return Err(ProtocolError::Unknown(other)),
                };
                reader.finish()?;
                Result::Ok(message)
            }
        }
    };
}

wire_messages!(
/// What the host asks of a cell.
ToCell {
    Start = 16, Stdin = 17, StdinEnd = 18, Credit = 19, Signal = 20, Resize = 21,
    FileStat = 32, FileList = 33, FileRead = 34, FileWrite = 35, FileMkdir = 36, FileMove = 37,
    FileRemove = 38, FileWatch = 39,
    Stats = 48, Ping = 49, Cancel = 50,
    Data = 163, End = 164,
});
wire_messages!(
/// What a cell tells the host.
FromCell {
    Credit = 19,
    Spawned = 128, Failed = 129, Ready = 130,
    Started = 144, Output = 145, Exited = 146,
    Ok = 160, Error = 161, Entries = 162, Data = 163, End = 164, Event = 165,
    StatsResult = 176, Pong = 177,
});

/// `Start.flags`
pub mod start {
    /// A pseudo-terminal.
    pub const PTY: u32 = 1;
    /// Standard input is a pipe.
    pub const STDIN: u32 = 2;
    /// The caller does not wait for it.
    #[allow(dead_code)] // the table is whole on both sides
    pub const BACKGROUND: u32 = 4;
}

/// `FileWrite.flags`
pub mod write {
    /// Make the file if it is missing.
    pub const CREATE: u32 = 1;
    /// Empty it first.
    pub const TRUNCATE: u32 = 2;
    /// Write at the end.
    pub const APPEND: u32 = 4;
    /// It must not exist.
    pub const EXCLUSIVE: u32 = 8;
    /// Make missing parents.
    pub const PARENTS: u32 = 16;
}

/// Stream numbers of CREDIT and OUTPUT.
pub mod stream {
    /// Host to command.
    pub const STDIN: u8 = 0;
    /// Command to host.
    pub const STDOUT: u8 = 1;
    /// Command to host.
    pub const STDERR: u8 = 2;
    /// A file transfer, either way.
    pub const FILE: u8 = 3;
}

/// `Exited.reason`
pub mod reason {
    /// It ended by itself.
    pub const EXIT: u8 = 0;
    /// `Start.timeout_ms` passed.
    pub const TIMEOUT: u8 = 1;
    /// The watched memory limit.
    pub const MEMORY: u8 = 2;
    /// The watched CPU limit.
    #[allow(dead_code)] // the table is whole on both sides
    pub const CPU: u8 = 3;
    /// The watched disk limit.
    pub const DISK: u8 = 4;
    /// A SIGNAL frame ended it.
    pub const SIGNALLED: u8 = 5;
    /// A CANCEL frame ended it.
    pub const CANCELLED: u8 = 6;
}

/// `Error.code`
pub mod code {
    /// A file operation's system call failed.
    pub const FILE: u16 = 1;
    /// The path leaves the allowed directories, or meets a forbidden file system.
    pub const OUTSIDE: u16 = 2;
    /// The operation wants a regular file.
    pub const NOT_REGULAR: u16 = 3;
    /// The file has another name.
    pub const HARD_LINK: u16 = 4;
    /// A command's start failed at the step named in the detail.
    pub const START: u16 = 5;
    /// execve(2) failed.
    pub const EXEC: u16 = 6;
    /// The working directory is missing or not allowed.
    pub const CWD: u16 = 7;
    /// The request is not allowed.
    pub const REFUSED: u16 = 8;
    /// A limit of the cell was reached.
    pub const LIMIT: u16 = 9;
    /// No operation with this id.
    #[allow(dead_code)] // the table is whole on both sides
    pub const GONE: u16 = 10;
}

/// `Entry.kind`
pub mod file_type {
    /// Device, socket, FIFO.
    pub const OTHER: u8 = 0;
    /// Regular file.
    pub const FILE: u8 = 1;
    /// Directory.
    pub const DIRECTORY: u8 = 2;
    /// Symbolic link.
    pub const SYMLINK: u8 = 3;
}

/// `Event.change`
pub mod change {
    /// A name appeared.
    pub const CREATED: u8 = 1;
    /// Contents changed.
    pub const MODIFIED: u8 = 2;
    /// A name went away.
    pub const REMOVED: u8 = 3;
    /// A name was moved in or out.
    pub const RENAMED: u8 = 4;
    /// Metadata changed.
    pub const ATTRIBUTES: u8 = 5;
}
