//! The least a forwarder in XDP can be: the kernel's routing tables through `bpf_fib_lookup`, then a redirect.
//!
//! Addresses, routes and neighbours are those of the SUT `kernel`, so both ask the same tables; what the program leaves
//! alone the kernel forwards as it does there, and its losses are in the kernel's counters. The port packets leave by has a
//! program too, which passes everything: a card sends what is redirected to it only where it has one.

use weir_io::bpf::attach::XdpMode;
use weir_io::offload::{self, Offload};
use weir_io::xdp_fib::Fib;
use weir_io::xdp_pass::Pass;

use super::{Environment, Running, kernel};
use crate::model::{Family, LabError};
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;

pub struct XdpFib {
    family: Family,
    note: String,
    fallbacks: Vec<String>,
    // Both stay attached as long as the SUT runs.
    fib: Fib,
    _pass: Option<Pass>,
}

const MODES: [XdpMode; 2] = [XdpMode::Native, XdpMode::Generic];

impl XdpFib {
    pub fn start(environment: &Environment) -> Result<XdpFib, LabError> {
        kernel::configure(environment)?;
        let (input, output) = (environment.input.name.clone(), environment.output.name.clone());
        let name = input.clone();
        let fib = environment.namespace.run(move || {
            Fib::attach(&input, index(&input)?, &MODES).map_err(|e| LabError::new(format!("xdp-fib: {e}")))
        })??;
        let gro = environment.namespace.run(move || offload::set(&name, Offload::Gro, false))?;
        let pass = environment.namespace.run(move || {
            let index = index(&output)?;
            Pass::attach(&output, index, &[XdpMode::Native]).map_err(|e| LabError::new(e.to_string()))
        })?;
        let mode = fib.mode();
        let mut note = format!(
            "xdp-fib: {mode}, bpf_fib_lookup (policy rules included), IPv4's header checksum not verified"
        );
        if let Err(error) = gro {
            note += &format!("; GRO stays on on the way in ({error})");
        }
        if let Err(error) = &pass {
            note += &format!("; no program on the port packets leave by ({error})");
        }
        let fallbacks = (mode == XdpMode::Generic).then(|| note.clone()).into_iter().collect();
        let family = environment.configuration.workload.family;
        Ok(XdpFib { family, note, fallbacks, fib, _pass: pass.ok() })
    }
}

fn index(device: &str) -> Result<u32, LabError> {
    let missing = || LabError::new(format!("xdp-fib: {device}: no such interface"));
    let link =
        weir_io::netlink::link(device).map_err(|e| LabError::new(format!("xdp-fib: {device}: {e}")))?;
    link.map(|link| link.index).ok_or_else(missing)
}

impl Running for XdpFib {
    fn drops(&mut self, namespace: &Namespace) -> Result<Counters, LabError> {
        let mut all = kernel::drops(self.family, namespace)?;
        let own = self.fib.drops().map_err(|e| LabError::new(format!("xdp-fib: its counters: {e}")))?;
        all.extend(own.map(|(reason, count)| (format!("xdp-fib.{reason}"), count)));
        Ok(all)
    }

    fn notes(&self) -> Vec<String> {
        vec![self.note.clone()]
    }

    fn fallbacks(&self) -> Vec<String> {
        self.fallbacks.clone()
    }
}
