//! Messages of rtnetlink about traffic control: the queueing disciplines and filters a device has (tc(8);
//! `include/uapi/linux/{rtnetlink,pkt_sched}.h`).
//!
//! ```text
//! family:1 padding:3 index:4 handle:4 parent:4 info:4 │ attributes (TCA_*)
//! ```
//!
//! Promises: as [`super::parse`]. Refuses: what a discipline or a filter does; only that it is there, and its kind, is read.

use super::text;
use crate::wire::netlink::{self, FLAG_DUMP, Malformed, Message, attributes, u32_at};

const NEW_DISCIPLINE: u16 = 36;
const GET_DISCIPLINE: u16 = 38;
const NEW_FILTER: u16 = 44;
const GET_FILTER: u16 = 46;
/// Bytes of `struct tcmsg`.
const HEADER: usize = 20;
/// `TCA_KIND`.
const KIND: u16 = 1;

/// Where filters of a device see packets that do not come by a discipline of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    Ingress,
    Egress,
}

/// A discipline or a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub link: u32,
    /// 0: no filter, but the head of a list of them.
    pub handle: u32,
    pub kind: String,
}

/// What a message says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrafficNews {
    Discipline(Item),
    Filter(Item),
    Other,
}

/// Reads a message.
pub fn parse(message: &Message<'_>) -> Result<TrafficNews, Malformed> {
    Ok(match message.kind {
        NEW_DISCIPLINE => TrafficNews::Discipline(item(message.payload)?),
        NEW_FILTER => TrafficNews::Filter(item(message.payload)?),
        _ => TrafficNews::Other,
    })
}

fn item(payload: &[u8]) -> Result<Item, Malformed> {
    let header = payload.get(..HEADER).ok_or(Malformed)?;
    let word = |at| u32_at(header, at).unwrap_or_default();
    let mut item = Item { link: word(4), handle: word(8), kind: String::new() };
    for attribute in attributes(&payload[HEADER..]) {
        if let (KIND, value) = attribute? {
            item.kind = text(value);
        }
    }
    Ok(item)
}

/// Asks for every discipline of every device.
pub fn dump_disciplines() -> Vec<u8> {
    netlink::request(GET_DISCIPLINE, FLAG_DUMP, &[0; HEADER], &[])
}

/// Asks for the filters that a device has there.
pub fn dump_filters(link: u32, hook: Hook) -> Vec<u8> {
    // TC_H_CLSACT with TC_H_MIN_INGRESS and _EGRESS; the older `ingress` has its filters under the first one too.
    let parent: u32 = match hook {
        Hook::Ingress => 0xffff_fff2,
        Hook::Egress => 0xffff_fff3,
    };
    let mut header = [0; HEADER];
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    netlink::request(GET_FILTER, FLAG_DUMP, &header, &[])
}

#[cfg(test)]
mod tests {
    use super::super::super::netlink::{messages, request};
    use super::*;

    fn read(bytes: &[u8]) -> Result<TrafficNews, Malformed> {
        parse(&messages(bytes).next().expect("one").expect("whole"))
    }

    #[test]
    fn disciplines_and_filters_have_their_device_and_kind() {
        let mut header = [0; HEADER];
        header[4..8].copy_from_slice(&7u32.to_ne_bytes());
        header[8..12].copy_from_slice(&0x8001_0000u32.to_ne_bytes());
        let item = Item { link: 7, handle: 0x8001_0000, kind: "htb".to_owned() };
        let said = [(2u16, &[1u8, 2, 3, 4][..]), (KIND, b"htb\0")];
        let read_as = |kind| read(&request(kind, 0, &header, &said));
        assert_eq!(read_as(NEW_DISCIPLINE), Ok(TrafficNews::Discipline(item.clone())));
        assert_eq!(read_as(NEW_FILTER), Ok(TrafficNews::Filter(item)));
        assert_eq!(read_as(NEW_FILTER + 1), Ok(TrafficNews::Other));
        assert_eq!(read(&request(NEW_FILTER, 0, &header[..HEADER - 4], &[])), Err(Malformed));
    }
}
