//! TLS of streams: against ourselves, rustls' own connections and OpenSSL, whole and byte by byte.

mod ends;
mod kernel;
mod records;
