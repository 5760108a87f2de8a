//! Addresses of the names in `bootstrap_dns`: looked up every ten minutes, never because somebody asks.
//!
//! Promises: a name that cannot be looked up keeps the addresses it had; names that a new configuration brings are looked
//! up within seconds. Refuses: names that are not in the configuration.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::time::sleep;

use super::Shared;

/// Names are asked for again as often as derper does.
const RENEW: Duration = Duration::from_secs(600);
/// How often it is looked whether there are other names.
const LOOK: Duration = Duration::from_secs(2);

type Found = BTreeMap<String, Vec<IpAddr>>;

#[derive(Default)]
pub struct Names(ArcSwap<Found>);

impl Names {
    /// Gives the addresses of one of these names, or of all of them.
    pub fn of(&self, names: &[String], asked: Option<&str>) -> Found {
        let all = self.0.load();
        let wanted = names.iter().filter(|name| asked.is_none_or(|asked| asked == *name));
        wanted.filter_map(|name| Some((name.clone(), all.get(name)?.clone()))).collect()
    }
}

/// Looks names up for as long as the acceptor runs.
pub async fn keep(shared: Arc<Shared>) {
    let mut last: Option<(Vec<String>, Instant)> = None;
    loop {
        let names = shared.live.load().acceptor.bootstrap_dns.clone();
        let fresh = last.as_ref().is_some_and(|(known, at)| *known == names && at.elapsed() < RENEW);
        if !fresh {
            look_up(&shared.names, &names).await;
            last = Some((names, Instant::now()));
        }
        sleep(LOOK).await;
    }
}

async fn look_up(own: &Names, names: &[String]) {
    let mut found = Found::new();
    for name in names {
        match tokio::net::lookup_host((name.as_str(), 0)).await {
            Ok(addresses) => {
                found.insert(name.clone(), addresses.map(|a| a.ip()).collect());
            }
            Err(error) => {
                tracing::warn!("bootstrap_dns: {name}: {error}; what was found before is told on");
                let before = own.0.load().get(name).cloned();
                found.extend(before.map(|addresses| (name.clone(), addresses)));
            }
        }
    }
    own.0.store(Arc::new(found));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_cannot_be_looked_up_keeps_its_addresses_and_others_are_never_told() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let [known, gone] = ["localhost", "no-such-name.invalid"].map(str::to_owned);
        let own = Names::default();
        own.0.store(Arc::new([(gone.clone(), vec![IpAddr::from([192, 0, 2, 7])])].into()));
        runtime.block_on(look_up(&own, &[known.clone(), gone.clone()]));
        let all = own.of(&[known.clone(), gone.clone()], None);
        assert!(all[&known].iter().all(IpAddr::is_loopback) && all[&gone] == [IpAddr::from([192, 0, 2, 7])]);
        assert_eq!(own.of(std::slice::from_ref(&known), Some(&gone)), Found::new(), "it is no longer listed");
        runtime.block_on(look_up(&own, std::slice::from_ref(&known)));
        assert_eq!(own.of(&[known, gone.clone()], Some(&gone)), Found::new());
    }
}
