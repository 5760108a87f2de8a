//! The second kernel: Debian's user-mode Linux, which has ESP and VTI where the machine's own may not.
//!
//! A test here calls [`there`] with its name and body. On the machine, the first such test boots the second
//! kernel, [`KERNELS`] times beside each other, since each waits most of the time; its init runs this same test binary on the
//! same file system, with a part of the tests, and there the bodies run. Each test then passes or fails as it did there, and
//! shows what it said.
//!
//! Promises: nothing is left on the machine: modules are found by a private folder, the kernel's control
//! socket is in it, and a kernel that outlives [`LIMIT`] and [`REKEY`] is killed with all its processes. Refuses to guess:
//! a test that did not come to an end there has failed.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use weir_io::process;

/// Kernels that share the tests.
const KERNELS: usize = 2;
/// All tests of one kernel together, on a machine that has other things to do.
const LIMIT: Duration = Duration::from_secs(1200);
/// Says that this process runs in the second kernel.
const INSIDE: &str = "WEIR_TESTS_IN_SECOND_KERNEL";
/// The kind of weir's ports, where that kernel has another than packet sockets.
const PORTS: &str = "WEIR_TESTS_PORTS";
/// How many rekeys [`rekeys`] tells of.
const REKEYS: &str = "WEIR_REKEYS";
/// How many child SAs [`children`] tells of.
const CHILDREN: &str = "WEIR_CHILDREN";
/// What lines of figures begin with.
const FIGURE: &str = "figure: ";
/// What a rekey takes at most, beyond what all tests do.
const REKEY: Duration = Duration::from_secs(8);
/// Where the package puts its modules, in a folder by version.
const MODULES: &str = "/usr/lib/uml/modules";

/// Whether this is the second kernel.
pub fn inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// The kind of weir's ports there: user-mode Linux has no AF_XDP.
pub fn port_kind() -> String {
    std::env::var(PORTS).unwrap_or_else(|_| "af_packet".to_owned())
}

/// How often a child SA is rekeyed under traffic: a few times, or as often as `WEIR_REKEYS` says.
pub fn rekeys() -> usize {
    std::env::var(REKEYS).ok().and_then(|n| n.parse().ok()).unwrap_or(6)
}

/// How many child SAs one IKE SA has: a hundred, or as many as `WEIR_CHILDREN` says.
pub fn children() -> usize {
    std::env::var(CHILDREN).ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}

/// Says what was measured in the second kernel, where the tests' output is seen.
pub fn figure(said: &str) {
    println!("{FIGURE}{said}");
}

/// Runs `body`, the test called `name`, in the second kernel.
pub fn there(name: &str, body: impl FnOnce()) {
    static REPORT: OnceLock<Result<String, String>> = OnceLock::new();
    if inside() {
        return body();
    }
    let report = match REPORT.get_or_init(|| missing().map_or_else(|| Ok(boot_and_say()), Err)) {
        Ok(report) => report,
        Err(missing) => {
            writeln!(std::io::stderr(), "SKIP {name}: needs {missing}").expect("stderr is open");
            return;
        }
    };
    let said = section(report, name);
    assert!(report.contains(&format!("test {name} ... ")), "never began in the second kernel:\n{report}");
    if let Some(skipped) = report.find(&format!("SKIP {name}: ")) {
        let why = report[skipped..].lines().next().unwrap_or_default();
        writeln!(std::io::stderr(), "{why}").expect("stderr is open");
        return;
    }
    assert!(report.contains(&format!("test {name} ... ok\n")), "in the second kernel:\n{said}");
}

/// What the test runner shows of one failed test.
fn section<'a>(report: &'a str, name: &str) -> &'a str {
    let head = format!("---- {name} stdout ----");
    let Some(start) = report.find(&head) else { return report };
    let rest = &report[start + head.len()..];
    rest.find("\n---- ").or_else(|| rest.find("\nfailures:")).map_or(rest, |end| &rest[..end])
}

/// What the second kernel needs and this machine lacks.
fn missing() -> Option<String> {
    for (program, package) in [
        ("linux.uml", "user-mode-linux"),
        ("modprobe", "kmod"),
        ("ip", "iproute2"),
        ("ping", "iputils-ping"),
        ("cc", "gcc"),
    ] {
        if find(program).is_none() {
            return Some(format!("the `{program}` command; install {package}"));
        }
    }
    None
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|p| p.is_file())
}

/// The private folder, removed when the kernel has ended.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Folder {
    fn new(number: usize) -> Folder {
        let name = format!("weir-second-kernel-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn script(&self, name: &str, text: &str) {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our file");
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.0.join(name)).unwrap_or_default()).into_owned()
    }

    /// Modules, init, and the command that runs these tests.
    fn fill(&self, tests: &[String]) {
        let here = self.0.display();
        let version = Command::new("linux.uml").arg("--version").output().expect("user-mode Linux starts");
        let version = String::from_utf8_lossy(&version.stdout).trim().to_string();
        fs::create_dir_all(self.0.join("lib/modules")).expect("a folder");
        std::os::unix::fs::symlink(format!("{MODULES}/{version}"), self.0.join("lib/modules").join(&version))
            .expect("a link");
        let modprobe = find("modprobe").expect("it was there");
        self.script("modprobe", &format!("#!/bin/sh\nexec {} -d {here} \"$@\"\n", modprobe.display()));
        self.script("init", &include_str!("second_kernel/init.sh").replace("WHERE", &here.to_string()));
        fs::write(self.0.join("xstate.c"), include_str!("second_kernel/xstate.c")).expect("a file");
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-shared", "-fPIC", "-o"]).arg(self.0.join("xstate.so")).arg(self.0.join("xstate.c"));
        let built = cc.output().expect("cc starts");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let binary = std::env::current_exe().expect("a path");
        let folder = std::env::current_dir().expect("a folder");
        let tests = format!(
            "cd {}\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/run TMPDIR=/var/tmp {INSIDE}=1 {REKEYS}={} {CHILDREN}={}\n\
             ip link set lo up\n{} --test-threads=1 --show-output --exact {}\n",
            folder.display(),
            rekeys(),
            children(),
            binary.display(),
            tests.join(" ")
        );
        fs::write(self.0.join("tests"), tests).expect("a file");
    }
}

/// Names of the tests that were chosen on the machine.
fn chosen() -> Vec<String> {
    let mut list = Command::new(std::env::current_exe().expect("a path"));
    let listed = list.arg("--list").args(filters()).output().expect("our own program starts");
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    listed.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect()
}

/// The same choice of tests as on the machine.
fn filters() -> Vec<String> {
    let mut filters = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--exact" => filters.push(arg),
            "--skip" => filters.extend([arg, args.next().unwrap_or_default()]),
            "--test-threads" | "--format" | "--color" | "--logfile" | "-Z" => drop(args.next()),
            _ if !arg.starts_with('-') => filters.push(arg),
            _ => {}
        }
    }
    filters
}

/// Boots every kernel, each with its part of the tests; what was measured there is said here.
fn boot_and_say() -> String {
    let chosen = chosen();
    let kernels = KERNELS.min(chosen.len()).max(1);
    // Neighbours in the list are alike, so each kernel has some of every kind.
    let part = |number| chosen.iter().skip(number).step_by(kernels).cloned().collect::<Vec<_>>();
    let report = thread::scope(|scope| {
        let running: Vec<_> = (0..kernels)
            .map(|number| {
                scope.spawn({
                    let tests = part(number);
                    move || boot(number, &tests)
                })
            })
            .collect();
        running.into_iter().map(|kernel| kernel.join().expect("a report")).collect::<String>()
    });
    for line in report.lines().filter(|line| line.starts_with(FIGURE)) {
        writeln!(std::io::stderr(), "{line}").expect("stderr is open");
    }
    report
}

/// Boots, runs these tests there, and returns what their runner wrote.
fn boot(number: usize, tests: &[String]) -> String {
    let folder = Folder::new(number);
    folder.fill(tests);
    let here = folder.0.display();
    let mut command = Command::new("linux.uml");
    command.args([
        "mem=768M",
        "rootfstype=hostfs",
        "rootflags=/",
        "rw",
        "con=null",
        "con0=null,null",
        "quiet",
    ]);
    command.arg(format!("init={here}/init")).arg(format!("uml_dir={here}/control"));
    command.env("LD_PRELOAD", folder.0.join("xstate.so"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    process::dies_with_starter(&mut command);
    let mut kernel = command.spawn().expect("user-mode Linux starts");
    let start = Instant::now();
    let limit = LIMIT + REKEY * u32::try_from(rekeys()).unwrap_or(u32::MAX);
    let ended = loop {
        match kernel.try_wait().expect("a child of ours") {
            Some(_) => break true,
            None if start.elapsed() > limit => break false,
            None => thread::sleep(Duration::from_millis(50)),
        }
    };
    // Also when it ended: each process there is a process here, and a panic leaves them.
    let _ = process::kill_group(kernel.id());
    let _ = kernel.wait();
    let report = folder.read("report");
    let console = folder.read("console");
    match ended {
        _ if report.contains("ended: ") => report,
        true => format!("{report}\nthe second kernel ended early; its console:\n{console}"),
        false => format!("{report}\nthe second kernel took more than {limit:?}; its console:\n{console}"),
    }
}
