//! Any program as the SUT between the lab's own namespaces: the experiment's commands, run where the SUT stands.
//!
//! Promises: commands see the device under test's interfaces and nothing else of the network; what `apply` left running ends
//! with the run, and what a killed lab left running is ended by the next. Refuses: to run `teardown` anywhere else than
//! where `apply` ran.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_io::process;

use super::super::{Environment, Running};
use super::{CommandSut, DeviceEnvironment, Interface, read_uploads};
use crate::experiment::hosts::{Commands, Timeouts};
use crate::model::LabError;
use crate::netns::counters::Counters;
use crate::netns::namespace::Namespace;
use crate::netns::residue::Folder;
use crate::netns::veth::Port;

/// Ended processes are gone in this time, or the next lab ends them.
const GONE_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(10);

pub struct LocalCommand {
    sut: Arc<Mutex<CommandSut>>,
    // Dropped last: the commands' folder is in it.
    _folder: Folder,
}

impl LocalCommand {
    pub fn start(environment: &Environment, commands: Option<&Commands>) -> Result<LocalCommand, LabError> {
        let folder = Folder::new()?;
        let interface = |port: &Port| Interface { name: port.name.clone(), mac: port.mac };
        let limits = Timeouts::default();
        let millis = |limit: Duration| limit.as_millis() as u64;
        let of_device = DeviceEnvironment {
            configuration: environment.configuration.clone(),
            input: interface(environment.input),
            output: interface(environment.output),
            gateway_mac: environment.gateway_mac,
            commands: commands.cloned(),
            uploads: commands.map_or(Ok(BTreeMap::new()), read_uploads)?,
            apply_within_ms: millis(limits.apply.0),
            teardown_within_ms: millis(limits.teardown.0),
            answer_within_ms: millis(limits.answer.0),
        };
        let (inside, cpus) = (folder.path().to_path_buf(), environment.cpus.to_vec());
        let sut = environment.namespace.run(move || {
            // commands and what they start inherit what this thread may run on
            bind(&cpus)?;
            CommandSut::apply(&of_device, &inside, Arc::default())
        });
        let sut = sut?.inspect_err(|_| end_all(environment.namespace))?;
        let mut local = LocalCommand { sut: Arc::new(Mutex::new(sut)), _folder: folder };
        let well = local.inside(environment.namespace, move |sut| sut.check(limits.health.0));
        if let Err(unwell) = well {
            local.tear_down(environment.namespace);
            return Err(LabError::new(format!("health check: {unwell}")));
        }
        Ok(local)
    }

    fn inside<T: Send + 'static>(
        &self,
        namespace: &Namespace,
        work: impl FnOnce(&mut CommandSut) -> Result<T, LabError> + Send + 'static,
    ) -> Result<T, LabError> {
        let sut = self.sut.clone();
        namespace.run(move || work(&mut held(&sut)))?
    }
}

fn held(sut: &Mutex<CommandSut>) -> MutexGuard<'_, CommandSut> {
    sut.lock().unwrap_or_else(PoisonError::into_inner)
}

fn bind(cpus: &[u32]) -> Result<(), LabError> {
    let mut set = rustix::thread::CpuSet::new();
    cpus.iter().for_each(|&cpu| set.set(cpu as usize));
    rustix::thread::sched_setaffinity(None, &set)
        .map_err(|e| LabError::new(format!("command: it cannot be bound to cpu {cpus:?}: {e}")))
}

/// Ends every process of a namespace: whatever a command left there.
fn end_all(namespace: &Namespace) {
    let _ = namespace.run(|| {
        let Ok(own) = fs::read_link("/proc/thread-self/ns/net") else { return };
        let until = Instant::now() + GONE_WITHIN;
        loop {
            let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
            let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
            let there = |&process: &u32| {
                process != std::process::id()
                    && fs::read_link(format!("/proc/{process}/ns/net")).is_ok_and(|net| net == own)
            };
            let found: Vec<u32> = processes.filter(there).collect();
            if found.is_empty() || Instant::now() > until {
                return;
            }
            for process in found {
                // an error means that it ended just now
                let _ = process::kill(process);
            }
            std::thread::sleep(LOOK);
        }
    });
}

impl Running for LocalCommand {
    fn drops(&mut self, namespace: &Namespace) -> Result<Counters, LabError> {
        self.inside(namespace, CommandSut::counters)
    }

    fn notes(&self) -> Vec<String> {
        vec!["command: the experiment's own, in the namespace of the device under test".into()]
    }

    fn tear_down(&mut self, namespace: &Namespace) {
        // what it could not undo goes with the namespace
        let _ = self.inside(namespace, CommandSut::tear_down);
        end_all(namespace);
    }
}

impl Drop for LocalCommand {
    fn drop(&mut self) {
        // its commands are for the namespace alone, which is not where this runs
        held(&self.sut).abandon();
    }
}
