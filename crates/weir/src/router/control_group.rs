//! The control group this process is in (version 2): what memory and processor time it may use.

use std::fs;

/// Where the kernel shows control groups.
pub const ROOT: &str = "/sys/fs/cgroup";

/// Its path below [`ROOT`]; empty for the root, which is a container's own group where the container sees no other.
pub fn own() -> Option<String> {
    path_in(&fs::read_to_string("/proc/self/cgroup").ok()?).map(str::to_string)
}

/// The path in what `/proc/PID/cgroup` says.
pub fn path_in(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.strip_prefix("0::/"))
}
