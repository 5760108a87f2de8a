//! Events on standard error: with a time of their own, or with the priority that systemd's journal reads (sd-daemon(3)).

use std::fmt;
use std::io::IsTerminal as _;
use std::os::unix::fs::MetadataExt as _;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

/// Events go to stderr; `WEIR_LOG` chooses how many: a level, or `target=level` separated by commas.
pub fn begin() {
    let chosen = std::env::var("WEIR_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = chosen.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry();
    if stderr_is_the_journal() {
        let journal = Journal(tracing_subscriber::fmt::format().with_target(false).without_time());
        registry.with(lines.with_ansi(false).event_format(journal)).with(filter).init();
    } else {
        registry.with(lines.with_ansi(std::io::stderr().is_terminal())).with(filter).init();
    }
}

/// Whether `JOURNAL_STREAM` names the file that standard error is: the variable outlives a redirection.
fn stderr_is_the_journal() -> bool {
    let Ok(stderr) = std::fs::metadata("/proc/self/fd/2") else { return false };
    let own = format!("{}:{}", stderr.dev(), stderr.ino());
    std::env::var("JOURNAL_STREAM").is_ok_and(|named| named == own)
}

/// The journal's priority in front of each line, and no time: the journal has its own.
struct Journal(Format<Full, ()>);

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "<{}>", priority(*event.metadata().level()))?;
        self.0.format_event(context, writer, event)
    }
}

/// The level as syslog(3) numbers it.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        Level::DEBUG | Level::TRACE => 7,
    }
}
