//! Streams without sockets: what [`weir_io::stream`] promises and no more, with everything it does not promise left to chance.
//!
//! A send is taken whole, in part, but for its last bytes, or not at all, and answered in this turn or a later one; bytes
//! come in pieces of any length; events of different streams, and of the two directions of one, come in any order; a
//! stream that is closed is heard of no more. Buffers are real ones, few of them.

use std::collections::{BTreeMap, VecDeque};

use weir_core::random::SplitMix64;
use weir_io::stream::{BUFFER, Buffer, Buffers, MOST_PARTS, Part};
use weir_relay::session::Action;

/// A connection between a peer and the relay.
#[derive(Default)]
pub struct Link {
    /// Sent by the peer, not received by the relay yet.
    pub up: VecDeque<u8>,
    pub up_ended: bool,
    /// Taken by the relay's socket, not read by the peer yet.
    pub down: VecDeque<u8>,
    pub down_ended: bool,
    /// What the socket holds of `down` at most.
    pub room: usize,
    /// The peer has reset it.
    pub broken: bool,
}

pub type Links = BTreeMap<u64, Link>;

pub enum Event {
    Received(u32, Buffer),
    Sent(u32, usize, Vec<Part>),
    Writable(u32),
    Ended(u32),
    Failed(u32),
    /// The stream is no more, and this is its link.
    Released(u32, u64),
}

struct Sending {
    parts: Vec<Part>,
    /// How much the socket took, once it was tried.
    taken: Option<usize>,
}

struct Stream {
    link: u64,
    sending: Option<Sending>,
    paused: bool,
    wants_writable: bool,
    releasing: bool,
    over: bool,
}

/// The streams of one worker, by slot.
pub struct Streams {
    pub buffers: Buffers,
    streams: BTreeMap<u32, Stream>,
    /// Released in this turn.
    released: Vec<u32>,
}

impl Streams {
    pub fn new(buffers: u16) -> Streams {
        let buffers = Buffers::new(buffers).expect("memory");
        Streams { buffers, streams: BTreeMap::new(), released: Vec::new() }
    }

    pub fn register(&mut self, slot: u32, link: u64) {
        let stream = Stream {
            link,
            sending: None,
            paused: false,
            wants_writable: false,
            releasing: false,
            over: false,
        };
        assert!(self.streams.insert(slot, stream).is_none(), "slot {slot} is given twice");
    }

    pub fn len(&self) -> usize {
        self.streams.len()
    }

    pub fn carry_out(&mut self, action: Action, links: &mut Links, random: &mut SplitMix64) {
        let slot = action.slot();
        // Whoever closes it has not heard yet that it was released.
        if self.released.contains(&slot) && matches!(action, Action::Close { .. }) {
            return;
        }
        let stream = self.streams.get_mut(&slot).expect("an action is for a stream that is there");
        match action {
            Action::Send { parts, .. } => {
                assert!(stream.sending.is_none(), "one send of a stream at a time");
                assert!(!parts.is_empty());
                stream.sending = Some(Sending { parts, taken: None });
            }
            Action::NotifyWritable { .. } => stream.wants_writable = true,
            Action::Pause { .. } => stream.paused = true,
            Action::Resume { .. } => stream.paused = false,
            Action::Release { .. } => stream.releasing = true,
            Action::Close { .. } => {
                let link = links.get_mut(&stream.link).expect("a stream has a link");
                // What was to be sent is tried, unless it was already.
                if let Some(sending) = &mut stream.sending
                    && sending.taken.is_none()
                    && !stream.over
                {
                    offer(sending, link, random);
                }
                link.down_ended = true;
                self.streams.remove(&slot);
            }
        }
    }

    /// What happens next, as far as chance lets it.
    pub fn turn(&mut self, links: &mut Links, random: &mut SplitMix64) -> Vec<Event> {
        let mut lists = Vec::new();
        self.released.clear();
        for (&slot, stream) in &mut self.streams {
            let link = links.get_mut(&stream.link).expect("a stream has a link");
            if stream.over {
                continue;
            }
            if link.broken {
                if random.below(2) == 0 {
                    stream.over = true;
                    stream.sending = None;
                    lists.push(VecDeque::from([Event::Failed(slot)]));
                }
                continue;
            }
            let outbound = stream.outbound(slot, link, random);
            let inbound = stream.inbound(slot, link, &self.buffers, random);
            let still = stream.sending.is_none() && outbound.is_empty() && inbound.is_empty();
            if stream.releasing && still && random.below(2) == 0 {
                self.released.push(slot);
                lists.push(VecDeque::from([Event::Released(slot, stream.link)]));
            }
            lists.extend([outbound, inbound]);
        }
        self.released.iter().for_each(|slot| drop(self.streams.remove(slot)));
        lists.retain(|list| !list.is_empty());
        let mut events = Vec::new();
        while !lists.is_empty() {
            let at = random.below(lists.len() as u64) as usize;
            events.extend(lists[at].pop_front());
            if lists[at].is_empty() {
                lists.swap_remove(at);
            }
        }
        events
    }
}

impl Stream {
    fn outbound(&mut self, slot: u32, link: &mut Link, random: &mut SplitMix64) -> VecDeque<Event> {
        let mut events = VecDeque::new();
        if let Some(mut sending) = self.sending.take() {
            let taken = match sending.taken {
                Some(taken) => taken,
                None => offer(&mut sending, link, random),
            };
            if random.below(4) > 0 {
                events.push_back(Event::Sent(slot, taken, sending.parts));
            } else {
                self.sending = Some(sending);
            }
        } else if self.wants_writable
            && !self.releasing
            && link.down.len() < link.room
            && random.below(2) == 0
        {
            self.wants_writable = false;
            events.push_back(Event::Writable(slot));
        }
        events
    }

    fn inbound(
        &mut self,
        slot: u32,
        link: &mut Link,
        buffers: &Buffers,
        random: &mut SplitMix64,
    ) -> VecDeque<Event> {
        let mut events = VecDeque::new();
        if self.paused {
            return events;
        }
        for _ in 0..random.below(4) {
            if link.up.is_empty() {
                break;
            }
            let Some(mut buffer) = buffers.take() else { return events };
            let most = link.up.len().min(BUFFER);
            let length = match random.below(4) {
                0 => most.min(1 + random.below(64) as usize),
                1 => 1 + random.below(most as u64) as usize,
                _ => most,
            };
            let piece: Vec<u8> = link.up.drain(..length).collect();
            assert_eq!(buffer.extend(&piece), length);
            events.push_back(Event::Received(slot, buffer));
        }
        if link.up.is_empty() && link.up_ended && random.below(2) == 0 {
            self.paused = true;
            events.push_back(Event::Ended(slot));
        }
        events
    }
}

/// Gives the socket what it takes.
fn offer(sending: &mut Sending, link: &mut Link, random: &mut SplitMix64) -> usize {
    // Of more parts than that the first are sent.
    let total: usize = sending.parts.iter().take(MOST_PARTS).map(|part| part.bytes().len()).sum();
    let room = if link.broken { 0 } else { link.room.saturating_sub(link.down.len()).min(total) };
    let taken = match random.below(10) {
        0 => 0,
        1 => random.below(room as u64 + 1) as usize,
        2 => room.saturating_sub(1 + random.below(8) as usize),
        _ => room,
    };
    let mut left = taken;
    for part in &sending.parts {
        let bytes = part.bytes();
        let now = left.min(bytes.len());
        link.down.extend(&bytes[..now]);
        left -= now;
    }
    sending.taken = Some(taken);
    taken
}
