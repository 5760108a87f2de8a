//! TLS of streams: against ourselves, rustls' own connections and OpenSSL, whole and byte by byte.

mod after;
mod ends;
mod fuzz;
mod kernel;
mod openssl;
mod records;
