//! A SUT that is any program: apply, health check, counters, teardown are the experiment's commands.
//!
//! ```text
//! $WEIR_DIR/   the experiment's files and uploads, and what every SUT is told:
//!   addresses  DEVICE ADDRESS/LEN          ours, on both wires
//!   neighbours GATEWAY MAC                 behind $WEIR_OUTPUT
//!   routes     PREFIX GATEWAY              the workload's
//! ```

pub mod local;
mod shell;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_core::wire::DisplayMac;

use crate::experiment::hosts::Commands;
use crate::model::{Configuration, Family, LabError};
use crate::netns::counters::Counters;
use crate::workload::address;
use shell::Shell;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interface {
    pub name: String,
    pub mac: [u8; 6],
}

#[derive(Debug, Serialize, Deserialize)]
pub struct DeviceEnvironment {
    pub configuration: Configuration,
    pub input: Interface,
    pub output: Interface,
    pub gateway_mac: [u8; 6],
    /// The commands of the SUT `command`.
    pub commands: Option<Commands>,
    /// Its uploads by name, bytes in hexadecimal.
    pub uploads: BTreeMap<String, String>,
    pub apply_within_ms: u64,
    pub teardown_within_ms: u64,
    pub answer_within_ms: u64,
}

/// Pause between two health checks.
const CHECK_AGAIN: Duration = Duration::from_millis(200);
static FOLDERS: AtomicU32 = AtomicU32::new(0);

pub struct CommandSut {
    commands: Commands,
    shell: Shell,
    answer_within: Duration,
    teardown_within: Duration,
    torn_down: bool,
}

impl CommandSut {
    /// Applies the commands, in a folder of their own inside `parent`.
    pub fn apply(
        environment: &DeviceEnvironment,
        parent: &Path,
        stop: Arc<AtomicBool>,
    ) -> Result<CommandSut, LabError> {
        let missing = || LabError::new("command: the experiment names none; write `apply`".into());
        let commands = environment.commands.clone().ok_or_else(missing)?;
        let n = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let folder = parent.join(format!("sut-{}-{n}", std::process::id()));
        fs::create_dir(&folder).map_err(|e| LabError::new(format!("{}: {e}", folder.display())))?;
        let variables = BTreeMap::from([
            ("WEIR_DIR", folder.display().to_string()),
            ("WEIR_INPUT", environment.input.name.clone()),
            ("WEIR_OUTPUT", environment.output.name.clone()),
        ]);
        // From here on whatever fails is torn down.
        let sut = CommandSut {
            commands,
            shell: Shell { folder, environment: variables, stop },
            answer_within: Duration::from_millis(environment.answer_within_ms),
            teardown_within: Duration::from_millis(environment.teardown_within_ms),
            torn_down: false,
        };
        sut.write_files(environment)?;
        sut.shell.run("apply", &sut.commands.apply, Duration::from_millis(environment.apply_within_ms))?;
        Ok(sut)
    }

    fn write_files(&self, environment: &DeviceEnvironment) -> Result<(), LabError> {
        for (name, bytes) in surroundings(environment) {
            self.write(name, bytes.as_bytes())?;
        }
        for (name, text) in &self.commands.files {
            self.write(name, text.as_bytes())?;
        }
        for (name, hexadecimal) in &environment.uploads {
            let bytes = from_hexadecimal(hexadecimal).ok_or_else(|| {
                LabError::new(format!("{name}: came through damaged: it is no hexadecimal"))
            })?;
            self.write(name, &bytes)?;
        }
        Ok(())
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), LabError> {
        let path = self.shell.folder.join(name);
        let written = fs::write(&path, bytes).and_then(|()| {
            // It may be a program, and it may be a secret.
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
        });
        written.map_err(|e| LabError::new(format!("{name}: cannot be written on the device under test: {e}")))
    }

    pub fn check(&mut self, within: Duration) -> Result<(), LabError> {
        let Some(check) = &self.commands.health_check else { return Ok(()) };
        let until = Instant::now() + within;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.shell.run("health_check", check, left) {
                Ok(_) => return Ok(()),
                Err(e) if Instant::now() + CHECK_AGAIN > until => {
                    return Err(LabError::new(format!("not well after {within:?}: {e}")));
                }
                Err(_) => std::thread::sleep(CHECK_AGAIN),
            }
        }
    }

    pub fn counters(&mut self) -> Result<Counters, LabError> {
        let Some(command) = &self.commands.counters else { return Ok(Counters::new()) };
        let said = self.shell.run("counters", command, self.answer_within)?;
        let mut found = Counters::new();
        for line in said.lines().map(str::trim).filter(|l| !l.is_empty()) {
            let value =
                line.rsplit_once(char::is_whitespace).and_then(|(n, v)| Some((n.trim(), v.parse().ok()?)));
            let (name, value): (&str, u64) = value.ok_or_else(|| {
                LabError::new(format!(
                    "counters: got \"{line}\", expected a name and a whole number on each line"
                ))
            })?;
            *found.entry(format!("command.{name}")).or_default() += value;
        }
        Ok(found)
    }

    /// Nothing is undone: what was done is gone, or out of reach.
    pub fn abandon(&mut self) {
        self.torn_down = true;
    }

    pub fn tear_down(&mut self) -> Result<(), LabError> {
        if std::mem::replace(&mut self.torn_down, true) {
            return Ok(());
        }
        let Some(command) = &self.commands.teardown else { return Ok(()) };
        // Also when the lab went away: it must not end what undoes.
        let shell = Shell { stop: Arc::default(), ..self.shell.clone() };
        shell.run("teardown", command, self.teardown_within).map(drop)
    }
}

impl Drop for CommandSut {
    fn drop(&mut self) {
        // Whoever wants to hear of it has called it.
        let _ = self.tear_down();
        let _ = fs::remove_dir_all(&self.shell.folder);
    }
}

/// What a command uploads, by name, in hexadecimal.
pub fn read_uploads(commands: &Commands) -> Result<BTreeMap<String, String>, LabError> {
    let read = |(name, path): (&String, &String)| match fs::read(path) {
        Ok(bytes) => Ok((name.clone(), to_hexadecimal(&bytes))),
        Err(e) => {
            Err(LabError::new(format!("upload: {path}: {e}; paths count from where weir-lab was started")))
        }
    };
    commands.upload.iter().map(read).collect()
}

/// Files every command finds.
fn surroundings(environment: &DeviceEnvironment) -> [(&'static str, String); 3] {
    let (input, output) = (&environment.input.name, &environment.output.name);
    let ((i4, o4), (i6, o6)) = ((address::IN_V4, address::OUT_V4), (address::IN_V6, address::OUT_V6));
    let addresses = format!(
        "{input} {}/{}\n{output} {}/{}\n{input} {}/{}\n{output} {}/{}\n",
        i4.0, i4.1, o4.0, o4.1, i6.0, i6.1, o6.0, o6.1
    );
    let mac = DisplayMac(environment.gateway_mac);
    let (mut neighbours, mut routes) = (String::new(), String::new());
    for family in [Family::Inet, Family::Inet6] {
        for n in 0..address::GATEWAYS {
            let _ = writeln!(neighbours, "{} {mac}", address::gateway(family, n));
        }
    }
    let family = environment.configuration.workload.family;
    for n in 0..environment.configuration.routes {
        let (network, len) = address::prefix(family, n);
        let _ = writeln!(routes, "{network}/{len} {}", address::gateway(family, n));
    }
    [("addresses", addresses), ("neighbours", neighbours), ("routes", routes)]
}

/// Bytes as two digits each.
fn to_hexadecimal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn from_hexadecimal(text: &str) -> Option<Vec<u8>> {
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_survive_their_digits() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hexadecimal(&to_hexadecimal(&bytes)), Some(bytes));
        assert_eq!(from_hexadecimal("0g"), None);
    }
}
