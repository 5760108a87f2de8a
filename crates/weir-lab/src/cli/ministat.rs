//! `weir-lab ministat`: the command line of ministat(1), for scripts that call it.
//!
//! Promises the original's options, output and exit codes; refusals say what to do about it. Nothing is
//! printed unless every file could be read.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::argument::ArgumentError;
use weir_stats::ministat::read::{Columns, values};
use weir_stats::ministat::{Confidence, Dialect, MAX_SETS, Parts, Set, Style, WIDTH, block};

const AFTER: &str = "\
Examples:
  weir-lab ministat -s before after                    two sets, the first is the reference
  weir-lab ministat -C 3 -d , -c 99 a.csv b.csv        third column, 99 % confidence
  grep pps log | weir-lab ministat -n -q -C 4          vitals of standard input, for a script
  weir-lab ministat --dialect old -A before after      as Linux distributions ship it

Which dialect computes what: docs/ministat.md.";

/// A file that cannot be opened, in the old dialect; everything else exits with [`REFUSED`].
const NOT_OPENED: u8 = 1;
const REFUSED: u8 = 2;
/// Columns: a plot wider than any screen or page is a slip of the keyboard.
const WIDEST: usize = 65_535;

#[derive(Args)]
#[command(after_help = AFTER, args_override_self = true)]
pub struct Ministat {
    /// One set of values a file, the reference first, at most 7; `-` or none is standard input.
    files: Vec<OsString>,
    /// A line of mean, median and deviation for each set, instead of one for all.
    #[arg(short = 's')]
    separate: bool,
    /// Columns of the plot [default: the terminal's, 74 into a pipe].
    #[arg(short = 'w', value_name = "N", value_parser = width, allow_hyphen_values = true)]
    width: Option<usize>,
    /// Leave the plot out.
    #[arg(short = 'A')]
    no_plot: bool,
    /// Vitals alone: no plot, no comparison.
    #[arg(short = 'n')]
    vitals: bool,
    /// Neither names nor heading.
    #[arg(short = 'q')]
    quiet: bool,
    /// Deviation of a whole population, without comparisons (modern dialect).
    #[arg(short = 'P')]
    population: bool,
    /// Which column is the value, from 1.
    #[arg(short = 'C', value_name = "COL", value_parser = column, default_value = "1", allow_hyphen_values = true)]
    column: usize,
    /// Confidence in percent: 80, 90, 95, 98, 99 or 99.5.
    #[arg(short = 'c', value_name = "PERCENT", value_parser = confidence, default_value = "95", allow_hyphen_values = true)]
    confidence: Confidence,
    /// What separates columns, each character for itself [default: space and tab].
    #[arg(short = 'd', value_name = "CHARS", value_parser = delimiters, allow_hyphen_values = true)]
    delimiters: Option<String>,
    /// Compute the values of this program: FreeBSD's today (modern), of 2016 (ratio), of 2015
    /// (midpoint), or from before and as Linux distributions ship it (old).
    #[arg(long, value_name = "NAME", value_parser = names(), default_value = "modern")]
    dialect: Dialect,
}

/// `modern` and the others, as [`Dialect`]s.
fn names() -> impl TypedValueParser<Value = Dialect> {
    PossibleValuesParser::new(Dialect::ALL.map(Dialect::name))
        .map(|name| Dialect::ALL.into_iter().find(|d| d.name() == name).unwrap_or_default())
}

fn width(text: &str) -> Result<usize, ArgumentError> {
    match text.parse::<i64>() {
        Ok(n) if n < 0 => Err(ArgumentError::NegativeWidth),
        Ok(n) => usize::try_from(n).ok().filter(|&n| n <= WIDEST).ok_or(ArgumentError::WidthAbove(WIDEST)),
        Err(_) => Err(ArgumentError::NoWidth),
    }
}

fn column(text: &str) -> Result<usize, ArgumentError> {
    match text.parse::<i64>() {
        Ok(n) if n <= 0 => Err(ArgumentError::ColumnBelowOne),
        Ok(n) => usize::try_from(n).map_err(|_| ArgumentError::ColumnTooGreat),
        Err(_) => Err(ArgumentError::NoColumn),
    }
}

fn confidence(text: &str) -> Result<Confidence, ArgumentError> {
    let percent: f64 = text.parse().map_err(|_| ArgumentError::NoConfidence)?;
    Confidence::of_percent(percent).ok_or(ArgumentError::UnknownConfidence)
}

fn delimiters(text: &str) -> Result<String, ArgumentError> {
    if text.is_empty() {
        return Err(ArgumentError::NoDelimiter);
    }
    Ok(text.into())
}

/// Why there is no block, and the exit code that says so.
struct Refusal {
    reason: String,
    code: u8,
}

impl From<String> for Refusal {
    fn from(reason: String) -> Self {
        Refusal { reason, code: REFUSED }
    }
}

impl From<ArgumentError> for Refusal {
    fn from(error: ArgumentError) -> Self {
        error.to_string().into()
    }
}

impl From<weir_stats::ministat::Refusal> for Refusal {
    fn from(refusal: weir_stats::ministat::Refusal) -> Self {
        refusal.to_string().into()
    }
}

impl Ministat {
    pub fn go(&self) -> ExitCode {
        match self.print() {
            Ok(block) => {
                // a reader that went away has seen what it wanted
                let _ = std::io::stdout().write_all(block.as_bytes());
                ExitCode::SUCCESS
            }
            Err(refusal) => {
                eprintln!("ministat: {}", refusal.reason);
                ExitCode::from(refusal.code)
            }
        }
    }

    fn print(&self) -> Result<String, Refusal> {
        let style = self.style()?;
        let columns = Columns {
            column: self.column,
            delimiters: self.delimiters.as_deref().map_or(Columns::default().delimiters, str::as_bytes),
        };
        let read = |file: Option<&OsString>| set(file.map(OsString::as_os_str), &columns, style.dialect);
        let sets = match self.files.as_slice() {
            [] => vec![read(None)?],
            files if files.len() > MAX_SETS => {
                return Err(weir_stats::ministat::Refusal::Sets(files.len()).into());
            }
            files => files.iter().map(|file| read(Some(file))).collect::<Result<_, _>>()?,
        };
        Ok(block(&sets, style)?)
    }

    fn style(&self) -> Result<Style, ArgumentError> {
        let dialect = self.dialect;
        if self.population && dialect != Dialect::Modern {
            return Err(ArgumentError::Population { dialect: dialect.name() });
        }
        Ok(Style {
            dialect,
            width: self.width.unwrap_or_else(terminal_width),
            separate_bars: self.separate,
            confidence: self.confidence,
            parts: match (self.vitals, self.no_plot) {
                (true, _) => Parts::Vitals,
                (false, true) => Parts::NoPlot,
                (false, false) => Parts::All,
            },
            quiet: self.quiet,
            population: self.population,
        })
    }
}

/// The values of a file; of standard input for `-` or none.
fn set(file: Option<&OsStr>, columns: &Columns<'_>, dialect: Dialect) -> Result<Set, Refusal> {
    let path = file.filter(|f| *f != "-");
    let name = match file {
        Some(file) if path.is_some() || dialect == Dialect::Modern => file.to_string_lossy().into_owned(),
        _ => "<stdin>".into(),
    };
    let mut bytes = Vec::new();
    let read = match path {
        None => std::io::stdin().lock().read_to_end(&mut bytes),
        Some(path) => std::fs::File::open(path).and_then(|mut f| f.read_to_end(&mut bytes)),
    };
    read.map_err(|e| Refusal {
        reason: format!("cannot open {name}: {e}; name files with one value a line"),
        code: if dialect == Dialect::Old { NOT_OPENED } else { REFUSED },
    })?;
    let values = values(&bytes, columns).map_err(|bad| {
        format!(
            "invalid data on line {} in {name}: got {:?}, expected a number: choose its column with -C, \
             begin comments with #",
            bad.line, bad.got
        )
    })?;
    Ok(Set::new(name, &values))
}

/// Says how wide the terminal is: what COLUMNS says, or its width less the borders; [`WIDTH`] elsewhere.
fn terminal_width() -> usize {
    if !std::io::stdout().is_terminal() {
        return WIDTH;
    }
    match std::env::var("COLUMNS").ok().filter(|c| !c.is_empty()) {
        Some(columns) => columns.trim().parse().unwrap_or(WIDTH),
        None => {
            let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok().filter(|s| s.ws_col > 0);
            size.map_or(WIDTH, |s| usize::from(s.ws_col).saturating_sub(2))
        }
    }
}
