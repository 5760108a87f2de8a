//! The kernel's traffic control: which queueing disciplines and filters a device has.
//!
//! Promises: reads only. Refuses: weir's own filter ([`tc`]) is not counted.

use std::io;

use weir_core::wire::rtnetlink::traffic::{self, Hook, Item, TrafficNews};

use super::dump_messages;
use crate::bpf::tc;

/// Every discipline of every device; none where the kernel has no traffic control.
pub fn disciplines() -> io::Result<Vec<Item>> {
    list(&traffic::dump_disciplines(), |news| match news {
        TrafficNews::Discipline(item) => Some(item),
        _ => None,
    })
}

/// The filters of others that a device has there.
pub fn filters(link: u32, hook: Hook) -> io::Result<Vec<Item>> {
    list(&traffic::dump_filters(link, hook), |news| match news {
        TrafficNews::Filter(item) if item.handle != 0 && item.handle != tc::HANDLE => Some(item),
        _ => None,
    })
}

fn list(request: &[u8], wanted: impl Fn(TrafficNews) -> Option<Item>) -> io::Result<Vec<Item>> {
    let mut found = Vec::new();
    let dumped = dump_messages(request, |message| {
        traffic::parse(message).map(|news| found.extend(wanted(news))).is_ok()
    });
    match dumped {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => Ok(Vec::new()),
        dumped => dumped.map(|()| found),
    }
}
