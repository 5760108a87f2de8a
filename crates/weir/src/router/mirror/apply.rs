//! What the control thread does with updates of the mirror, and what it says of them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use weir_core::control::Control;
use weir_core::mirror::{Filter, MirrorLink, MirrorPort, Passes};
use weir_core::time::{Nanos, SECOND};
use weir_io::netlink::LinkInfo;
use weir_io::steer::LocalAddresses;

use super::members::Membership;
use super::{Follower, Lacking, NeighborUpdate, Update};
use crate::config::Config;
use crate::router::metrics::Mirror;
use crate::router::{Daemon, links, routed};

/// How long after a change of routes it is said which are lacking.
const SAY_AFTER: Nanos = SECOND;

/// The kernel's routes, taken over or only watched.
pub struct Routes {
    follower: Follower,
    /// Taken over; else watched, to say what is lacking.
    mirrored: bool,
    filter: Filter,
    lacking: Lacking,
    /// When it is to be said what is lacking.
    say_at: Option<Nanos>,
    /// Why everything of a family is left to the kernel, as said last.
    aside: Vec<String>,
    /// Destinations that are left to the kernel for a policy rule, as said last.
    by_rule: Vec<String>,
}

/// Which links are ports, and which of those belong to another device now than to the VRF whose table is mirrored.
pub fn mirror_links(config: &Config, links: &[LinkInfo], filter: &Filter) -> Vec<MirrorLink> {
    let wanted = filter.vrf.then_some(filter.table);
    let routed = routed::devices(config, links);
    let port_on = |link: &LinkInfo| {
        let name: Arc<str> = link.name.as_str().into();
        if routed.iter().any(|device| device.index == link.index) {
            return Some(MirrorPort { device: name.clone(), name, ethernet: false, elsewhere: None });
        }
        let port = config.ports.iter().find(|p| links::kernel_device(p) == link.name)?;
        let membership = Membership::of(link, links);
        let elsewhere =
            (membership.table() != Some(wanted)).then(|| format!("{} {membership}", link.name).into());
        Some(MirrorPort {
            name: port.name.value.as_str().into(),
            ethernet: link.ethernet,
            device: name,
            elsewhere,
        })
    };
    links.iter().map(|l| MirrorLink { index: l.index, up: l.up, port: port_on(l) }).collect()
}

impl Routes {
    pub fn new(follower: Follower, mirrored: bool, filter: Filter) -> Routes {
        Routes {
            follower,
            mirrored,
            filter,
            lacking: Lacking::default(),
            say_at: None,
            aside: Vec::new(),
            by_rule: Vec::new(),
        }
    }

    /// Takes in an update. What becomes the kernel's does so before workers forget it, and the other way round.
    pub fn take(
        &mut self,
        now: Nanos,
        update: Update,
        control: &mut Control,
        local: Option<&mut LocalAddresses>,
    ) {
        if !self.mirrored {
            self.lacking.observe(update.routes);
            self.say_at.get_or_insert(now + SAY_AFTER);
            return;
        }
        if let (Some(passes), Some(local)) = (&update.passes, local)
            && let Err(error) = local.keep(&passes.prefixes)
        {
            tracing::error!("{error}; what only the kernel can forward is dropped here");
        }
        control.set_mirrored(now, update.routes);
        for NeighborUpdate { port, address, known } in update.neighbors {
            control.kernel_neighbor(now, (&port, address), known);
        }
    }

    /// What is the kernel's, exactly; for after the tables were published.
    pub(in crate::router) fn on_published(&mut self, passes: &Passes, local: Option<&mut LocalAddresses>) {
        if let Some(Err(error)) = local.map(|local| local.set_kept(&passes.prefixes)) {
            tracing::error!("{error}; what only the kernel can forward is dropped here");
        }
        let aside: Vec<String> = passes.aside.iter().flatten().cloned().collect();
        for why in aside.iter().filter(|why| !self.aside.contains(why)) {
            tracing::warn!("{why}: every packet of this family is left to the kernel");
        }
        for why in self.aside.iter().filter(|why| !aside.contains(why)) {
            tracing::info!("no longer: {why}; this family is forwarded here again");
        }
        self.aside = aside;
        let left = |(prefix, rule): &(_, String)| format!("{rule}: {prefix} is left to the kernel");
        let by_rule: Vec<String> = passes.by_rule.iter().map(left).collect();
        for why in shown(by_rule.iter().filter(|why| !self.by_rule.contains(why))) {
            tracing::warn!("{why}");
        }
        for why in shown(self.by_rule.iter().filter(|why| !by_rule.contains(why))) {
            tracing::info!("no longer: {why}");
        }
        self.by_rule = by_rule;
    }
}

impl Daemon {
    /// News of the kernel's routes and neighbours.
    pub(in crate::router) fn on_route_updates(&mut self, now: Nanos) {
        let Some(mut routes) = self.routes.take() else { return };
        while let Ok(update) = routes.follower.updates.try_recv() {
            self.take_routes(now, &mut routes, update);
        }
        if routes.say_at.is_some_and(|at| now >= at) {
            routes.say_at = None;
            self.say_lacking(&mut routes);
        }
        self.routes = Some(routes);
    }

    pub(in crate::router) fn take_routes(&mut self, now: Nanos, routes: &mut Routes, update: Update) {
        let passes = update.passes.clone();
        if let Some(passes) = &passes {
            self.flows_keep(&passes.prefixes);
        }
        routes.take(now, update, &mut self.control, self.local.as_mut());
        self.publish();
        if let Some(passes) = passes.filter(|_| routes.mirrored) {
            routes.on_published(&passes, self.local.as_mut());
        }
    }

    fn say_lacking(&self, routes: &mut Routes) {
        let (said, changed) = routes.lacking.look(|prefix| self.control.has_prefix(prefix));
        match said {
            _ if !changed => {}
            Some(said) => tracing::warn!("{said}; {LACKING_REMEDY}"),
            None => tracing::info!("every route of the kernel is in the configuration now"),
        }
    }

    /// The configuration is another, or links are.
    pub(in crate::router) fn ports_changed(&mut self, now: Nanos) {
        let Some(routes) = &mut self.routes else { return };
        routes.follower.set_links(mirror_links(&self.config, &self.kernel.links, &routes.filter));
        routes.say_at.get_or_insert(now + SAY_AFTER);
    }

    /// Neighbours that workers need, asked of the kernel.
    pub(in crate::router) fn ask_neighbors(&mut self) {
        let Some(routes) = self.routes.as_mut().filter(|r| r.mirrored) else { return };
        for (port, address) in self.control.take_wanted() {
            let on = self.config.ports.iter().find(|p| p.name.value == port);
            let index = on.and_then(|p| links::index_of(&links::kernel_device(p), &self.kernel.links));
            let Some(index) = index else { continue };
            if let Err(error) = routes.follower.requests.resolve(index, address) {
                tracing::debug!("port {port}: the kernel does not look for {address}: {error}");
            }
        }
    }

    /// When the mirror has something to say.
    pub(in crate::router) fn routes_due(&self) -> Option<Nanos> {
        self.routes.as_ref()?.say_at
    }

    /// What `/metrics` says of the kernel's routes, where they are followed for their own sake.
    pub(in crate::router) fn mirror_metrics(&self) -> Option<Mirror> {
        let routes = self.routes.as_ref().filter(|routes| routes.mirrored)?;
        let c = &routes.follower.counters;
        let events = [
            ("route", &c.routes),
            ("overrun", &c.overruns),
            ("resync", &c.resyncs),
            ("interrupted", &c.interrupted),
            ("vanished", &c.vanished),
            ("malformed", &c.malformed),
        ];
        let events = events.map(|(event, count)| (event, count.load(Relaxed))).into();
        Some(Mirror { events, aside: routes.aside.len() })
    }

    /// What an operator should know of the kernel's routes.
    pub(in crate::router) fn route_notices(&self) -> Vec<String> {
        let Some(routes) = &self.routes else { return Vec::new() };
        let mut notices: Vec<String> =
            routes.lacking.said().map(|said| format!("{said}; {LACKING_REMEDY}")).into_iter().collect();
        notices.extend(routes.aside.iter().map(|why| format!("{why}: this family is left to the kernel")));
        notices.extend(shown(routes.by_rule.iter()));
        let counters = &routes.follower.counters;
        let overruns = counters.overruns.load(Relaxed);
        if overruns > 0 {
            notices.push(format!(
                "the kernel's messages about routes overran {overruns} times; {} dumps since, {} routes had gone without a message",
                counters.resyncs.load(Relaxed),
                counters.vanished.load(Relaxed)
            ));
        }
        let malformed = counters.malformed.load(Relaxed);
        if malformed > 0 {
            notices.push(format!("{malformed} messages of the kernel about routes were not well formed"));
        }
        notices
    }
}

/// Policy rules told one by one.
const RULES_SHOWN: usize = 20;

/// The first of them, and how many more there are.
fn shown<'a>(mut all: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut shown: Vec<String> = all.by_ref().take(RULES_SHOWN).cloned().collect();
    let more = all.count();
    shown.extend((more > 0).then(|| format!("{more} more policy rules for a destination")));
    shown
}

const LACKING_REMEDY: &str = "what goes there is answered as unreachable, not forwarded; write `routes = \"kernel\"`, or a `[[route]]` for each";
