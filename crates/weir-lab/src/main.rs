//! `weir-lab`: see `weir-lab --help`.

use std::process::ExitCode;

/// Full route tables of the memory topology live on huge pages, as in the daemon.
#[global_allocator]
static MEMORY: weir_io::alloc::HugePages = weir_io::alloc::HugePages;

fn main() -> ExitCode {
    if !weir_io::cpu_level::suffices("weir-lab") {
        return ExitCode::FAILURE;
    }
    weir_lab::cli::main()
}
