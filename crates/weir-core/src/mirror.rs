//! The kernel's routes as this router is to have them: messages of rtnetlink in, routes out.
//!
//! ```text
//! routes, hop objects, rules ─► observe ───┐                 ┌─► take_changes: prefix ─► where it leads, or gone
//! links and ports ───────► set_links ──────┼─► the best of ──┤
//! a dump, begun and ended ► resync ────────┘   each prefix   └─► take_passes: what the kernel keeps
//! ```
//!
//! Promises: a pure function of what was heard, without I/O or clock. What this router cannot do as the kernel does
//! (a next hop on an interface that is no port, encapsulation, routes by TOS or source, protocols that are filtered out, policy
//! rules) is left to the kernel with its reason ([`Why`]), never guessed. Of several routes of a prefix the one
//! decides that decides in the kernel. A destination that a policy rule names is the kernel's with all that lies in it. Routes that vanish without a message go by what is known (link down, next-hop
//! object deleted) and at the next [`Mirror::end_resync`].
//!
//! Refuses: more than one table: the local table, then the one that is mirrored, which may be a VRF's. What a VRF's table lacks
//! is left to the kernel, whose rules go on to other tables. Of a table that another rule leads to, prefixes are known and are the
//! kernel's; an empty one, as strongSwan's 220 often is, changes nothing.

mod best;
mod passes;
mod rules;
mod tables;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

pub use best::{Outcome, Why};
pub use passes::{PASSES_MAX, Passes};

use best::{Action, Vias};
use passes::{Kept, everything};
use tables::OtherTables;

use crate::route::Prefix;
use crate::state::unroutable;
use crate::wire::rtnetlink::{
    Change, News, NextHopKind, Protocol, Route, RouteKind, Rule, TABLE_LOCAL, TABLE_MAIN,
};

/// Which routes are mirrored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    pub table: u32,
    /// The table is that of the VRF every port belongs to.
    pub vrf: bool,
    /// None: those of every protocol.
    pub protocols: Option<BTreeSet<Protocol>>,
    /// Families (IPv4, IPv6) the kernel does not forward: they are left to it.
    pub off: [bool; 2],
    /// Prefixes there is room for; when the kernel has more, everything is left to it.
    pub most: usize,
}

impl Default for Filter {
    fn default() -> Self {
        Filter { table: TABLE_MAIN, vrf: false, protocols: None, off: [false; 2], most: usize::MAX }
    }
}

impl Filter {
    fn takes(&self, protocol: Protocol) -> bool {
        self.protocols.as_ref().is_none_or(|all| all.contains(&protocol))
    }
}

/// A link of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorLink {
    pub index: u32,
    /// Administratively up: routes of a link that goes down vanish without a message.
    pub up: bool,
    /// The port it is, if it is one.
    pub port: Option<MirrorPort>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPort {
    pub name: Arc<str>,
    /// Has neighbours: a next hop without gateway is one of them.
    pub ethernet: bool,
    /// The kernel's name of it, which policy rules have.
    pub device: Arc<str>,
    /// Why its packets are looked up elsewhere than in the table mirrored: it has been put into a bridge, bond or VRF.
    pub elsewhere: Option<Arc<str>>,
}

/// Where a prefix leads in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelRoute {
    pub outcome: Outcome,
    pub protocol: Protocol,
}

/// One route of a prefix.
#[derive(Clone, Copy, Debug)]
struct Entry {
    local: bool,
    tos: u8,
    priority: u32,
    protocol: Protocol,
    via: u32,
    /// Number of the last resynchronisation that named it.
    epoch: u8,
}

impl Entry {
    /// What the kernel orders the routes of a prefix by.
    fn key(&self) -> (bool, u32, u8) {
        (!self.local, self.priority, self.tos)
    }
}

/// The routes of a prefix, the best first. Nearly every prefix has one.
#[derive(Clone, Debug)]
enum Bucket {
    One(Entry),
    Several(Vec<Entry>),
}

impl Bucket {
    fn entries(&self) -> &[Entry] {
        match self {
            Bucket::One(entry) => std::slice::from_ref(entry),
            Bucket::Several(entries) => entries,
        }
    }

    fn of(mut entries: Vec<Entry>) -> Option<Bucket> {
        match entries.len() {
            0 => None,
            1 => entries.pop().map(Bucket::One),
            _ => Some(Bucket::Several(entries)),
        }
    }
}

/// Everything heard of the kernel's routes.
#[derive(Debug)]
pub struct Mirror {
    filter: Filter,
    links: HashMap<u32, MirrorLink>,
    vias: Vias,
    routes: BTreeMap<Prefix, Bucket>,
    objects: HashMap<u32, (NextHopKind, u8)>,
    /// Which of the objects are groups.
    groups: HashSet<u32>,
    rules: Vec<(Rule, u8)>,
    /// Tables that rules lead to, besides those mirrored.
    others: OtherTables,
    changed: BTreeSet<Prefix>,
    /// Actions that lead elsewhere: what takes them changed, looked up once for all of them.
    rerouted: HashSet<u32>,
    /// Prefixes that are the kernel's, as told last.
    kept: Kept,
    kept_changed: bool,
    /// A prefix found no room: now, and since the last dump began.
    full: [bool; 2],
    /// Destinations that policy rules name, with the rule.
    by_rule: BTreeMap<Prefix, String>,
    /// The same, to look up what lies in them.
    ruled: Kept,
    /// Holds for IPv4 and IPv6 why the whole family is left to the kernel, if it is.
    aside: [Option<String>; 2],
    epoch: u8,
}

/// How many routes were heard of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub prefixes: usize,
    pub left_to_kernel: usize,
    pub objects: usize,
}

impl Mirror {
    pub fn new(filter: Filter) -> Mirror {
        Mirror {
            links: HashMap::new(),
            vias: Vias::default(),
            routes: BTreeMap::new(),
            objects: HashMap::new(),
            groups: HashSet::new(),
            rerouted: HashSet::new(),
            rules: Vec::new(),
            others: OtherTables::default(),
            // Not having a default route is something to tell of a VRF.
            changed: everything().into_iter().filter(|_| filter.vrf).collect(),
            filter,
            kept: Kept::default(),
            kept_changed: true,
            full: [false; 2],
            by_rule: BTreeMap::new(),
            ruled: Kept::default(),
            aside: [None, None],
            epoch: 0,
        }
    }

    /// Which links there are, and which of them are ports. True where routes may have vanished without a message.
    pub fn set_links(&mut self, links: Vec<MirrorLink>) -> bool {
        let next: HashMap<u32, MirrorLink> = links.into_iter().map(|l| (l.index, l)).collect();
        if next == self.links {
            return false;
        }
        let up = |l: &MirrorLink| l.up;
        let lost = self.links.values().any(|was| up(was) && !next.get(&was.index).is_some_and(up));
        self.links = next;
        self.classify_again();
        // Other devices are ports, so other rules may concern them.
        let unknown = self.follow_tables();
        self.classify_rules();
        lost || unknown
    }

    /// Links and next-hop objects are others now: what leads by them is looked at again.
    fn classify_again(&mut self) {
        self.rerouted.extend(self.vias.classify_all(&self.links, &self.objects));
    }

    /// One next-hop object is another now: so are the groups it is in.
    fn classify_object(&mut self, id: u32) {
        let holds = |group: &&u32| match self.objects.get(group) {
            Some((NextHopKind::Group(members), _)) => members.iter().any(|(member, _)| *member == id),
            _ => false,
        };
        let affected: Vec<u32> = self.groups.iter().filter(holds).copied().chain([id]).collect();
        for object in affected {
            self.rerouted.extend(self.vias.classify_object(object, &self.links, &self.objects));
        }
    }

    /// Takes in what the kernel says. True where routes may have vanished without a message of their own.
    pub fn observe(&mut self, news: News) -> bool {
        match news {
            News::Route(change, route) => self.observe_route(change, route),
            News::NextHop(Change::Deleted, object) => {
                let known = self.objects.remove(&object.id).is_some();
                self.classify_object(object.id);
                self.groups.remove(&object.id);
                return known;
            }
            News::NextHop(_, object) => {
                if matches!(object.what, NextHopKind::Group(_)) {
                    self.groups.insert(object.id);
                } else {
                    self.groups.remove(&object.id);
                }
                let before = self.objects.insert(object.id, (object.what, self.epoch));
                if before.is_none_or(|b| b.0 != self.objects[&object.id].0) {
                    self.classify_object(object.id);
                }
            }
            News::Rule(change, rule) => return self.observe_rule(change, rule),
            News::Neighbor(..) | News::Other => {}
        }
        false
    }

    /// True where it leads to a table whose routes were not heard.
    fn observe_rule(&mut self, change: Change, rule: Rule) -> bool {
        let known = self.rules.iter().position(|r| r.0 == rule);
        match (change, known) {
            (Change::Deleted, Some(at)) => _ = self.rules.remove(at),
            (Change::Deleted, None) => {}
            (_, Some(at)) => self.rules[at].1 = self.epoch,
            (_, None) => self.rules.push((rule, self.epoch)),
        }
        let unknown = self.follow_tables();
        self.classify_rules();
        unknown
    }

    /// Follows the tables that rules lead to now. True where the routes of one were not heard.
    fn follow_tables(&mut self) -> bool {
        let ports = self.links.values().filter_map(|l| l.port.as_ref());
        let devices: Vec<&str> = ports.map(|p| &*p.device).collect();
        let of = |v4| self.rules.iter().map(|r| &r.0).filter(|r| r.v4 == v4).collect::<Vec<&Rule>>();
        let mut wanted = rules::other_tables(&of(true), &self.filter, &devices);
        wanted.append(&mut rules::other_tables(&of(false), &self.filter, &devices));
        let vias = &mut self.vias;
        self.others.follow(&wanted, |entry| vias.release(entry.via))
    }

    fn classify_rules(&mut self) {
        let ports = || self.links.values().filter_map(|l| l.port.as_ref());
        // By name, so that the one said stays the same.
        let elsewhere = ports().filter_map(|p| p.elsewhere.as_ref()).min();
        let devices: Vec<&str> = ports().map(|p| &*p.device).collect();
        let mut by_rule = BTreeMap::new();
        let aside = [true, false].map(|v4| {
            let family = if v4 { "IPv4" } else { "IPv6" };
            if self.filter.off[usize::from(!v4)] {
                return Some(format!("{family} forwarding is off in the kernel"));
            }
            if self.full[0] {
                let most = self.filter.most;
                return Some(format!(
                    "{family}: the kernel has more than {most} prefixes, for which there is room"
                ));
            }
            if let Some(why) = elsewhere {
                return Some(format!("{family}: {why}"));
            }
            let of_family: Vec<&Rule> = self.rules.iter().map(|r| &r.0).filter(|r| r.v4 == v4).collect();
            let rules::Departures { whole, mut to } =
                rules::departures(&of_family, &self.filter, &devices, &self.others);
            by_rule.append(&mut to);
            whole.map(|why| if why.starts_with(family) { why } else { format!("{family}: {why}") })
        });
        if aside != self.aside {
            self.aside = aside;
            self.kept_changed = true;
        }
        self.set_by_rule(by_rule);
    }

    /// What lies in a destination that is named now and was not, or the other way round, leads elsewhere.
    fn set_by_rule(&mut self, by_rule: BTreeMap<Prefix, String>) {
        if by_rule == self.by_rule {
            return;
        }
        let before = std::mem::replace(&mut self.by_rule, by_rule);
        let differs = |p: &&Prefix| before.contains_key(*p) != self.by_rule.contains_key(*p);
        for &prefix in before.keys().chain(self.by_rule.keys()).filter(differs) {
            let inside = self.routes.range(prefix..).map(|(p, _)| *p);
            self.changed.extend(inside.take_while(|p| passes::contains(prefix, *p)));
            self.changed.insert(prefix);
        }
        self.ruled = Kept::default();
        self.by_rule.keys().for_each(|&prefix| _ = self.ruled.insert(prefix));
        self.kept_changed = true;
    }

    fn observe_route(&mut self, change: Change, route: Route) {
        if route.cloned || unroutable(route.prefix).is_some() {
            return;
        }
        let prefix = route.prefix;
        if route.table != TABLE_LOCAL && route.table != self.filter.table {
            return self.observe_other(change, route);
        }
        if change != Change::Deleted
            && self.routes.len() >= self.filter.most
            && !self.routes.contains_key(&prefix)
        {
            let before = std::mem::replace(&mut self.full, [true; 2]);
            if !before[0] {
                self.classify_rules();
            }
            return;
        }
        let mut entries = self.routes.get(&prefix).map_or(Vec::new(), |b| b.entries().to_vec());
        self.change_entries(&mut entries, change, route);
        match Bucket::of(entries) {
            Some(bucket) => _ = self.routes.insert(prefix, bucket),
            None => _ = self.routes.remove(&prefix),
        }
        self.changed.insert(prefix);
    }

    /// A route of a table that is not mirrored: of one that a rule leads to it is known which prefixes it has.
    fn observe_other(&mut self, change: Change, route: Route) {
        let (table, prefix) = (route.table, route.prefix);
        if !self.others.follows(table) {
            return;
        }
        if let Some(mut entries) = self.others.entries(table, prefix) {
            let before = entries.is_empty();
            self.change_entries(&mut entries, change, route);
            let after = entries.is_empty();
            self.others.set(table, prefix, entries);
            if before == after {
                return;
            }
        }
        self.classify_rules();
    }

    /// The routes of a prefix with what a message says of one of them.
    fn change_entries(&mut self, entries: &mut Vec<Entry>, change: Change, route: Route) {
        let (local, v6) = (route.table == TABLE_LOCAL, route.prefix.addr().is_ipv6());
        let (tos, priority, protocol) = (route.tos, route.priority, route.protocol);
        let action = self.action(route);
        if change == Change::Deleted {
            self.forget(entries, (!local, priority, tos), &action, v6);
        } else {
            let via = self.vias.acquire(action, &self.links, &self.objects);
            let entry = Entry { local, tos, priority, protocol, via, epoch: self.epoch };
            self.remember(entries, entry, change, v6);
        }
    }

    /// What a route does, as this router sees it.
    fn action(&self, route: Route) -> Action {
        match route.kind {
            _ if route.table == TABLE_LOCAL || route.kind == RouteKind::Local => Action::Keep(Why::Local),
            _ if !self.filter.takes(route.protocol) => Action::Keep(Why::Filtered(route.protocol)),
            _ if route.tos != 0 => Action::Keep(Why::Tos),
            _ if route.from_source => Action::Keep(Why::Source),
            RouteKind::Blackhole => Action::Discard(RouteKind::Blackhole),
            RouteKind::Unreachable => Action::Discard(RouteKind::Unreachable),
            RouteKind::Prohibit => Action::Discard(RouteKind::Prohibit),
            RouteKind::Throw => Action::Keep(Why::Throw),
            RouteKind::Unicast => match route.object {
                Some(id) => Action::Object(id),
                None => Action::Hops(route.hops),
            },
            RouteKind::Local | RouteKind::Unknown(_) => Action::Keep(Why::Kind),
        }
    }

    fn remember(&mut self, entries: &mut Vec<Entry>, entry: Entry, change: Change, v6: bool) {
        let key = entry.key();
        // IPv6 tells of a route with all its next hops, however few of them are new; IPv4 of each route by itself.
        let replaced = |all: &Vias, e: &Entry| {
            e.key() == key && (e.via == entry.via || (v6 && all.is_part(e.via, entry.via)))
        };
        let mut first = entries.iter().position(|e| e.key() >= key).unwrap_or(entries.len());
        if change == Change::Replaced && entries.get(first).is_some_and(|e| e.key() == key) {
            self.vias.release(entries.remove(first).via);
        }
        let mut at = None;
        let mut index = 0;
        entries.retain(|e| {
            let goes = replaced(&self.vias, e);
            if goes {
                at.get_or_insert(index);
                self.vias.release(e.via);
            } else {
                index += 1;
            }
            !goes
        });
        first = first.min(entries.len());
        let behind = entries.iter().rposition(|e| e.key() <= key).map_or(0, |at| at + 1);
        let at = at.unwrap_or(if change == Change::Appended { behind } else { first });
        entries.insert(at.min(entries.len()), entry);
    }

    fn forget(&mut self, entries: &mut Vec<Entry>, key: (bool, u32, u8), action: &Action, v6: bool) {
        // The flags of a next hop may have changed since it was told.
        let exact = |e: &Entry| self.vias.action(e.via) == Some(action);
        let alike = |e: &Entry| self.vias.is_alike(e.via, action);
        let of_key =
            |classify: &dyn Fn(&Entry) -> bool| entries.iter().position(|e| e.key() == key && classify(e));
        if let Some(at) = of_key(&exact).or_else(|| of_key(&alike)) {
            self.vias.release(entries.remove(at).via);
            return;
        }
        let (true, Action::Hops(gone)) = (v6, action) else { return };
        // IPv6 tells of a next hop that leaves a route of several as of a route of one.
        let part = |e: &Entry| self.vias.without(e.via, gone).is_some();
        let Some(at) = of_key(&part) else { return };
        let before = entries[at].via;
        let left = self.vias.without(before, gone).unwrap_or_default();
        entries[at].via = self.vias.acquire(Action::Hops(left), &self.links, &self.objects);
        self.vias.release(before);
    }

    /// A dump begins: what neither it nor a later message tells of is gone at its end.
    pub fn begin_resync(&mut self) {
        self.epoch = self.epoch.wrapping_add(1);
        self.full[1] = false;
        self.others.begin_resync();
    }

    /// The dump has ended: what it did not tell of is gone. Returns how many routes that were.
    pub fn end_resync(&mut self) -> usize {
        let epoch = self.epoch;
        let (mut gone, mut touched) = (0, Vec::new());
        let vias = &mut self.vias;
        self.routes.retain(|prefix, bucket| {
            if bucket.entries().iter().all(|e| e.epoch == epoch) {
                return true;
            }
            let (kept, lost): (Vec<Entry>, Vec<Entry>) =
                bucket.entries().iter().partition(|e| e.epoch == epoch);
            lost.iter().for_each(|e| vias.release(e.via));
            gone += lost.len();
            touched.push(*prefix);
            Bucket::of(kept).map(|kept| *bucket = kept).is_some()
        });
        self.changed.extend(touched);
        self.others.end_resync(epoch, |entry| vias.release(entry.via));
        let objects = self.objects.len();
        self.objects.retain(|_, object| object.1 == epoch);
        if self.objects.len() != objects {
            self.groups.retain(|id| self.objects.contains_key(id));
            self.classify_again();
        }
        self.rules.retain(|rule| rule.1 == epoch);
        self.follow_tables();
        self.full[0] = self.full[1];
        self.classify_rules();
        gone
    }

    /// Prefixes whose route is another now, in order, each with where it leads.
    pub fn take_changes(&mut self) -> Vec<(Prefix, Option<KernelRoute>)> {
        let (mut changed, rerouted) = (std::mem::take(&mut self.changed), std::mem::take(&mut self.rerouted));
        if !rerouted.is_empty() {
            let leads = |bucket: &Bucket| bucket.entries().iter().any(|e| rerouted.contains(&e.via));
            changed.extend(self.routes.iter().filter(|(_, bucket)| leads(bucket)).map(|(prefix, _)| *prefix));
        }
        let mut told = Vec::with_capacity(changed.len());
        for prefix in changed {
            let route = self.best(prefix);
            let keeps = matches!(&route, Some(KernelRoute { outcome: Outcome::Kernel(_), .. }));
            let differs = if keeps { self.kept.insert(prefix) } else { self.kept.remove(prefix) };
            self.kept_changed |= differs || self.kept.covers(prefix);
            told.push((prefix, route));
        }
        told
    }

    /// Where a prefix leads.
    fn best(&self, prefix: Prefix) -> Option<KernelRoute> {
        let route = self.best_of_table(prefix);
        let named = self.ruled.contains(prefix);
        let ruled = named || self.ruled.covers(prefix);
        match route {
            Some(KernelRoute { outcome: Outcome::Via(_), protocol }) if ruled => {
                Some(KernelRoute { outcome: Outcome::Kernel(Why::InRule), protocol })
            }
            None if named => {
                Some(KernelRoute { outcome: Outcome::Kernel(Why::Rule), protocol: Protocol::KERNEL })
            }
            route => route,
        }
    }

    fn best_of_table(&self, prefix: Prefix) -> Option<KernelRoute> {
        let Some(bucket) = self.routes.get(&prefix) else {
            let outcome = Outcome::Kernel(Why::LackingInVrf);
            let leads = self.filter.vrf && prefix.len() == 0;
            return leads.then_some(KernelRoute { outcome, protocol: Protocol::KERNEL });
        };
        let entries = bucket.entries();
        let told = |e: &Entry| {
            let outcome = self.vias.outcome(e.via)?;
            Some(KernelRoute { outcome: outcome.clone(), protocol: e.protocol })
        };
        // Whether a packet takes a route by TOS or source is the kernel's to find out.
        let by_packet =
            |e: &&Entry| matches!(self.vias.outcome(e.via), Some(Outcome::Kernel(Why::Tos | Why::Source)));
        entries
            .iter()
            .find(by_packet)
            .or_else(|| entries.iter().find(|e| self.vias.outcome(e.via).is_some()))
            .and_then(told)
    }

    /// What is the kernel's, if that changed since the last call.
    pub fn take_passes(&mut self) -> Option<Passes> {
        if !std::mem::take(&mut self.kept_changed) {
            return None;
        }
        let passes = passes::passes(&self.routes, (&self.kept, &self.ruled), &self.aside);
        let by_rule = self.by_rule.iter().map(|(prefix, rule)| (*prefix, rule.clone())).collect();
        Some(Passes { by_rule, ..passes })
    }

    /// Every prefix there is with where it leads, for who begins to follow.
    pub fn all(&self) -> impl Iterator<Item = (Prefix, KernelRoute)> {
        let lacking = everything().into_iter().chain(self.by_rule.keys().copied());
        let lacking = lacking.filter(|all| !self.routes.contains_key(all));
        let there = self.routes.keys().copied();
        lacking.chain(there).filter_map(|prefix| Some((prefix, self.best(prefix)?)))
    }

    /// Why everything of a family is left to the kernel.
    pub fn aside(&self) -> impl Iterator<Item = &str> {
        self.aside.iter().flatten().map(String::as_str)
    }

    /// Whether everything is left to the kernel for want of room, and there is room: another dump tells whether it fits.
    pub fn may_fit_again(&self) -> bool {
        self.full[0] && self.routes.len() < self.filter.most
    }

    /// Destinations that are left to the kernel for a policy rule, with the rule.
    pub fn by_rule(&self) -> impl Iterator<Item = (Prefix, &str)> {
        self.by_rule.iter().map(|(prefix, rule)| (*prefix, rule.as_str()))
    }

    pub fn counts(&self) -> Counts {
        Counts { prefixes: self.routes.len(), left_to_kernel: self.kept.len(), objects: self.objects.len() }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} prefixes, {} of them left to the kernel, {} next-hop objects",
            self.prefixes, self.left_to_kernel, self.objects
        )
    }
}
