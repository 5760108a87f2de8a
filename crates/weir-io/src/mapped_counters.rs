//! Counters of SAs in a file that several lives of a process share: what workers count is in the kernel's page
//! cache the moment it is counted, so a process that is killed has left it there.
//!
//! ```text
//! header 64 B │ Counters 64 B │ Counters │ …        mapped shared, for as long as the process lives
//! ```
//!
//! Promises: all blocks are there before the first is used, so that a full disk is an error here and no
//! signal later; mode 0600. Refuses: to unmap. Workers may count in it until the process ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use weir_core::ipsec::durable::{COUNTERS_LEN, Counters};

/// Bytes before the first counters.
pub const HEADER_LEN: usize = 64;

/// Makes the file with room for `count` counters, all zero; one that was there becomes another file.
pub fn create(path: &Path, header: &[u8; HEADER_LEN], count: usize) -> io::Result<&'static [Counters]> {
    let _ = std::fs::remove_file(path);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
    let bytes = HEADER_LEN + count * COUNTERS_LEN;
    allocate(&file, bytes)?;
    file.write_all_at(header, 0)?;
    // SAFETY: a new mapping at an address the kernel chooses, of a descriptor we hold and as long as its file.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping is `bytes` long, so `count` counters of 64 bytes lie behind its header; it begins at a
    // page, so they are aligned to 64; they are atomic words, of which any bytes are a value; it is never
    // unmapped, nobody else has the file's name before it is whole, and who reads it then reads whole words.
    Ok(unsafe { std::slice::from_raw_parts(base.cast::<u8>().add(HEADER_LEN).cast::<Counters>(), count) })
}

fn allocate(file: &File, bytes: usize) -> io::Result<()> {
    // SAFETY: takes a descriptor that is open and numbers, no memory.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, bytes as libc::off_t) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use weir_core::ipsec::durable::Amounts;

    use super::*;

    #[test]
    fn what_is_counted_is_in_the_file_at_once() {
        let path = std::env::temp_dir().join(format!("weir-io-counters-{}", std::process::id()));
        let counters = create(&path, &[7; HEADER_LEN], 3).expect("a file");
        let used = Amounts { sequence: 5, packets: 6, bytes: 7 };
        counters[2].begin(&[9; 32], used);
        counters[2].sequence.fetch_add(64, Relaxed);
        let file = std::fs::read(&path).expect("readable");
        assert_eq!((file.len(), &file[..HEADER_LEN]), (HEADER_LEN + 3 * COUNTERS_LEN, &[7; HEADER_LEN][..]));
        let read: Vec<_> = file[HEADER_LEN..].as_chunks().0.iter().map(Counters::read).collect();
        assert_eq!(read, [None, None, Some(([9; 32], Amounts { sequence: 69, ..used }))]);
        // Another life's file is another file.
        let next = create(&path, &[8; HEADER_LEN], 1).expect("a file");
        next[0].begin(&[1; 32], used);
        assert_eq!(counters[0].amounts(), Amounts::default());
        let _ = std::fs::remove_file(&path);
    }
}
