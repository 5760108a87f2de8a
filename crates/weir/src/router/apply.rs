//! `weir apply` and SIGHUP: from the configuration that is to the one that is wished, without a packet lost.

use std::path::Path;

use weir_core::state::Desired;
use weir_core::time::Nanos;

use super::error::{ApplyError, AttachError};
use super::memory;
use super::{Daemon, device_id, links, routed};
use crate::config::check::place_of;
use crate::config::{self, Config, KeysFrom};
use crate::view::Applied;

/// Changes logged one by one; a list of ten thousand policies is no reading matter.
const ACTIONS_LOGGED: usize = 100;

impl Daemon {
    /// Reads the file again and applies it; what comes of it is logged and returned.
    pub(super) fn reload(&mut self, now: Nanos) -> Result<Applied, ApplyError> {
        let Some(path) = &self.path else { return Err(ApplyError::NoFile) };
        let config = config::load(path)?;
        self.apply(now, config, false)
    }

    pub(super) fn apply_text(
        &mut self,
        now: Nanos,
        file: &str,
        folder: &Path,
        text: String,
        dry_run: bool,
    ) -> Result<Applied, ApplyError> {
        let keys = KeysFrom::Folder(folder);
        let config = config::parse_with(file, &self.config.name, text, keys)?;
        self.apply(now, config, dry_run)
    }

    /// Has the control side want `desired`, and what its SAs may use on disk before workers see them.
    fn commit(&mut self, now: Nanos, config: &Config, desired: Desired) -> Result<(), ApplyError> {
        self.open_state(config).map_err(ApplyError::NoState)?;
        let before = self.control.desired().clone();
        self.control.apply(now, desired).map_err(|errors| rejected(config, errors))?;
        let mut keys = self.keys.take();
        let written = self.write_state(keys.as_mut());
        self.keys = keys;
        written.map_err(|error| {
            let back = self.control.go_back(now, before);
            debug_assert!(back.is_ok(), "{back:?}");
            ApplyError::NotReserved(error)
        })
    }

    /// All of it, or nothing and why.
    fn apply(&mut self, now: Nanos, config: Config, dry_run: bool) -> Result<Applied, ApplyError> {
        if let Some(fixed) = fixed(&self.config, &config) {
            return Err(fixed);
        }
        let (running, wanted) = (self.config.lookup(), config.lookup());
        memory::fits(&config, &running)?;
        let mut notes = config.notes_on_lookups();
        let desired = self.with_keys(routed::desired(&config, &self.kernel));
        let actions = self.control.plan(&desired).map_err(|errors| rejected(&config, errors))?;
        let said: Vec<String> = actions.iter().map(ToString::to_string).collect();
        notes.extend(self.points.changes(&config));
        if dry_run {
            return Ok(Applied {
                actions: said,
                notes,
                applied: false,
                generation: self.control.tables().generation,
            });
        }
        // First of all: what new policies are to protect must not leave by the kernel.
        let armed = self.points.arm_all(&config, &self.kernel.links, self.local.as_ref())?;
        let before = self.control.desired().clone();
        if let Err(refused) = self.commit(now, &config, desired) {
            self.points.release(&armed);
            return Err(refused);
        }
        if let Err(refused) = self.attach_new(&config) {
            self.points.release(&armed);
            let back = self.control.go_back(now, before);
            debug_assert!(back.is_ok(), "{back:?}");
            self.publish();
            return Err(refused);
        }
        self.close_removed(&config);
        config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        self.config = config;
        self.unsaved = Default::default();
        self.list();
        self.reconcile(now);
        said.iter().take(ACTIONS_LOGGED).for_each(|action| tracing::info!("applied {action}"));
        if let Some(more) = said.len().checked_sub(ACTIONS_LOGGED).filter(|&more| more > 0) {
            tracing::info!("applied {more} changes more");
        }
        if wanted != running {
            notes.iter().for_each(|note| tracing::info!("{note}"));
        }
        Ok(Applied { actions: said, notes, applied: true, generation: self.control.tables().generation })
    }

    /// Opens devices that came; those opened before one that fails are given up again.
    fn attach_new(&mut self, config: &Config) -> Result<(), ApplyError> {
        // Ids of new devices exist from here on; workers see the tables before the devices, and find them
        // absent for that moment.
        self.publish();
        let mut attached: Vec<String> = Vec::new();
        for port in config.devices() {
            let name = &port.device.value;
            if self.open.contains_key(name) {
                continue;
            }
            let index = links::index_of(name, &self.kernel.links);
            let opened = match device_id(self.control.tables(), name) {
                Some(id) => self.attach(port, id, index),
                None => Err(AttachError::NoDeviceId),
            };
            if let Err(error) = opened {
                for name in attached {
                    self.close_device(&name);
                }
                let at = Box::new(config.excerpt(port.device.span.clone()));
                return Err(ApplyError::Device { at, port: port.name.value.clone(), error });
            }
            attached.push(name.clone());
        }
        Ok(())
    }

    /// Closes devices that went, and sees which policy enforcement points stay.
    fn close_removed(&mut self, config: &Config) {
        let kept: Vec<&str> = config.devices().into_iter().map(|p| p.device.value.as_str()).collect();
        let gone: Vec<String> = self.open.keys().filter(|n| !kept.contains(&n.as_str())).cloned().collect();
        for name in gone {
            self.close_device(&name);
            if !(self.points.has(&name) && config.enforces()) {
                tracing::info!("{name} is given back to the kernel");
            }
        }
        self.points.changes(config).iter().for_each(|change| tracing::warn!("{change}"));
        self.points.drop_gone(config);
        for (name, open) in &self.open {
            self.points.opened_as(name, open.port.kind);
        }
    }
}

/// What the core refuses, at the places of the file it is about.
pub(super) fn rejected(config: &Config, errors: Vec<weir_core::state::Error>) -> ApplyError {
    ApplyError::Rejected(errors.into_iter().map(|error| (place_of(config, &error), error)).collect())
}

/// What cannot change while workers run.
fn fixed(old: &Config, new: &Config) -> Option<ApplyError> {
    let complain = |setting: &'static str| Some(ApplyError::Fixed { file: new.source.name.clone(), setting });
    if old.workers != new.workers {
        return complain("[workers]");
    }
    if old.control != new.control {
        return complain("[control]");
    }
    if old.kernel.routes != new.kernel.routes {
        return complain("routes");
    }
    if old.kernel.keys.is_some() != new.kernel.keys.is_some() {
        return complain("keys");
    }
    let admits = |config: &Config| config.kernel.firewall.as_ref().map(|firewall| firewall.admission);
    if admits(old) != admits(new) {
        return complain("firewall");
    }
    if old.ipsec.state != new.ipsec.state && (!old.ipsec.sas.is_empty() || old.kernel.keys.is_some()) {
        return complain("state_dir or accept_replay_risk of [ipsec]");
    }
    if old.ipsec.ciphers != new.ipsec.ciphers {
        return complain("ciphers of [ipsec]");
    }
    for port in new.devices() {
        let was = old.devices().into_iter().find(|p| p.device.value == port.device.value);
        if let Some(was) = was
            && (was.kind.value, &was.read, &was.write) != (port.kind.value, &port.read, &port.write)
        {
            return Some(ApplyError::KindChanged {
                at: Box::new(new.excerpt(port.kind.span.clone())),
                port: port.name.value.clone(),
                device: port.device.value.clone(),
                runs_as: was.kind.value,
            });
        }
    }
    None
}
