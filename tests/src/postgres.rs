//! [`PostgresServer`]: a real PostgreSQL server for tests.

use super::lifeline::LifeLine;
use super::process::free_port;
use super::time::{eventually, let_pass, scaled};
use postgres::{Client, Config, NoTls};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;
use tempfile::TempDir;

/// The longest time until a started server answers, so that a slow machine fails no test.
const START: Duration = Duration::from_secs(60);

/// The user as whom the server runs if the tests run as root, because it refuses to run as root.
const USER: &str = "postgres";

/// A `postgres` for tests, on a free port of the loopback interface, with the tables of distlock in
/// its database `app`. It has a directory of its own, and is killed when the test process ends.
pub struct PostgresServer {
    port: u16,
    directory: TempDir,
    settings: Vec<String>,
    running: Option<Running>,
}

struct Running {
    // In this order, so that the line is dropped before the process.
    line: LifeLine,
    process: Child,
}

/// The directory of a server that has never run, which is copied: it takes seconds to make.
static TEMPLATE: LazyLock<TempDir> = LazyLock::new(|| {
    let directory = directory();
    let data = directory.path().join("data");
    let made = as_user("initdb")
        .args([
            "-A",
            "trust",
            "-U",
            "postgres",
            "-E",
            "UTF8",
            "--no-sync",
            "--locale=C",
            "-D",
        ])
        .arg(&data)
        .stdout(Stdio::null())
        .status();
    assert!(made.unwrap().success(), "initdb");
    directory
});

/// Returns the folder of the server's programs: the newest that Debian has installed.
fn programs() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").expect("postgresql is installed");
    let mut versions: Vec<_> = versions.map(|it| it.unwrap().path()).collect();
    let number = |path: &PathBuf| -> u32 {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.parse().unwrap_or(0)
    };
    versions.sort_by_key(number);
    versions.pop().expect("postgresql is installed").join("bin")
}

/// Makes a folder that the server's user owns.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    if rustix::process::getuid().is_root() {
        let id = |option: &str| -> u32 {
            let out = Command::new("id").args([option, USER]).output().unwrap();
            let text = String::from_utf8(out.stdout).unwrap();
            text.trim().parse().expect("the user postgres exists")
        };
        chown(directory.path(), Some(id("-u")), Some(id("-g"))).unwrap();
    }
    directory
}

/// Returns a command that runs a program of the server as its user.
fn as_user(program: &str) -> Command {
    let program = programs().join(program);
    if !rustix::process::getuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", USER, "--regid", USER, "--clear-groups"])
        .arg(program)
        // A directory that the user may not read is no place to start in.
        .current_dir("/");
    command
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success(), "copied");
}

impl PostgresServer {
    /// Starts a server and waits until it answers.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with more settings, as in `max_connections=10`.
    pub fn start_with(settings: &[&str]) -> Self {
        let directory = directory();
        copy(&TEMPLATE.path().join("data"), directory.path());
        let server = Self::start_in(directory, settings);
        server
            .admin_of("postgres")
            .batch_execute("CREATE DATABASE app")
            .unwrap();
        let url = format!("{}?form=shedlock", server.url());
        let config = distlock::Config::from_url(&url).unwrap();
        distlock::admin::init_postgres(&config).unwrap();
        server
    }

    /// Starts a standby of this server, which follows it by streaming replication.
    pub fn standby(&self, settings: &[&str]) -> Self {
        let directory = directory();
        let copied = as_user("pg_basebackup")
            .args([
                "-h",
                "127.0.0.1",
                "-U",
                "postgres",
                "-R",
                "-c",
                "fast",
                "-p",
            ])
            .arg(self.port.to_string())
            .arg("-D")
            .arg(directory.path().join("data"))
            .status();
        assert!(copied.unwrap().success(), "pg_basebackup");
        Self::start_in(directory, settings)
    }

    /// Starts a server on the data in this directory.
    fn start_in(directory: TempDir, settings: &[&str]) -> Self {
        let mut server = Self {
            port: free_port(),
            directory,
            settings: settings.iter().map(|&it| it.to_owned()).collect(),
            running: None,
        };
        server.run();
        server
    }

    /// Makes a standby a server that takes writes.
    pub fn promote(&self) {
        let promoted = self
            .admin_of("postgres")
            .query_one("SELECT pg_promote()", &[])
            .unwrap();
        assert!(promoted.get::<_, bool>(0), "promoted");
    }

    /// Has the server encrypt connections with this certificate and its key.
    pub fn encrypt(&self, certificate: &str, key: &str) {
        for (file, from) in [("tls.crt", certificate), ("tls.key", key)] {
            let to = self.directory.path().join("data").join(file);
            fs::copy(from, &to).unwrap();
            let owner = fs::metadata(self.directory.path()).unwrap();
            chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        }
        for setting in ["ssl_cert_file=tls.crt", "ssl_key_file=tls.key", "ssl=on"] {
            self.set(setting);
        }
        let_pass(Duration::from_millis(300));
    }

    /// Has the server require a password of this role.
    pub fn require_passwords(&self, role: &str) {
        let file = self.directory.path().join("data/pg_hba.conf");
        let rules = fs::read_to_string(&file).unwrap();
        fs::write(
            &file,
            format!("host all {role} 127.0.0.1/32 scram-sha-256\n{rules}"),
        )
        .unwrap();
        let mut admin = self.admin();
        admin.batch_execute("SELECT pg_reload_conf()").unwrap();
        let_pass(Duration::from_millis(300));
    }

    /// Changes a setting of the running server, as in `work_mem=8MB`.
    pub fn set(&self, setting: &str) {
        let (name, value) = setting.split_once('=').expect("name=value");
        let mut admin = self.admin_of("postgres");
        let statement = format!("ALTER SYSTEM SET {name} = '{value}'");
        admin.batch_execute(&statement).unwrap();
        admin.batch_execute("SELECT pg_reload_conf()").unwrap();
    }

    fn run(&mut self) {
        let settings = [
            "listen_addresses=127.0.0.1",
            "unix_socket_directories=",
            "max_connections=300",
            "fsync=off",
            "log_min_messages=fatal",
        ];
        let mut command = as_user("postgres");
        command.arg("-D").arg(self.directory.path().join("data"));
        command.args(["-p", &self.port.to_string()]);
        for setting in settings
            .iter()
            .copied()
            .chain(self.settings.iter().map(String::as_str))
        {
            command.args(["-c", setting]);
        }
        let log = fs::File::create(self.directory.path().join("log")).unwrap();
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("postgres starts");
        let line = LifeLine::with_files(&process, self.directory.path());
        self.running = Some(Running { line, process });
        let mut config = self.config("postgres");
        config.connect_timeout(Duration::from_secs(1));
        eventually("the server answers", scaled(START), || {
            config.connect(NoTls).is_ok()
        });
    }

    fn config(&self, database: &str) -> Config {
        let mut config = Config::new();
        config
            .host("127.0.0.1")
            .port(self.port)
            .user("postgres")
            .dbname(database);
        config
    }

    /// Connects to a database as the superuser, without the library.
    pub fn admin_of(&self, database: &str) -> Client {
        self.config(database).connect(NoTls).unwrap()
    }

    /// Connects to the database of the tests as the superuser, without the library.
    pub fn admin(&self) -> Client {
        self.admin_of("app")
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        self.url_at(self.port)
    }

    /// Returns the URL by which this server is reached through another port, as that of a proxy.
    pub fn url_at(&self, port: u16) -> String {
        format!("postgres://postgres@127.0.0.1:{port}/app")
    }

    /// Sends a signal to the server's main process: `QUIT` ends it at once without a checkpoint.
    pub fn signal(&self, signal: Signal) {
        let running = self.running.as_ref().expect("it runs");
        kill_process(Pid::from_child(&running.process), signal).unwrap();
    }

    /// Ends the server at once, as `pg_ctl stop -m immediate` does.
    pub fn stop(&mut self) {
        self.signal(Signal::QUIT);
        let Running { line, mut process } = self.running.take().expect("it runs");
        drop(line);
        process.wait().unwrap();
    }

    /// Starts a server that was stopped, at the same port.
    pub fn start_again(&mut self) {
        self.run();
    }

    /// Stops (or continues) all processes of the server, as a machine that is frozen.
    pub fn freeze(&self, freezes: bool) {
        let running = self.running.as_ref().expect("it runs");
        let main = running.process.id().to_string();
        let children = Command::new("pgrep").args(["-P", &main]).output().unwrap();
        let children = String::from_utf8(children.stdout).unwrap();
        let signal = if freezes { "-STOP" } else { "-CONT" };
        let _some_may_have_ended = Command::new("kill")
            .arg(signal)
            .arg(&main)
            .args(children.split_whitespace())
            .stderr(Stdio::null())
            .status();
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(Running { line, mut process }) = self.running.take() {
            self.settings.clear();
            let _ended = kill_process(Pid::from_child(&process), Signal::QUIT);
            drop(line);
            let _reaped = process.wait();
        }
    }
}
