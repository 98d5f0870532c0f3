//! File operations: what they do, and where they do not go (C08, C09).

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::{Mode, TestCell, modes, own_uid};
use crate::wire::codec::Bytes;
use crate::wire::message::{
    Cancel, Credit, Data, End, Entry, FileList, FileMkdir, FileMove, FileRead, FileRemove,
    FileStat, FileWatch, FileWrite, FromCell, Ping, ToCell, change, code, file_type, stream, write,
};

/// A directory of this test, writable for the payload, and a cell whose root it is.
struct Place {
    cell: TestCell,
    base: PathBuf,
    mode: Mode,
}

impl Place {
    fn new(mode: Mode) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let base = std::env::temp_dir().join(format!("stockade-{}-{count}", std::process::id()));
        let root = base.join("workspace");
        fs::create_dir_all(&root).unwrap();
        fs::create_dir_all(base.join("out")).unwrap();
        for path in [&root, &base.join("out")] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
        }
        let cell = TestCell::with_root(mode, root.to_str().unwrap(), &[]);
        Self { cell, base, mode }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.base.join("workspace").join(name)
    }

    fn out(&self) -> PathBuf {
        self.base.join("out")
    }

    fn bytes(&self, name: &str) -> Bytes {
        bytes(&self.path(name))
    }

    fn ask(&mut self, message: &ToCell) -> FromCell {
        self.cell.send(1, message);
        self.cell.next().unwrap().1
    }

    fn read(&mut self, path: Bytes) -> Result<Vec<u8>, u16> {
        let (offset, length, credit) = (0, 0, u32::MAX);
        let mut answer = self.ask(&ToCell::FileRead(FileRead {
            path,
            offset,
            length,
            credit,
        }));
        let mut content = Vec::new();
        loop {
            match answer {
                FromCell::Data(data) => content.extend(data.data.0),
                FromCell::End(_) => return Ok(content),
                FromCell::Error(error) => return Err(error.code),
                other => panic!("{other:?}"),
            }
            answer = self.cell.next().unwrap().1;
        }
    }

    fn write(&mut self, path: Bytes, flags: u32, content: &[u8]) -> Result<(), u16> {
        let mut answer = self.ask(&ToCell::FileWrite(FileWrite {
            path,
            flags,
            mode: 0o644,
        }));
        let mut left = content;
        let mut credit = 0;
        loop {
            match answer {
                FromCell::Credit(more) => credit += usize::try_from(more.count).unwrap(),
                FromCell::Ok(_) => return Ok(()),
                FromCell::Error(error) => return Err(error.code),
                other => panic!("{other:?}"),
            }
            while credit > 0 && !left.is_empty() {
                let (chunk, rest) = left.split_at(left.len().min(credit).min(65536));
                let data = Bytes(chunk.to_vec());
                self.cell.send(1, &ToCell::Data(Data { data }));
                credit -= chunk.len();
                left = rest;
                if left.is_empty() {
                    self.cell.send(1, &ToCell::End(End {}));
                }
            }
            if content.is_empty() {
                self.cell.send(1, &ToCell::End(End {}));
            }
            answer = self.cell.next().unwrap().1;
        }
    }

    fn list(&mut self, path: Bytes) -> Vec<Entry> {
        let mut answer = self.ask(&ToCell::FileList(FileList { path }));
        let mut all = Vec::new();
        while let FromCell::Entries(page) = answer {
            assert!(page.entries.len() <= 256);
            all.extend(page.entries);
            answer = self.cell.next().unwrap().1;
        }
        assert!(matches!(answer, FromCell::End(_)), "{answer:?}");
        all
    }

    fn remove(&mut self, path: Bytes, recursive: bool) -> FromCell {
        self.ask(&ToCell::FileRemove(FileRemove { path, recursive }))
    }

    fn watch(&mut self, path: Bytes) {
        let answer = self.ask(&ToCell::FileWatch(FileWatch { path }));
        assert!(matches!(answer, FromCell::Ok(_)), "{answer:?}");
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.base);
    }
}

fn bytes(path: &Path) -> Bytes {
    Bytes(path.as_os_str().as_encoded_bytes().to_vec())
}

fn error_of(answer: &FromCell) -> (u16, u32) {
    match answer {
        FromCell::Error(error) => (error.code, error.errno),
        other => panic!("{other:?}"),
    }
}

fn in_each_mode(test: impl Fn(&mut Place)) {
    for mode in modes() {
        test(&mut Place::new(mode));
    }
}

const CREATE: u32 = write::CREATE | write::TRUNCATE;

#[test]
fn test_what_is_written_is_read_and_belongs_to_the_payload() {
    in_each_mode(|place| {
        let content: Vec<u8> = (0..=255).cycle().take(1_000_000).collect();
        place.write(place.bytes("a"), CREATE, &content).unwrap();
        assert_eq!(place.read(place.bytes("a")).unwrap(), content);
        let found = fs::metadata(place.path("a")).unwrap();
        let uid = if place.mode == Mode::Tags {
            1000
        } else {
            own_uid()
        };
        assert_eq!((found.uid(), found.mode() & 0o7777), (uid, 0o644));
    });
}

#[test]
fn test_an_empty_file_can_be_written_and_read() {
    in_each_mode(|place| {
        place.write(place.bytes("a"), CREATE, b"").unwrap();
        assert_eq!(place.read(place.bytes("a")).unwrap(), b"");
    });
}

#[test]
fn test_write_flags_append_exclusive_parents_and_no_create() {
    in_each_mode(|place| {
        place
            .write(place.bytes("x/y/a"), CREATE | write::PARENTS, b"one")
            .unwrap();
        place
            .write(place.bytes("x/y/a"), write::APPEND, b"two")
            .unwrap();
        assert_eq!(place.read(place.bytes("x/y/a")).unwrap(), b"onetwo");
        let exclusive = write::CREATE | write::EXCLUSIVE;
        assert_eq!(
            place.write(place.bytes("x/y/a"), exclusive, b"no"),
            Err(code::FILE)
        );
        assert_eq!(place.write(place.bytes("b"), 0, b"no"), Err(code::FILE));
        place.write(place.bytes("x/y/a"), CREATE, b"z").unwrap();
        assert_eq!(place.read(place.bytes("x/y/a")).unwrap(), b"z");
    });
}

#[test]
fn test_a_read_keeps_to_offset_length_and_credit() {
    in_each_mode(|place| {
        fs::write(place.path("a"), b"0123456789").unwrap();
        let path = place.bytes("a");
        let request = FileRead {
            path,
            offset: 2,
            length: 6,
            credit: 4,
        };
        let answer = place.ask(&ToCell::FileRead(request));
        assert!(
            matches!(&answer, FromCell::Data(data) if data.data.0 == b"2345"),
            "{answer:?}"
        );
        let more = Credit {
            stream: stream::FILE,
            count: 100,
        };
        let answer = place.ask(&ToCell::Credit(more));
        assert!(
            matches!(&answer, FromCell::Data(data) if data.data.0 == b"67"),
            "{answer:?}"
        );
        assert!(matches!(place.cell.next().unwrap().1, FromCell::End(_)));
    });
}

#[test]
fn test_a_read_ends_without_more_credit_than_the_file_is_long() {
    in_each_mode(|place| {
        fs::write(place.path("a"), b"0123").unwrap();
        let path = place.bytes("a");
        let request = FileRead {
            path,
            offset: 0,
            length: 0,
            credit: 4,
        };
        assert!(matches!(
            place.ask(&ToCell::FileRead(request)),
            FromCell::Data(_)
        ));
        assert!(matches!(place.cell.next().unwrap().1, FromCell::End(_)));
    });
}

#[test]
fn test_the_payloads_rights_hold_for_the_cell() {
    if !modes().contains(&Mode::Tags) {
        return;
    }
    let mut place = Place::new(Mode::Tags);
    fs::write(place.path("secret"), b"root's").unwrap();
    fs::set_permissions(place.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(place.read(place.bytes("secret")), Err(code::FILE));
    assert_eq!(
        place.write(place.bytes("secret"), CREATE, b"x"),
        Err(code::FILE)
    );
}

#[test]
fn test_paths_outside_and_malformed_ones_are_refused() {
    in_each_mode(|place| {
        for path in [
            "/etc/passwd",
            "/proc/self/status",
            "/proc/self/root/etc/passwd",
            "/dev/null",
            "/",
            "/nowhere/x",
        ] {
            assert_eq!(place.read(Bytes(path.into())), Err(code::OUTSIDE), "{path}");
        }
        assert_eq!(place.read(place.bytes("../out/x")), Err(code::OUTSIDE));
        for path in ["relative", "", "/tmp/a\0b"] {
            assert_eq!(
                place.read(Bytes(path.into())),
                Err(code::REFUSED),
                "{path:?}"
            );
        }
        let usr = Bytes(b"/usr/stockade-test".to_vec());
        assert_eq!(place.write(usr, CREATE, b"x"), Err(code::REFUSED));
    });
}

#[test]
fn test_links_that_lead_out_are_refused_and_links_that_stay_work() {
    in_each_mode(|place| {
        let out = place.out();
        symlink(out.join("new.txt"), place.path("dangling")).unwrap();
        symlink(place.path("dangling"), place.path("chain")).unwrap();
        symlink(&out, place.path("mid")).unwrap();
        let flags = CREATE | write::PARENTS;
        for name in ["dangling", "chain", "mid/newdir/f.txt", "mid/f.txt"] {
            assert_eq!(
                place.write(place.bytes(name), flags, b"x"),
                Err(code::OUTSIDE),
                "{name}"
            );
        }
        assert_eq!(fs::read_dir(&out).unwrap().count(), 0);
        symlink("./real", place.path("inside")).unwrap();
        symlink(place.path("inside"), place.path("absolute")).unwrap();
        place.write(place.bytes("absolute"), CREATE, b"x").unwrap();
        assert_eq!(fs::read(place.path("real")).unwrap(), b"x");
    });
}

#[test]
fn test_a_hard_link_is_not_written() {
    in_each_mode(|place| {
        fs::write(place.out().join("existing"), b"safe").unwrap();
        fs::set_permissions(
            place.out().join("existing"),
            fs::Permissions::from_mode(0o666),
        )
        .unwrap();
        fs::hard_link(place.out().join("existing"), place.path("hard")).unwrap();
        for flags in [CREATE, write::APPEND, write::TRUNCATE] {
            assert_eq!(
                place.write(place.bytes("hard"), flags, b"x"),
                Err(code::HARD_LINK)
            );
        }
        assert_eq!(fs::read(place.out().join("existing")).unwrap(), b"safe");
    });
}

#[test]
fn test_a_link_circle_and_a_file_as_directory_are_errors() {
    in_each_mode(|place| {
        symlink("b", place.path("a")).unwrap();
        symlink("a", place.path("b")).unwrap();
        fs::write(place.path("f"), b"").unwrap();
        assert_eq!(place.read(place.bytes("a")), Err(code::FILE));
        assert_eq!(place.read(place.bytes("f/x")), Err(code::FILE));
    });
}

#[test]
fn test_fifos_and_directories_are_not_regular() {
    in_each_mode(|place| {
        let made = std::process::Command::new("mkfifo")
            .arg(place.path("fifo"))
            .status();
        assert!(made.unwrap().success());
        fs::create_dir(place.path("dir")).unwrap();
        for name in ["fifo", "dir"] {
            assert_eq!(place.read(place.bytes(name)), Err(code::NOT_REGULAR));
            assert_eq!(
                place.write(place.bytes(name), CREATE, b"x"),
                Err(code::NOT_REGULAR)
            );
        }
    });
}

#[test]
fn test_a_parent_that_is_swapped_for_a_link_never_shows_the_outside() {
    in_each_mode(|place| {
        fs::write(place.out().join("passwd"), b"outside").unwrap();
        fs::create_dir(place.path("sub")).unwrap();
        fs::write(place.path("sub/passwd"), b"safe").unwrap();
        fs::set_permissions(place.path("sub"), fs::Permissions::from_mode(0o777)).unwrap();
        let (sub, keep, out) = (place.path("sub"), place.path("keep"), place.out());
        let stop = AtomicBool::new(false);
        let mut safe = 0;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    fs::rename(&sub, &keep).unwrap();
                    symlink(&out, &sub).unwrap();
                    fs::remove_file(&sub).unwrap();
                    fs::rename(&keep, &sub).unwrap();
                }
            });
            let begin = std::time::Instant::now();
            let mut tries = 0;
            // On a busy machine the swapping thread may rest for long where nothing is safe to read.
            while tries < 2000 || (safe == 0 && begin.elapsed() < Duration::from_secs(10)) {
                tries += 1;
                if let Ok(content) = place.read(place.bytes("sub/passwd")) {
                    assert_eq!(content, b"safe");
                    safe += 1;
                }
                let flags = write::CREATE;
                let _ = place.write(place.bytes("sub/new"), flags, b"x");
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(safe > 0);
        assert!(!place.out().join("new").exists());
    });
}

#[test]
fn test_listing_shows_every_entry_without_following() {
    in_each_mode(|place| {
        for number in 0..1000 {
            fs::write(place.path(&format!("{number:0200}")), b"abc").unwrap();
        }
        symlink("/etc", place.path("link")).unwrap();
        let entries = place.list(place.bytes("."));
        assert_eq!(entries.len(), 1001);
        let link = entries
            .iter()
            .find(|entry| entry.name.0 == b"link")
            .unwrap();
        assert_eq!(
            (link.kind, link.target.0.as_slice()),
            (file_type::SYMLINK, &b"/etc"[..])
        );
        assert!(
            entries
                .iter()
                .filter(|entry| entry.kind == file_type::FILE)
                .all(|e| e.size == 3)
        );
    });
}

#[test]
fn test_stat_follows_a_link_only_when_asked() {
    in_each_mode(|place| {
        fs::write(place.path("f"), b"abc").unwrap();
        symlink("f", place.path("link")).unwrap();
        for (follow, kind) in [(true, file_type::FILE), (false, file_type::SYMLINK)] {
            let path = place.bytes("link");
            let answer = place.ask(&ToCell::FileStat(FileStat { path, follow }));
            let FromCell::Entries(found) = answer else {
                panic!("{answer:?}")
            };
            assert_eq!(found.entries[0].kind, kind);
        }
        let path = place.bytes("");
        let answer = place.ask(&ToCell::FileStat(FileStat { path, follow: true }));
        let FromCell::Entries(found) = answer else {
            panic!("{answer:?}")
        };
        assert_eq!(found.entries[0].name.0, b"workspace");
    });
}

#[test]
fn test_mkdir_makes_one_or_all() {
    in_each_mode(|place| {
        let make = |path, parents| {
            ToCell::FileMkdir(FileMkdir {
                path,
                mode: 0o755,
                parents,
            })
        };
        assert_eq!(
            error_of(&place.ask(&make(place.bytes("a/b/c"), false))).1,
            2
        );
        assert!(matches!(
            place.ask(&make(place.bytes("a/b/c"), true)),
            FromCell::Ok(_)
        ));
        assert!(matches!(
            place.ask(&make(place.bytes("a/b/c"), true)),
            FromCell::Ok(_)
        ));
        assert_eq!(error_of(&place.ask(&make(place.bytes("a/b"), false))).1, 17);
        symlink(place.out(), place.path("mid")).unwrap();
        assert_eq!(
            error_of(&place.ask(&make(place.bytes("mid/x"), true))).0,
            code::OUTSIDE
        );
        assert!(place.path("a/b/c").is_dir());
    });
}

#[test]
fn test_move_replaces_only_when_asked_and_moves_links_themselves() {
    in_each_mode(|place| {
        fs::write(place.path("b"), b"old").unwrap();
        symlink(place.out(), place.path("a")).unwrap();
        let (source, target) = (place.bytes("a"), place.bytes("b"));
        let order = |replace| {
            let (source, target) = (source.clone(), target.clone());
            ToCell::FileMove(FileMove {
                source,
                target,
                replace,
            })
        };
        assert_eq!(error_of(&place.ask(&order(false))).1, 17);
        assert!(matches!(place.ask(&order(true)), FromCell::Ok(_)));
        assert!(place.path("b").is_symlink());
        let out = bytes(&place.out().join("x"));
        let order = ToCell::FileMove(FileMove {
            source: target,
            target: out,
            replace: false,
        });
        assert_eq!(error_of(&place.ask(&order)).0, code::OUTSIDE);
    });
}

#[test]
fn test_remove_takes_links_not_targets_and_never_a_root() {
    in_each_mode(|place| {
        fs::write(place.out().join("keep"), b"").unwrap();
        fs::create_dir(place.path("d")).unwrap();
        fs::set_permissions(place.path("d"), fs::Permissions::from_mode(0o777)).unwrap();
        fs::write(place.path("d/f"), b"").unwrap();
        symlink(place.out(), place.path("d/link")).unwrap();
        assert_eq!(error_of(&place.remove(place.bytes("d"), false)).1, 39);
        assert!(matches!(
            place.remove(place.bytes("d"), true),
            FromCell::Ok(_)
        ));
        assert!(place.out().join("keep").exists() && !place.path("d").exists());
        assert_eq!(error_of(&place.remove(place.bytes("d"), true)).1, 2);
        assert_eq!(
            error_of(&place.remove(place.bytes("."), true)).0,
            code::REFUSED
        );
    });
}

#[test]
fn test_a_tree_of_three_thousand_levels_is_removed_while_the_cell_answers() {
    in_each_mode(|place| {
        let script = "import os,sys\nos.chdir(sys.argv[1])\nfor i in range(3000):\n  os.mkdir('d');open('f','w').close();os.chdir('d')\n";
        let made = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(place.path("."))
            .status();
        assert!(made.unwrap().success());
        if place.mode == Mode::Tags {
            let owner = std::process::Command::new("chown")
                .args(["-R", "1000"])
                .arg(place.path("d"))
                .status();
            assert!(owner.unwrap().success());
        }
        let (path, recursive) = (place.bytes("d"), true);
        place
            .cell
            .send(1, &ToCell::FileRemove(FileRemove { path, recursive }));
        place.cell.send(2, &ToCell::Ping(Ping { number: 5 }));
        assert!(matches!(place.cell.next().unwrap(), (2, FromCell::Pong(_))));
        let (_, answer) = place.cell.next().unwrap();
        assert!(matches!(answer, FromCell::Ok(_)), "{answer:?}");
        assert!(!place.path("d").exists());
    });
}

#[test]
fn test_a_watch_tells_changes_until_it_is_cancelled() {
    in_each_mode(|place| {
        place.watch(place.bytes("."));
        fs::write(place.path("new"), b"x").unwrap();
        fs::rename(place.path("new"), place.path("name")).unwrap();
        fs::remove_file(place.path("name")).unwrap();
        let mut changes = Vec::new();
        while changes.last() != Some(&change::REMOVED) {
            let (_, message) = place.cell.next().unwrap();
            let FromCell::Event(event) = message else {
                panic!("{message:?}")
            };
            assert!(!event.overflow);
            changes.push(event.change);
        }
        assert_eq!(changes.first(), Some(&change::CREATED));
        assert!(changes.contains(&change::MODIFIED) && changes.contains(&change::RENAMED));
        place.cell.send(1, &ToCell::Cancel(Cancel {}));
        assert!(matches!(place.cell.next().unwrap().1, FromCell::End(_)));
    });
}

#[test]
fn test_a_flood_of_changes_is_slowed_and_its_loss_is_told() {
    let mut place = Place::new(Mode::SingleId);
    place.watch(place.bytes("."));
    let begin = std::time::Instant::now();
    for number in 0..20_000 {
        let path = place.path(&format!("{}", number % 50));
        fs::write(&path, b"x").unwrap();
        fs::remove_file(&path).unwrap();
    }
    place.cell.send(2, &ToCell::Ping(Ping { number: 1 }));
    let mut events = 0_u64;
    while !matches!(place.cell.next().unwrap().1, FromCell::Pong(_)) {
        events += 1;
    }
    // One window more than seconds have passed, each with one read more than its 1,000.
    assert!(events <= (begin.elapsed().as_secs() + 2) * 1256, "{events}");
}

#[test]
fn test_a_watch_ends_with_its_directory() {
    in_each_mode(|place| {
        fs::create_dir(place.path("d")).unwrap();
        place.watch(place.bytes("d"));
        fs::remove_dir(place.path("d")).unwrap();
        assert!(matches!(place.cell.next().unwrap().1, FromCell::End(_)));
    });
}

#[test]
fn test_the_65th_transfer_and_watch_are_refused() {
    in_each_mode(|place| {
        let write = |path| {
            ToCell::FileWrite(FileWrite {
                path,
                flags: CREATE,
                mode: 0o644,
            })
        };
        for id in 0..64 {
            place.cell.send(id, &write(place.bytes(&format!("{id}"))));
            assert!(matches!(place.cell.next().unwrap().1, FromCell::Credit(_)));
        }
        place.cell.send(64, &write(place.bytes("more")));
        assert_eq!(error_of(&place.cell.next().unwrap().1).0, code::LIMIT);
        let watch = |path| ToCell::FileWatch(FileWatch { path });
        for id in 100..164 {
            place.cell.send(id, &watch(place.bytes(".")));
            let (_, answer) = place.cell.next().unwrap();
            assert!(matches!(answer, FromCell::Ok(_)), "{answer:?}");
        }
        place.cell.send(164, &watch(place.bytes(".")));
        assert_eq!(error_of(&place.cell.next().unwrap().1).0, code::LIMIT);
    });
}

#[test]
fn test_many_reads_at_once_share_the_channel() {
    in_each_mode(|place| {
        fs::write(place.path("a"), vec![7; 3_000_000]).unwrap();
        for id in 0..20 {
            let (offset, length, credit) = (0, 0, u32::MAX);
            let path = place.bytes("a");
            place.cell.send(
                id,
                &ToCell::FileRead(FileRead {
                    path,
                    offset,
                    length,
                    credit,
                }),
            );
        }
        std::thread::sleep(Duration::from_millis(50)); // let the channel fill
        let (mut bytes, mut ends) = (0, 0);
        while ends < 20 {
            match place.cell.next().unwrap().1 {
                FromCell::Data(data) => bytes += data.data.0.len(),
                FromCell::End(_) => ends += 1,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(bytes, 60_000_000);
    });
}
