//! Lookups in the classifier: one flow, and a batch table by table.

use crate::ipsec::spd::rules::Order;
use crate::ipsec::spd::{Flow, PolicyIndex};
use crate::packet::BATCH;

use super::rest::Best;
use super::shape::{Address, Point};
use super::{Classifier, Effort};

/// What a batch's flows are hashed by and what was found for them; field by field.
struct Batch<A> {
    points: [Point<A>; BATCH],
    best: [Order; BATCH],
    policy: [Option<PolicyIndex>; BATCH],
    /// Where the flow stands.
    flow: [u8; BATCH],
    len: usize,
}

impl<A: Address> Classifier<A> {
    #[inline(never)]
    pub fn find(&self, source: A, destination: A, flow: &Flow) -> Option<PolicyIndex> {
        self.search(source, destination, flow).0.policy
    }

    pub fn effort(&self, source: A, destination: A, flow: &Flow) -> Effort {
        let (best, tables) = self.search(source, destination, flow);
        Effort { tables, compared: best.compared }
    }

    #[inline(always)]
    fn search(&self, source: A, destination: A, flow: &Flow) -> (Best, usize) {
        let point = Point::new(source, destination, flow);
        let mut best = Best { order: Order::MAX, policy: None, compared: 0 };
        let mut tables = 0;
        for &number in &self.sequence {
            let table = &self.tables[usize::from(number)];
            if table.best >= best.order {
                break;
            }
            tables += 1;
            let (may, at) = table.probe(table.mask.hash(&self.keys, &point));
            if may {
                let (found, asked) =
                    self.pool.walk(at, best.order, |rule| rule.matches(source, destination, flow));
                best.compared += asked;
                if let Some(entry) = found {
                    (best.order, best.policy) = (entry.order, Some(entry.rule.policy));
                }
            }
        }
        if self.rest.best() < best.order {
            self.rest.find(source, destination, flow, &mut best);
        }
        (best, tables)
    }

    /// Answers for the flows of this family; `scan` answers for those that are not regular.
    pub fn find_batch(
        &self,
        flows: &[Flow],
        found: &mut [Option<PolicyIndex>],
        is_regular: impl Fn(&Flow) -> bool,
        scan: impl Fn(A, A, &Flow) -> Option<PolicyIndex>,
    ) {
        let nothing = A::mask(0);
        let mut batch = Batch {
            points: [Point { source: nothing, destination: nothing, ports: 0, protocol: 0 }; BATCH],
            best: [Order::MAX; BATCH],
            policy: [None; BATCH],
            flow: [0; BATCH],
            len: 0,
        };
        for (n, flow) in flows.iter().enumerate() {
            let Some((source, destination)) = A::pair(flow) else { continue };
            if !is_regular(flow) {
                found[n] = scan(source, destination, flow);
                continue;
            }
            batch.points[batch.len] = Point::new(source, destination, flow);
            batch.flow[batch.len] = n as u8;
            batch.len += 1;
        }
        self.ask_tables(flows, &mut batch);
        for n in 0..batch.len {
            let flow = &flows[usize::from(batch.flow[n])];
            if self.rest.best() < batch.best[n] {
                let mut best = Best { order: batch.best[n], policy: batch.policy[n], compared: 0 };
                self.rest.find(batch.points[n].source, batch.points[n].destination, flow, &mut best);
                batch.policy[n] = best.policy;
            }
            found[usize::from(batch.flow[n])] = batch.policy[n];
        }
    }

    /// Table by table, so that loads of many packets are under way at once.
    fn ask_tables(&self, flows: &[Flow], batch: &mut Batch<A>) {
        let mut live: [u8; BATCH] = std::array::from_fn(|n| n as u8);
        let mut count = batch.len;
        let mut hits = [(0_u8, 0_u32); BATCH];
        for &number in &self.sequence {
            let table = &self.tables[usize::from(number)];
            let mut left = 0;
            for at in 0..count {
                let n = live[at];
                live[left] = n;
                left += usize::from(table.best < batch.best[usize::from(n) % BATCH]);
            }
            count = left;
            if count == 0 {
                return;
            }
            let mut hit = 0;
            for &n in &live[..count] {
                let (may, at) =
                    table.probe(table.mask.hash(&self.keys, &batch.points[usize::from(n) % BATCH]));
                hits[hit % BATCH] = (n, at);
                hit += usize::from(may);
            }
            // Nothing here waits for anything: the entries of all hits come at once.
            let mut some = 0;
            for at in 0..hit {
                let (n, first) = hits[at];
                hits[some] = (n, first);
                some += usize::from(self.pool.order(first) < batch.best[usize::from(n) % BATCH]);
            }
            for &(n, at) in &hits[..some] {
                let n = usize::from(n) % BATCH;
                let (point, flow) = (&batch.points[n], &flows[usize::from(batch.flow[n])]);
                let is = |rule: &crate::ipsec::spd::scan::Rule<A>| {
                    rule.matches(point.source, point.destination, flow)
                };
                if let (Some(entry), _) = self.pool.walk(at, batch.best[n], is) {
                    (batch.best[n], batch.policy[n]) = (entry.order, Some(entry.rule.policy));
                }
            }
        }
    }
}
