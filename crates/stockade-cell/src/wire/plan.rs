//! The plan: identity, cgroups, and the steps that build a wall, in order. The Python side is
//! `src/stockade/wire/launch.py`, where each field is described.

use crate::wire::codec::{Bytes, ProtocolError, Reader, Wire};
use crate::wire::message::Rlimit;
use crate::wire_struct;

/// The kind of the LAUNCH frame.
pub const LAUNCH: u8 = 1;
/// `map_uid`: leave ownership as it is. `become_uid`: stay who we are.
pub const NONE: u32 = u32::MAX;
/// `owner`: inside root.
pub const OWNER_PAYLOAD: u8 = 1;
/// `map_writer`: newuidmap(1) and newgidmap(1).
pub const MAP_HELPER: u8 = 1;
/// `Launch.flags`: Landlock for each command.
pub const LAUNCH_LANDLOCK: u32 = 1;
/// `Launch.flags`: Landlock also scopes signals.
pub const LAUNCH_LANDLOCK_SIGNALS: u32 = 2;
/// `Launch.flags`: after the build, an inner user namespace shows inside root as the payload.
pub const LAUNCH_INNER_USER: u32 = 4;

/// `Cgroup.role`
pub mod role {
    /// Holds the others.
    pub const PARENT: u8 = 0;
    /// cgroup2, the cell's.
    pub const CELL: u8 = 1;
    /// cgroup2, the commands'.
    pub const WORK: u8 = 2;
    /// v1, commands join it.
    pub const JOIN: u8 = 3;
}

/// `LandlockRule.access`
pub mod access {
    /// Read and execute.
    pub const READ: u8 = 0;
    /// Everything.
    pub const WRITE: u8 = 1;
    /// Read, write and ioctl.
    pub const DEVICE: u8 = 2;
}

wire_struct!(Root {
    name: String,
    size_bytes: u64,
    inodes: u64
});
wire_struct!(RootTree {
    name: String,
    source: String,
    map_uid: u32,
    map_gid: u32,
    overlay_bytes: u64,
    overlay_inodes: u64,
});
wire_struct!(Mkdir {
    name: String,
    path: String,
    mode: u32,
    owner: u8
});
wire_struct!(Symlink {
    name: String,
    target: String,
    path: String
});
wire_struct!(WriteFile {
    name: String,
    path: String,
    mode: u32,
    content: Bytes
});
wire_struct!(Bind {
    name: String,
    source: String,
    path: String,
    attrs: u64,
    recursive: bool,
    optional: bool,
    map_uid: u32,
    map_gid: u32,
});
wire_struct!(Tmpfs {
    name: String,
    path: String,
    size_bytes: u64,
    inodes: u64,
    mode: u32,
    owner: u8,
    attrs: u64,
});
wire_struct!(Overlay {
    name: String,
    source: String,
    path: String,
    size_bytes: u64,
    inodes: u64,
    map_uid: u32,
    map_gid: u32,
    attrs: u64,
});
wire_struct!(Devpts {
    name: String,
    max: u32
});
wire_struct!(Proc { name: String, path: String, sysctls: Vec<String> });
wire_struct!(Mask {
    name: String,
    path: String
});
wire_struct!(Hostname {
    name: String,
    value: String
});
wire_struct!(Loopback { name: String });
wire_struct!(Pivot {
    name: String,
    read_only: bool
});
wire_struct!(Sysfs {
    name: String,
    path: String
});

macro_rules! wire_steps {
    ($($variant:ident = $op:literal),* $(,)?) => {
        /// One named step of a plan.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Step { $($variant($variant)),* }
        impl Step {
            /// The name that an error shows.
            #[must_use]
            pub fn name(&self) -> &str {
                match self { $(Self::$variant(step) => &step.name),* }
            }
        }
        impl Wire for Step {
            fn write(&self, out: &mut Vec<u8>) {
                match self { $(Self::$variant(step) => { out.push($op); step.write(out); }),* }
            }
            fn read(reader: &mut Reader) -> Result<Self, ProtocolError> {
                match u8::read(reader)? {
                    $($op => Ok(Self::$variant(Wire::read(reader)?)),)*
                    other => Err(ProtocolError::Unknown(other)),
                }
            }
        }
    };
}
wire_steps!(
    Root = 1,
    RootTree = 2,
    Mkdir = 3,
    Symlink = 4,
    WriteFile = 5,
    Bind = 6,
    Tmpfs = 7,
    Overlay = 8,
    Devpts = 9,
    Proc = 10,
    Mask = 11,
    Hostname = 12,
    Loopback = 13,
    Pivot = 14,
    Sysfs = 15,
);

wire_struct!(
    /// One line of uid_map or gid_map.
    IdMap { inside: u32, outside: u32, count: u32 });
wire_struct!(
/// Who is who.
Identity {
    uid_map: Vec<IdMap>,
    gid_map: Vec<IdMap>,
    map_writer: u8,
    become_uid: u32,
    become_gid: u32,
    cell_uid: u32,
    cell_gid: u32,
    payload_uid: u32,
    payload_gid: u32,
    tag_gid: u32,
    tag_count: u32,
});
wire_struct!(
    /// A value for a file of a cgroup directory.
    CgroupWrite { file: String, value: String });
wire_struct!(
    /// A cgroup directory to make and limit.
    Cgroup { path: String, role: u8, writes: Vec<CgroupWrite> });
wire_struct!(
    /// What commands may do beneath a directory.
    LandlockRule { path: String, access: u8 });
wire_struct!(
    /// A directory beneath which the cell does file operations.
    FileRoot { path: String, writable: bool });
wire_struct!(
/// Limits that the cell measures itself.
Watch {
    memory_bytes: u64,
    cpu_millicores: u32,
    cpu_window_ms: u32,
    disk_paths: Vec<String>,
    disk_bytes: u64,
    disk_inodes: u64,
});
wire_struct!(
/// All that the launcher needs.
Launch {
    version: u16,
    sandbox_id: String,
    namespaces: u64,
    flags: u32,
    identity: Identity,
    cgroups: Vec<Cgroup>,
    steps: Vec<Step>,
    seccomp_main: Bytes,
    seccomp_child: Bytes,
    landlock: Vec<LandlockRule>,
    rlimits: Vec<Rlimit>,
    roots: Vec<FileRoot>,
    watch: Watch,
    pass_out: Vec<String>,
});

impl Launch {
    /// Decode exactly one LAUNCH body.
    pub fn decode(body: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = Reader::new(body);
        let launch = Self::read(&mut reader)?;
        reader.finish()?;
        Ok(launch)
    }
}
