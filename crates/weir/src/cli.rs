//! The command line: one verb for each thing an operator wants, help with examples beside each verb.
//!
//! Errors go to stderr as one sentence with a remedy and end the program with status 1; what was asked
//! for goes to stdout.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::server::encoded;
use weir_core::ipsec::spd::LookupSpec;

use crate::{client, config, daemon, genkey, memory, policy, relay, show, top, trace, view};

/// Why a command ended badly: lower case, subject first, then the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(pub String);

#[derive(Debug, Parser)]
#[command(
    name = "weir",
    version,
    about = "A router beside the kernel on AF_XDP, and the command to run and ask it",
    arg_required_else_help = true,
    after_help = "A first router: copy examples/router.toml, change the devices, then\n  \
        weir check router.toml && sudo weir run router.toml\n\n\
        `weir VERB --help` shows examples of each verb."
)]
pub struct Cli {
    /// Control socket [default: /run/weir/NAME.sock, without root $XDG_RUNTIME_DIR/weir/NAME.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a router or relay until SIGTERM or Ctrl-C
    #[command(after_help = "Examples:\n  \
        sudo weir run router.toml                 what was chosen is logged, then `ready`\n  \
        sudo WEIR_LOG=debug weir run router.toml  say more\n\n\
        SIGTERM, SIGINT  new frames go to the kernel, frames that have arrived are sent, everything is removed\n\
        SIGHUP           reads FILE again and applies it; a wrong file changes nothing\n\n\
        IPsec: examples/gateway.toml is a gateway to start from, `weir genkey` makes its keys.\n\n\
        A router that was killed leaves usable interfaces; the next one cleans up what it left.")]
    Run {
        /// The configuration file
        file: PathBuf,
        /// A relay: take over from the one that runs; its clients come here, no connection is refused
        #[arg(long)]
        take_over: bool,
    },
    /// Run a relay (DERP server): of a file, or at once for a try
    #[command(
        override_usage = "weir relay FILE\n       weir relay --dev [OPTIONS]",
        after_help = "Examples:\n  \
        weir relay --dev                          plain on 127.0.0.1:3340; says how to use it\n  \
        weir relay --dev --tls user --listen :3340  TLS with a certificate nobody trusts, on every address\n  \
        sudo weir relay relay.toml                the same as `weir run relay.toml`\n  \
        sudo weir relay --take-over relay.toml    in place of the one that runs, which ends when this one is ready\n\n\
        examples/relay.toml is a file to start from, docs/relay.md says what each key does.\n\
        SIGTERM, SIGINT  nobody new is taken, clients are told to come back, what waits for them is sent\n\
        SIGHUP           reads FILE again; the next connections go by it"
    )]
    Relay(relay::command::RelayArgs),
    /// Ask a relay to take nobody new, tell its clients to come back, and end
    #[command(after_help = "Examples:\n  \
        sudo weir drain                           returns when the relay has ended\n  \
        sudo weir --socket /run/weir/relay.sock drain\n\n\
        The same as SIGTERM. To replace a relay without refusing a connection: `weir run --take-over FILE`.")]
    Drain,
    /// Run a relay with derper's flags
    #[command(after_help = "Examples:\n  \
        weir derper -hostname derp.example.com -certmode manual -certdir /etc/derper -c /var/lib/derper/derper.key\n  \
        weir derper -dev                          plain on :3340\n  \
        weir derper -take-over -a :3340           in place of the one that runs, which ends when this one is ready\n\n\
        For unit files that change over. What weir does not do is refused, never ignored; docs/relay.md has the list.")]
    Derper {
        /// derper's flags, with one dash or two
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<String>,
    },
    /// Read a configuration and say everything that is wrong with it
    #[command(after_help = "Examples:\n  \
        weir check router.toml        every complaint with file:line:column, or one line of summary\n\n\
        Needs no privilege and no daemon; devices are not looked at. Status 1 when anything is wrong.\n\
        A keys file this user may not read is said so, and the rest is checked.")]
    Check {
        /// The configuration file
        file: PathBuf,
    },
    /// Make a running router what a file says, without losing a packet
    #[command(after_help = "Examples:\n  \
        weir apply --dry-run router.toml    what would change: + comes, - goes, ~ changes\n  \
        weir apply router.toml              prints the same and does it\n\n\
        All of it or nothing: a file with anything wrong changes nothing.\n\
        The keys file it names is read again; it lies beside FILE. docs/ipsec.md has the recipe for a rekey.\n\
        [workers], [control] and the kind of a device are read at the start only.")]
    Apply {
        /// The configuration file
        file: PathBuf,
        /// Only say what would change
        #[arg(long)]
        dry_run: bool,
    },
    /// Show what a running router has and counts
    #[command(after_help = "Examples:\n  \
        weir show ports                devices, addresses, traffic, how each was opened\n  \
        weir show drops                why packets were dropped, and who has to act\n  \
        weir show sa                   security associations: traffic, state, why packets failed\n  \
        weir show spd                  policies in their order, with what each decided; --hit: those that did\n  \
        weir show cache                who answered what SPDs were asked: flow cache, classifier or scan\n  \
        weir show workers --json       the ledgers, for a program\n  \
        weir --socket /run/weir/b.sock show routes\n\n\
        The same with curl: curl --unix-socket /run/weir/router.sock http://weir/v1/ports")]
    Show {
        topic: Topic,
        /// The daemon's own JSON
        #[arg(long)]
        json: bool,
        /// spd: every policy, however many there are
        #[arg(long)]
        all: bool,
        /// spd: policies with this in their name
        #[arg(long, value_name = "TEXT")]
        named: Option<String>,
        /// spd: policies that decided about a packet
        #[arg(long)]
        hit: bool,
    },
    /// Change policies of a running gateway one by one
    #[command(after_help = "Examples:\n  \
        weir policy add wan guests --local 10.7.0.0/16 --action discard --before everything\n  \
        weir policy replace wan web --protocol tcp --remote-ports 443 --action bypass --dry-run\n  \
        weir policy remove wan guests\n  \
        weir policy list --named guest\n\n\
        Costs one rule, however many there are. The file is not changed: the next `weir apply` of it makes its\n\
        policies the truth again and prints the difference. Several changes at once: POST /v1/policies.")]
    Policy {
        #[command(subcommand)]
        verb: Box<policy::Policy>,
    },
    /// Live rates: packets, bits and drops a second, by port, worker and reason
    #[command(after_help = "Examples:\n  \
        weir top                       the whole screen, every second\n  \
        weir top --once | grep lan     one interval, as text\n  \
        weir top --every 0.2")]
    Top {
        /// One interval, then end
        #[arg(long)]
        once: bool,
        /// Seconds between two looks
        #[arg(long, default_value_t = 1.0, value_parser = interval)]
        every: f64,
    },
    /// Say why a packet goes where it goes: every decision and the table entry that made it
    #[command(after_help = "Examples:\n  \
        weir trace --port lan --src 192.0.2.7 --dst 203.0.113.9\n  \
        weir trace --port lan --src 192.0.2.7 --dst 203.0.113.9 --proto tcp --sport 4000 --dport 443 --ttl 1\n  \
        weir trace --port wan --hex 0200000000010200000000020800450000…\n\n\
        Nothing is sent. The frame takes the very code that forwards.")]
    Trace(TraceArgs),
    /// Make keys for IPsec, from the operating system's random source
    #[command(after_help = "Examples:\n  \
        weir genkey east-out east-in --write gateway.keys    for aes-gcm-128: 16 bytes of key, 4 of salt\n  \
        weir genkey --cipher aes-cbc-256 --integrity hmac-sha2-256-128 west-out\n  \
        weir genkey --cipher chacha20-poly1305 lab           prints the entry\n\n\
        Each SA needs a key of its own, the same at both ends. The file has mode 600, and weir reads no other.\n\
        An integrity key is made as NAME-integrity beside its encryption key.")]
    Genkey(GenkeyArgs),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  weir completions bash > /etc/bash_completion.d/weir")]
    Completions { shell: Shell },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    Status,
    Ports,
    Routes,
    Neighbors,
    Workers,
    Drops,
    /// Security associations of IPsec
    Sa,
    /// Policies of IPsec
    Spd,
    /// IPsec tunnels
    Tunnels,
    /// Flow caches and rules of SPDs
    Cache,
    /// A relay: connections, workers, drops
    Relay,
    /// Who is connected to a relay
    Peers,
}

impl Topic {
    /// Where the daemon tells it.
    pub fn path(self) -> &'static str {
        match self {
            Topic::Status => "/v1/status",
            Topic::Ports => "/v1/ports",
            Topic::Routes => "/v1/routes",
            Topic::Neighbors => "/v1/neighbors",
            Topic::Workers => "/v1/workers",
            Topic::Drops => "/v1/drops",
            Topic::Sa => "/v1/sa",
            Topic::Spd => "/v1/spd",
            Topic::Tunnels => "/v1/tunnels",
            Topic::Cache => "/v1/cache",
            Topic::Relay => "/v1/relay",
            Topic::Peers => "/v1/peers",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Protocol {
    Udp,
    Tcp,
    Icmp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    Bash,
    Fish,
    Zsh,
}

#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// The port the packet comes in on
    #[arg(long)]
    pub port: String,
    /// The whole Ethernet frame in hex
    #[arg(long, conflicts_with_all = ["src", "dst"], required_unless_present_all = ["src", "dst"])]
    pub hex: Option<String>,
    #[arg(long, requires = "dst")]
    pub src: Option<IpAddr>,
    #[arg(long, requires = "src")]
    pub dst: Option<IpAddr>,
    #[arg(long, value_enum, default_value_t = Protocol::Udp)]
    pub proto: Protocol,
    #[arg(long, default_value_t = 40000)]
    pub sport: u16,
    #[arg(long, default_value_t = 53)]
    pub dport: u16,
    /// TTL or hop limit
    #[arg(long, default_value_t = 64)]
    pub ttl: u8,
    /// Bytes of the IP packet
    #[arg(long)]
    pub len: Option<usize>,
    /// Set IPv4's don't-fragment bit
    #[arg(long)]
    pub df: bool,
    #[arg(long)]
    pub json: bool,
}

#[derive(Clone, Debug, Args)]
pub struct GenkeyArgs {
    /// Names of the entries, as `key = …` in the configuration has them
    #[arg(required = true)]
    pub names: Vec<String>,
    /// The cipher they are for [default: aes-gcm-128]
    #[arg(long)]
    pub cipher: Option<String>,
    /// The integrity algorithm they are for, where the cipher has none of its own
    #[arg(long)]
    pub integrity: Option<String>,
    /// Write them to this keys file instead of printing them
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
}

/// Between a hundredth of a second, where counters are that fresh, and an hour.
fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(s) if (0.02..=3600.0).contains(&s) => Ok(s),
        _ => Err("expected seconds from 0.02 to 3600".to_owned()),
    }
}

pub fn run(cli: Cli) -> Result<(), Failure> {
    let socket = || client::find(cli.socket.clone()).map_err(Failure);
    match &cli.verb {
        Verb::Run { file, take_over } => {
            log();
            if config::is_relay(file) || *take_over {
                let done = relay::command::of_file(file, cli.socket.clone(), *take_over);
                return done.map_err(|broken| Failure(broken.0));
            }
            let daemon = daemon::start(file, cli.socket.clone()).map_err(|broken| Failure(broken.0))?;
            daemon.run().map_err(|broken| Failure(broken.0))
        }
        Verb::Relay(args) => {
            log();
            relay::command::run(args, cli.socket.clone()).map_err(|broken| Failure(broken.0))
        }
        Verb::Drain => relay::command::drain(&socket()?).map_err(Failure),
        Verb::Derper { flags } => {
            log();
            relay::derper::run(flags, cli.socket.clone()).map_err(|broken| Failure(broken.0))
        }
        Verb::Check { file } => check(file),
        Verb::Apply { file, dry_run } => apply(cli.socket.clone(), file, *dry_run),
        Verb::Show { topic, json, all, named, hit } => {
            let shown = show::Shown { all: *all, named: named.clone(), hit: *hit };
            show::run(&socket()?, *topic, *json, &shown)
        }
        Verb::Policy { verb } => policy::run(&socket()?, verb),
        Verb::Top { once, every } => top::run(&socket()?, Duration::from_secs_f64(*every), *once),
        Verb::Trace(args) => trace::run(&socket()?, args),
        Verb::Genkey(args) => genkey::run(args),
        Verb::Completions { shell } => show::print(&completions(*shell)),
    }
}

/// Events go to stderr; `WEIR_LOG` chooses how many.
fn log() {
    use std::io::IsTerminal;
    use tracing_subscriber::EnvFilter;
    let filter = EnvFilter::try_from_env("WEIR_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}

fn check(file: &Path) -> Result<(), Failure> {
    let config = config::judge(file).map_err(|refused| Failure(refused.0))?;
    if let Some(relay) = &config.relay {
        return show::print(&checked_relay(file, &config, relay));
    }
    let mut has =
        format!("{} and {}", count(config.ports.len(), "port"), count(config.routes.len(), "route"));
    if !config.ipsec.is_empty() {
        let ipsec = &config.ipsec;
        has = format!(
            "{}, {}, {} and {} in {}",
            has.replace(" and ", ", "),
            count(ipsec.sas.len(), "sa"),
            count(ipsec.tunnels.len(), "tunnel"),
            if ipsec.policies.len() == 1 {
                "1 policy".to_owned()
            } else {
                format!("{} policies", ipsec.policies.len())
            },
            count(ipsec.spds.len(), "spd"),
        );
    }
    let mut out = checked(file, &has, &config);
    out += &config.remarks().iter().map(|note| format!("# {note}\n")).collect::<String>();
    // Another machine may be the one that runs it.
    if let Some(why) = memory::available().and_then(|n| memory::too_much(&config, &LookupSpec::default(), n))
    {
        out += &format!("# not to be run on this machine: {why}");
    }
    show::print(&out)
}

fn checked_relay(file: &Path, config: &config::Config, relay: &config::relay::Relay) -> String {
    let front = &relay.front;
    let addresses = front.listen.len() + front.http.len() + front.stun.len();
    let has = match addresses {
        1 => "a relay on 1 address".to_owned(),
        n => format!("a relay on {n} addresses"),
    };
    checked(file, &has, config)
}

/// What a good file has, what could not be checked, and what to think about.
fn checked(file: &Path, has: &str, config: &config::Config) -> String {
    let warnings = config.warnings();
    let verdict = match warnings.len() {
        0 => "nothing wrong".to_owned(),
        n => count(n, "warning"),
    };
    let mut out = format!("{}: {has}: {verdict}\n", file.display());
    out += &warnings.iter().map(|warning| format!("warning: {warning}\n")).collect::<String>();
    out += &config.notes.iter().map(|note| format!("# {note}\n")).collect::<String>();
    out
}

fn apply(socket: Option<PathBuf>, file: &Path, dry_run: bool) -> Result<(), Failure> {
    let config = config::judge(file).map_err(|refused| Failure(refused.0))?;
    let named = daemon::socket_path(&config);
    let socket = match socket {
        // The file names its router; a copy under another name goes to the only router there is.
        None if named.exists() => named,
        given => client::find(given).map_err(Failure)?,
    };
    let folder = config::folder_of(file).display().to_string();
    let mut path =
        format!("/v1/apply?file={}&folder={}", encoded(&file.display().to_string()), encoded(&folder));
    if dry_run {
        path += "&dry-run";
    }
    let body = config.source.text.as_bytes();
    let applied: view::Applied = client::post(&socket, &path, "application/toml", body).map_err(Failure)?;
    show::print(&report(&applied))
}

/// What came of changes, a line each.
pub fn report(applied: &view::Applied) -> String {
    let mut out: String = applied.actions.iter().map(|line| line.clone() + "\n").collect();
    out += &applied.notes.iter().map(|note| format!("# {note}\n")).collect::<String>();
    out += &match (applied.actions.len(), applied.applied) {
        (0, _) => "nothing to change\n".to_owned(),
        (n, true) => format!("{} applied, tables of generation {}\n", count(n, "change"), applied.generation),
        (n, false) => format!("{} to make; nothing was done\n", count(n, "change")),
    };
    out
}

/// Words to complete: verbs, topics and options as the parser knows them, files where files go.
fn completions(shell: Shell) -> String {
    use clap::CommandFactory;
    let command = Cli::command();
    let verbs: Vec<&str> = command.get_subcommands().map(|c| c.get_name()).collect();
    let topics: Vec<String> = Topic::value_variants()
        .iter()
        .filter_map(|t| Some(t.to_possible_value()?.get_name().to_owned()))
        .collect();
    let options = |verb: &str| -> Vec<String> {
        let of = command.find_subcommand(verb).into_iter().flat_map(|c| c.get_arguments());
        of.filter_map(|a| Some(format!("--{}", a.get_long()?))).collect()
    };
    let (words, topics) = (verbs.join(" "), topics.join(" "));
    match shell {
        Shell::Fish => {
            let mut out = format!("complete -c weir -n __fish_use_subcommand -f -a '{words}'\n");
            out += &format!("complete -c weir -n '__fish_seen_subcommand_from show' -f -a '{topics}'\n");
            for verb in &verbs {
                for option in options(verb) {
                    let option = option.trim_start_matches('-').to_owned();
                    out += &format!("complete -c weir -n '__fish_seen_subcommand_from {verb}' -l {option}\n");
                }
            }
            out
        }
        Shell::Bash | Shell::Zsh => {
            let mut cases = String::new();
            for verb in &verbs {
                let more = if *verb == "show" { topics.as_str() } else { "" };
                cases += &format!("    {verb}) words=\"{more} {}\" ;;\n", options(verb).join(" "));
            }
            let zsh = if shell == Shell::Zsh { "autoload -U +X bashcompinit && bashcompinit\n" } else { "" };
            format!(
                "{zsh}_weir() {{\n  local words=\"{words}\"\n  case \"${{COMP_WORDS[1]}}\" in\n{cases}  esac\n  \
                 [ \"$COMP_CWORD\" = 1 ] && words=\"{words}\"\n  \
                 COMPREPLY=($(compgen -W \"$words --socket --help\" -- \"${{COMP_WORDS[COMP_CWORD]}}\"))\n}}\n\
                 complete -o default -F _weir weir\n"
            )
        }
    }
}

/// `1 port`, `2 ports`.
pub fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_shows_an_example() {
        for verb in Cli::command().get_subcommands().filter(|c| c.get_name() != "help") {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example"), "{} has no example", verb.get_name());
        }
    }

    #[test]
    fn completions_know_every_verb() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let script = completions(shell);
            for verb in Cli::command().get_subcommands() {
                assert!(script.contains(verb.get_name()), "{shell:?}: {}", verb.get_name());
            }
        }
    }
}
