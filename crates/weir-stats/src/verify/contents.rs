//! What a file holds, unpacked where its name says it is packed.
//!
//! Promises at most [`MAX_BYTES`]: more is no raw data, and a few bytes that unpack to a disk full stop there.
//! Refuses nothing loudly: a file that cannot be read or unpacked (`gzip`, `xz`, `bzip2` or `zstd` missing)
//! holds no values.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

/// Largest file read, unpacked: 100,000 runs of ten digits; a log of an hour.
pub const MAX_BYTES: u64 = 1 << 20;

/// (ending, program that unpacks it to its output with `-dc`).
const PACKED: [(&str, &str); 4] = [(".gz", "gzip"), (".xz", "xz"), (".bz2", "bzip2"), (".zst", "zstd")];

/// A file's name as it was before it was packed.
pub fn unpacked(name: &str) -> &str {
    PACKED.iter().find_map(|(ending, _)| name.strip_suffix(ending)).unwrap_or(name)
}

/// The bytes of a regular file; `None` beyond the limit, or when they cannot be had.
pub fn contents(path: &Path) -> Option<Vec<u8>> {
    let found = fs::metadata(path).ok()?;
    if !found.is_file() || found.len() > MAX_BYTES {
        return None;
    }
    let name = path.file_name()?.to_string_lossy();
    let Some((_, program)) = PACKED.iter().find(|(ending, _)| name.ends_with(ending)) else {
        return fs::read(path).ok();
    };
    let mut child = Command::new(program)
        .arg("-dc")
        .stdin(fs::File::open(path).ok()?)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let mut bytes = Vec::new();
    let read = child.stdout.take()?.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    // gone already, or about to fail writing into a closed pipe
    let whole = bytes.len() as u64 <= MAX_BYTES;
    if !whole {
        let _ = child.kill();
    }
    let ended = child.wait().ok()?;
    (read.is_ok() && whole && ended.success()).then_some(bytes)
}
