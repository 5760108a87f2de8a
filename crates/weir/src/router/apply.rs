//! `weir apply` and SIGHUP: from the configuration that is to the one that is wished, without a packet lost.

use std::path::Path;

use weir_core::state::Desired;
use weir_core::time::Nanos;

use super::memory;
use super::{Daemon, device_id, links};
use crate::config::check::explain;
use crate::config::{self, Config, KeysFrom};
use crate::view::Applied;

/// Changes logged one by one; a list of ten thousand policies is no reading matter.
const ACTIONS_LOGGED: usize = 100;

impl Daemon {
    /// Reads the file again and applies it; what comes of it is logged and returned.
    pub(super) fn reload(&mut self, now: Nanos) -> Result<Applied, String> {
        let config = config::load(&self.path).map_err(|refused| refused.0)?;
        self.apply(now, config, false)
    }

    pub(super) fn apply_text(
        &mut self,
        now: Nanos,
        file: &str,
        folder: &Path,
        text: String,
        dry_run: bool,
    ) -> Result<Applied, String> {
        let keys = KeysFrom::Folder(folder);
        let config = config::parse_with(file, &self.config.name, text, keys).map_err(|refused| refused.0)?;
        self.apply(now, config, dry_run)
    }

    /// Has the control side want `desired`, and what its SAs may use on disk before workers see them.
    fn adopt(&mut self, now: Nanos, config: &Config, desired: Desired) -> Result<(), String> {
        self.open_state(config)?;
        let before = self.control.desired().clone();
        self.control.apply(now, desired).map_err(|errors| explain(config, &errors))?;
        self.write_state().map_err(|error| {
            let back = self.control.go_back(now, before);
            debug_assert!(back.is_ok(), "{back:?}");
            format!("{error}; nothing was changed")
        })
    }

    /// All of it, or nothing and why.
    fn apply(&mut self, now: Nanos, config: Config, dry_run: bool) -> Result<Applied, String> {
        if let Some(fixed) = fixed(&self.config, &config) {
            return Err(fixed);
        }
        let (running, wanted) = (self.config.lookup(), config.lookup());
        memory::fits(&config, &running)?;
        let mut notes = config.remarks();
        let desired = config.desired(&|port| links::kernel_addresses(port, &self.kernel));
        let actions = self.control.plan(&desired).map_err(|errors| explain(&config, &errors))?;
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
        if let Err(refused) = self.adopt(now, &config, desired) {
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
        self.let_go_old(&config);
        config.warnings().iter().for_each(|warning| tracing::warn!("{warning}"));
        self.config = config;
        self.list();
        self.take_up(now);
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
    fn attach_new(&mut self, config: &Config) -> Result<(), String> {
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
                None => Err("no device id is left; restart weir".to_owned()),
            };
            if let Err(error) = opened {
                for name in attached {
                    self.let_go(&name);
                }
                return Err(config.complain(
                    port.device.span.clone(),
                    format!("port {}: {error}; nothing was changed", port.name.value),
                ));
            }
            attached.push(name.clone());
        }
        Ok(())
    }

    /// Closes devices that went, and settles whose policy enforcement points stay.
    fn let_go_old(&mut self, config: &Config) {
        let kept: Vec<&str> = config.devices().into_iter().map(|p| p.device.value.as_str()).collect();
        let gone: Vec<String> = self.open.keys().filter(|n| !kept.contains(&n.as_str())).cloned().collect();
        for name in gone {
            self.let_go(&name);
            if !(self.points.has(&name) && config.enforces()) {
                tracing::info!("{name} is given back to the kernel");
            }
        }
        self.points.changes(config).iter().for_each(|change| tracing::warn!("{change}"));
        self.points.settle(config);
        for (name, open) in &self.open {
            self.points.opened_as(name, open.port.kind);
        }
    }
}

/// What cannot change while workers run.
fn fixed(old: &Config, new: &Config) -> Option<String> {
    let complain = |what: &str| {
        Some(format!(
            "{}: {what} differs from what runs and is read at the start only; restart weir, or put it back",
            new.source.name
        ))
    };
    if old.workers != new.workers {
        return complain("[workers]");
    }
    if old.control != new.control {
        return complain("[control]");
    }
    if old.ipsec.state != new.ipsec.state && !old.ipsec.sas.is_empty() {
        return complain("state_dir or accept_replay_risk of [ipsec]");
    }
    for port in new.devices() {
        let was = old.devices().into_iter().find(|p| p.device.value == port.device.value);
        if let Some(was) = was
            && (was.kind.value, &was.read, &was.write) != (port.kind.value, &port.read, &port.write)
        {
            return Some(new.complain(
                port.kind.span.clone(),
                format!(
                    "port {}: kind of {} is {} now; a device changes its kind at the start only; restart weir, or put it back",
                    port.name.value,
                    port.device.value,
                    was.kind.value.name()
                ),
            ));
        }
    }
    None
}
