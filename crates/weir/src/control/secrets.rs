//! Keys in memory stay there: no core dump holds them, and no swap where that can be had.

use weir_io::process::{forbid_dumps, forbid_swap, has_swap};

/// Makes this process, which has keys or is about to read some, keep them; what could not be had is said in the log.
pub fn keep_in_memory() {
    if let Err(error) = forbid_dumps() {
        tracing::warn!(
            "core dumps cannot be switched off ({error}): one would hold keys; set the limit of core files to 0"
        );
    }
    match forbid_swap() {
        Err(error) if has_swap() => tracing::warn!(
            "memory cannot be kept out of swap ({error}), which may come to hold keys; give weir CAP_IPC_LOCK or no limit of locked memory (`LimitMEMLOCK=infinity` of systemd), or switch swap off"
        ),
        _ => {}
    }
}
