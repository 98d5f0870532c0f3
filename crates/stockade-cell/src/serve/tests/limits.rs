//! Limits that the cell measures itself, and its statistics.

use std::fs;
use std::time::Instant;

use super::{Mode, TestCell, modes, shell, start};
use crate::wire::message::{FromCell, Start, Stats, StatsResult, ToCell, reason};

fn with(mode: Mode, settings: &[(&str, &str)]) -> TestCell {
    TestCell::with_root(mode, "/tmp", settings)
}

fn stats(cell: &mut TestCell) -> StatsResult {
    cell.send(0, &ToCell::Stats(Stats {}));
    match cell.next().unwrap() {
        (0, FromCell::StatsResult(stats)) => stats,
        other => panic!("{other:?}"),
    }
}

#[test]
fn test_the_command_with_the_most_memory_ends_for_it() {
    for mode in modes() {
        let mut cell = with(mode, &[("WATCH_MEMORY", "100000000")]);
        cell.send(7, &ToCell::Start(shell(mode, "sleep 30")));
        assert!(matches!(cell.next().unwrap(), (7, FromCell::Started(_))));
        let eater =
            "b=[]\nwhile len(b) < 60: b.append(bytearray(10<<20))\nimport time; time.sleep(20)";
        let outcome = cell.run(1, start(mode, &["python3", "-c", eater]));
        assert_eq!(outcome.exited().reason, reason::MEMORY);
    }
}

#[test]
fn test_cpu_time_keeps_to_its_share() {
    for mode in modes() {
        let mut cell = with(mode, &[("WATCH_CPU", "200")]);
        let spin = "while :; do :; done";
        let request = Start {
            timeout_ms: 2500,
            ..shell(mode, spin)
        };
        let outcome = cell.run(1, request);
        let exited = outcome.exited();
        assert_eq!(exited.reason, reason::TIMEOUT);
        let used = exited.user_us + exited.system_us;
        assert!((200_000..900_000).contains(&used), "{used}");
    }
}

#[test]
fn test_a_full_disk_ends_the_commands() {
    for mode in modes() {
        for limit in [("WATCH_DISK", "20000000"), ("WATCH_INODES", "500")] {
            let base = std::env::temp_dir().join(format!(
                "stockade-disk-{}-{}",
                std::process::id(),
                limit.0
            ));
            let root = base.join(format!("{mode:?}"));
            fs::create_dir_all(&root).unwrap();
            let _ = std::os::unix::fs::chown(&root, Some(1000), Some(1000));
            let root = root.to_str().unwrap();
            let mut cell = TestCell::with_root(mode, root, &[limit]);
            let fill = "cd $0; mkdir -p a/b; head -c 30000000 /dev/zero >a/b/c; i=0; while [ $i -lt 600 ]; do : >a/$i; i=$((i+1)); done; sleep 20";
            let outcome = cell.run(1, start(mode, &["sh", "-c", fill, root]));
            assert_eq!(outcome.exited().reason, reason::DISK, "{limit:?}");
            fs::remove_dir_all(&base).unwrap();
        }
    }
}

#[test]
fn test_statistics_count_living_and_dead() {
    for mode in modes() {
        let mut cell = with(mode, &[]);
        cell.run(
            1,
            shell(mode, "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"),
        );
        // From the second command on, a process waits for the next one, with two descriptors of the cell's.
        cell.run(3, start(mode, &["true"]));
        let before = stats(&mut cell);
        assert_eq!((before.processes, before.commands), (0, 0));
        assert!(before.user_us + before.system_us > 10_000);
        cell.send(2, &ToCell::Start(shell(mode, "sleep 30 & sleep 30")));
        assert!(matches!(cell.next().unwrap(), (2, FromCell::Started(_))));
        let begin = Instant::now();
        let is_settled =
            |now: &StatsResult| now.processes >= 3 && now.open_fds == before.open_fds + 2;
        let mut after = stats(&mut cell);
        while !is_settled(&after) {
            assert!(begin.elapsed().as_secs() < 5, "{after:?}");
            after = stats(&mut cell);
        }
        assert_eq!(after.commands, 1);
        assert!(after.rss_kib > 500);
    }
}

#[test]
fn test_a_thousand_commands_leave_no_descriptor_and_no_process() {
    for mode in modes() {
        let mut cell = with(mode, &[]);
        for id in 0..2 {
            cell.run(id, start(mode, &["true"]));
        }
        let before = stats(&mut cell);
        for id in 0..1000 {
            assert_eq!(cell.run(id, start(mode, &["true"])).exited().code, 0);
        }
        let after = stats(&mut cell);
        assert_eq!((after.open_fds, after.processes), (before.open_fds, 0));
    }
}
