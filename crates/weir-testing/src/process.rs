//! What a process has, and programs that are started at once.

/// Bytes of memory that a process holds (`VmRSS`), by its number or `self`. It has to run.
pub fn resident(process: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

/// Copies a program so that it can be started at once: by a process of its own, for a file that this one wrote may still be open in a
/// fork of another test's ("text file busy").
pub fn copy(program: &str, to: &std::path::Path) {
    let copied = std::process::Command::new("cp").arg(program).arg(to).status();
    assert!(copied.is_ok_and(|status| status.success()), "no copy of {program} at {}", to.display());
}
