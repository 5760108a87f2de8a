//! What the kernel's own numbers of an SA are set to, so that whoever goes on with the SA repeats none.
//!
//! ```text
//! used by weir ≤ R, reserved on disk ≤ K, the kernel's own
//!   before R grows        run_ahead    K = the R to come
//!   at a change of SAs    take_back    K is R: weir goes on with the SA; K < R: K = R
//!   a device has the SA   hand_back    the kernel goes on from K
//!   workers have ended    hand_over    K is R still: K = what was used
//! ```
//!
//! Promises: K never goes back below what weir used of an SA. Refuses: setting the numbers of an SA that a device has.

use std::collections::HashMap;

use weir_core::control::{Control, SaView};
use weir_core::ipsec::Direction;
use weir_core::keying::UsedBefore;
use weir_core::wire::xfrm::{self, Replay, Sa, SaKey};
use weir_io::netlink::xfrm::dump;

use super::Keys;

impl Keys {
    /// Has the kernel number its SAs above what workers get next, before they get it.
    pub(in crate::router) fn run_ahead(&mut self, control: &Control) {
        let named = self.keying.named();
        let mut requests = Vec::new();
        for (name, direction, reserved) in control.reserved_sequences() {
            let Some(sa) = named.get(name).filter(|sa| self.keying.ahead(&sa.key) != Some(reserved)) else {
                continue;
            };
            requests.extend(numbers(sa, direction, reserved).map(|request| (sa.key, reserved, request)));
        }
        self.set_numbers(requests);
    }

    fn set_numbers(&mut self, requests: Vec<(SaKey, u64, Vec<u8>)>) {
        for (key, number, request) in requests {
            if self.send("sequence numbers of an SA", &request) {
                self.keying.set_ahead(&key, number);
            }
        }
    }

    /// SAs whose numbers the kernel has from weir are taken again. One that was made again with less than weir may have used
    /// (MOBIKE, with a number read before) is not; of any such SA the kernel is to go on above that.
    pub(super) fn take_back(&mut self, control: &Control) {
        let mut behind = Vec::new();
        for used in self.keying.used_before() {
            if control.has_reserved(&used.spec, used.number) {
                self.keying.take_back(&used.key, used.number);
            } else {
                behind.push(used);
            }
        }
        behind.extend(self.keying.not_ahead());
        let mut requests = Vec::new();
        for UsedBefore { key, number, spec } in behind {
            let Some(reserved) = control.reserved_for(&spec).filter(|&reserved| reserved > number) else {
                continue;
            };
            let sa = self.keying.sa(&key).filter(|_| self.keying.ahead(&key) != Some(reserved));
            let request = sa.and_then(|sa| numbers(sa, spec.params.direction, reserved));
            requests.extend(request.map(|request| (key, reserved, request)));
        }
        self.set_numbers(requests);
    }

    /// A device has the interface id of these SAs: the kernel acts on them from now on, above what was used here. What it is
    /// ahead is refused to the peer, so key daemons are asked for others.
    pub(super) fn hand_back(&mut self, sas: &[SaView], which: impl Fn(&Sa) -> bool) {
        let named = self.keying.named();
        let mut requests = Vec::new();
        for view in sas.iter().filter(|view| view.draining.is_none()) {
            let Some(sa) = named.get(&view.name).filter(|sa| which(sa)) else { continue };
            if self.keying.ahead(&sa.key).is_none() && view.sequence > 0 {
                requests.extend(numbers(sa, view.direction, view.sequence));
            }
            requests.push(xfrm::expire(&sa.key, false));
        }
        requests.iter().for_each(|request| _ = self.send("an SA the kernel goes on with", request));
    }

    /// Workers have ended: the kernel gets the numbers that were used, where it has used none itself meanwhile.
    pub(super) fn hand_over(&mut self, sas: &[SaView]) {
        let mut theirs: HashMap<SaKey, Replay> = HashMap::new();
        let dumped = dump(|news| {
            if let xfrm::News::Sa(sa) = news {
                theirs.extend(sa.replay.map(|replay| (sa.key, replay)));
            }
        });
        if let Err(error) = dumped {
            return tracing::warn!("netlink: {error}; the kernel's SAs stay ahead of what was used");
        }
        let named = self.keying.named();
        let mut requests = Vec::new();
        for view in sas.iter().filter(|view| view.draining.is_none() && view.sequence > 0) {
            let Some(sa) = named.get(&view.name) else { continue };
            let Some(replay) = theirs.get(&sa.key) else { continue };
            let there = if view.direction == Direction::Out { replay.sent } else { replay.received };
            if there == self.keying.ahead(&sa.key).unwrap_or(0) {
                requests.extend(numbers(sa, view.direction, view.sequence));
            }
        }
        requests.iter().for_each(|request| _ = self.send("sequence numbers of an SA", request));
    }
}

/// Tells the kernel that an SA's numbers are used up to this one; none where nobody looks at them.
fn numbers(sa: &Sa, direction: Direction, number: u64) -> Option<Vec<u8>> {
    let (sent, received) = match direction {
        Direction::Out => (number, 0),
        Direction::In if sa.replay?.window == 0 => return None,
        Direction::In => (0, number),
    };
    xfrm::numbered(sa, sent, received)
}
