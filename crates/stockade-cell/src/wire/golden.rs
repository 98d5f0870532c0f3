//! The golden frames of `tests/wire/golden`: bytes on disk that Python and Rust both read, so that neither changes
//! the wire alone. `tests/wire/samples.py` holds the same values.
#![allow(clippy::indexing_slicing)] // a test that indexes wrongly fails

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use super::codec::{Bytes, ProtocolError, Reader, Wire, write_length};
use super::frame::{Decoder, RawFrame};
use super::message::{
    self, Cancel, Credit, Data, End, Entries, Entry, Error, Event, Exited, Failed, FileList,
    FileMkdir, FileMove, FileRead, FileRemove, FileStat, FileWatch, FileWrite, FromCell,
    Ok as Done, Output, Ping, Pong, Ready, Resize, Rlimit, Signal, Spawned, Start, Started, Stats,
    StatsResult, Stdin, StdinEnd, StepTime, ToCell,
};
use super::plan::{
    self, Bind, Cgroup, CgroupWrite, Devpts, FileRoot, Hostname, IdMap, Identity, LandlockRule,
    Launch, Loopback, Mask, Mkdir, Overlay, Pivot, Proc, Root, RootTree, Step, Symlink, Sysfs,
    Tmpfs, Watch, WriteFile,
};

fn bytes(value: &[u8]) -> Bytes {
    Bytes(value.to_vec())
}

fn text(value: &str) -> String {
    value.to_owned()
}

fn to_cell() -> Vec<(&'static str, u32, ToCell)> {
    let mut all = commands();
    all.extend(files());
    all.extend(vec![
        ("Stats", 14, ToCell::Stats(Stats {})),
        ("Ping", 15, ToCell::Ping(Ping { number: NUMBER })),
        ("Cancel", 16, ToCell::Cancel(Cancel {})),
        ("Data", 8, ToCell::Data(Data { data: every_byte() })),
        ("End", 8, ToCell::End(End {})),
    ]);
    all
}

const NUMBER: u64 = 0x0123_4567_89AB_CDEF;

fn every_byte() -> Bytes {
    Bytes((0..=u8::MAX).collect())
}

fn commands() -> Vec<(&'static str, u32, ToCell)> {
    vec![
        ("Start", 1, ToCell::Start(start())),
        ("Start-empty", u32::MAX, ToCell::Start(empty_start())),
        (
            "Stdin",
            2,
            ToCell::Stdin(Stdin {
                data: bytes(b"\x00\xff line\n"),
            }),
        ),
        ("StdinEnd", 2, ToCell::StdinEnd(StdinEnd {})),
        ("Credit", 3, ToCell::Credit(credit())),
        (
            "Signal",
            4,
            ToCell::Signal(Signal {
                number: 15,
                tree: true,
            }),
        ),
        (
            "Resize",
            5,
            ToCell::Resize(Resize {
                rows: 50,
                cols: 132,
            }),
        ),
    ]
}

fn start() -> Start {
    Start {
        argv: vec![bytes(b"/bin/sh"), bytes(b"-c"), bytes(b"echo \xff")],
        env: vec![bytes(b"PATH=/usr/bin"), bytes(b"EMPTY=")],
        cwd: bytes(b"/workspace"),
        flags: message::start::PTY | message::start::STDIN | message::start::BACKGROUND,
        rows: 24,
        cols: 80,
        uid: 1000,
        gid: 1001,
        rlimits: vec![
            Rlimit {
                resource: 7,
                soft: 1024,
                hard: 4096,
            },
            Rlimit {
                resource: 0,
                soft: u64::MAX,
                hard: u64::MAX,
            },
        ],
        timeout_ms: 60_000,
        grace_ms: 500,
        credit: 262_144,
        output_limit: 10 << 20,
    }
}

fn empty_start() -> Start {
    Start {
        argv: vec![],
        env: vec![],
        cwd: bytes(b""),
        flags: 0,
        rows: 0,
        cols: 0,
        uid: 0,
        gid: 0,
        rlimits: vec![],
        timeout_ms: 0,
        grace_ms: 0,
        credit: 0,
        output_limit: 0,
    }
}

fn credit() -> Credit {
    Credit {
        stream: message::stream::STDERR,
        count: 65_536,
    }
}

fn files() -> Vec<(&'static str, u32, ToCell)> {
    let read = FileRead {
        path: bytes(b"/workspace/\xff"),
        offset: 1 << 40,
        length: (1 << 63) - 1,
        credit: 262_144,
    };
    let write = FileWrite {
        path: bytes(b"/tmp/x"),
        flags: message::write::CREATE | message::write::PARENTS,
        mode: 0o644,
    };
    let mkdir = FileMkdir {
        path: bytes(b"/tmp/a/b"),
        mode: 0o755,
        parents: true,
    };
    let moved = FileMove {
        source: bytes(b"/tmp/a"),
        target: bytes(b"/tmp/b"),
        replace: false,
    };
    vec![
        (
            "FileStat",
            6,
            ToCell::FileStat(FileStat {
                path: bytes(b"/output/na\nme"),
                follow: false,
            }),
        ),
        (
            "FileList",
            7,
            ToCell::FileList(FileList {
                path: bytes(b"/workspace"),
            }),
        ),
        ("FileRead", 8, ToCell::FileRead(read)),
        ("FileWrite", 9, ToCell::FileWrite(write)),
        ("FileMkdir", 10, ToCell::FileMkdir(mkdir)),
        ("FileMove", 11, ToCell::FileMove(moved)),
        (
            "FileRemove",
            12,
            ToCell::FileRemove(FileRemove {
                path: bytes(b"/tmp/a"),
                recursive: true,
            }),
        ),
        (
            "FileWatch",
            13,
            ToCell::FileWatch(FileWatch {
                path: bytes(b"/workspace"),
            }),
        ),
    ]
}

fn from_cell() -> Vec<(&'static str, u32, FromCell)> {
    let failed = Failed {
        step: text("mount /proc"),
        errno: 1,
        detail: text("Operation not permitted: é"),
    };
    let output = Output {
        stream: message::stream::STDOUT,
        data: bytes(b"\xde\xad\xbe\xef"),
    };
    let error = Error {
        code: message::code::FILE,
        errno: 2,
        detail: text("open"),
    };
    let event = Event {
        change: message::change::RENAMED,
        name: bytes(b"new"),
        overflow: true,
    };
    vec![
        ("Credit", 3, FromCell::Credit(credit())),
        ("Spawned", 0, FromCell::Spawned(Spawned { pid: 4_194_303 })),
        ("Failed", 0, FromCell::Failed(failed)),
        ("Ready", 0, FromCell::Ready(ready())),
        ("Started", 1, FromCell::Started(Started { pid: 2 })),
        ("Output", 1, FromCell::Output(output)),
        ("Exited", 1, FromCell::Exited(exited())),
        ("Ok", 10, FromCell::Ok(Done {})),
        ("Error", 6, FromCell::Error(error)),
        ("Entries", 7, FromCell::Entries(entries())),
        ("Data", 8, FromCell::Data(Data { data: every_byte() })),
        ("End", 8, FromCell::End(End {})),
        ("Event", 13, FromCell::Event(event)),
        ("StatsResult", 14, FromCell::StatsResult(stats_result())),
        ("Pong", 15, FromCell::Pong(Pong { number: NUMBER })),
    ]
}

fn ready() -> Ready {
    Ready {
        version: 1,
        protections: vec![text("user namespace"), text("seccomp")],
        timings: vec![
            StepTime {
                name: text("clone and map ids"),
                microseconds: 2300,
            },
            StepTime {
                name: text("seal"),
                microseconds: 284,
            },
        ],
        fds: vec![text("seccomp"), text("/workspace")],
    }
}

fn exited() -> Exited {
    Exited {
        code: -1,
        signal: 9,
        reason: message::reason::TIMEOUT,
        last_signal: 15,
        duration_us: 1,
        user_us: 2,
        system_us: 3,
        max_rss_kib: 4,
        stdout_dropped: 5,
        stderr_dropped: 6,
        leftovers: 7,
    }
}

fn entries() -> Entries {
    let file = Entry {
        name: bytes(b"a\nb"),
        kind: message::file_type::FILE,
        mode: 0o100_644,
        uid: 1000,
        gid: 1000,
        size: 12,
        mtime_ns: 1_000_000_000_000_000_000,
        nlink: 1,
        target: bytes(b""),
    };
    let link = Entry {
        name: bytes(b"\xff"),
        kind: message::file_type::SYMLINK,
        mode: 0o120_777,
        uid: 0,
        gid: 0,
        size: 3,
        mtime_ns: 0,
        nlink: 1,
        target: bytes(b"../"),
    };
    Entries {
        entries: vec![file, link],
    }
}

fn stats_result() -> StatsResult {
    StatsResult {
        processes: 3,
        commands: 1,
        rss_kib: 620,
        user_us: 1_000,
        system_us: 2_000,
        open_fds: 9,
    }
}

fn steps() -> Vec<(&'static str, Step)> {
    let mut all = mounts();
    all.extend(vec![
        (
            "Mkdir",
            Step::Mkdir(Mkdir {
                name: text("make /home"),
                path: text("home"),
                mode: 0o755,
                owner: 0,
            }),
        ),
        (
            "Symlink",
            Step::Symlink(Symlink {
                name: text("link /bin"),
                target: text("usr/bin"),
                path: text("bin"),
            }),
        ),
        (
            "WriteFile",
            Step::WriteFile(WriteFile {
                name: text("write /etc/hosts"),
                path: text("etc/hosts"),
                mode: 0o444,
                content: bytes(b"127.0.0.1 localhost\n"),
            }),
        ),
        (
            "Mask",
            Step::Mask(Mask {
                name: text("mask /proc/kcore"),
                path: text("proc/kcore"),
            }),
        ),
        (
            "Hostname",
            Step::Hostname(Hostname {
                name: text("host name"),
                value: text("stockade"),
            }),
        ),
        (
            "Loopback",
            Step::Loopback(Loopback {
                name: text("loopback"),
            }),
        ),
        (
            "Pivot",
            Step::Pivot(Pivot {
                name: text("pivot"),
                read_only: true,
            }),
        ),
    ]);
    all
}

fn mounts() -> Vec<(&'static str, Step)> {
    let proc = Proc {
        name: text("processes"),
        path: text("proc"),
        sysctls: vec![
            text("kernel/shm_rmid_forced=1"),
            text("-user/max_user_namespaces=0"),
        ],
    };
    vec![
        (
            "Root",
            Step::Root(Root {
                name: text("root"),
                size_bytes: 1 << 20,
                inodes: 1024,
            }),
        ),
        ("RootTree", Step::RootTree(root_tree())),
        ("Bind", Step::Bind(bind())),
        ("Tmpfs", Step::Tmpfs(tmpfs())),
        ("Overlay", Step::Overlay(overlay())),
        (
            "Devpts",
            Step::Devpts(Devpts {
                name: text("terminals"),
                max: 16,
            }),
        ),
        ("Proc", Step::Proc(proc)),
        (
            "Sysfs",
            Step::Sysfs(Sysfs {
                name: text("sysfs"),
                path: text("sys"),
            }),
        ),
    ]
}

fn root_tree() -> RootTree {
    RootTree {
        name: text("image"),
        source: text("/srv/image"),
        map_uid: 1000,
        map_gid: plan::NONE,
        overlay_bytes: 64 << 20,
        overlay_inodes: 4096,
    }
}

fn bind() -> Bind {
    Bind {
        name: text("bind /usr"),
        source: text("/usr"),
        path: text("usr"),
        attrs: 7,
        recursive: true,
        optional: false,
        map_uid: plan::NONE,
        map_gid: plan::NONE,
    }
}

fn tmpfs() -> Tmpfs {
    Tmpfs {
        name: text("private /tmp"),
        path: text("tmp"),
        size_bytes: 16 << 20,
        inodes: 8192,
        mode: 0o1777,
        owner: plan::OWNER_PAYLOAD,
        attrs: 6,
    }
}

fn overlay() -> Overlay {
    Overlay {
        name: text("overlay"),
        source: text("/srv/é"),
        path: text("workspace"),
        size_bytes: 1 << 20,
        inodes: 64,
        map_uid: 54_321,
        map_gid: 54_322,
        attrs: 6,
    }
}

/// The order of the plan's steps, which differs from the order above.
const STEP_ORDER: [&str; 15] = [
    "Root",
    "RootTree",
    "Mkdir",
    "Symlink",
    "WriteFile",
    "Bind",
    "Tmpfs",
    "Overlay",
    "Devpts",
    "Proc",
    "Mask",
    "Hostname",
    "Loopback",
    "Pivot",
    "Sysfs",
];

fn launch() -> Launch {
    let steps = steps();
    let named = |name: &str| {
        steps
            .iter()
            .find(|step| step.0 == name)
            .map(|step| step.1.clone())
    };
    Launch {
        version: 1,
        sandbox_id: text("sb-0123456789abcdef0123"),
        namespaces: 0x7E02_0000,
        flags: plan::LAUNCH_LANDLOCK | plan::LAUNCH_INNER_USER,
        identity: identity(),
        cgroups: cgroups(),
        steps: STEP_ORDER.into_iter().filter_map(named).collect(),
        seccomp_main: Bytes((0..16).collect()),
        seccomp_child: bytes(b"\x06\x00\x00\x00\x00\x00\xff\x7f"),
        landlock: vec![
            LandlockRule {
                path: text("/usr"),
                access: plan::access::READ,
            },
            LandlockRule {
                path: text("/dev"),
                access: plan::access::DEVICE,
            },
        ],
        rlimits: vec![Rlimit {
            resource: 4,
            soft: 1,
            hard: 1,
        }],
        roots: vec![
            FileRoot {
                path: text("/workspace"),
                writable: true,
            },
            FileRoot {
                path: text("/usr"),
                writable: false,
            },
        ],
        watch: Watch {
            memory_bytes: 1 << 29,
            cpu_millicores: 1000,
            cpu_window_ms: 500,
            disk_paths: vec![text("/workspace")],
            disk_bytes: 1 << 30,
            disk_inodes: 100_000,
        },
        pass_out: vec![text("/workspace"), text("/output")],
    }
}

fn identity() -> Identity {
    Identity {
        uid_map: vec![IdMap {
            inside: 0,
            outside: 2_000_683_008,
            count: 65_536,
        }],
        gid_map: vec![
            IdMap {
                inside: 0,
                outside: 100,
                count: 1,
            },
            IdMap {
                inside: 1,
                outside: 200,
                count: 2,
            },
        ],
        map_writer: plan::MAP_HELPER,
        become_uid: 2_000_683_008,
        become_gid: plan::NONE,
        cell_uid: 65_535,
        cell_gid: 65_534,
        payload_uid: 1000,
        payload_gid: 1001,
        tag_gid: 20_000,
        tag_count: 40_000,
    }
}

fn cgroups() -> Vec<Cgroup> {
    let write = |file: &str, value: &str| CgroupWrite {
        file: text(file),
        value: text(value),
    };
    vec![
        Cgroup {
            path: text("/sys/fs/cgroup/stockade/sb-1"),
            role: plan::role::PARENT,
            writes: vec![],
        },
        Cgroup {
            path: text("/sys/fs/cgroup/stockade/sb-1/work"),
            role: plan::role::WORK,
            writes: vec![write("pids.max", "64"), write("memory.max", "1")],
        },
    ]
}

fn directory() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/wire/golden")
}

fn golden(name: &str) -> Vec<u8> {
    fs::read(directory().join(format!("{name}.bin"))).unwrap_or_default()
}

fn frame(content: &[u8]) -> RawFrame {
    let mut decoder = Decoder::default();
    decoder.feed(content);
    let found = decoder.next_raw();
    assert!(decoder.is_empty(), "the file holds more than one frame");
    match found {
        Result::Ok(Some(raw)) => raw,
        other => panic!("no frame: {other:?}"),
    }
}

fn framed(kind: u8, id: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_length(&mut out, 5 + body.len());
    kind.write(&mut out);
    id.write(&mut out);
    out.extend_from_slice(body);
    out
}

/// Every shorter body is an error, whatever it is an error of.
fn assert_cuts_are_refused<T>(body: &[u8], read: impl Fn(&[u8]) -> Result<T, ProtocolError>) {
    for end in 0..body.len() {
        assert!(
            read(&body[..end]).is_err(),
            "{end} bytes of {} were taken",
            body.len()
        );
    }
    let longer = [body, &[0]].concat();
    assert!(read(&longer).is_err(), "a trailing byte was taken");
}

#[test]
fn test_every_golden_file_is_read_here() {
    let mut expected: BTreeSet<String> = BTreeSet::from(["Launch.bin".to_owned()]);
    expected.extend(to_cell().iter().map(|entry| format!("{}.bin", entry.0)));
    expected.extend(from_cell().iter().map(|entry| format!("{}.bin", entry.0)));
    expected.extend(steps().iter().map(|entry| format!("step-{}.bin", entry.0)));
    let found: BTreeSet<String> = fs::read_dir(directory())
        .map(|entries| {
            entries
                .flatten()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect()
        })
        .unwrap_or_default();
    assert_eq!(found, expected);
}

#[test]
fn test_requests_are_read_as_python_wrote_them() {
    for (name, id, message) in to_cell() {
        let mut decoder = Decoder::default();
        decoder.feed(&golden(name));
        assert_eq!(
            decoder.next_message(),
            Result::Ok(Some((id, message.clone()))),
            "{name}"
        );
        let mut body = Vec::new();
        message.write(&mut body);
        assert_eq!(framed(message.kind(), id, &body), golden(name), "{name}");
    }
}

#[test]
fn test_answers_are_written_as_python_reads_them() {
    for (name, id, message) in from_cell() {
        let mut out = Vec::new();
        super::frame::encode(&mut out, id, &message);
        assert_eq!(out, golden(name), "{name}");
        let raw = frame(&out);
        assert_eq!(
            FromCell::read(raw.kind, &raw.body),
            Result::Ok(message),
            "{name}"
        );
    }
}

#[test]
fn test_output_without_a_copy_is_the_same_frame() {
    let mut out = Vec::new();
    super::frame::encode_output(&mut out, 1, message::stream::STDOUT, b"\xde\xad\xbe\xef");
    assert_eq!(out, golden("Output"));
}

#[test]
fn test_a_request_cut_at_any_byte_is_an_error() {
    for (name, _, message) in to_cell() {
        let body = frame(&golden(name)).body;
        assert_cuts_are_refused(&body, |part| ToCell::read(message.kind(), part));
    }
}

#[test]
fn test_a_kind_that_only_a_cell_sends_is_refused() {
    for (name, _, message) in from_cell() {
        let shared = ["Credit", "Data", "End"].contains(&name);
        let raw = frame(&golden(name));
        assert_eq!(
            ToCell::read(raw.kind, &raw.body).is_err(),
            !shared,
            "{}",
            message.kind()
        );
    }
}

#[test]
fn test_steps_are_read_and_written_as_in_python() {
    for (name, step) in steps() {
        let content = golden(&format!("step-{name}"));
        let mut reader = Reader::new(&content);
        assert_eq!(
            Step::read(&mut reader).as_ref(),
            Result::Ok(&step),
            "{name}"
        );
        assert_eq!(reader.finish(), Result::Ok(()), "{name}");
        let mut out = Vec::new();
        step.write(&mut out);
        assert_eq!(out, content, "{name}");
    }
}

#[test]
fn test_the_plan_is_read_as_python_wrote_it() {
    let raw = frame(&golden("Launch"));
    assert_eq!((raw.kind, raw.id), (plan::LAUNCH, 0));
    assert_eq!(Launch::decode(&raw.body), Result::Ok(launch()));
    assert_cuts_are_refused(&raw.body, Launch::decode);
}

#[test]
fn test_a_length_over_the_limit_is_refused_at_its_header() {
    for length in [0, 4, 1024 * 1024 + 1, u32::MAX] {
        let mut decoder = Decoder::default();
        decoder.feed(&[&length.to_le_bytes()[..], &[16, 0, 0, 0, 0]].concat());
        assert_eq!(decoder.next_raw(), Err(ProtocolError::TooLong), "{length}");
    }
}
