//! The memory topology in a process of its own, of this build of the lab or of another.
//!
//! ```text
//! lab ──{"configuration":…}──► weir-lab worker ──{"ready":{…}}──► lab
//!     ──{"trial":…}──────────►                 ──{"sample":{…}}─►       one line each, until standard input ends
//!     ──{"slice":…}──────────►                 ──{"sample":{…}}─►       between two it waits for its input
//! ```
//!
//! So that builds can be compared that differ in what is compiled in. Promises: every configuration with a
//! `build` runs in a process of its own, `default` too, so that they differ in their program alone. Refuses:
//! a build of another commit.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{MemoryTestbed, cpus};
use crate::build::Build;
use crate::model::{Configuration, LabError, Prepared, Sample, Scope, Trial};

/// The word for this program itself.
const OWN: &str = "default";
/// What may be left out of a build.
const FEATURES: [(&str, bool); 1] = [("ipsec", cfg!(feature = "ipsec"))];

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Request {
    Configuration(Box<Configuration>),
    Trial(Trial),
    Slice(Trial),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Response {
    Ready { version: String, commit: String, features: Vec<String> },
    Sample(Box<Sample>),
    Error(LabError),
}

/// The program of a build: this one, or the one in its folder beside this one's (`target/<build>/release`).
pub fn program(build: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    if build == OWN {
        return Some(own);
    }
    let profile = own.parent()?;
    let there = profile.parent()?.join(build).join(profile.file_name()?).join("weir-lab");
    there.is_file().then_some(there)
}

pub fn missing(build: &str) -> Option<String> {
    program(build).is_none().then(|| {
        format!("build {build}: there is no weir-lab in target/{build} beside this one: `make build-{build}`")
    })
}

/// A prepared SUT in another process.
pub struct Elsewhere {
    child: Child,
    /// Closed first: the process ends with its input.
    requests: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    build: String,
    note: String,
    cpus: Vec<u32>,
}

impl Elsewhere {
    pub fn start(build: &str, configuration: &Configuration) -> Result<Elsewhere, LabError> {
        let program = program(build).ok_or_else(|| LabError::new(missing(build).unwrap_or_default()))?;
        let failed = |e: std::io::Error| LabError::new(format!("build {build}: cannot be started: {e}"));
        let mut command = Command::new(&program);
        command.arg("worker").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = crate::sut::as_service(&mut command).spawn().map_err(failed)?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let answers = answers.ok_or_else(|| LabError::new(format!("build {build}: gives no answers")))?;
        let mut elsewhere = Elsewhere {
            child,
            requests,
            answers: BufReader::new(answers),
            build: build.into(),
            note: String::new(),
            cpus: cpus(&configuration.placement.cpus).0,
        };
        let configuration = configuration.in_this_process();
        match elsewhere.ask(&Request::Configuration(Box::new(configuration)))? {
            Response::Ready { version, commit, features } => {
                elsewhere.accept(&version, &commit, &features)?
            }
            Response::Error(why) => return Err(why),
            Response::Sample(_) => return Err(elsewhere.odd()),
        }
        Ok(elsewhere)
    }

    fn accept(&mut self, version: &str, commit: &str, features: &[String]) -> Result<(), LabError> {
        let own = Build::own();
        let build = &self.build;
        if (version, commit) != (own.version.as_str(), own.commit.as_str()) {
            return Err(LabError::new(format!(
                "build {build}: is {version} ({commit}), this is {} ({}): `make build-{build}` again",
                own.version, own.commit
            )));
        }
        let features = if features.is_empty() { "none".into() } else { features.join(", ") };
        self.note = format!("in a process of its own, build {build}, features: {features}");
        Ok(())
    }

    fn ask(&mut self, request: &Request) -> Result<Response, LabError> {
        let gone = |what: String| LabError::new(format!("build {}: its process {what}", self.build));
        let line = serde_json::to_string(request).map_err(|e| gone(format!("cannot be asked: {e}")))?;
        let requests = self.requests.as_mut().ok_or_else(|| gone("has ended".into()))?;
        writeln!(requests, "{line}").map_err(|e| gone(format!("takes no requests: {e}")))?;
        let mut answer = String::new();
        self.answers.read_line(&mut answer).map_err(|e| gone(format!("cannot be read: {e}")))?;
        serde_json::from_str(&answer).map_err(|e| gone(format!("answered {answer:?}: {e}; build it again")))
    }

    fn odd(&self) -> LabError {
        LabError::new(format!("build {}: gave another answer than asked for: build it again", self.build))
    }
}

impl Elsewhere {
    fn measured(&mut self, request: &Request) -> Result<Sample, LabError> {
        match self.ask(request)? {
            Response::Sample(mut sample) => {
                sample.notes.push(self.note.clone());
                Ok(*sample)
            }
            Response::Error(why) => Err(why),
            Response::Ready { .. } => Err(self.odd()),
        }
    }
}

impl Prepared for Elsewhere {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        self.measured(&Request::Trial(*trial))
    }

    fn slice(&mut self, slice: &Trial) -> Result<Sample, LabError> {
        self.measured(&Request::Slice(*slice))
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope::Cpus(self.cpus.clone()))
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.requests = None;
        // It has nothing to write any more; what does not end by itself within a run's time never would.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `weir-lab worker`: answers until standard input ends.
pub fn serve() -> Result<ExitCode, LabError> {
    let mut testbed = MemoryTestbed::default();
    let mut prepared: Option<Box<dyn Prepared>> = None;
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let answer = read::<Request>(&line).and_then(|request| answer(request, &mut testbed, &mut prepared));
        let answer = answer.unwrap_or_else(Response::Error);
        let text = serde_json::to_string(&answer).map_err(|e| LabError::new(format!("answer: {e}")))?;
        println!("{text}");
    }
    Ok(ExitCode::SUCCESS)
}

fn answer(
    request: Request,
    testbed: &mut MemoryTestbed,
    prepared: &mut Option<Box<dyn Prepared>>,
) -> Result<Response, LabError> {
    match request {
        Request::Configuration(configuration) => {
            *prepared = Some(testbed.prepare(&configuration)?);
            let Build { version, commit, .. } = Build::own();
            let built = FEATURES.iter().filter(|(_, there)| *there);
            let features = built.map(|(name, _)| name.to_string()).collect();
            Ok(Response::Ready { version, commit, features })
        }
        Request::Trial(trial) => Ok(Response::Sample(Box::new(ready(prepared)?.run(&trial)?))),
        Request::Slice(slice) => Ok(Response::Sample(Box::new(ready(prepared)?.slice(&slice)?))),
    }
}

fn ready(prepared: &mut Option<Box<dyn Prepared>>) -> Result<&mut Box<dyn Prepared>, LabError> {
    prepared.as_mut().ok_or_else(|| LabError::new("worker: no configuration yet".into()))
}

fn read<T: DeserializeOwned>(line: &str) -> Result<T, LabError> {
    serde_json::from_str(line).map_err(|e| LabError::new(format!("worker: request {line:?}: {e}")))
}
