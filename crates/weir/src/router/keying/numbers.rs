//! What the kernel's own numbers of an SA are set to, so that whoever goes on with the SA repeats none.
//!
//! ```text
//! used by weir ≤ R, reserved on disk ≤ K, the kernel's own
//!   before R grows        run_ahead    K = the R to come
//!   at a change of SAs    take_back    K is R: weir goes on with the SA; K < R: K = R
//!   a device has the SA   hand_back    the kernel goes on from K
//!   weir acts for it      fence        K = the last number there is: the kernel sends and takes nothing more
//!   workers have ended    hand_over    K is R still: K = what was used
//! ```
//!
//! Promises: K never goes back below what weir used of an SA. Refuses: setting the numbers of an SA that a device has.

use std::collections::{BTreeSet, HashMap};
use std::io;

use weir_core::control::{Control, SaView};
use weir_core::ipsec::{Direction, SaSpec};
use weir_core::keying::UsedBefore;
use weir_core::keying::fence::{self, Unfenced};
use weir_core::wire::xfrm::{self, Replay, Sa, SaKey};
use weir_io::netlink::xfrm::dump;

use super::Keys;

impl Keys {
    /// Has the kernel number its SAs above what workers get next, before they get it.
    pub(in crate::router) fn run_ahead(&mut self, control: &Control) {
        let named = self.keying.named();
        let mut requests = Vec::new();
        for (name, direction, reserved) in control.reserved_sequences() {
            // Ahead of the last number there is nothing.
            let is_behind =
                |sa: &&&Sa| self.keying.ahead(&sa.key) != Some(reserved) && !self.keying.is_fenced(&sa.key);
            let Some(sa) = named.get(name).filter(is_behind) else { continue };
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
    pub(super) fn hand_back(&mut self, sas: &[SaView], devices: &BTreeSet<u32>, routed: &BTreeSet<u32>) {
        let named = self.keying.named();
        let stays = |sa: &Sa| routed.contains(&sa.if_id) && self.keying.is_fenced(&sa.key);
        let mut requests = Vec::new();
        for view in sas.iter().filter(|view| view.draining.is_none()) {
            let goes = |sa: &&&Sa| devices.contains(&sa.if_id) && !stays(sa);
            let Some(sa) = named.get(&view.name).filter(goes) else { continue };
            if self.keying.ahead(&sa.key).is_none() && view.sequence > 0 {
                requests.extend(numbers(sa, view.direction, view.sequence));
            }
            requests.push(xfrm::expire(&sa.key, false));
        }
        requests.iter().for_each(|request| _ = self.send("an SA the kernel goes on with", request));
    }

    /// SAs of devices weir acts for are weir's alone from now on, whatever else is routed into the device.
    pub(super) fn fence(&mut self, control: &mut Control) {
        for UsedBefore { key, spec, .. } in self.keying.unfenced() {
            match self.fence_one(control, &key, &spec) {
                // Where it went its own message tells of that.
                Ok(()) => {}
                Err(why) => {
                    tracing::warn!("sa {}: {why}; key daemons are asked for another", spec.name);
                    self.keying.set_numbered(&key);
                }
            }
        }
    }

    /// Nothing is done where the kernel has no such SA any more.
    fn fence_one(&mut self, control: &mut Control, key: &SaKey, spec: &SaSpec) -> Result<(), Unfenced> {
        let failed = |e: io::Error| Unfenced::Untold(e.to_string());
        let Some(sa) = self.requests.query(key).map_err(failed)? else { return Ok(()) };
        let direction = spec.params.direction;
        let now = fence::number(&sa, direction).ok_or_else(|| Unfenced::Untold("none".into()))?;
        let last = fence::last(&sa, direction);
        // What the kernel used before somebody else's fence, an earlier weir's that was killed, nobody knows for certain.
        if now == last {
            return Err(Unfenced::UsedUp(last));
        }
        // Nobody looks at the numbers of an inbound one without a window.
        if let Some(request) = numbers(&sa, direction, last) {
            let Some((before, after)) = self.requests.around(key, &request).map_err(failed)? else {
                return Ok(());
            };
            // Of what no kernel used since weir had it, weir's own counters tell.
            let number = fence::number(&before, direction);
            let is_ours = direction == Direction::In && number.is_some_and(|n| control.has_reserved(spec, n));
            if !is_ours && !control.begin_behind(spec, fence::used(&before, &after, direction)?) {
                return Err(Unfenced::Unkept);
            }
        }
        self.keying.set_fenced(key, last);
        Ok(())
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
        for view in sas.iter().filter(|view| view.draining.is_none()) {
            let Some(sa) = named.get(&view.name) else { continue };
            if view.sequence == 0 && !self.keying.is_fenced(&sa.key) {
                continue;
            }
            let Some(replay) = theirs.get(&sa.key) else { continue };
            let there = if view.direction == Direction::Out { replay.sent } else { replay.received };
            let is_whole = !self.keying.is_fenced(&sa.key) || fence::may_go_on(sa, view.sequence);
            if there == self.keying.ahead(&sa.key).unwrap_or(0) && is_whole {
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
