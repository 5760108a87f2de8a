//! Memory of no file, asked of the kernel in whole pages.
//!
//! Promises: it comes zeroed, begins at a page and lies nowhere near memory that something else has. Refuses: to give
//! itself back; who keeps it unmaps it.
//!
//! Miri (`scripts/miri`) has plain mappings only: there is no advice, and no page is asked for in advance.

use std::io;
use std::ptr::NonNull;

/// How memory should be backed; nothing of it changes what memory holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Advice {
    /// Small pages may be merged to huge ones.
    HugePages,
    /// Every page is made now, so that none has to be when it is first written.
    Populate,
}

/// Maps `bytes` that can be read and written; `flags` beside `MAP_PRIVATE` and `MAP_ANONYMOUS`.
pub(crate) fn map(bytes: usize, flags: libc::c_int) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    if cfg!(miri) && flags & libc::MAP_HUGETLB != 0 {
        return Err(io::Error::from_raw_os_error(libc::ENOMEM));
    }
    let flags = if cfg!(miri) { 0 } else { flags } | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: an anonymous mapping at an address the kernel chooses touches no existing memory.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(base.cast()).ok_or_else(|| io::Error::other("mmap returned address zero"))
}

/// Advises the kernel about `bytes` at `start`, which is at a page; whether it takes the advice.
pub(crate) fn advise(start: *mut u8, bytes: usize, advice: Advice) -> bool {
    let advice = match advice {
        Advice::HugePages => libc::MADV_HUGEPAGE,
        Advice::Populate => libc::MADV_POPULATE_WRITE,
    };
    // SAFETY: neither advice changes what memory holds or whether it is mapped, whatever the range is; the kernel
    // refuses a range that is not mapped.
    !cfg!(miri) && unsafe { libc::madvise(start.cast(), bytes, advice) } == 0
}
