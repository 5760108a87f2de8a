//! One configuration on three hosts: claim, apply, health check, windows, counters, reset.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weir_core::time::Nanos;

use super::clocks::Offset;
use super::fleet::Fleet;
use super::sampling;
use crate::agent::protocol::{
    Applied, Arrived, Counted, DeviceEnvironment, Interface, Request, Sent, Stream, Window,
};
use crate::experiment::hosts::{Commands, Role, Timeouts};
use crate::generator;
use crate::model::{Configuration, LabError, Prepared, Sample, Scope, Trial};
use crate::netns::counters::{self, Counters};
use crate::netns::cpus;
use crate::netns::drive::{self, Driven, Wired};
use crate::receiver::Tally;
use crate::sut::command::read_uploads;
use weir_stats::search::Rate;

/// Packets that ask whether the way is open: fewer than any ring holds.
const PROBE_RATE: Rate = Rate::Pps(1000);
const PROBE_WINDOW: Duration = Duration::from_millis(50);
/// The receiver waits for stragglers, at most two seconds.
const STRAGGLERS: Duration = Duration::from_secs(2);

pub struct Deployed {
    fleet: Rc<RefCell<Fleet>>,
    limits: Timeouts,
    flows: u32,
    /// Whether what arrives tells the time it was sent.
    timed: bool,
    /// Generator's and receiver's clock, when they are two.
    clocks: Option<(Offset, Offset)>,
    notes: Vec<String>,
    /// Which of them say that something better was refused.
    fallbacks: Vec<String>,
    /// Number of the last window; the packets carry it.
    run: u8,
    /// When the last trial's window was, by the generator's clock.
    window: Option<(Nanos, Nanos)>,
}

impl Deployed {
    pub fn new(
        fleet: Rc<RefCell<Fleet>>,
        configuration: &Configuration,
        commands: Option<&Commands>,
    ) -> Result<Deployed, LabError> {
        let limits = fleet.borrow().limits();
        let flows = configuration.workload.flows;
        // From here on whatever fails is reset.
        let timed = !configuration.ipsec().is_some_and(|p| p.seals());
        let (notes, fallbacks) = (Vec::new(), Vec::new());
        let mut deployed =
            Deployed { fleet, limits, flows, timed, clocks: None, notes, fallbacks, run: 0, window: None };
        deployed.connect()?;
        deployed.set_up(configuration, commands)?;
        deployed.check_health()?;
        Ok(deployed)
    }

    fn connect(&mut self) -> Result<(), LabError> {
        let mut fleet = self.fleet.borrow_mut();
        let mut clocks = BTreeMap::new();
        for role in Role::ALL {
            clocks.insert(role, fleet.connect(role)?.hello.clock.clone());
        }
        if clocks[&Role::Generator] == clocks[&Role::Receiver] {
            return Ok(());
        }
        let mut measure =
            |role| Offset::measure(|| fleet.ask(role, "clock", &Request::Clock, self.limits.answer.0));
        let (near, far) = (measure(Role::Generator)?, measure(Role::Receiver)?);
        self.clocks = Some((near, far));
        self.notes.push(
            "generator and receiver have clocks of their own: no latency is reported; when the last packet came is \
             known to within half a round trip of a question to each"
                .into(),
        );
        Ok(())
    }

    fn set_up(&mut self, configuration: &Configuration, commands: Option<&Commands>) -> Result<(), LabError> {
        let uploads = commands.map_or(Ok(BTreeMap::new()), read_uploads)?;
        let near = self.claim(Role::Generator)?;
        let device = self.claim(Role::DeviceUnderTest)?;
        let far = self.claim(Role::Receiver)?;
        let ([near], [input, output], [far]) = (&near[..], &device[..], &far[..]) else {
            return Err(LabError::new(
                "hosts: an agent claimed other interfaces than it was asked to".into(),
            ));
        };
        let millis = |limit: Duration| limit.as_millis() as u64;
        let environment = DeviceEnvironment {
            configuration: configuration.clone(),
            input: input.clone(),
            output: output.clone(),
            gateway_mac: far.mac,
            commands: commands.cloned(),
            uploads,
            apply_within_ms: millis(self.limits.apply.0),
            teardown_within_ms: millis(self.limits.teardown.0),
            answer_within_ms: millis(self.limits.answer.0),
        };
        let stream = |interface: &Interface| {
            Box::new(Stream {
                configuration: configuration.clone(),
                interface: interface.clone(),
                destination: input.mac,
            })
        };
        let (apply, answer) = (self.limits.apply.0, self.limits.answer.0);
        // The agent ends what takes too long by itself, and says what it was.
        let request = Request::Apply(Box::new(environment));
        let applied: Applied =
            self.fleet.borrow_mut().ask(Role::DeviceUnderTest, "apply", &request, apply + answer)?;
        self.notes.extend(applied.notes);
        self.fallbacks = applied.fallbacks;
        // Opening waits for a carrier.
        self.note(Role::Receiver, "receiver", &Request::Receive(stream(far)), answer * 2)?;
        self.note(Role::Generator, "generator", &Request::Generate(stream(near)), answer * 2)
    }

    fn claim(&self, role: Role) -> Result<Vec<Interface>, LabError> {
        let mut fleet = self.fleet.borrow_mut();
        let silent = role != Role::DeviceUnderTest;
        let request = Request::Claim { interfaces: fleet.interfaces(role), silent };
        fleet.ask(role, "interfaces", &request, self.limits.answer.0)
    }

    fn note(&mut self, role: Role, step: &str, request: &Request, within: Duration) -> Result<(), LabError> {
        let notes: Vec<String> = self.fleet.borrow_mut().ask(role, step, request, within)?;
        self.notes.extend(notes);
        Ok(())
    }

    /// The SUT's own check, then test packets until one arrives.
    fn check_health(&mut self) -> Result<(), LabError> {
        let within = self.limits.health.0;
        let check = Request::Check { within_ms: within.as_millis() as u64 };
        self.fleet.borrow_mut().ask::<()>(
            Role::DeviceUnderTest,
            "health check",
            &check,
            within + self.limits.answer.0,
        )?;
        let until = Instant::now() + within;
        let before = self.read()?;
        let mut sent = 0;
        loop {
            let probed = self.drive(PROBE_RATE, PROBE_WINDOW, 0)?;
            if probed.tally.delivered > 0 {
                return Ok(());
            }
            sent += probed.sent.counts.sent;
            if Instant::now() > until {
                let lost = counters::difference(&before.drops, &self.read()?.drops);
                let lost =
                    if lost.is_empty() { "no counter moved".into() } else { format!("counted {lost:?}") };
                return Err(LabError::new(format!(
                    "health check: none of {sent} test packets came from generator to receiver in {within:?}; {lost}; \
                     are the cables where [hosts] says, and does the device under test forward?"
                )));
            }
        }
    }

    /// Joins both ends' counts, as if both had been here.
    fn driven(&self, sent: Sent, arrived: Arrived) -> Driven {
        let mut tally = Tally::new(self.run, self.flows);
        tally.delivered = arrived.delivered;
        tally.duplicated = arrived.duplicated;
        tally.reordered = arrived.reordered;
        tally.beyond_memory = arrived.beyond_memory;
        tally.last_arrival = match self.clocks {
            Some((near, far)) => far.translate(arrived.last_arrival, near),
            None => arrived.last_arrival,
        };
        for (nanoseconds, packets) in arrived.latencies {
            tally.latency.saturating_record_n(nanoseconds, packets);
        }
        let Sent { intended, offered, sent, began, took, behind_max } = sent;
        let counts = generator::Transmitted { offered, sent };
        Driven {
            sent: generator::Sent { intended, counts, began, took, behind_max },
            tally,
            lost: arrived.lost,
        }
    }
}

impl Wired for Deployed {
    /// The counters of all hosts together.
    type Reading = Counted;

    fn drive(&mut self, rate: Rate, window: Duration, seed: u64) -> Result<Driven, LabError> {
        self.run = self.run.wrapping_add(1);
        let (run, answer) = (self.run, self.limits.answer.0);
        let mut fleet = self.fleet.borrow_mut();
        let send = Request::Send(Window { rate, window_ns: window.as_nanos() as Nanos, run, seed });
        fleet.ask::<()>(Role::Receiver, "start", &Request::Start { run }, answer)?;
        let sent: Sent = fleet.ask(Role::Generator, "send", &send, window + answer)?;
        let arrived: Arrived = fleet.ask(Role::Receiver, "finish", &Request::Finish, STRAGGLERS + answer)?;
        Ok(self.driven(sent, arrived))
    }

    fn read(&mut self) -> Result<Counted, LabError> {
        let mut fleet = self.fleet.borrow_mut();
        let mut all = Counted::default();
        for role in Role::ALL {
            let one: Counted = fleet.ask(role, "counters", &Request::Counters, self.limits.answer.0)?;
            all.drops.extend(one.drops);
            all.cpu = all.cpu.or(one.cpu);
            all.warnings.extend(one.warnings);
        }
        Ok(all)
    }

    fn drops(reading: &Counted) -> &Counters {
        &reading.drops
    }
}

impl Prepared for Deployed {
    fn run(&mut self, trial: &Trial) -> Result<Sample, LabError> {
        let (mut sample, [before, after]) = drive::measure(self, trial)?;
        // By the generator's clock, which need not be the lab's.
        self.window = sample.window_ns.take();
        if self.clocks.is_some() || !self.timed {
            sample.latency_ns.clear();
        }
        let percent = cpus::percent(before.cpu, after.cpu);
        sample.metrics.extend(percent.map(|p| ("sut_cpu_percent".to_string(), p)));
        sample.notes.extend(after.warnings);
        sample.notes.append(&mut self.fleet.borrow_mut().warnings);
        sample.notes.splice(0..0, self.notes.iter().cloned());
        sample.fallbacks = Some(self.fallbacks.clone());
        Ok(sample)
    }

    fn scope(&self) -> Option<Scope> {
        Some(Scope::FarHost)
    }

    fn start_sampling(&mut self, frequency_hz: u32, expected: Duration) -> Result<(), LabError> {
        sampling::start(&mut self.fleet.borrow_mut(), &self.limits, frequency_hz, expected)
    }

    fn finish_sampling(&mut self) -> Result<String, LabError> {
        let window = self.window.ok_or_else(|| LabError::new("profile: no window was measured".into()))?;
        sampling::finish(&mut self.fleet.borrow_mut(), &self.limits, window)
    }
}

impl Drop for Deployed {
    /// Every host back to how it was found. One that cannot is given up: its agent ends and cleans up.
    fn drop(&mut self) {
        self.fleet.borrow_mut().reset(&Role::ALL);
    }
}
