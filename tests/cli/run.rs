//! `run`: waits, exit statuses, environment, refusals.

use crate::{
    SOON, is_alive, leads_its_group, only_error, run, run_in_place_of_shell, run_on, run_script,
    said_pid, signal, waits_in_line,
};
use distlock_tests::child::{Child, Example, distlock};
use distlock_tests::process::RedisServer;
use distlock_tests::time::{always, eventually, ms, timed, within};
use lock_core::{Clock, SystemClock};
use rustix::process::Signal;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A script that prints its process ID and runs until its input ends.
const HOLDER: &str = r#"echo "{\"pid\": $$}"; read -r _; exit 0"#;

/// Starts a command that holds the lock until its input ends.
fn holder(server: &RedisServer) -> Child {
    let mut child = run_script(server, &[], HOLDER);
    said_pid(&mut child);
    child
}

#[test]
fn runs_at_once_serialise() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let inside = folder.path().join("inside");
    // A second `mkdir` of the same folder fails.
    let script = r#"mkdir "$0" || exit 99; sleep 0.1; rmdir "$0""#;
    let command = ["sh", "-c", script, inside.to_str().unwrap()];
    let mut children: Vec<_> = (0..4).map(|_| run(&server, &[], &command)).collect();
    for child in &mut children {
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    }
    assert!(!server.probe().exists("it"));
}

#[test]
fn nonblock_conflicts_with_the_given_status() {
    let server = RedisServer::start();
    let mut holder = holder(&server);
    for (options, status) in [
        (&["-n"][..], 1),
        (&["-n", "-E", "9"], 9),
        (&["--nonblock", "--conflict-exit-code", "0"], 0),
        (&["-w", "0", "-E", "8"], 8),
    ] {
        let mut child = run(&server, options, &["echo", "inside"]);
        assert_eq!(
            child.wait_exit(SOON),
            status,
            "{options:?}: {}",
            child.errors()
        );
        assert_eq!(child.output(), "");
        let line = only_error(&child);
        assert!(
            line.contains("lock \"it\" is held") && line.contains("was not run"),
            "{line}"
        );
        let quiet = [options, &["--quiet"]].concat();
        let mut child = run(&server, &quiet, &["echo", "inside"]);
        assert_eq!(child.wait_exit(SOON), status);
        assert_eq!(child.output() + &child.errors(), "");
    }
    holder.close_input();
    assert_eq!(holder.wait_exit(SOON), 0);
    assert_eq!(run(&server, &["-n"], &["true"]).wait_exit(SOON), 0);
}

#[test]
fn wait_gives_up_on_time() {
    let server = RedisServer::start();
    let _holder = holder(&server);
    let early = timed(500, |by| {
        let mut child = run(&server, &["-w", "0.5"], &["true"]);
        assert_eq!(child.wait_exit(SOON), 1, "{}", child.errors());
        by.since(SystemClock.now())
    });
    assert_eq!(early, Duration::ZERO, "too early");
}

#[test]
fn waiter_runs_when_the_holder_ends() {
    let server = RedisServer::start();
    let mut holder = holder(&server);
    let mut waiter = run(&server, &["--verbose"], &["true"]);
    eventually("it waits", SOON, || waiter.errors().contains("waiting"));
    holder.close_input();
    assert_eq!(waiter.wait_exit(SOON), 0);
    let errors = waiter.errors();
    assert!(
        errors.contains("was taken after") && errors.contains("was released"),
        "{errors}"
    );
}

#[test]
fn exit_status_is_that_of_the_command() {
    let server = RedisServer::start();
    for (script, status) in [
        ("exit 0", 0),
        ("exit 7", 7),
        ("exit 255", 255),
        ("kill -s SEGV $$", 128 + 11),
        ("kill -s KILL $$", 128 + 9),
        ("kill -s TERM $$", 128 + 15),
        // A real-time signal has no name.
        ("kill -s RTMIN+3 $$", 128 + 37),
    ] {
        let mut child = run(&server, &[], &["bash", "-c", script]);
        assert_eq!(
            child.wait_exit(SOON),
            status,
            "{script}: {}",
            child.errors()
        );
        assert!(!server.probe().exists("it"), "{script}");
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    std::fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    for (command, status, why) in [
        (
            "/no/such/command",
            127,
            "/no/such/command: command not found",
        ),
        ("nosuchcommand", 127, "nosuchcommand: command not found"),
        (
            script.to_str().unwrap(),
            127,
            "interpreter or loader is missing",
        ),
        ("/etc/passwd", 126, "/etc/passwd cannot be started"),
    ] {
        let mut child = run(&server, &[], &[command]);
        assert_eq!(child.wait_exit(SOON), status);
        assert!(only_error(&child).contains(why), "{}", child.errors());
        assert!(!server.probe().exists("it"), "{command}");
    }
}

#[test]
fn standard_streams_pass_through() {
    let server = RedisServer::start();
    let mut child = run_script(&server, &[], "read -r it; echo \"out $it\"; echo err >&2");
    child.send("in");
    assert_eq!(child.wait_exit(SOON), 0);
    assert_eq!(
        (child.output().as_str(), only_error(&child).as_str()),
        ("out in", "err\n")
    );
    let words = ["run", "it", "-c", "echo \"$0\"; exit 5"];
    let line = Example::distlock(&words).env("DISTLOCK_URL", &server.url());
    let mut child = line.env("SHELL", "/bin/sh").spawn();
    assert_eq!(
        (child.wait_exit(SOON), child.output().as_str()),
        (5, "/bin/sh")
    );
}

#[test]
fn environment_tells_name_token_and_deadline() {
    let server = RedisServer::start();
    let script = r#"echo "$DISTLOCK_NAME ${DISTLOCK_TOKEN-none} ${DISTLOCK_DEADLINE-none}""#;
    let said = |options: &[&str]| -> Vec<String> {
        let command = ["sh", "-c", script];
        let words = [&["run"], options, &["it", "--"], &command[..]].concat();
        let child = Example::distlock(&words).env("DISTLOCK_URL", &server.url());
        // The variables of an outer `distlock run`, which must not reach the command.
        let child = child
            .env("DISTLOCK_TOKEN", "1")
            .env("DISTLOCK_DEADLINE", "1");
        let mut child = child.spawn();
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
        child.output().split(' ').map(str::to_owned).collect()
    };
    let first = said(&[]);
    assert_eq!((first[0].as_str(), first[2].as_str()), ("it", "none"));
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let second = said(&["--max-hold", "1000"]);
    let number = |text: &str| text.parse::<u64>().unwrap();
    assert!(
        number(&second[1]) > number(&first[1]),
        "{first:?} {second:?}"
    );
    let ahead = number(&second[2]) - now;
    assert!((999..=1_000 + SOON.as_secs()).contains(&ahead), "{ahead}");
    let tokenless = format!("{}?tokens=off", server.url());
    let mut child = run_on(&tokenless, &[], &["sh", "-c", script]);
    child.wait_exit(SOON);
    assert_eq!(child.output(), "it none none");
}

#[test]
fn bad_arguments_and_stores_are_refused() {
    let refusals: [(&[&str], i32, &str); 10] = [
        (
            &["--url", "memory://", "it", "--", "true"],
            78,
            "no other process sees",
        ),
        (&["it", "--", "true"], 78, "DISTLOCK_URL"),
        (
            &["--url", "redis://h?colour=red", "it", "--", "true"],
            78,
            "`colour`",
        ),
        (&["--url", "nosuch://h", "it", "--", "true"], 78, "nosuch"),
        (&["--url", "redis://h", "it"], 64, "command is missing"),
        (&["--url", "redis://h", "it", "true"], 64, "'true'"),
        (
            &["--url", "redis://h", "it", "-c", "true", "--", "true"],
            64,
            "cannot be used with",
        ),
        (
            &["--url", "redis://h", "-n", "-w", "1", "it", "--", "true"],
            64,
            "cannot be used with",
        ),
        (&["--url", "redis://h", "", "--", "true"], 64, "empty"),
        (
            &[
                "--url",
                "redis://h",
                "--lease",
                "10",
                "--kill-after",
                "5",
                "it",
                "--",
                "true",
            ],
            64,
            "say at most 4s",
        ),
    ];
    for (arguments, status, what) in refusals {
        let mut child = Example::distlock(&["run"]).args(arguments).spawn();
        assert_eq!(
            child.wait_exit(SOON),
            status,
            "{arguments:?}: {}",
            child.errors()
        );
        let line = only_error(&child);
        assert!(
            line.starts_with("distlock: ") && line.contains(what),
            "{line}"
        );
    }
}

#[test]
fn options_of_the_store_stand_before_or_behind_the_subcommand() {
    let server = RedisServer::start();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("url = \"{}\"", server.url())).unwrap();
    let (url, file) = (server.url(), file.path().to_str().unwrap());
    let whole = format!("--url={url}");
    for store in [&["--url", &url][..], &[&whole], &["--config", file]] {
        for command in [
            &["run", "it", "--", "true"][..],
            &["check", "it"],
            &["list"],
        ] {
            let before = [store, command].concat();
            let behind = [&command[..1], store, &command[1..]].concat();
            for words in [before, behind] {
                let mut child = Example::distlock(&words).spawn();
                assert_eq!(child.wait_exit(SOON), 0, "{words:?}: {}", child.errors());
            }
        }
    }
}

#[test]
fn misspelt_arguments_lead_to_those_that_exist() {
    for (words, said) in [
        (
            &["run", "x", "echo", "hi"][..],
            &["-- echo", "distlock run --help"][..],
        ),
        (&["runn", "x"], &["'run'", "`distlock --help`"]),
        (&["run", "--nonblok", "x", "--", "true"], &["'--nonblock'"]),
        (
            &["status", "--jason", "x"],
            &["'--json'", "distlock status --help"],
        ),
        (&["--url", "redis://h"], &["subcommand is missing"]),
        (
            &["quorum"],
            &["subcommand is missing", "distlock quorum --help"],
        ),
    ] {
        let mut child = Example::distlock(words).spawn();
        assert_eq!(child.wait_exit(SOON), 64, "{words:?}");
        let line = only_error(&child);
        assert!(
            said.iter().all(|said| line.contains(said)),
            "{words:?}: {line}"
        );
    }
}

#[test]
fn runs_are_counted_in_a_file() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.prom");
    let counted = |name: &str, options: &[&str], command: &[&str]| {
        let file = ["--metrics-file", path.to_str().unwrap()];
        let words = [&["run"], &file[..], options, &[name, "--"], command].concat();
        let child = Example::distlock(&words).env("DISTLOCK_URL", &server.url());
        let mut child = child.spawn();
        child.wait_exit(SOON)
    };
    assert_eq!(counted("it", &[], &["true"]), 0);
    assert_eq!(counted("it", &[], &["sh", "-c", "exit 7"]), 7);
    assert_eq!(counted("it", &[], &["sh", "-c", "exit 0"]), 0);
    let mut holder = holder(&server);
    assert_eq!(counted("it", &["-n", "-q"], &["true"]), 1);
    holder.close_input();
    assert_eq!(holder.wait_exit(SOON), 0);
    assert_eq!(counted("other", &[], &["/no/such/command"]), 127);
    let deletes = format!(
        "redis-cli -p {} DEL lost >/dev/null; sleep 1000",
        server.port()
    );
    let lost = ["--lease", "2", "--on-lost", "kill"];
    assert_eq!(counted("lost", &lost, &["sh", "-c", &deletes]), 75);
    let at_once: Vec<_> = (0..8)
        .map(|_| {
            let words = [
                "run",
                "--metrics-file",
                path.to_str().unwrap(),
                "many",
                "--",
                "true",
            ];
            Example::distlock(&words)
                .env("DISTLOCK_URL", &server.url())
                .spawn()
        })
        .collect();
    for mut child in at_once {
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    }
    let text = std::fs::read_to_string(&path).unwrap();
    for line in [
        "distlock_run_commands_total{lock=\"it\"} 3",
        "distlock_run_failures_total{lock=\"it\"} 1",
        "distlock_run_skips_total{lock=\"it\"} 1",
        "distlock_run_errors_total{lock=\"it\"} 0",
        "distlock_run_errors_total{lock=\"other\"} 1",
        "distlock_run_losses_total{lock=\"lost\",cause=\"gone\"} 1",
        "distlock_run_commands_total{lock=\"many\"} 8",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
    assert!(text.contains("distlock_run_last_success_timestamp_seconds{lock=\"it\"}"));
    assert!(!text.contains("distlock_run_last_success_timestamp_seconds{lock=\"lost\"}"));
}

/// A lock file that is a link and a file with other lines may be another user's: neither the target
/// of the link nor the file is changed.
#[test]
fn file_of_metrics_replaces_no_other_file() {
    let server = RedisServer::start();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let counted = |file: &str| {
        let words = ["--metrics-file", path(file).to_str().unwrap()].map(str::to_owned);
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let mut child = run(&server, &words, &["true"]);
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
        child.errors()
    };
    std::fs::write(path("victim"), "precious").unwrap();
    std::os::unix::fs::symlink(path("victim"), path("a.prom.lock")).unwrap();
    assert_ne!(counted("a.prom"), "", "a lock file that is a link");
    std::fs::write(path("b.prom"), "node_foo 3\n").unwrap();
    assert!(counted("b.prom").contains("node_foo"), "other lines");
    assert_eq!(
        std::fs::read_to_string(path("b.prom")).unwrap(),
        "node_foo 3\n"
    );
    assert_eq!(std::fs::read_to_string(path("victim")).unwrap(), "precious");
    // A new file gets mode 0644, whatever the umask. An existing file keeps its mode.
    assert_eq!(counted("c.prom"), "");
    let mode = |file: &str| std::fs::metadata(path(file)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("c.prom"), 0o644);
    std::fs::set_permissions(path("c.prom"), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!((counted("c.prom").as_str(), mode("c.prom")), ("", 0o640));
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(left, 6, "three files, two lock files and a link");
}

#[test]
fn file_of_metrics_that_cannot_be_written_fails_no_run() {
    let server = RedisServer::start();
    let mut child = run(
        &server,
        &["--metrics-file", "/no/such/folder/f.prom"],
        &["true"],
    );
    assert_eq!(child.wait_exit(SOON), 0);
    let line = only_error(&child);
    assert!(line.contains("/no/such/folder/f.prom"), "{line}");
}

#[test]
fn longest_lease_is_that_of_the_library() {
    let server = RedisServer::start();
    let run = |lease: &str| run(&server, &["--lease", lease], &["true"]);
    let mut child = run("9007199254740991ms");
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    let mut child = run("9007199254740992ms");
    assert_eq!(child.wait_exit(SOON), 64);
    assert!(
        only_error(&child).contains("9007199254740991 ms"),
        "{}",
        child.errors()
    );
}

#[test]
fn sockets_of_systemd_are_the_commands() {
    let server = RedisServer::start();
    let script = r#"[ "$LISTEN_PID" = $$ ] && echo "$LISTEN_FDS $NOTIFY_SOCKET""#;
    // `LISTEN_PID` is the process ID of `distlock run`, as if systemd had started it.
    let starts = r#"export LISTEN_PID=$$ LISTEN_FDS=1 NOTIFY_SOCKET=/run/notify; exec "$@""#;
    let mut child = run_in_place_of_shell(&server, starts, "it", script);
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    assert_eq!(child.output(), "1 /run/notify");
    // A `LISTEN_PID` that names another process is passed on unchanged.
    let script = "echo $LISTEN_PID";
    let words = ["run", "it", "--", "sh", "-c", script];
    let child = Example::distlock(&words).env("DISTLOCK_URL", &server.url());
    let mut child = child.env("LISTEN_PID", "1").spawn();
    assert_eq!((child.wait_exit(SOON), child.output().as_str()), (0, "1"));
}

#[test]
fn unreachable_store_is_reported_at_once() {
    for url in ["redis://no.such.host.invalid", "redis://127.0.0.1:1"] {
        for options in [&[][..], &["-n"], &["-w", "0.5"]] {
            // Once connected, a wait without a limit tolerates an outage of 30 s. Without a first
            // connection it must fail at once.
            within(Duration::from_secs(10), || {
                let mut child = run_on(url, options, &["true"]);
                assert_eq!(child.wait_exit(SOON), 69, "{}", child.errors());
                assert!(only_error(&child).contains("check that the store is up"));
            });
        }
    }
}

#[test]
fn max_hold_stops_the_command() {
    let server = RedisServer::start();
    let script = r#"trap 'echo "{\"pid\": 15}"; exit 3' TERM; while :; do sleep 0.05; done"#;
    let mut child = run_script(&server, &["--max-hold", "0.3"], script);
    assert_eq!(said_pid(&mut child), 15);
    assert_eq!(child.wait_exit(SOON), 75);
    assert!(
        child.errors().contains("--max-hold is over"),
        "{}",
        child.errors()
    );
    assert!(!server.probe().exists("it"), "released");
}

#[test]
fn lock_is_held_until_the_whole_group_has_ended() {
    let server = RedisServer::start();
    let script = r#"sleep 1000 >/dev/null 2>&1 & echo "{\"pid\": $!}"; exit 3"#;
    let mut child = run_script(&server, &[], script);
    let left_behind = said_pid(&mut child);
    always("the lock is held", ms(300), || {
        server.probe().exists("it") && child.is_running()
    });
    let line = only_error(&child);
    assert!(line.contains(&format!("{left_behind} (sleep)")), "{line}");
    signal(left_behind, Signal::KILL);
    assert_eq!(child.wait_exit(SOON), 3);

    // With `--release command` the lock is released when the command itself ends.
    let mut child = run_script(&server, &["--release", "command"], script);
    let left_behind = said_pid(&mut child);
    assert_eq!(child.wait_exit(SOON), 3);
    assert!(is_alive(left_behind) && !server.probe().exists("it"));
    assert_eq!(child.errors(), "");
    signal(left_behind, Signal::KILL);

    // A daemon leaves the group, so its lock is released. `setsid` does not fork, because it leads
    // no group here, so `$!` is the number of the daemon.
    let script = r#"setsid sleep 1000 >/dev/null 2>&1 & echo "{\"pid\": $!}"; read -r _; exit 4"#;
    let mut child = run_script(&server, &[], script);
    let daemon = said_pid(&mut child);
    leads_its_group(daemon);
    child.close_input();
    assert_eq!(child.wait_exit(SOON), 4);
    assert!(is_alive(daemon), "it goes on without the lock");
    signal(daemon, Signal::KILL);
}

/// A job that takes no time starts on three hosts whose clocks differ by 2 s. Each host finds the
/// lock free, unless `--at-least` bridges the difference.
#[test]
fn hosts_with_clocks_apart_run_a_quick_job_once() {
    let server = RedisServer::start();
    let runs =
        |options: &[&str]| {
            let at = SystemClock.unix_time() + ms(3_000);
            let mut hosts = [-2_000, 0, 2_000].map(|ahead| {
            let wait = format!(
                "while [ $(($(date +%s%3N) + {ahead})) -lt {} ]; do sleep 0.01; done; exec \"$@\"",
                at.as_millis()
            );
            let cron = Example::program("sh").args(&["-c", &wait, "sh"]);
            let run = distlock().to_str().unwrap().to_owned();
            let run = cron.args(&[&run, "run", "--nonblock"]).args(options);
            run.args(&["it", "--", "echo", "ran"]).env("DISTLOCK_URL", &server.url()).spawn()
        });
            hosts
                .each_mut()
                .map(|host| (host.wait_exit(SOON), host.output()))
        };
    let ran = |hosts: &[(i32, String)]| hosts.iter().filter(|(_, said)| said == "ran").count();
    let each = runs(&[]);
    assert_eq!(ran(&each), 3, "each finds the lock free: {each:?}");
    let once = runs(&["--at-least", "20"]);
    assert_eq!(ran(&once), 1, "{once:?}");
    assert_eq!(
        once.iter().filter(|(status, _)| *status == 1).count(),
        2,
        "{once:?}"
    );
    let left = server.probe().command(&["PTTL", "it"]).int();
    assert!(left > 0 && left <= 20_000, "{left} ms");
}

/// A parent that never waits for its children may have ignored SIGCHLD. The kernel would then
/// discard the exit status of the command.
#[test]
fn ignored_sigchld_hides_no_exit_status() {
    let server = RedisServer::start();
    let run = distlock().to_str().unwrap().to_owned();
    let words = [&run, "run", "it", "--", "sh", "-c", "exit 3"];
    let script = "trap '' CHLD; exec \"$@\"";
    let shell = Example::program("bash")
        .args(&["-c", script, "bash"])
        .args(&words);
    let mut child = shell.env("DISTLOCK_URL", &server.url()).spawn();
    assert_eq!(child.wait_exit(SOON), 3, "{}", child.errors());
    assert!(!server.probe().exists("it"));
}

#[test]
fn lock_of_a_command_that_never_ran_is_not_kept() {
    let server = RedisServer::start();
    let mut child = run(&server, &["--at-least", "60"], &["true"]);
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
    assert!(server.probe().exists("it"));
    server.probe().command(&["DEL", "it"]);
    let mut child = run_on("redis://127.0.0.1:1", &["--at-least", "60"], &["true"]);
    assert_eq!(child.wait_exit(SOON), 69);
    let server = RedisServer::start();
    let mut child = run(&server, &["--at-least", "0.001"], &["sleep", "60"]);
    assert_eq!(child.wait_exit(SOON), 64, "{}", child.errors());
    assert!(child.errors().contains("--at-least"), "{}", child.errors());
    assert!(!server.probe().exists("it"));
}

/// A lock that was handed over has a short lease until its first renewal, and the command starts
/// before that. It must not be stopped as if the lease were about to end.
#[test]
fn command_runs_on_after_a_fair_lock_was_handed_over() {
    let server = RedisServer::start();
    let url = format!("{}?order=fair", server.url());
    let fair = |options: &[&str], script: &str| {
        let words = [
            &["run", "--verbose"],
            options,
            &["it", "--", "sh", "-c", script],
        ]
        .concat();
        Example::distlock(&words).env("DISTLOCK_URL", &url).spawn()
    };
    // With `--kill-after 1` the command is stopped when two seconds of the lease are left.
    for options in [&[][..], &["--kill-after", "1"]] {
        let mut first = fair(options, HOLDER);
        said_pid(&mut first);
        let mut second = fair(options, "sleep 3; echo done");
        let mut probe = server.probe();
        waits_in_line(&mut probe);
        first.close_input();
        assert_eq!(second.wait_exit(SOON), 0, "{}", second.errors());
        assert_eq!(second.output(), "done");
        eventually("it is free", SOON, || {
            probe
                .command(&["PUBSUB", "CHANNELS", "*"])
                .texts()
                .is_empty()
        });
    }
}

#[test]
fn lock_of_a_command_that_is_not_there_is_not_kept() {
    let server = RedisServer::start();
    for program in ["/nowhere/job", "no-such-job"] {
        let mut child = run(&server, &["--at-least", "60"], &[program]);
        assert_eq!(child.wait_exit(SOON), 127, "{}", child.errors());
        assert!(child.errors().contains(program), "{}", child.errors());
        assert!(!server.probe().exists("it"), "{program}");
    }
    // Without `PATH` a command is looked up in the default folders of the system.
    let run = distlock().to_str().unwrap().to_owned();
    let url = format!("DISTLOCK_URL={}", server.url());
    let words = ["-i", &url, &run, "run", "it", "--", "true"];
    let mut child = Example::program("env").args(&words).spawn();
    assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
}

#[test]
fn another_number_of_slots_in_the_store_is_told() {
    let server = RedisServer::start();
    let said = |subcommand: &[&str]| {
        let words = [subcommand, &["--slots", "1", "it"]].concat();
        let child = Example::distlock(&words).env("DISTLOCK_URL", &server.url());
        let mut child = child.spawn();
        child.close_input();
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
        child.errors()
    };
    let mut first = run(&server, &["--slots", "5"], &["true"]);
    assert_eq!(first.wait_exit(SOON), 0, "{}", first.errors());
    for subcommand in [&["run", "-c", "true"][..], &["hold"]] {
        let said = said(subcommand);
        assert!(
            said.contains("has 5 slots") && said.contains("not 1"),
            "{said}"
        );
    }
}

#[test]
fn slots_run_so_many_commands_at_once() {
    let server = RedisServer::start();
    let with_slots = |options: &[&str], script| {
        let options = [&["--slots", "2"], options].concat();
        run_script(&server, &options, script)
    };
    let mut inside = [with_slots(&[], HOLDER), with_slots(&[], HOLDER)];
    for child in &mut inside {
        said_pid(child);
    }
    assert_eq!(with_slots(&["-n"], "exit 0").wait_exit(SOON), 1);
    let mut waiter = with_slots(&["--verbose"], "echo \"${DISTLOCK_TOKEN-none}\"");
    eventually("it waits", SOON, || waiter.errors().contains("waiting"));
    inside[0].kill();
    inside[1].close_input();
    assert_eq!(waiter.wait_exit(SOON), 0, "{}", waiter.errors());
    assert_eq!(waiter.output(), "none");
    let mut wrong = with_slots(&["--at-least", "1s"], "exit 0");
    assert_eq!(wrong.wait_exit(SOON), 64);
    assert!(wrong.errors().contains("--at-least"), "{}", wrong.errors());
}

/// `doctor` is not asked before each run, so the run itself warns.
#[test]
fn run_warns_of_a_server_that_may_evict_its_lock() {
    let server =
        RedisServer::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]);
    for options in [&[][..], &["--quiet"]] {
        let mut child = run(&server, options, &["sleep", "1"]);
        assert_eq!(child.wait_exit(SOON), 0, "{}", child.errors());
        let errors = child.errors();
        assert!(errors.contains("maxmemory-policy"), "{errors}");
    }
}
