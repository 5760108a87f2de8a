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
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::model::LabError;

/// Before what the shell says; a login's greetings come without it.
pub const MARK: &str = "weir-lab: ";

/// A program to bring along.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: &'static str,
    pub path: PathBuf,
    pub len: u64,
    pub sha256: String,
}

impl Program {
    pub fn new(name: &'static str, path: &Path) -> Result<Program, LabError> {
        let shown = path.display();
        let len = fs::metadata(path).map_err(|e| LabError(format!("{shown}: {e}")))?.len();
        let output = Command::new("sha256sum").arg(path).output();
        let output =
            output.map_err(|e| LabError(format!("sha256sum: {e}; install the package coreutils")))?;
        let said = String::from_utf8_lossy(&output.stdout);
        let sha256 = said.split_whitespace().next().unwrap_or_default().trim_start_matches('\\');
        if sha256.len() != 64 {
            return Err(LabError(format!("sha256sum {shown}: got \"{}\", expected a digest", said.trim())));
        }
        Ok(Program { name, path: path.into(), len, sha256: sha256.into() })
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
    for Program { name, len, sha256, .. } in programs {
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
        let program = Program { name: "weir-lab", path: "/x".into(), len: 7, sha256: "ab".repeat(32) };
        let script = script(&[program]);
        let inside = script.strip_prefix("exec sh -c '").and_then(|s| s.strip_suffix('\'')).expect("quoted");
        // Single quotes end the word; csh expands `!` and newlines even inside them.
        assert!(!inside.contains(['\'', '!', '\n']), "{inside}");
        assert!(inside.contains("head -c 7 >"));
    }

    #[test]
    fn a_digest_is_the_one_everybody_else_computes() {
        let path = std::env::temp_dir().join(format!("weir-upload-{}", std::process::id()));
        fs::write(&path, "abc").expect("temp dir is writable");
        let program = Program::new("weir", &path);
        let _ = fs::remove_file(&path);
        // FIPS 180-2, B.1
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(program.expect("it was there").sha256, expected);
    }
}
