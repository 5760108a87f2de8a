//! Sealing and opening allocate nothing, in Rust or in aws-lc's C.
//!
//! glibc's `malloc` and its relatives are replaced in this binary by ones that count the calls of the
//! thread that asks to be counted, and then do what glibc does.

use std::cell::Cell;
use std::ffi::c_void;

use weir_core::ipsec::Job;
use weir_io::cipher;

use crate::suites::{keys, packet, suites};

thread_local! {
    static COUNTED: Cell<Option<u64>> = const { Cell::new(None) };
}

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(at: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
}

fn count() {
    COUNTED.with(|counted| counted.set(counted.get().map(|n| n + 1)));
}

#[unsafe(no_mangle)]
extern "C" fn malloc(size: usize) -> *mut c_void {
    count();
    // SAFETY: this is glibc's own malloc under its other name.
    unsafe { __libc_malloc(size) }
}

#[unsafe(no_mangle)]
extern "C" fn calloc(items: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: this is glibc's own calloc under its other name.
    unsafe { __libc_calloc(items, size) }
}

/// # Safety
/// As C's `realloc`: `at` is null or a living allocation.
#[unsafe(no_mangle)]
unsafe extern "C" fn realloc(at: *mut c_void, size: usize) -> *mut c_void {
    count();
    // SAFETY: this is glibc's own realloc under its other name; the caller keeps its contract.
    unsafe { __libc_realloc(at, size) }
}

#[unsafe(no_mangle)]
extern "C" fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void {
    count();
    // SAFETY: glibc's aligned_alloc is its memalign.
    unsafe { __libc_memalign(alignment, size) }
}

fn allocations(work: impl FnOnce()) -> u64 {
    COUNTED.with(|counted| counted.set(Some(0)));
    work();
    COUNTED.with(|counted| counted.replace(None)).expect("counting was switched on above")
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(vec![1u8; 100]))), 1);
}

#[test]
fn sealing_and_opening_allocate_nothing() {
    for suite in suites() {
        for backend in cipher::BACKENDS.into_iter().filter_map(cipher::by_name).chain([cipher::best()]) {
            let cipher = backend.cipher(suite, true, &keys(suite, 1)).expect("keys of the right length");
            let mut packets: Vec<_> = (0..48).map(|i| packet(suite, i * 61, i as u64, 2)).collect();
            let mut jobs: Vec<_> = (0..)
                .zip(packets.iter_mut())
                .map(|(sequence, packet)| Job { packet, sequence, authentic: false })
                .collect();
            assert_eq!(allocations(|| cipher.seal(&mut jobs)), 0, "{suite}");
            assert_eq!(allocations(|| cipher.open(&mut jobs)), 0, "{suite}");
            assert!(jobs.iter().all(|job| job.authentic), "{suite}");
        }
    }
}
