//! Who is connected to a relay: its register against a naive one, and its size.

mod relay_registry;
mod relay_size;
