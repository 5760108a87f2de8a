//! What is measured: programs and kernels that forward, started in the device-under-test namespace.
//!
//! A SUT promises to forward the workload's prefixes to the receiver's gateways, to say in which of
//! its own counters frames vanished, and to be gone when it is dropped.

pub mod command;
mod control;
pub mod derper;
pub mod dpdk;
pub mod gateway;
pub mod hyper_derp;
pub mod ipsec_secgw;
pub mod kernel;
pub mod kernel_xfrm;
pub mod l3fwd;
pub mod peer;
pub mod policies;
pub mod relay;
pub mod strongswan;
pub mod tailnet;
pub mod tcp_forwarder;
pub mod testpmd;
pub mod vpp;
pub mod weir;
pub mod xdp_fib;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use weir_io::process;

use crate::model::{Configuration, LabError, Sut};
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;
use crate::netns::veth::Port;

pub const MISSING_WEIR: &str =
    "weir: no such program beside weir-lab or on the PATH: build it (`cargo build --release -p weir`)";

/// How every SUT is started: as the leader of a session of its own, as a service manager starts it, so that each has the same claim to a CPU
/// and an interrupt at the terminal is for the lab alone; and killed with the lab.
pub fn as_service(command: &mut Command) -> &mut Command {
    process::dies_with_starter(process::in_session_of_its_own(command))
}

/// Why a SUT cannot be had on this machine, with the remedy.
pub fn missing(configuration: &Configuration) -> Option<String> {
    match configuration.sut() {
        Sut::Kernel | Sut::XdpFib | Sut::Baseline => None,
        Sut::Weir => policies::refused(configuration).or_else(weir_lacks),
        Sut::KernelXfrm => kernel_xfrm::missing(configuration),
        Sut::Command => None,
        Sut::Strongswan
        | Sut::StrongswanKernel
        | Sut::WeirStrongswan
        | Sut::TailscaleWeir
        | Sut::TailscaleDerper => Some(format!(
            "{}: is a gateway; use topology = \"gateways\"",
            crate::experiment::kebab(&configuration.sut())
        )),
        Sut::Derper => Some("derper: is a relay; use topology = \"relay\"".into()),
        Sut::HyperDerp => Some("hyper-derp: is a relay; use topology = \"relay\"".into()),
        Sut::TcpForwarder => {
            Some("tcp-forwarder: is in the place of a relay; use topology = \"relay\"".into())
        }
        Sut::DpdkTestpmd => testpmd::missing(),
        Sut::DpdkL3fwd => l3fwd::missing(configuration),
        Sut::DpdkIpsecSecgw => Some("dpdk-ipsec-secgw: is in memory only: use topology = \"memory\"".into()),
        Sut::Vpp => vpp::missing(configuration),
        Sut::VppEnds => Some("vpp-ends: is in memory only: use topology = \"memory\"".into()),
    }
}

fn weir_lacks() -> Option<String> {
    weir::program().is_none().then(|| MISSING_WEIR.into())
}

/// The same of the hosts of the topology `ssh`, where peers are whatever the experiment's commands start.
pub fn missing_on_hosts(configuration: &Configuration) -> Option<String> {
    match configuration.sut() {
        sut if sut.is_dpdk() || sut.is_vpp() => Some(format!(
            "{}: is started by the lab on its own machine: on hosts use sut = \"command\"",
            crate::experiment::kebab(&configuration.sut())
        )),
        Sut::Weir if weir::esp::of(configuration).is_some() => weir_lacks(),
        // whether its kernel has XFRM, the host itself says
        Sut::KernelXfrm => kernel_xfrm::refused(configuration),
        _ => missing(configuration),
    }
}

/// A program that takes longer to end is killed.
const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Asks a program to end, and sees to it that it has.
fn end(child: &mut Child) {
    // Errors mean that it has ended already; `kill` and `wait` after that are harmless.
    let _ = process::terminate(child.id());
    let until = Instant::now() + ENDS_WITHIN;
    while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = child.kill();
    let _ = child.wait();
}

/// Where a SUT stands.
pub struct Environment<'a> {
    pub namespace: &'a Namespace,
    /// The port test packets come in by, and the one they leave by.
    pub input: &'a Port,
    pub output: &'a Port,
    /// Link-layer address of every gateway.
    pub gateway_mac: [u8; 6],
    /// CPUs of the SUT.
    pub cpus: &'a [u32],
    pub configuration: &'a Configuration,
}

/// A SUT that forwards.
pub trait Running {
    /// Its own drop counters, cumulative, named `SUT.reason`.
    fn drops(&mut self, environment: &Namespace) -> Result<Counters, LabError>;

    /// Waits until it forwards this many flows of a firewall the way it means to.
    fn await_flows(&mut self, _flows: u32) -> Result<(), LabError> {
        Ok(())
    }

    /// Flows of a firewall that it took over so far, where it takes any.
    fn taken(&mut self) -> Result<Option<u64>, LabError> {
        Ok(None)
    }

    /// What a reader of its values must know.
    fn notes(&self) -> Vec<String>;

    /// Which of its notes say that a better way was refused.
    fn fallbacks(&self) -> Vec<String> {
        Vec::new()
    }

    /// Undoes what dropping it does not, where it runs; asked once, before it is dropped.
    fn tear_down(&mut self, _: &Namespace) {}

    /// An error with the end of its log, if it ended by itself.
    fn ended(&mut self) -> Option<LabError> {
        None
    }

    /// What it knows to be wrong with itself after a run.
    fn warnings(&mut self) -> Vec<String> {
        Vec::new()
    }
}
