//! Events on standard error: with a time of their own, or with the priority that systemd's journal reads (sd-daemon(3)); as
//! words, or as a JSON object a line.

use std::fmt;
use std::io::IsTerminal as _;
use std::os::unix::fs::MetadataExt as _;

use clap::ValueEnum;
use serde_json::{Map, Value};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::{Format, Full, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

/// What a line of the log is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Words for people.
    #[default]
    Text,
    /// A JSON object a line, for programs: `level`, `message`, `time` except in systemd's journal, fields.
    Json,
}

/// Events go to stderr; `WEIR_LOG` chooses how many: a level, or `target=level` separated by commas.
pub fn begin(format: LogFormat) {
    let chosen = std::env::var("WEIR_LOG").ok().and_then(|text| text.parse::<Targets>().ok());
    let filter = chosen.unwrap_or_else(|| Targets::new().with_default(LevelFilter::INFO));
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_target(false);
    let registry = tracing_subscriber::registry();
    let journal = stderr_is_the_journal();
    if format == LogFormat::Json {
        registry.with(lines.with_ansi(false).event_format(Json { journal })).with(filter).init();
    } else if journal {
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

/// A JSON object a line. In the journal it has a priority in front and no time.
struct Json {
    journal: bool,
}

impl<S, N> FormatEvent<S, N> for Json
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let level = *event.metadata().level();
        let mut fields = Fields(Map::new());
        event.record(&mut fields);
        fields.put("level", level.as_str().to_ascii_lowercase());
        if self.journal {
            write!(writer, "<{}>", priority(level))?;
        } else {
            let mut time = String::new();
            SystemTime.format_time(&mut Writer::new(&mut time))?;
            fields.put("time", time);
        }
        writeln!(writer, "{}", Value::Object(fields.0))
    }
}

/// The fields of an event; the words are called `message`.
struct Fields(Map<String, Value>);

impl Fields {
    fn put(&mut self, name: &str, value: impl Into<Value>) {
        self.0.insert(name.to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field.name(), value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field.name(), value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.put(field.name(), value);
    }
}
