//! `weir-lab new`: a commented experiment to start from.
//!
//! Promises: what it writes is a valid experiment with a control, a margin and smoke values, and says what to change.
//! Refuses: to write over anything.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::list::skipped;
use crate::experiment::{Changes, Experiment};
use crate::model::LabError;
use crate::progress::human;

const AFTER: &str = "\
Examples:
  weir-lab new mine                          two configurations, `a` and `b`, forwarding in memory
  weir-lab new labs/ciphers --kind ipsec     a file in another folder, of another kind

The file compares `b` with `a`. Change what `b` differs in, and little else:
  margin_percent   differences below it do not matter to you; `equivalent` means that none above it is left
  control          `a` runs twice and is compared with itself: a difference there is this machine's noise
  runs             more of them find smaller differences; `weir-lab plan` says how many, from a first campaign
docs/experiments.md has every key; labs/ has experiments to borrow from.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct New {
    /// The file to write; `.toml` is added where it is missing.
    name: PathBuf,
    /// What is compared.
    #[arg(long, value_enum, default_value_t = Kind::Forwarding)]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// Routers in memory, or beside the kernel between namespaces
    Forwarding,
    /// Two builds of this tree
    Build,
    /// Security gateways: ciphers, modes, directions
    Ipsec,
    /// Lists of security policies and how they are asked
    Spd,
    /// DERP relays: weir and derper
    Relay,
    /// Any two programs, by shell commands on hosts of yours
    Command,
}

impl Kind {
    fn template(self) -> &'static str {
        match self {
            Kind::Forwarding => include_str!("new/forwarding.toml"),
            Kind::Build => include_str!("new/build.toml"),
            Kind::Ipsec => include_str!("new/ipsec.toml"),
            Kind::Spd => include_str!("new/spd.toml"),
            Kind::Relay => include_str!("new/relay.toml"),
            Kind::Command => include_str!("new/command.toml"),
        }
    }
}

impl New {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let file = with_ending(self.name)?;
        let shown = file.display().to_string();
        let name = file.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        let text = self.kind.template().replace("@FILE@", &shown).replace("@NAME@", &name);
        let experiment = Experiment::parse(&name, &shown, &text, &Changes::default())?;
        write(&file, &text)?;
        super::print(&next(&experiment, &shown));
        Ok(ExitCode::SUCCESS)
    }
}

fn with_ending(mut name: PathBuf) -> Result<PathBuf, LabError> {
    let fits = |stem: &str| stem.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    match name.file_name().and_then(|file| file.to_str()) {
        Some(file) if fits(file) => {
            if !file.ends_with(".toml") {
                let file = format!("{file}.toml");
                name.set_file_name(file);
            }
            Ok(name)
        }
        _ => Err(LabError::new(format!(
            "{}: expected a name of letters, digits, `-`, `_` and `.`; write for example `mine`",
            name.display()
        ))),
    }
}

fn write(file: &Path, text: &str) -> Result<(), LabError> {
    let shown = file.display();
    let failed = |e: std::io::Error| match e.kind() {
        ErrorKind::AlreadyExists => {
            LabError::new(format!("{shown}: exists already and is kept; choose another name"))
        }
        ErrorKind::NotFound => LabError::new(format!("{shown}: its folder does not exist; make it first")),
        _ => LabError::new(format!("{shown}: {e}; name a file in a folder of yours")),
    };
    File::create_new(file).and_then(|mut file| file.write_all(text.as_bytes())).map_err(failed)
}

/// What was written and the next commands.
fn next(experiment: &Experiment, shown: &str) -> String {
    let mut out = format!(
        "{shown}: {} configurations × {} blocks, about {}. It asks:\n  {}\n",
        experiment.configurations.len(),
        experiment.runs,
        human(experiment.length()),
        experiment.question
    );
    out += &skipped(experiment);
    let folder = Path::new("out").join(&experiment.name);
    let steps = [
        (format!("weir-lab run {shown} --quick"), "does the file say what it should? in seconds"),
        (format!("weir-lab run {shown}"), "measure; the report opens in any browser"),
        (format!("weir-lab plan {}", folder.display()), "how many runs it would take to see less"),
    ];
    let width = steps.iter().map(|step| step.0.len()).max().unwrap_or(0);
    out += "Make the question yours, then\n";
    for (command, why) in steps {
        let _ = writeln!(out, "  {command:<width$}   {why}");
    }
    out
}
