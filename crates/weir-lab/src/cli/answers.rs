//! `weir-lab answers`: what campaigns say, into the documents that hold it.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::answers::Campaigns;
use crate::model::LabError;
use crate::store::write_whole;

const AFTER: &str = "\
Examples:
  weir-lab answers docs/answers.md docs/benchmarks.md          write them anew from the newest campaigns
  weir-lab answers docs/answers.md docs/benchmarks.md --check  do they say what the newest campaigns say?

A document names the experiments itself: <!-- answers NAME … -->, or <!-- answers as table NAME … -->, and
<!-- end of answers -->; what stands between is written anew. docs/experiments.md: `[[answer]]`.";

#[derive(Args)]
#[command(after_help = AFTER)]
pub struct Answers {
    /// Documents with markers.
    #[arg(required = true)]
    documents: Vec<PathBuf>,
    /// Folder that holds the campaigns.
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// Write nothing; exit with 1 when a document says something else.
    #[arg(long)]
    check: bool,
    /// Take smoke campaigns (--quick) too, which prove nothing.
    #[arg(long)]
    quick: bool,
}

impl Answers {
    pub fn go(self) -> Result<ExitCode, LabError> {
        let mut campaigns = Campaigns::find(&self.runs, self.quick)?;
        let mut differ = false;
        for document in &self.documents {
            let shown = document.display();
            let text = fs::read_to_string(document)
                .map_err(|e| LabError::new(format!("{shown}: {e}; name a document with markers")))?;
            let filled = campaigns.fill(document, &text)?;
            match (filled == text, self.check) {
                (true, _) => println!("{shown}: says what the newest campaigns say"),
                (false, true) => {
                    differ = true;
                    println!("{shown}: says something else; `weir-lab answers {shown}` writes it anew");
                }
                (false, false) => {
                    write_whole(document, &filled)?;
                    println!("{shown}: written anew");
                }
            }
        }
        Ok(if differ { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }
}
