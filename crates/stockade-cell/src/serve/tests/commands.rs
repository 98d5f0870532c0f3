//! Commands: start, output, end, time limits, and what they leave behind.

use std::time::{Duration, Instant};

use super::{Mode, TestCell, modes, shell, start};
use crate::wire::codec::Bytes;
use crate::wire::message::{
    Cancel, Credit, FromCell, Ping, Signal, Start, Stdin, StdinEnd, ToCell, code, reason,
    start as start_flags, stream,
};

/// The sandbox answers, and nothing but the cell lives in it.
fn assert_nothing_left(cell: &mut TestCell, mode: Mode) {
    // Copies of the cell are itself and the process that waits for the next command.
    let count = "n=0; read cell </proc/1/comm
        for p in /proc/[0-9]*; do
            read name 2>/dev/null <$p/comm && [ \"$name\" != \"$cell\" ] && n=$((n+1))
        done
        echo $n";
    // The counting shell.
    assert_eq!(cell.run(99, shell(mode, count)).stdout, b"1\n");
}

fn in_each_mode(test: impl Fn(&mut TestCell, Mode)) {
    for mode in modes() {
        test(&mut TestCell::new(mode), mode);
    }
}

#[test]
fn test_a_command_gives_its_output_and_exit_code() {
    in_each_mode(|cell, mode| {
        let outcome = cell.run(1, shell(mode, "echo out; echo err >&2; exit 3"));
        assert_eq!(outcome.stdout, b"out\n");
        assert_eq!(outcome.stderr, b"err\n");
        let exited = outcome.exited();
        assert_eq!(
            (exited.code, exited.signal, exited.reason),
            (3, 0, reason::EXIT)
        );
        assert_eq!(exited.leftovers, 0);
    });
}

#[test]
fn test_only_three_descriptors_are_open_and_signals_are_at_their_defaults() {
    in_each_mode(|cell, mode| {
        let script = "ls /proc/self/fd | tr '\\n' ' '; grep -E 'Sig(Blk|Ign)' /proc/self/status | cut -f2 | tr '\\n' ' '";
        let outcome = cell.run(1, shell(mode, script));
        let zero = "0000000000000000 ".repeat(2);
        // 3 is the directory that `ls` opened.
        assert_eq!(
            String::from_utf8_lossy(&outcome.stdout),
            format!("0 1 2 3 {zero}")
        );
    });
}

#[test]
fn test_the_payload_has_its_ids_its_tag_and_no_capability() {
    if !modes().contains(&Mode::Tags) {
        return;
    }
    let mut cell = TestCell::new(Mode::Tags);
    let script =
        "id -u; id -g; id -G; grep -E 'Cap(Prm|Eff|Inh|Amb)' /proc/self/status | cut -f2 | sort -u";
    let outcome = cell.run(1, shell(Mode::Tags, script));
    assert_eq!(
        String::from_utf8_lossy(&outcome.stdout),
        "1000\n1000\n1000 5000\n0000000000000000\n"
    );
}

#[test]
fn test_the_payload_can_open_its_own_standard_streams_by_name() {
    in_each_mode(|cell, mode| {
        let outcome = cell.run(1, shell(mode, "echo a >/dev/stdout; echo b >/dev/stderr"));
        assert_eq!(
            (outcome.stdout.as_slice(), outcome.stderr.as_slice()),
            (&b"a\n"[..], &b"b\n"[..])
        );
    });
}

#[test]
fn test_a_missing_program_is_an_exec_error() {
    in_each_mode(|cell, mode| {
        let outcome = cell.run(1, start(mode, &["no-such-program"]));
        assert!(!outcome.started);
        assert_eq!(
            (outcome.error().code, outcome.error().errno),
            (code::EXEC, 2)
        );
    });
}

#[test]
fn test_bad_working_directories_are_cwd_errors() {
    in_each_mode(|cell, mode| {
        for cwd in [
            "/proc/self/fd/3",
            "/proc/self/cwd/../..",
            "/proc",
            "/dev/fd",
            "/none",
            "tmp",
            "/etc/passwd",
        ] {
            let request = Start {
                cwd: Bytes(cwd.as_bytes().to_vec()),
                ..shell(mode, "pwd")
            };
            assert_eq!(cell.run(1, request).error().code, code::CWD, "{cwd}");
        }
    });
}

#[test]
fn test_other_ids_are_refused() {
    in_each_mode(|cell, mode| {
        for (uid, gid) in [(0, 1000), (1000, 5000), (77, 1000), (1000, 0)] {
            let request = Start {
                uid,
                gid,
                ..shell(mode, "true")
            };
            assert_eq!(cell.run(1, request).error().code, code::REFUSED);
        }
    });
}

#[test]
fn test_an_empty_command_and_a_nul_are_refused() {
    in_each_mode(|cell, mode| {
        assert_eq!(cell.run(1, start(mode, &[])).error().code, code::REFUSED);
        assert_eq!(
            cell.run(2, start(mode, &["a\0b"])).error().code,
            code::REFUSED
        );
    });
}

#[test]
fn test_input_reaches_the_command_and_its_end_closes_it() {
    in_each_mode(|cell, mode| {
        let request = Start {
            flags: start_flags::STDIN,
            ..start(mode, &["wc", "-c"])
        };
        cell.send(1, &ToCell::Start(request));
        let mut credit = 0;
        let mut left = 1_000_000_u32;
        while left > 0 {
            if credit == 0 {
                if let (1, FromCell::Credit(more)) = cell.next().unwrap() {
                    assert_eq!(more.stream, stream::STDIN);
                    credit += more.count;
                }
                continue;
            }
            let count = credit.min(left).min(65536);
            let data = Bytes(vec![b'x'; usize::try_from(count).unwrap()]);
            cell.send(1, &ToCell::Stdin(Stdin { data }));
            credit -= count;
            left -= count;
        }
        cell.send(1, &ToCell::StdinEnd(StdinEnd {}));
        let mut stdout = Vec::new();
        loop {
            match cell.next().unwrap().1 {
                FromCell::Output(output) => stdout.extend(output.data.0),
                FromCell::Exited(_) => break,
                _ => {}
            }
        }
        assert_eq!(stdout, b"1000000\n");
    });
}

#[test]
fn test_input_for_a_command_that_closed_it_is_thrown_away() {
    in_each_mode(|cell, mode| {
        let request = Start {
            flags: start_flags::STDIN,
            ..shell(mode, "exec <&-; sleep 0.2; echo done")
        };
        cell.send(1, &ToCell::Start(request));
        while !matches!(cell.next().unwrap().1, FromCell::Credit(_)) {}
        for _ in 0..3 {
            let data = Bytes(vec![0; 65536]);
            cell.send(1, &ToCell::Stdin(Stdin { data }));
        }
        let message = loop {
            match cell.next().unwrap().1 {
                FromCell::Credit(_) => {}
                message => break message,
            }
        };
        assert!(matches!(message, FromCell::Output(_)));
    });
}

#[test]
fn test_output_waits_for_credit() {
    in_each_mode(|cell, mode| {
        let request = Start {
            credit: 10,
            ..shell(mode, "printf 0123456789abcdef")
        };
        cell.send(1, &ToCell::Start(request));
        assert!(matches!(cell.next().unwrap().1, FromCell::Started(_)));
        let (_, first) = cell.next().unwrap();
        let FromCell::Output(first) = first else {
            panic!("{first:?}")
        };
        assert_eq!(first.data.0, b"0123456789");
        cell.send(
            1,
            &ToCell::Credit(Credit {
                stream: stream::STDOUT,
                count: 6,
            }),
        );
        let outcome = cell.outcome_after_start(1);
        assert_eq!(outcome.stdout, b"abcdef");
    });
}

#[test]
fn test_output_above_the_limit_is_counted_and_the_command_goes_on() {
    in_each_mode(|cell, mode| {
        let script = "head -c 3000000 /dev/zero; echo end >&2";
        let request = Start {
            output_limit: 1000,
            ..shell(mode, script)
        };
        let outcome = cell.run(1, request);
        assert_eq!(outcome.stdout.len(), 1000);
        assert_eq!(outcome.stderr, b"end\n");
        assert_eq!(outcome.exited().stdout_dropped, 2_999_000);
    });
}

#[test]
fn test_a_time_limit_ends_the_whole_tree_with_what_was_written() {
    let scripts = [
        "sleep 30 & echo hi; wait",
        "setsid sleep 30 & echo hi; trap '' TERM; sleep 30",
        "echo hi; (setsid sh -c '(sleep 30 &) ; sleep 30' &) ; sleep 30",
    ];
    in_each_mode(|cell, mode| {
        for script in scripts {
            let request = Start {
                timeout_ms: 200,
                grace_ms: 200,
                ..shell(mode, script)
            };
            let before = Instant::now();
            let outcome = cell.run(1, request);
            assert!(before.elapsed() < Duration::from_millis(1200), "{script}");
            assert_eq!(outcome.stdout, b"hi\n");
            assert_eq!(outcome.exited().reason, reason::TIMEOUT);
            assert_nothing_left(cell, mode);
        }
    });
}

#[test]
fn test_a_time_limit_without_grace_kills_at_once() {
    in_each_mode(|cell, mode| {
        let request = Start {
            timeout_ms: 100,
            ..shell(mode, "trap '' TERM; sleep 30")
        };
        let outcome = cell.run(1, request);
        let exited = outcome.exited();
        assert_eq!(
            (exited.signal, exited.last_signal, exited.code),
            (9, 9, 137)
        );
    });
}

#[test]
fn test_a_background_child_does_not_hold_the_command() {
    let scripts = [
        "sleep 30 & echo done",
        "echo done; (sleep 30 </dev/null >/dev/null 2>&1 &) ; exit 0",
        "echo done; setsid sh -c 'sleep 30 & sleep 30' & exit 0",
    ];
    in_each_mode(|cell, mode| {
        for script in scripts {
            let before = Instant::now();
            let outcome = cell.run(1, shell(mode, script));
            assert!(before.elapsed() < Duration::from_secs(1), "{script}");
            assert_eq!(outcome.stdout, b"done\n");
            assert_eq!(outcome.exited().reason, reason::EXIT);
            assert!(outcome.exited().leftovers > 0, "{script}");
            assert_nothing_left(cell, mode);
        }
    });
}

#[test]
fn test_a_fork_storm_ends_with_its_command_and_others_live_on() {
    // Each child forks its successor and ends: a chain that no scan of /proc keeps up with.
    let storm = "import os\nfor _ in range(4):\n  if os.fork() == 0:\n    os.setsid()\n    while True:\n      if os.fork(): os._exit(0)\n";
    in_each_mode(|cell, mode| {
        cell.send(7, &ToCell::Start(shell(mode, "sleep 30")));
        assert!(matches!(cell.next().unwrap(), (7, FromCell::Started(_))));
        let before = Instant::now();
        let outcome = cell.run(1, start(mode, &["python3", "-c", storm]));
        assert_eq!(outcome.exited().code, 0);
        assert!(before.elapsed() < Duration::from_secs(5));
        cell.send(
            7,
            &ToCell::Signal(Signal {
                number: 9,
                tree: true,
            }),
        );
        let outcome = cell.outcome(7);
        assert_eq!(
            (outcome.exited().reason, outcome.exited().signal),
            (reason::SIGNALLED, 9)
        );
        assert_nothing_left(cell, mode);
    });
}

#[test]
fn test_a_command_spares_the_processes_of_another() {
    if !modes().contains(&Mode::Tags) {
        return;
    }
    let mut cell = TestCell::new(Mode::Tags);
    cell.send(
        1,
        &ToCell::Start(shell(Mode::Tags, "(sleep 0.4; echo late) & wait")),
    );
    assert!(matches!(cell.next().unwrap(), (1, FromCell::Started(_))));
    assert_eq!(
        cell.run(2, shell(Mode::Tags, "sleep 30 & exit 0"))
            .exited()
            .leftovers,
        1
    );
    let outcome = cell.outcome_after_start(1);
    assert_eq!(
        (outcome.stdout.as_slice(), outcome.exited().leftovers),
        (&b"late\n"[..], 0)
    );
}

#[test]
fn test_cancel_kills_the_tree_and_throws_the_output_away() {
    in_each_mode(|cell, mode| {
        let request = Start {
            credit: 0,
            ..shell(mode, "yes & sleep 30")
        };
        cell.send(1, &ToCell::Start(request));
        assert!(matches!(cell.next().unwrap().1, FromCell::Started(_)));
        cell.send(1, &ToCell::Cancel(Cancel {}));
        let outcome = cell.outcome_after_start(1);
        assert_eq!(outcome.exited().reason, reason::CANCELLED);
        assert_nothing_left(cell, mode);
    });
}

#[test]
fn test_a_signal_goes_to_the_main_process_or_to_the_tree() {
    in_each_mode(|cell, mode| {
        let script = "trap 'echo got; exit 0' USR1; echo up; while :; do sleep 0.02; done";
        cell.send(1, &ToCell::Start(shell(mode, script)));
        while !matches!(cell.next().unwrap().1, FromCell::Output(_)) {}
        cell.send(
            1,
            &ToCell::Signal(Signal {
                number: 10,
                tree: false,
            }),
        );
        let outcome = cell.outcome_after_start(1);
        assert_eq!(outcome.stdout, b"got\n");
        assert_eq!(outcome.exited().reason, reason::EXIT);
        cell.send(1, &ToCell::Start(shell(mode, "echo up; sleep 30 & wait")));
        while !matches!(cell.next().unwrap().1, FromCell::Output(_)) {}
        cell.send(
            1,
            &ToCell::Signal(Signal {
                number: 15,
                tree: true,
            }),
        );
        let outcome = cell.outcome_after_start(1);
        assert_eq!(
            (outcome.exited().reason, outcome.exited().signal),
            (reason::SIGNALLED, 15)
        );
    });
}

#[test]
fn test_a_terminal_is_the_controlling_one_and_echoes() {
    in_each_mode(|cell, mode| {
        let request = Start {
            flags: start_flags::PTY | start_flags::STDIN,
            rows: 33,
            cols: 111,
            ..shell(mode, "tty >/dev/null && stty size </dev/tty; cat")
        };
        cell.send(1, &ToCell::Start(request));
        while !matches!(cell.next().unwrap().1, FromCell::Credit(_)) {}
        let data = Bytes(b"abc\n".to_vec());
        cell.send(1, &ToCell::Stdin(Stdin { data }));
        cell.send(1, &ToCell::StdinEnd(StdinEnd {}));
        let outcome = cell.outcome_after_start(1);
        let text = String::from_utf8_lossy(&outcome.stdout).replace("\r\n", " ");
        assert!(text.contains("33 111"), "{text}");
        assert_eq!(text.matches("abc").count(), 2, "{text}");
        assert_eq!(outcome.exited().code, 0);
    });
}

#[test]
fn test_a_host_that_does_not_read_stops_the_output_and_gets_all_of_it_later() {
    in_each_mode(|cell, mode| {
        let outcome = cell.run(1, shell(mode, "head -c 20000000 /dev/zero"));
        assert_eq!(outcome.stdout.len(), 20_000_000);
    });
}

#[test]
fn test_a_lower_rlimit_holds() {
    use crate::wire::message::Rlimit;
    let nofile = |soft, hard| {
        vec![Rlimit {
            resource: 7,
            soft,
            hard,
        }]
    };
    in_each_mode(|cell, mode| {
        let request = Start {
            rlimits: nofile(50, 50),
            ..shell(mode, "ulimit -n")
        };
        assert_eq!(cell.run(1, request).stdout, b"50\n");
    });
}

#[test]
fn test_the_cell_answers_within_a_second_under_a_fork_bomb() {
    in_each_mode(|cell, mode| {
        let bomb = "import os,resource\nresource.setrlimit(resource.RLIMIT_NPROC,(300,300))\nprint('up',flush=True)\nwhile True:\n  try: os.fork()\n  except OSError: pass\n";
        let request = Start {
            timeout_ms: 1500,
            ..start(mode, &["python3", "-c", bomb])
        };
        if mode == Mode::SingleId {
            return; // root has no RLIMIT_NPROC
        }
        cell.send(1, &ToCell::Start(request));
        while !matches!(cell.next().unwrap().1, FromCell::Output(_)) {}
        for number in 0..5 {
            let before = Instant::now();
            cell.send(0, &ToCell::Ping(Ping { number }));
            while !matches!(cell.next().unwrap().1, FromCell::Pong(_)) {}
            assert!(before.elapsed() < Duration::from_secs(1));
        }
        let outcome = cell.outcome_after_start(1);
        assert_eq!(outcome.exited().reason, reason::TIMEOUT);
        assert_nothing_left(cell, mode);
    });
}

#[test]
fn test_the_257th_command_is_refused() {
    in_each_mode(|cell, mode| {
        for id in 0..256 {
            cell.send(id, &ToCell::Start(start(mode, &["sleep", "30"])));
            assert!(matches!(cell.next().unwrap().1, FromCell::Started(_)));
        }
        let outcome = cell.run(300, start(mode, &["true"]));
        assert_eq!(outcome.error().code, code::LIMIT);
    });
}

#[test]
fn test_the_cell_ends_with_its_owner() {
    in_each_mode(|cell, mode| {
        cell.send(1, &ToCell::Start(start(mode, &["sleep", "30"])));
        assert!(matches!(cell.next().unwrap().1, FromCell::Started(_)));
        cell.owner = None;
        assert!(cell.next().is_none());
    });
}

#[test]
fn test_garbage_on_the_channel_ends_the_cell() {
    in_each_mode(|cell, _| {
        cell.send_raw(&[0xff; 64]);
        assert!(cell.next().is_none());
    });
}
