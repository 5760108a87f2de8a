//! Why a program or a map is not in the kernel, said with the kernel's own answer.

use std::fmt;
use std::io;

use aya::programs::ProgramError;

/// Lines of the verifier's log that are shown: the reason is in the last ones.
const LOG_LINES: usize = 12;

/// Why a program is not in the kernel, or not on a device; or a map not as it was asked for.
#[derive(Debug)]
pub enum LoadError {
    /// The verifier refused, for the reason in the last lines of its log.
    Refused { name: &'static str, error: io::Error, log: String },
    /// The kernel did not do with a program or a map what it was asked.
    Call { name: &'static str, call: String, error: io::Error },
    /// What the kernel was not even asked for.
    Object { name: &'static str, text: String },
}

impl LoadError {
    /// The kernel's answer alone.
    pub fn into_io(self) -> io::Error {
        match self {
            LoadError::Refused { error, .. } | LoadError::Call { error, .. } => error,
            LoadError::Object { text, .. } => io::Error::other(text),
        }
    }

    /// Whether the process may not use BPF at all.
    pub fn is_permission(&self) -> bool {
        matches!(self, LoadError::Call { error, .. } if error.kind() == io::ErrorKind::PermissionDenied)
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Without CAP_PERFMON a program may not look where a frame ends: that is all the verifier has to say.
            LoadError::Refused { name, error, log } if log.is_empty() || log.contains("prohibited") => {
                write!(f, "bpf program {name}: {error}{}", remedy(error))
            }
            LoadError::Refused { name, error, log } => {
                write!(f, "bpf program {name}: {error}; the verifier's last words:\n{log}")
            }
            LoadError::Call { name, call, error } => {
                write!(f, "bpf {name}: {call}: {error}{}", remedy(error))
            }
            LoadError::Object { name, text } => write!(f, "bpf {name}: {text}"),
        }
    }
}

impl std::error::Error for LoadError {}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run as root or with CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_NET_RAW"
        }
        io::ErrorKind::Unsupported => "; this kernel is built without CONFIG_BPF_SYSCALL",
        _ => "",
    }
}

/// The error with the kernel's answer and the verifier's last lines, where there are such.
pub(crate) fn explain(name: &'static str, error: impl std::error::Error + 'static) -> LoadError {
    let call = error.to_string();
    let mut inner: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(this) = inner {
        if let Some(ProgramError::LoadError { io_error, verifier_log }) = this.downcast_ref() {
            let log = last_lines(&verifier_log.to_string());
            return LoadError::Refused { name, error: copy(io_error), log };
        }
        inner = this.source();
    }
    match answer(&error) {
        Some(error) => LoadError::Call { name, call, error: copy(error) },
        None => LoadError::Object { name, text: call },
    }
}

/// The kernel's answer in what aya wraps around it.
pub(crate) fn answer<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a io::Error> {
    let mut inner = Some(error);
    while let Some(this) = inner {
        if let Some(error) = this.downcast_ref() {
            return Some(error);
        }
        inner = this.source();
    }
    None
}

pub(crate) fn missing(name: &'static str, what: &str) -> LoadError {
    LoadError::Object { name, text: format!("{what}: not in the object; weir was built from other sources") }
}

fn copy(error: &io::Error) -> io::Error {
    error.raw_os_error().map_or_else(|| io::Error::other(error.to_string()), io::Error::from_raw_os_error)
}

/// The end of the log without the verifier's statistics. Kernels from 7.x on put a report behind the reason, which goes on
/// for pages with how it came to that: of it only what failed, why and where.
fn last_lines(log: &str) -> String {
    let statistics = ["verification time", "stack depth", "processed "];
    let mut said: Vec<&str> = log
        .lines()
        .filter(|line| !statistics.iter().any(|s| line.starts_with(s)) && !line.is_empty())
        .collect();
    if let Some(report) = said.iter().position(|line| line.starts_with("Verification failed")) {
        let history = ["Instruction context:", "Causal path:", "Suggestion:"];
        let end = said[report..].iter().position(|line| history.contains(&line.trim()));
        said.truncate(end.map_or(said.len(), |end| report + end));
    }
    said[said.len().saturating_sub(LOG_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_capability_is_one_line_and_a_refused_program_shows_why() {
        let refused = |log: &str| {
            let error = io::Error::from_raw_os_error(13);
            LoadError::Refused { name: "weir_steer", error, log: log.into() }.to_string()
        };
        let said = refused("8: (2d) if r3 > r2 goto pc+1\nR3 pointer comparison prohibited");
        assert!(said.lines().count() == 1 && said.ends_with("CAP_NET_ADMIN and CAP_NET_RAW"), "{said}");
        let said = refused("invalid access to packet, off=200 size=1");
        assert!(said.lines().count() == 2 && said.ends_with("size=1"), "{said}");
    }

    #[test]
    fn of_an_old_log_the_end_and_of_a_new_one_the_reason() {
        let steps: String = (0..100).map(|n| format!("{n}: (07) r0 += 18\n")).collect();
        let reason = "invalid access to packet, off=200 size=1, R4(id=0,off=200,r=60)\n\
                      R4 min value is outside of the allowed memory range\n";
        let statistics = "processed 20 insns (limit 1000000) max_states_per_insn 0\n";
        let old = last_lines(&format!("{steps}{reason}{statistics}"));
        assert!(old.starts_with("90: (07)") && old.ends_with(reason.trim_end()), "{old}");
        // As Linux 7.3 writes it.
        let report = "\nVerification failed: Memory Safety: Access outside bounds\n\nReason:\n  \
                      The verifier cannot prove offset + access_size <= object_size.\n\nAt:\n  \
                      weir_tally @ tally.c:93:54\n       | ^-- error: access may be outside object bounds\n";
        let history = "  Instruction context:\n       22 | (07) r2 += 40\n\nCausal path:\n  weir_tally @ tally.c:88:16\n";
        let suggestion = "\nSuggestion:\n  Add or adjust a bounds check.\n\n";
        let new = last_lines(&format!("{steps}{reason}{report}{history}{steps}{suggestion}{statistics}"));
        assert!(new.contains(reason) && new.ends_with("may be outside object bounds"), "{new}");
        assert_eq!(new.lines().count(), LOG_LINES);
    }
}
