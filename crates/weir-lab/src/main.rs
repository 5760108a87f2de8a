//! `weir-lab`: see `weir-lab --help`.

use std::process::ExitCode;

/// Full route tables of the memory topology live on huge pages, as in the daemon.
#[global_allocator]
static MEMORY: weir_io::alloc::HugePages = weir_io::alloc::HugePages;

fn main() -> ExitCode {
    weir_lab::cli::main()
}
