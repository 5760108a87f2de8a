//! How the lab's programs come onto a host, and go from it.
//!
//! ```text
//! lab                                         host: sh
//!      ◄── weir-lab: ready ──────────────────  a new folder, readable by its owner alone
//!  length bytes ──────────────────────────►   head -c length > folder/weir-lab
//!      ◄── weir-lab: have weir-lab ──────────  its SHA-256 is the one expected
//!      …                                       the same for weir
//!      ◄── {"ok":{"version":…}} ─────────────  the agent speaks
//! ```
//!
//! The shell stays behind the agent and removes the folder when the agent has ended, however it did. A file
//! is sent only when it is asked for, so no reader on the host can swallow what is meant for the next.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::model::LabError;

/// What begins each line the shell says; a login's greetings come without it.
pub const MARK: &str = "weir-lab: ";

/// A program to bring along, as it was when the campaign began.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: &'static str,
    pub bytes: Arc<Vec<u8>>,
    pub sha256: String,
}

/// How much of a program's file goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upload {
    /// What a loader reads: enough to run it.
    Loaded,
    /// Symbols and debug information too: a profile names its functions by them.
    Whole,
}

impl Program {
    pub fn new(name: &'static str, path: &Path, how: Upload) -> Result<Program, LabError> {
        let mut bytes = fs::read(path).map_err(|e| LabError::new(format!("{}: {e}", path.display())))?;
        if how == Upload::Loaded {
            bytes.truncate(loaded(&bytes).unwrap_or(bytes.len()));
        }
        let sha256 = sha256(&bytes)?;
        Ok(Program { name, bytes: Arc::new(bytes), sha256 })
    }
}

/// Bytes of an ELF file up to the end of what is loaded (System V ABI, program headers). Behind it are
/// symbols and debug information, in debug builds most of the file, which no loader reads.
fn loaded(file: &[u8]) -> Option<usize> {
    const LOAD: u64 = 1;
    let number = |at: usize, len: usize| -> Option<u64> {
        let bytes = file.get(at..at.checked_add(len)?)?;
        Some(bytes.iter().rev().fold(0, |n, &byte| n << 8 | u64::from(byte)))
    };
    // 64 bits, little-endian
    file.strip_prefix(b"\x7fELF\x02\x01")?;
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut end = table.checked_add(size * count)?;
    for n in 0..count {
        let header = usize::try_from(table + n * size).ok()?;
        if number(header, 4)? == LOAD {
            end = end.max(number(header + 8, 8)?.checked_add(number(header + 32, 8)?)?);
        }
    }
    usize::try_from(end).ok().filter(|&end| end <= file.len())
}

/// Computes the sum with the program that checks it on the host.
fn sha256(bytes: &[u8]) -> Result<String, LabError> {
    let failed = |e: std::io::Error| LabError::new(format!("sha256sum: {e}; install the package coreutils"));
    let mut command = Command::new("sha256sum");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
    // Dropped at once: its input ends.
    child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(bytes)).map_err(failed)?;
    let output = child.wait_with_output().map_err(failed)?;
    let said = String::from_utf8_lossy(&output.stdout);
    match said.split_whitespace().next() {
        Some(digest) if digest.len() == 64 => Ok(digest.to_string()),
        _ => Err(LabError::new(format!("sha256sum: got \"{}\", expected a digest", said.trim()))),
    }
}

/// What the login shell runs. No single quote in it, so that every shell takes it as one word.
pub fn script(programs: &[Program]) -> String {
    // A handler, unlike "ignore", is not inherited: the shell outlives a lost connection, its children need not.
    // mktemp wants at least six of them.
    let random = "X".repeat(8);
    let mut script = format!(
        "trap : HUP PIPE TERM INT; umask 077; d=$(mktemp -d \"${{TMPDIR:-/tmp}}/weir-lab-{random}\") || exit 73; \
         good=1; echo \"{MARK}ready\"; "
    );
    for Program { name, bytes, sha256 } in programs {
        let len = bytes.len();
        script += &format!(
            "head -c {len} > \"$d/{name}\" && chmod 700 \"$d/{name}\" && s=$(sha256sum < \"$d/{name}\") && \
             [ \"${{s%% *}}\" = {sha256} ] || good=0; \
             [ $good = 1 ] && echo \"{MARK}have {name}\" || echo \"{MARK}damaged {name}\"; "
        );
    }
    script += "[ $good = 1 ] && TMPDIR=\"$d\" \"$d/weir-lab\" agent; status=$?; rm -rf \"$d\"; exit $status";
    format!("exec sh -c '{script}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_is_one_word_for_every_shell() {
        let program = Program { name: "weir-lab", bytes: Arc::new(vec![0; 7]), sha256: "ab".repeat(32) };
        let script = script(&[program]);
        let inside = script.strip_prefix("exec sh -c '").and_then(|s| s.strip_suffix('\'')).expect("quoted");
        // Single quotes end the word; csh expands `!` and newlines even inside them.
        assert!(!inside.contains(['\'', '!', '\n']), "{inside}");
        assert!(inside.contains("head -c 7 >"));
    }

    #[test]
    fn a_digest_is_the_one_everybody_else_computes() {
        // FIPS 180-2, B.1
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc").expect("coreutils"), expected);
    }

    #[test]
    fn a_program_without_what_is_not_loaded_still_runs() {
        let own = std::env::current_exe().expect("our own path");
        let bytes = fs::read(&own).expect("readable");
        let end = loaded(&bytes).expect("an ELF file");
        assert!(end < bytes.len());
        // Keys by a shell, as on a host: a file this process wrote could still be open in a fork of it.
        let path = std::env::temp_dir().join(format!("weir-upload-{}", std::process::id()));
        let script =
            "head -c $3 \"$1\" > \"$2\" && chmod 700 \"$2\" && \"$2\" --list; s=$?; rm \"$2\"; exit $s";
        let mut sh = Command::new("sh");
        sh.args(["-c", script, "sh"]).arg(&own).arg(&path).arg(end.to_string());
        assert!(sh.output().expect("it starts").status.success());
        for cut in [b"" as &[u8], b"\x7fELF", b"#!/bin/sh\n", &bytes[..60]] {
            assert_eq!(loaded(cut), None);
        }
    }
}
