//! `weir state`: what a state directory remembers of SAs, and letting go of what never comes back.
//!
//! Promises: a directory a running weir uses is left alone; what is forgotten is said. Refuses: to forget without
//! being told since when nothing was used.

use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use weir_core::control::Durable;
use weir_core::ipsec::Direction;

use crate::failure::Failure;
use crate::router::durable::{self, StateArgs};
use crate::text::{count, print};

#[derive(Clone, Debug, Args)]
pub struct StateVerb {
    /// The state directory [default: $STATE_DIRECTORY, /var/lib/weir, without root ~/.local/state/weir]
    #[arg(long, value_name = "PATH", global = true)]
    state_dir: Option<PathBuf>,
    #[command(subcommand)]
    what: StateCommand,
}

#[derive(Clone, Debug, Subcommand)]
enum StateCommand {
    /// Every SA whose key was ever used
    List,
    /// Forget SAs not used lately: their keys must never be used again
    Forget {
        /// Those not used for so many days
        #[arg(long, value_name = "N")]
        unused_days: u64,
    },
}

const DAY: u64 = 86_400;

pub fn run(args: &StateVerb) -> Result<(), Failure> {
    let state_args = StateArgs { folder: args.state_dir.clone(), accept_risk: false };
    let folder = durable::folder(&state_args, None);
    if !folder.join(durable::STATE_FILE).exists() {
        let shown = folder.display();
        return Err(Failure(format!(
            "state directory {shown}: has no {}; name another with --state-dir",
            durable::STATE_FILE
        )));
    }
    let (_held, state) = durable::read(&folder).map_err(Failure::of)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    match args.what {
        StateCommand::List => {
            let mut out = String::new();
            for r in &state.records {
                let way = if r.direction == Direction::In { "in" } else { "out" };
                let a = r.reserved;
                out += &format!(
                    "{way:3}  spi {:#x}  to {}  used {} days ago  up to number {}, {} packets, {} bytes\n",
                    r.spi,
                    r.destination,
                    now.saturating_sub(r.used) / DAY,
                    a.sequence,
                    a.packets,
                    a.bytes
                );
            }
            print(&(out + &format!("{} remembered\n", count(state.records.len(), "sa"))))
        }
        StateCommand::Forget { unused_days } => {
            let since = now.saturating_sub(unused_days.saturating_mul(DAY));
            let mut durable = Durable::resume(state, None, &[0; 16]);
            let gone = durable.forget_unused_since(since);
            let left = durable.len();
            durable::write(&folder, &durable.last_image(0, 0))
                .map_err(|error| Failure(format!("{error}; nothing was changed")))?;
            print(&format!("{} forgotten, {left} left; never use their keys again\n", count(gone, "sa")))
        }
    }
}
