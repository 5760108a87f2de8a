//! `weir-lab run --again`: the experiment of a campaign once more, from its manifest, into a folder of its own.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::run::{announce, finish, stop_flag};
use crate::campaign::{self, CampaignSpec};
use crate::machine::{Machine, unix_ms};
use crate::manifest::{Manifest, Repeated};
use crate::model::LabError;
use crate::store::free_name;
use crate::testbed::programs;

/// Which order and traffic a repetition has.
pub enum Seed {
    Same,
    New,
    This(u64),
}

/// Repeats the campaign in `earlier` into `out`, or into the first free one of `earlier.1`, `earlier.2` ….
pub fn go(earlier: &Path, out: Option<PathBuf>, seed: Seed) -> Result<ExitCode, LabError> {
    let manifest = Manifest::read(earlier)?;
    let dir = out.unwrap_or_else(|| free_name(earlier));
    let differences = campaign::builds(&manifest.build, &programs::took_part(&manifest.experiment))
        .into_iter()
        .chain(campaign::machines(&manifest.machine, &Machine::observe()));
    for difference in differences {
        eprintln!("differs from the earlier campaign: {difference}");
    }
    let seed = match seed {
        Seed::Same => manifest.seed,
        Seed::New => unix_ms(),
        Seed::This(seed) => seed,
    };
    let repeats = Repeated { seed: manifest.seed, started_unix_ms: manifest.started_unix_ms };
    announce(&manifest.experiment, &dir);
    let done = campaign::run(CampaignSpec {
        experiment: manifest.experiment,
        seed,
        dir: &dir,
        argv: super::command_line(),
        repeats: Some(repeats),
        stop: stop_flag()?,
        whole: None,
    })?;
    let code = finish(&done, &dir);
    eprintln!("next: weir-lab compare {} {}", earlier.display(), dir.display());
    Ok(code)
}
