//! weir's ESP beside others': Linux's own, in a second kernel. Skipped by name where it is not installed.

mod bed;
mod case;
mod kernel;
mod kernel_peer;
mod second_kernel;
mod traffic;
mod weir_gateway;
