//! Streams by epoll and by io_uring.

mod descriptors;
mod exchange;
mod kernel_tls;
mod random;
mod released;
mod support;
