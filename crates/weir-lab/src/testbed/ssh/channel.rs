//! One host: a connection by OpenSSH's client, and the agent at its other end.
//!
//! Promises: no question waits longer than its limit, writing included. What does not answer is given up
//! whole: the client is ended, the agent sees its input end and cleans up. Refuses: to ask a human anything.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use weir_io::process;

use super::remedy::{gist, remedy};
use super::upload::{self, MARK, Program};
use crate::agent::BEAT;
use crate::agent::lease::LeaseHolder;
use crate::agent::protocol::{Hello, Request};
use crate::experiment::hosts::{Host, Timeouts};
use crate::model::LabError;

/// The client asks a silent host three times, five seconds apart, before it gives the connection up.
const ALIVE_INTERVAL_S: u32 = 5;
const ALIVE_COUNT: u32 = 3;
/// What an agent may take to change everything back at the end of a campaign.
const CLOSES_WITHIN: Duration = Duration::from_secs(20);
/// The client's own limit ends first, because it says more.
const CLIENT_FIRST: Duration = Duration::from_secs(2);
/// Time between the end of the client's output and that of its errors.
const LAST_WORDS: Duration = Duration::from_millis(50);
const LOOK: Duration = Duration::from_millis(10);
/// Lines kept of the client's error output; banners are some ten lines.
const SAID_LINES: usize = 40;

pub struct Channel {
    /// `receiver (root@host)`, for errors.
    pub who: String,
    client: Child,
    /// Gone: the input ends.
    write: Option<Sender<Out>>,
    lines: Receiver<String>,
    said: Arc<Mutex<VecDeque<String>>>,
    broken: bool,
    pub hello: Hello,
}

enum Out {
    Bytes(Vec<u8>),
    Program(Arc<Vec<u8>>),
    /// The lab shows every [`BEAT`] from now on that it is there.
    Beat,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Ok(serde_json::Value),
    Error(LabError),
}

impl Channel {
    /// Connects, uploads, starts the agent, and takes the host.
    pub fn open(
        holder: LeaseHolder,
        host: &Host,
        programs: &[Program],
        limits: &Timeouts,
    ) -> Result<Channel, LabError> {
        let who = format!("{} ({})", holder.part, host.ssh);
        let mut command = client(host, limits, &upload::script(programs));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A group of its own: Ctrl-C reaches the lab alone, which then ends the run and the connection.
        command.process_group(0);
        let started = process::dies_with_starter(&mut command).spawn();
        let mut client = started.map_err(|e| {
            LabError::new(format!("{who}: ssh cannot be started: {e}; install the package openssh-client"))
        })?;
        let (write, todo) = channel();
        let (heard, lines) = channel();
        let said = Arc::<Mutex<VecDeque<String>>>::default();
        if let (Some(stdin), Some(stdout), Some(stderr)) =
            (client.stdin.take(), client.stdout.take(), client.stderr.take())
        {
            std::thread::spawn(move || write_all(stdin, &todo));
            std::thread::spawn(move || each_line(stdout, |line| heard.send(line).is_ok()));
            let said = said.clone();
            std::thread::spawn(move || each_line(stderr, |line| keep(&said, line)));
        }
        let nobody = Hello { version: String::new(), clock: String::new(), machine: Default::default() };
        let mut channel =
            Channel { who, client, write: Some(write), lines, said, broken: false, hello: nobody };
        channel.hello = channel.start_agent(programs, limits)?;
        let within = limits.teardown.0;
        let lease = Request::Lease { holder, within_ms: within.as_millis() as u64 };
        channel.ask::<()>("lease", &lease, within + limits.answer.0)?;
        Ok(channel)
    }

    fn start_agent(&mut self, programs: &[Program], limits: &Timeouts) -> Result<Hello, LabError> {
        self.await_mark("connect", "ready", limits.connect.0 + CLIENT_FIRST)?;
        let until = Instant::now() + limits.upload.0;
        for program in programs {
            self.send(Out::Program(program.bytes.clone()));
            let left = until.saturating_duration_since(Instant::now());
            self.await_mark("upload", &format!("have {}", program.name), left)?;
        }
        let hello: Hello = self.answer("start agent", limits.answer.0)?;
        self.send(Out::Beat);
        let own = env!("CARGO_PKG_VERSION");
        if hello.version != own {
            let got = &hello.version;
            return Err(LabError::new(format!("{}: agent has version {got}, expected {own}", self.who)));
        }
        Ok(hello)
    }

    /// Waits for a line of the upload's shell.
    fn await_mark(&mut self, step: &str, wanted: &str, within: Duration) -> Result<(), LabError> {
        let until = Instant::now() + within;
        loop {
            let line = self.line(step, until.saturating_duration_since(Instant::now()), within)?;
            match line.strip_prefix(MARK) {
                Some(word) if word == wanted => return Ok(()),
                Some(word) => {
                    self.broken = true;
                    return Err(LabError::new(format!(
                        "{}: {step}: got \"{word}\", expected \"{wanted}\"; {}; {}",
                        self.who,
                        gist(&self.said()),
                        remedy(&self.said())
                    )));
                }
                // A greeting.
                None => {}
            }
        }
    }

    /// Asks the agent; `step` names the question in errors.
    pub fn ask<T: DeserializeOwned>(
        &mut self,
        step: &str,
        request: &Request,
        within: Duration,
    ) -> Result<T, LabError> {
        self.tell(step, request)?;
        self.answer(step, within)
    }

    /// Asks without waiting: [`Channel::answer`] is to be called.
    pub fn tell(&mut self, step: &str, request: &Request) -> Result<(), LabError> {
        if self.broken {
            return Err(LabError::new(format!("{}: {step}: the connection was given up before", self.who)));
        }
        let mut line = serde_json::to_vec(request).map_err(|e| LabError::new(format!("{step}: {e}")))?;
        line.push(b'\n');
        self.send(Out::Bytes(line));
        Ok(())
    }

    pub fn answer<T: DeserializeOwned>(&mut self, step: &str, within: Duration) -> Result<T, LabError> {
        let line = self.line(step, within, within)?;
        let not_understood = |e: serde_json::Error| {
            LabError::new(format!("{}: {step}: got \"{line}\", expected an agent's answer ({e})", self.who))
        };
        let reply = serde_json::from_str(&line).map_err(not_understood);
        match reply.inspect_err(|_| self.broken = true)? {
            Reply::Ok(value) => serde_json::from_value(value).map_err(not_understood),
            Reply::Error(error) => {
                let said = format!("{}: {step}: {error}", self.who);
                Err(LabError { said, ..error })
            }
        }
    }

    /// The next line, within `left` of the step's `limit`.
    fn line(&mut self, step: &str, left: Duration, limit: Duration) -> Result<String, LabError> {
        let end = match self.lines.recv_timeout(left) {
            Ok(line) => return Ok(line),
            Err(end) => end,
        };
        self.broken = true;
        if end == RecvTimeoutError::Timeout {
            let who = &self.who;
            return Err(LabError::new(format!(
                "{who}: {step}: no answer in {limit:?}: is the host still on? a slow one needs more in [hosts.timeouts]"
            )));
        }
        // Its last errors come by another pipe.
        std::thread::sleep(LAST_WORDS);
        let said = self.said();
        let (gist, remedy) = (gist(&said), remedy(&said));
        Err(LabError::new(format!("{}: {step}: the connection ended; {gist}; {remedy}", self.who)))
    }

    /// Whether questions still make sense.
    pub fn alive(&mut self) -> bool {
        !self.broken && matches!(self.client.try_wait(), Ok(None))
    }

    fn send(&mut self, out: Out) {
        // A writer that has ended is seen by the answer that does not come.
        let _ = self.write.as_ref().map(|write| write.send(out));
    }

    fn said(&self) -> Vec<String> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

impl Drop for Channel {
    /// The agent sees its input end, changes back what it changed, and the connection closes. One that does
    /// not answer any more is not waited for: its host's side ends by itself.
    fn drop(&mut self) {
        self.write = None;
        let patience = if self.broken { Duration::ZERO } else { CLOSES_WITHIN };
        let until = Instant::now() + patience;
        while Instant::now() < until && matches!(self.client.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK);
        }
        // Errors mean that it has ended already.
        let _ = self.client.kill();
        let _ = self.client.wait();
    }
}

fn client(host: &Host, limits: &Timeouts, script: &str) -> Command {
    let mut command = Command::new("ssh");
    command.args(["-T", "-x", "-a"]);
    for option in [
        "BatchMode=yes".to_string(),
        "StrictHostKeyChecking=yes".into(),
        format!("ConnectTimeout={}", limits.connect.0.as_secs().max(1)),
        format!("ServerAliveInterval={ALIVE_INTERVAL_S}"),
        format!("ServerAliveCountMax={ALIVE_COUNT}"),
        "ClearAllForwardings=yes".into(),
        "PermitLocalCommand=no".into(),
        "ControlPath=none".into(),
        "RequestTTY=no".into(),
        "LogLevel=ERROR".into(),
    ] {
        command.args(["-o", &option]);
    }
    if let Some(port) = host.port {
        command.args(["-p", &port.to_string()]);
    }
    if let Some(identity) = &host.identity {
        command.args(["-i", identity, "-o", "IdentitiesOnly=yes"]);
    }
    for option in &host.options {
        command.args(["-o", option]);
    }
    command.args(["--", &host.ssh, script]);
    command
}

fn write_all(mut stdin: ChildStdin, todo: &Receiver<Out>) {
    let mut beating = false;
    loop {
        let written = match todo.recv_timeout(BEAT) {
            Ok(Out::Bytes(bytes)) => stdin.write_all(&bytes),
            Ok(Out::Program(bytes)) => stdin.write_all(&bytes),
            Ok(Out::Beat) => {
                beating = true;
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) if beating => stdin.write_all(b"\n"),
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if written.is_err() {
            return;
        }
    }
}

/// Hands over each line until nobody wants more; what is no text becomes some.
fn each_line(input: impl Read, mut each: impl FnMut(String) -> bool) {
    for line in BufReader::new(input).split(b'\n').map_while(Result::ok) {
        if !each(String::from_utf8_lossy(&line).trim_end_matches('\r').to_string()) {
            return;
        }
    }
}

fn keep(said: &Mutex<VecDeque<String>>, line: String) -> bool {
    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
    said.push_back(line);
    if said.len() > SAID_LINES {
        said.pop_front();
    }
    true
}
