//! Agents on one host, without a lab: what holds it, who waits for whom, and how it is found after them.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use weir_io::process;
use weir_lab::agent::lease::FOLDER;
use weir_lab::netns::cpus::missing_privilege;
use weir_lab::netns::namespace::Namespace;

/// A network namespace with a link and a `/run` of its own.
struct Host(Namespace);

impl Host {
    /// None, and a line that says why, where there can be none.
    fn open(test: &str) -> Option<Host> {
        if let Some(missing) = missing_privilege() {
            writeln!(std::io::stderr(), "SKIP {test}: {missing}").expect("stderr is open");
            return None;
        }
        let host = Namespace::new("host").expect("root");
        host.ip("link add t0 type veth peer name t1").expect("a wire");
        let mounted = host.run(|| Command::new("mount").args(["-t", "tmpfs", "tmpfs", "/run"]).status());
        assert!(mounted.expect("its thread runs").expect("mount starts").success());
        Some(Host(host))
    }

    fn agent(&self) -> Agent {
        let started = self.0.run(|| {
            let mut command = Command::new(env!("CARGO_BIN_EXE_weir-lab"));
            command.arg("agent").stdin(Stdio::piped()).stdout(Stdio::piped());
            process::dies_with_starter(&mut command).spawn()
        });
        let mut child = started.expect("its thread runs").expect("the program starts");
        let (input, output) = (child.stdin.take(), child.stdout.take().expect("piped"));
        let mut agent = Agent { child, input, output: BufReader::new(output) };
        agent.answer().expect("it greets");
        agent
    }

    /// What an agent that claims the link for a generator or receiver switches on.
    fn is_silent(&self) -> bool {
        self.0.read("/proc/sys/net/ipv6/conf/t0/disable_ipv6").expect("our own link").trim() == "1"
    }

    fn is_held(&self) -> bool {
        self.0.run(|| Path::new(FOLDER).exists()).expect("its thread runs")
    }
}

struct Agent {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Agent {
    fn answer(&mut self) -> Result<Value, String> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("readable");
        let answer: Value = serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line}: {e}"));
        match answer["error"]["said"].as_str() {
            Some(error) => Err(error.to_string()),
            None => Ok(answer["ok"].clone()),
        }
    }

    fn tell(&mut self, question: &Value) {
        let mut input = self.input.as_ref().expect("not ended yet");
        writeln!(input, "{question}").expect("it reads");
    }

    fn lease(&mut self, lab: &str, connection: u32, within_ms: u64) -> Result<Value, String> {
        let whence = format!("process 7 on {lab}");
        let holder = json!({ "lab": lab, "whence": whence, "part": "generator", "connection": connection });
        self.tell(&json!({ "do": "lease", "with": { "holder": holder, "within_ms": within_ms } }));
        self.answer()
    }

    fn claim(&mut self) -> Result<Value, String> {
        self.tell(&json!({ "do": "claim", "with": { "interfaces": ["t0"], "silent": true } }));
        self.answer()
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill starts").success());
    }

    /// Its input ends, and so does it.
    fn end(mut self) {
        self.input = None;
        assert!(self.child.wait().expect("our child").success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const LONG_MS: u64 = 60_000;

#[test]
fn an_agent_of_a_newer_connection_finds_the_host_as_its_predecessor_found_it() {
    let test = "an_agent_of_a_newer_connection_finds_the_host_as_its_predecessor_found_it";
    let Some(host) = Host::open(test) else { return };
    let mut agent = host.agent();
    agent.lease("lab", 1, LONG_MS).expect("free");
    agent.claim().expect("a link of ours");
    assert!(host.is_silent());
    for connection in 2..20 {
        let mut next = host.agent();
        next.lease("lab", connection, LONG_MS).expect("its predecessor ends");
        assert!(!host.is_silent(), "connection {connection}");
        next.claim().expect("a link of ours");
        assert!(host.is_silent());
        let mut before = std::mem::replace(&mut agent, next);
        assert!(before.child.wait().expect("our child").success(), "its input is still open");
    }
    agent.end();
    assert!(!host.is_silent() && !host.is_held());
}

#[test]
fn a_predecessor_that_does_not_end_is_named_and_what_it_changed_is_not_taken_for_found() {
    let test = "a_predecessor_that_does_not_end_is_named_and_what_it_changed_is_not_taken_for_found";
    let Some(host) = Host::open(test) else { return };
    let (mut stuck, mut next) = (host.agent(), host.agent());
    stuck.lease("lab", 1, LONG_MS).expect("free");
    stuck.claim().expect("a link of ours");
    stuck.signal("-STOP");
    let error = next.lease("lab", 2, 100).expect_err("it hangs");
    let expected = format!("connection before, process {}, has not ended in 100ms", stuck.child.id());
    assert!(error.contains(&expected), "{error}");
    assert!(next.claim().expect_err("it holds nothing").contains("no lease"));
    stuck.signal("-CONT");
    next.lease("lab", 2, LONG_MS).expect("its predecessor ends");
    assert!(!host.is_silent());
    next.end();
    assert!(!host.is_held());
}

#[test]
fn a_host_belongs_to_one_lab_until_its_agent_ends_or_is_killed() {
    let Some(host) = Host::open("a_host_belongs_to_one_lab_until_its_agent_ends_or_is_killed") else {
        return;
    };
    let (mut first, mut second) = (host.agent(), host.agent());
    first.lease("first", 9, LONG_MS).expect("free");
    first.claim().expect("a link of ours");
    let error = second.lease("second", 1, 100).expect_err("in use");
    assert!(error.contains("in use by another lab, process 7 on first, as its generator"), "{error}");
    assert!(second.claim().is_err() && host.is_silent(), "the first goes on");
    first.signal("-KILL");
    first.child.wait().expect("our child");
    second.lease("second", 1, LONG_MS).expect("nobody is there");
    second.end();
    assert!(!host.is_held());
}
