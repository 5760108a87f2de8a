//! From the file's lists to named configurations, pairs and baselines.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use weir_io::cpu::{SYSFS, Topology as Machine, parse_list};

use super::answer::AnswerSpec;
use super::error::{ConfigurationError, CpusError, ExperimentError, PairsError, Refused};
use super::file::{
    AutoOrLeave, Axis, BuildName, ConnectionPackets, Cpus, File, Flows, Frame, Many, Moderation, Netem,
    OffOrAuto, Offload, Pace, Port, Queues, Quick, Routes, Shape, Slices, WakeUp, Xdp, ZeroCopy, netem_label,
};
use super::hosts::{Commands, Hosts};
use super::ipsec;
use super::method::Written;
use super::placement;
use super::relay;
use super::{Experiment, Metric, Planned};
use crate::method::Method;
use crate::model::configuration::PlacementKeys;
use crate::model::invalid::{Invalid, IpsecError};
use crate::model::{Configuration, Family, FrameSize, Keys, Sut, Topology, Workload, kebab};
use weir_stats::search::Rate;

/// Smoke values of a file without `[quick]`: long enough to pass every line of code.
const QUICK_RUNS: usize = 3;
const QUICK_WARM_UP_MS: u64 = 10;
const QUICK_WINDOW_MS: u64 = 40;
const QUICK_PROFILES: usize = 1;
const QUICK_SLICES: usize = 3;

/// What the field's campaigns use, and what stands where a file says nothing.
const FRAME: FrameSize = FrameSize::Fixed(64);
const FLOWS: u32 = 2000;
const ROUTES: u32 = 1000;

/// Says where in the file what is wrong stands.
pub type Locate<'a> = &'a dyn Fn(Range<usize>, ExperimentError) -> Refused;

/// One configuration on the way, with the text of every axis.
#[derive(Clone)]
pub struct Partial {
    pub draft: Keys,
    /// Why it cannot run on this machine, as far as the file shows it.
    missing: Option<String>,
    labels: Vec<(Axis, String)>,
    /// Axes that are lists, in the order of [`Axis::ALL`].
    listed: Vec<Axis>,
}

impl Partial {
    pub fn is_relay(&self) -> bool {
        self.draft.topology == Topology::Relay
    }
}

pub fn expand(name: &str, file: File, quick: bool, locate: Locate<'_>) -> Result<Experiment, Refused> {
    let mut partials: Vec<Partial> = Vec::new();
    let mut names = BTreeSet::new();
    let mut commands = BTreeMap::new();
    let mut configurations: Vec<Planned> = Vec::new();
    let hosts = hosts(&file, locate)?;
    for shape in &file.configuration {
        let command = shape.as_ref().command.as_ref().or(file.defaults.command.as_ref());
        let all = spread(shape.as_ref(), &file.defaults, quick.then_some(&file.quick));
        let refused = |name: Option<&str>, error: ConfigurationError| {
            locate(shape.span(), ExperimentError::Configuration { name: name.map(str::to_string), error })
        };
        for partial in all.map_err(|e| refused(None, ConfigurationError::Invalid(Invalid::Ipsec(e))))? {
            let name = partial.draft.name.clone();
            if name.is_empty() || name.contains(['/', '\0', '\n']) || name.starts_with('.') {
                return Err(refused(None, ConfigurationError::FileName { got: name }));
            }
            if !names.insert(name.clone()) {
                let listed = partial.listed;
                return Err(refused(None, ConfigurationError::SameName { name, listed }));
            }
            let configuration = Configuration::try_from(partial.draft.clone());
            let configuration =
                configuration.map_err(|e| refused(Some(&name), ConfigurationError::Invalid(e)))?;
            let mut planned = Planned { configuration, missing: partial.missing.clone() };
            let own = remote(&mut planned, hosts.as_ref(), command);
            commands.extend(own.map_err(|e| locate(shape.span(), e))?.map(|own| (name, own)));
            configurations.push(planned);
            partials.push(partial);
        }
    }
    let pairs = pairs(&file, &partials, quick, locate)?;
    let axis = file.axis.or_else(|| numeric_axis(&partials));
    if file.baseline {
        let baselines = baselines(&configurations);
        configurations.extend(baselines);
    }
    let window_ms =
        if quick { file.quick.window.as_ref().map_or(QUICK_WINDOW_MS, |m| m.0) } else { file.window.0 };
    let method = method(file.method, file.quick.method, quick, window_ms, locate)?;
    refuse_or_skip(&method, &mut configurations)?;
    let cut_at = file.slices.as_ref().map_or(0..0, Spanned::span);
    let experiment = Experiment {
        name: name.into(),
        title: file.title,
        question: file.question,
        metric: Metric(file.metric.map_or(method.metric().into(), |m| m.0)),
        method,
        runs: if quick { file.quick.runs.map_or(QUICK_RUNS, |r| r.0) } else { file.runs.0 },
        warm_up_ms: if quick { file.quick.warm_up.map_or(QUICK_WARM_UP_MS, |m| m.0) } else { file.warm_up.0 },
        window_ms,
        slices: slices(file.slices, file.quick.slices, quick),
        margin_percent: file.margin_percent.0,
        analysis: file.analysis,
        profile: file.profile.map_or(0, |p| if quick { p.0.min(QUICK_PROFILES) } else { p.0 }),
        quick,
        axis,
        answers: answers(file.answer, (!quick).then_some(&configurations), &pairs, locate)?,
        pairs,
        controls: Vec::new(),
        configurations,
        hosts,
        commands,
    };
    experiment.refuse_slices().map_err(|e| locate(cut_at, ExperimentError::Slices(e)))?;
    Ok(experiment)
}

/// Smoke values may leave out configurations that an answer is about: then it is not held against them.
fn answers(
    written: Vec<Spanned<AnswerSpec>>,
    configurations: Option<&Vec<Planned>>,
    pairs: &[(String, String)],
    locate: Locate<'_>,
) -> Result<Vec<AnswerSpec>, Refused> {
    let names: Option<Vec<&str>> =
        configurations.map(|all| all.iter().map(|p| p.configuration.name.as_str()).collect());
    let each = |said: Spanned<AnswerSpec>| {
        let at = said.span();
        let said = said
            .into_inner()
            .resolve()
            .and_then(|said| names.as_ref().map_or(Ok(()), |names| said.check(names, pairs)).map(|()| said));
        said.map_err(|e| locate(at, ExperimentError::Answer(e)))
    };
    written.into_iter().map(each).collect()
}

fn slices(written: Option<Spanned<Slices>>, smoke: Option<Slices>, quick: bool) -> Option<usize> {
    let whole = written?.into_inner().0;
    Some(if quick { smoke.map_or(whole.min(QUICK_SLICES), |s| s.0) } else { whole })
}

fn method(
    written: Option<Spanned<Written>>,
    quick: Option<Written>,
    is_quick: bool,
    window_ms: u64,
    locate: Locate<'_>,
) -> Result<Method, Refused> {
    let Some(written) = written else { return Ok(Method::default()) };
    let at = written.span();
    let resolved = written.into_inner().resolve(quick, is_quick, window_ms);
    resolved.map_err(|e| locate(at, ExperimentError::Method(e)))
}

/// Rates and methods that contradict each other are refused; what a topology cannot show is skipped by name.
fn refuse_or_skip(method: &Method, configurations: &mut [Planned]) -> Result<(), Refused> {
    for planned in configurations {
        let c = &planned.configuration;
        let refused =
            |error| Err(ExperimentError::Configuration { name: Some(c.name.clone()), error }.into());
        let flat_out = c.workload.rate == Rate::FlatOut;
        if *method == Method::Fixed && flat_out {
            return refused(ConfigurationError::NoRate);
        }
        if method.is_search() && !flat_out {
            return refused(ConfigurationError::RateOfSearch);
        }
        if method.is_search() && c.relay().is_some_and(|relay| relay.stalled > 0) {
            return refused(ConfigurationError::StalledInSearch);
        }
        let in_memory = c.topology() == Topology::Memory;
        let lacks = match method {
            Method::BackToBack { .. } => {
                "back-to-back: the memory topology has no queue that a burst could fill"
            }
            Method::Latency { .. } => "latency: frames of the memory topology carry no time",
            _ => continue,
        };
        if in_memory && planned.missing.is_none() {
            planned.missing = Some(format!("{lacks}; use topology = \"netns\""));
        }
    }
    Ok(())
}

fn hosts(file: &File, locate: Locate<'_>) -> Result<Option<Hosts>, Refused> {
    let Some(hosts) = &file.hosts else { return Ok(None) };
    hosts.as_ref().check().map_err(|e| locate(hosts.span(), e))?;
    Ok(Some(hosts.as_ref().clone()))
}

/// What a configuration needs beside this machine: hosts, and commands if they are its SUT.
fn remote(
    planned: &mut Planned,
    hosts: Option<&Hosts>,
    command: Option<&Commands>,
) -> Result<Option<Commands>, ExperimentError> {
    let c = &planned.configuration;
    let refused = |error| ExperimentError::Configuration { name: Some(c.name.clone()), error };
    if c.topology() == Topology::Ssh {
        let hosts = hosts.ok_or_else(|| refused(ConfigurationError::NoHosts))?;
        if hosts.receiver.is_none() && c.relay().is_none() {
            return Err(refused(ConfigurationError::NoReceiver));
        }
        planned.missing = planned.missing.take().or_else(|| hosts.placeholder());
    }
    match (c.sut(), command) {
        (Sut::Command, None) => Err(refused(ConfigurationError::NoCommand)),
        (Sut::Command, Some(command)) => {
            command.check().map_err(ExperimentError::Command)?;
            Ok(Some(command.clone()))
        }
        _ => Ok(None),
    }
}

/// The value of a key: the configuration's, the defaults', or the built-in; smoke values replace lists by
/// what they give and single values by single values.
pub fn chosen<T: Clone>(
    shape: &Option<Many<T>>,
    defaults: &Option<Many<T>>,
    quick: Option<&Many<T>>,
    or: T,
) -> Many<T> {
    let value = shape.clone().or_else(|| defaults.clone()).unwrap_or(Many::One(or));
    match quick {
        Some(smoke) if value.is_list() || !smoke.is_list() => smoke.clone(),
        _ => value,
    }
}

fn spread(shape: &Shape, defaults: &Shape, quick: Option<&Quick>) -> Result<Vec<Partial>, IpsecError> {
    let blank = Keys {
        name: String::new(),
        sut: Sut::Weir,
        topology: Topology::Memory,
        workload: Workload { family: Family::Inet, frame: FRAME, flows: FLOWS, rate: Rate::FlatOut },
        routes: ROUTES,
        placement: PlacementKeys::default(),
        ipsec: None,
        build: None,
        relay: None,
        firewall: None,
        connection_packets: None,
    };
    let start = Partial { draft: blank, missing: None, labels: Vec::new(), listed: Vec::new() };
    let (s, d) = (shape, defaults);
    let all = vec![start];
    let all = over(all, Axis::Sut, chosen(&s.sut, &d.sut, None, Sut::Weir), kebab, |p, v| p.draft.sut = v);
    let all =
        over(all, Axis::Topology, chosen(&s.topology, &d.topology, None, Topology::Memory), kebab, |p, v| {
            p.draft.topology = v
        });
    let all = over(all, Axis::Family, chosen(&s.family, &d.family, None, Family::Inet), kebab, |p, v| {
        p.draft.workload.family = v
    });
    let frames = chosen(&s.frame, &d.frame, quick.and_then(|q| q.frame.as_ref()), Frame(FRAME));
    let all = over(all, Axis::Frame, frames, |f| frame_label(f.0), |p, v| p.draft.workload.frame = v.0);
    let flows = chosen(&s.flows, &d.flows, quick.and_then(|q| q.flows.as_ref()), Flows(FLOWS));
    let all = over(all, Axis::Flows, flows, |f| f.0.to_string(), |p, v| p.draft.workload.flows = v.0);
    let routes = chosen(&s.routes, &d.routes, quick.and_then(|q| q.routes.as_ref()), Routes(ROUTES));
    let all = over(all, Axis::Routes, routes, |r| r.0.to_string(), |p, v| p.draft.routes = v.0);
    let rates = chosen(&s.rate, &d.rate, quick.and_then(|q| q.rate.as_ref()), Pace(Rate::FlatOut));
    let all = over(all, Axis::Rate, rates, |r| rate_label(r.0), |p, v| p.draft.workload.rate = v.0);
    let all = placed(all, shape, defaults);
    let ports = chosen(&s.port, &d.port, None, Port(String::new()));
    let all = over(all, Axis::Port, ports, |p| p.0.clone(), |p, v| p.draft.placement.port = v.0);
    let all = driven(all, shape, defaults);
    let all = built(all, shape, defaults);
    let all = relay::spread(all, shape, defaults);
    let mut all = ipsec::spread(all, shape, defaults, quick.and_then(|q| q.ipsec.as_ref()))?;
    for partial in &mut all {
        partial.draft.name = name(shape.name.as_deref(), partial);
    }
    Ok(all)
}

/// Expands by each choice of CPUs.
fn placed(all: Vec<Partial>, s: &Shape, d: &Shape) -> Vec<Partial> {
    let machine = Machine::read(Path::new(SYSFS)).unwrap_or(Machine { cpus: Vec::new() });
    let none = None::<&Many<Cpus>>;
    let default = || Cpus("default".into());
    let all = over(
        all,
        Axis::Cpus,
        chosen(&s.cpus, &d.cpus, none, default()),
        |c| c.0.clone(),
        |p, v| {
            p.draft.placement.cpus = place_on(&v.0, &machine, p);
        },
    );
    let cpus = chosen(&s.generator_cpus, &d.generator_cpus, none, default());
    over(
        all,
        Axis::GeneratorCpus,
        cpus,
        |c| c.0.clone(),
        |p, v| {
            p.draft.placement.generator_cpus = place_on(&v.0, &machine, p);
        },
    )
}

/// Expands by each mode of devices and choice of offloads that is named.
fn driven(mut all: Vec<Partial>, s: &Shape, d: &Shape) -> Vec<Partial> {
    if let Some(queues) = s.queues.as_ref().or(d.queues.as_ref()) {
        let set = |p: &mut Partial, v: Queues| p.draft.placement.nic_modes.queues = v.0;
        all = over(all, Axis::Queues, queues.clone(), |q| q.0.to_string(), set);
    }
    if let Some(ways) = s.wake_up.as_ref().or(d.wake_up.as_ref()) {
        let set = |p: &mut Partial, v: WakeUp| p.draft.placement.nic_modes.wake_up = v.0;
        all = over(all, Axis::WakeUp, ways.clone(), |w| w.0.clone(), set);
    }
    if let Some(ways) = s.zero_copy.as_ref().or(d.zero_copy.as_ref()) {
        let set = |p: &mut Partial, v: ZeroCopy| p.draft.placement.nic_modes.zero_copy = v.0;
        all = over(all, Axis::ZeroCopy, ways.clone(), |w| w.0.clone(), set);
    }
    if let Some(ways) = s.xdp.as_ref().or(d.xdp.as_ref()) {
        let set = |p: &mut Partial, v: Xdp| p.draft.placement.nic_modes.xdp = v.0;
        all = over(all, Axis::Xdp, ways.clone(), |w| w.0.clone(), set);
    }
    if let Some(ways) = s.flow_offload.as_ref().or(d.flow_offload.as_ref()) {
        let set = |p: &mut Partial, v: OffOrAuto| p.draft.placement.nic_modes.flow_offload = v.0;
        all = over(all, Axis::FlowOffload, ways.clone(), |w| w.0.clone(), set);
    }
    if let Some(ways) = s.live_transmit.as_ref().or(d.live_transmit.as_ref()) {
        let set = |p: &mut Partial, v: OffOrAuto| p.draft.placement.nic_modes.live_transmit = v.0;
        all = over(all, Axis::LiveTransmit, ways.clone(), |w| w.0.clone(), set);
    }
    if let Some(ways) = s.irq.as_ref().or(d.irq.as_ref()) {
        let set = |p: &mut Partial, v: AutoOrLeave| p.draft.placement.nic_modes.irq = v.0;
        all = over(all, Axis::Irq, ways.clone(), |w| w.0.clone(), set);
    }
    if let Some(ways) = s.nice.as_ref().or(d.nice.as_ref()) {
        let set = |p: &mut Partial, v: AutoOrLeave| p.draft.placement.nic_modes.nice = v.0;
        all = over(all, Axis::Nice, ways.clone(), |w| w.0.clone(), set);
    }
    if let Some(ways) = s.moderation.as_ref().or(d.moderation.as_ref()) {
        let set = |p: &mut Partial, v: Moderation| p.draft.placement.nic_modes.moderation = v.0;
        all = over(all, Axis::Moderation, ways.clone(), |w| w.0.clone(), set);
    }
    if let Some(offloads) = s.offload.as_ref().or(d.offload.as_ref()) {
        let set = |p: &mut Partial, v: Offload| p.draft.placement.offload = v.0;
        let label = |o: &Offload| if o.0 { "inner" } else { "off" }.to_string();
        all = over(all, Axis::Offload, offloads.clone(), label, set);
    }
    if let Some(words) = s.netem.as_ref().or(d.netem.as_ref()) {
        let set = |p: &mut Partial, v: Netem| p.draft.placement.netem = v.0;
        all = over(all, Axis::Netem, words.clone(), |n| netem_label(&n.0, "off"), set);
    }
    if let Some(rules) = s.firewall.as_ref().or(d.firewall.as_ref()) {
        all = over(all, Axis::Firewall, rules.clone(), kebab, |p, v| p.draft.firewall = Some(v));
    }
    if let Some(packets) = s.connection_packets.as_ref().or(d.connection_packets.as_ref()) {
        let set = |p: &mut Partial, v: ConnectionPackets| p.draft.connection_packets = Some(v.0);
        all = over(all, Axis::ConnectionPackets, packets.clone(), |n| n.0.to_string(), set);
    }
    all
}

/// Expands by each build of the lab.
fn built(all: Vec<Partial>, shape: &Shape, defaults: &Shape) -> Vec<Partial> {
    match shape.build.as_ref().or(defaults.build.as_ref()) {
        None => all,
        Some(builds) => over(
            all,
            Axis::Build,
            builds.clone(),
            |b: &BuildName| b.0.clone(),
            |p, v| p.draft.build = Some(v.0),
        ),
    }
}

/// Every configuration so far, once with each value.
pub fn over<T: Clone>(
    partials: Vec<Partial>,
    axis: Axis,
    values: Many<T>,
    label: impl Fn(&T) -> String,
    set: impl Fn(&mut Partial, T),
) -> Vec<Partial> {
    let mut all = Vec::new();
    for partial in partials {
        for value in values.values() {
            let mut next = partial.clone();
            next.labels.push((axis, label(&value)));
            if values.is_list() {
                next.listed.push(axis);
            }
            set(&mut next, value);
            all.push(next);
        }
    }
    all
}

/// The CPUs a word means; other hosts have other cores than this machine.
fn place_on(word: &str, machine: &Machine, partial: &mut Partial) -> Vec<u32> {
    let resolved = match partial.draft.topology {
        Topology::Ssh if word == "default" => Ok(Vec::new()),
        Topology::Ssh => parse_list(word).ok_or_else(|| CpusError::OtherHost { word: word.into() }),
        _ => placement::resolve(word, machine),
    };
    resolved.unwrap_or_else(|lack| {
        partial.missing = Some(lack.to_string());
        Vec::new()
    })
}

fn name(template: Option<&str>, partial: &Partial) -> String {
    let label = |axis: Axis| partial.labels.iter().find(|(a, _)| *a == axis).map_or("", |(_, l)| l.as_str());
    match template {
        Some(template) => Axis::ALL
            .iter()
            // `{subject}` in experiments of before
            .fold(template.replace("{subject}", "{sut}"), |n, &a| {
                n.replace(&format!("{{{}}}", a.key()), label(a))
            }),
        None if partial.listed.is_empty() => label(Axis::Sut).to_string(),
        None => partial.listed.iter().map(|&a| label(a)).collect::<Vec<_>>().join("-"),
    }
}

fn pairs(
    file: &File,
    partials: &[Partial],
    quick: bool,
    locate: Locate<'_>,
) -> Result<Vec<(String, String)>, Refused> {
    let names: Vec<&str> = partials.iter().map(|p| p.draft.name.as_str()).collect();
    let refused = |at: Range<usize>, error| locate(at, ExperimentError::Pairs(error));
    let known = |key: &'static str, at: Range<usize>, name: &str| {
        if names.contains(&name) {
            return Ok(name.to_string());
        }
        let expected = names.iter().map(|name| name.to_string()).collect();
        Err(refused(at, PairsError::NoConfiguration { key, got: name.into(), expected }))
    };
    let against = |reference: &str| {
        let others = names.iter().filter(|n| **n != reference);
        others.map(|n| (reference.to_string(), n.to_string())).collect::<Vec<_>>()
    };
    match (&file.reference, &file.compare, file.pairs.as_slice()) {
        (None, None, []) => Ok(names.first().map_or(Vec::new(), |first| against(first))),
        (Some(reference), None, []) => {
            Ok(against(&known("reference", reference.span(), reference.as_ref())?))
        }
        (None, Some(axis), []) => {
            let pairs = along(*axis.as_ref(), partials);
            if pairs.is_empty() && !quick {
                return Err(refused(axis.span(), PairsError::NoDifference(*axis.as_ref())));
            }
            Ok(pairs)
        }
        (None, None, listed) => {
            let mut pairs = Vec::new();
            for one in listed {
                let (reference, others) = match one.as_ref().as_slice() {
                    [] | [_] => return Err(refused(one.span(), PairsError::NoOther)),
                    [reference, others @ ..] => (reference, others),
                };
                let reference = known("pairs", one.span(), reference)?;
                for other in others {
                    pairs.push((reference.clone(), known("pairs", one.span(), other)?));
                }
            }
            Ok(pairs)
        }
        (reference, compare, listed) => {
            let at = compare.as_ref().map(Spanned::span).or(reference.as_ref().map(Spanned::span));
            let at = at.or(listed.first().map(Spanned::span)).unwrap_or(0..0);
            Err(refused(at, PairsError::Exclusive))
        }
    }
}

/// Pairs that differ in one axis alone: the first value listed against each further one.
fn along(axis: Axis, partials: &[Partial]) -> Vec<(String, String)> {
    let rest = |p: &Partial| -> Vec<(Axis, String)> {
        p.labels.iter().filter(|(a, _)| *a != axis).cloned().collect()
    };
    let mut pairs = Vec::new();
    for (i, other) in partials.iter().enumerate() {
        if let Some(reference) = partials[..i].iter().find(|p| rest(p) == rest(other)) {
            let name = |p: &Partial| p.draft.name.clone();
            pairs.push((name(reference), name(other)));
        }
    }
    pairs
}

/// The first listed axis a plot can have along its bottom.
fn numeric_axis(partials: &[Partial]) -> Option<Axis> {
    [Axis::Frame, Axis::Flows, Axis::Routes, Axis::Rate, Axis::Policies, Axis::Match, Axis::Workers]
        .into_iter()
        .find(|axis| {
            let labels: BTreeSet<&String> =
                partials.iter().flat_map(|p| &p.labels).filter(|(a, _)| a == axis).map(|(_, l)| l).collect();
            labels.len() > 1
        })
}

/// Whether generator and sink do the same work for both.
pub fn same_load(a: &Configuration, b: &Configuration) -> bool {
    let on = |c: &Configuration| {
        // in memory the SUT's thread is the generator's
        let cpus = if c.topology() == Topology::Memory { c.placement.cpus.clone() } else { Vec::new() };
        (
            c.topology(),
            c.placement.generator_cpus.clone(),
            cpus,
            has_own_source(c),
            c.offload(),
            c.netem().to_string(),
            c.connection_packets(),
        )
    };
    // a relay's workers are its own affair; its clients' load and TLS are not
    let of_relay = |c: &Configuration| c.relay().map(|r| (r.tls.is_on(), r.load, r.under_way));
    a.workload == b.workload && on(a) == on(b) && of_relay(a) == of_relay(b)
}

/// Whether the lab's generator and sink have no part in it: programs that make their packets themselves.
fn has_own_source(c: &Configuration) -> bool {
    c.topology() == Topology::Memory && (c.sut().is_dpdk() || c.sut().is_vpp())
}

/// One baseline for every distinct load, named by what tells them apart.
fn baselines(configurations: &[Planned]) -> Vec<Planned> {
    let mut found: Vec<Planned> = Vec::new();
    for planned in configurations.iter().filter(|p| p.missing.is_none()) {
        let c = &planned.configuration;
        if !has_own_source(c) && !found.iter().any(|f| same_load(&f.configuration, c)) {
            if c.relay().is_some_and(|r| !r.load.has_baseline()) {
                continue;
            }
            found.push(Planned { configuration: c.baseline(), missing: None });
        }
    }
    let parts: Vec<Vec<String>> = found.iter().map(|f| load_labels(&f.configuration)).collect();
    let telling: Vec<usize> = (0..parts.first().map_or(0, Vec::len))
        .filter(|&i| parts.iter().any(|p| p[i] != parts[0][i]))
        .collect();
    for (baseline, parts) in found.iter_mut().zip(&parts) {
        let told = telling.iter().map(|&i| parts[i].as_str()).filter(|label| !label.is_empty());
        baseline.configuration.name = std::iter::once("baseline").chain(told).collect::<Vec<_>>().join("-");
    }
    found
}

fn load_labels(c: &Configuration) -> Vec<String> {
    let cpus = |ids: &[u32]| match ids {
        [] => "default".to_string(),
        ids => format!("cpu{}", ids.iter().map(u32::to_string).collect::<Vec<_>>().join("+")),
    };
    vec![
        kebab(&c.topology()),
        kebab(&c.workload.family),
        frame_label(c.workload.frame),
        format!("{}flows", c.workload.flows),
        if c.queues() > 0 { format!("{}queues", c.queues()) } else { String::new() },
        if c.offload() { "offload".into() } else { String::new() },
        netem_label(c.netem(), ""),
        c.connection_packets().map_or(String::new(), |n| format!("{n}-packet-connections")),
        rate_label(c.workload.rate),
        cpus(&c.placement.generator_cpus),
        cpus(if c.topology() == Topology::Memory { &c.placement.cpus } else { &[] }),
        c.relay().map_or(String::new(), |r| kebab(&r.load)),
        c.relay().map_or(String::new(), |r| if r.tls.is_on() { "tls".into() } else { "plain".into() }),
        c.relay().map_or(String::new(), |r| format!("{}-under-way", r.under_way)),
    ]
}

pub fn frame_label(frame: FrameSize) -> String {
    match frame {
        FrameSize::Fixed(bytes) => bytes.to_string(),
        FrameSize::Imix => "imix".into(),
    }
}

fn rate_label(rate: Rate) -> String {
    match rate {
        Rate::FlatOut => "flat-out".into(),
        Rate::Burst(packets) => format!("{packets}packets"),
        Rate::Pps(pps) => format!("{pps}pps"),
    }
}
