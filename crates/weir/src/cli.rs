//! The command line: one verb for each thing an operator wants, help with examples beside each verb.
//!
//! Errors go to stderr as one sentence with a remedy and end the program with status 1; what was asked
//! for goes to stdout.

use std::path::PathBuf;
use std::time::Duration;

use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;

use crate::command::capture::{self, CaptureArgs};
use crate::command::genkey::{self, GenkeyArgs};
use crate::command::policy::{self, PolicyVerb};
use crate::command::relay::{self, RelayArgs};
use crate::command::release;
use crate::command::running::{self, ConfigVerb};
use crate::command::show::{self, Topic};
use crate::command::state::{self, StateVerb};
use crate::command::top::{self, TopArgs};
use crate::command::trace::{self, TraceArgs};
use crate::command::{apply, check, completions, daemon, derper, doctor, man, monitor, schema};
use crate::control::client;
use crate::failure::Failure;
use crate::log::{self, LogFormat};
use crate::text::print;
use crate::{config, router};

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
    /// Control socket [default: $RUNTIME_DIRECTORY/NAME.sock, /run/weir/NAME.sock, without root $XDG_RUNTIME_DIR/weir/NAME.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// What a daemon's log is: words, or a JSON object a line
    #[arg(
        long,
        global = true,
        value_name = "FORMAT",
        value_enum,
        default_value_t,
        hide_default_value = true
    )]
    log: LogFormat,
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
                         with IPsec: transit stays dropped until weir runs again, or `weir release`\n\
        SIGHUP           reads FILE again and applies it; a wrong file changes nothing\n\
        SIGUSR2          the program that is installed now starts with --take-over: an upgrade; one that fails changes nothing\n\n\
        IPsec: examples/gateway.toml is a gateway to start from, `weir genkey` makes its keys.\n\n\
        A router that was killed leaves usable interfaces; the next one cleans up what it left.")]
    Run {
        /// The configuration file
        file: PathBuf,
        /// Take over from the one that runs: a relay's clients come here and no connection is refused; a router ends in order
        /// once this one has nothing left to check (docs/upgrading.md)
        #[arg(long)]
        take_over: bool,
        /// IPsec: where sequence numbers, replay windows and lifetimes are kept over restarts and power cuts
        /// [default: [ipsec] state_dir, $STATE_DIRECTORY, /var/lib/weir, without root ~/.local/state/weir]
        #[arg(long, value_name = "PATH")]
        state_dir: Option<PathBuf>,
        /// IPsec: run SAs although what they used before is not known or cannot be kept
        #[arg(long)]
        accept_replay_risk: bool,
        /// Forward past the kernel's packet filter and address translation, which are not asked
        #[arg(long)]
        bypass_firewall: bool,
    },
    /// Forward what the kernel forwards, by its own routes and neighbours, faster
    #[command(after_help = "Examples:\n  \
        sudo weir accelerate eth0 eth1            these devices, without a configuration file\n  \
        weir show routes                          each with whose it is: `kernel bgp`\n  \
        ip route add 10.9.0.0/16 via 192.0.2.9    followed at once, as are FRR, BIRD and `ip neigh`\n\n\
        Addresses, routes, next-hop objects and neighbours are the kernel's, and followed. What cannot be forwarded here as\n\
        there (other interfaces, policy rules, encapsulation) stays with the kernel. Where nftables or NAT decides about transit, it\n\
        goes on to, and established flows that its rules accept are forwarded past it (docs/firewall.md). SIGTERM: the kernel\n\
        forwards as before.\n\
        docs/control.md says what is followed and what is left.")]
    Accelerate {
        /// Devices between which packets are forwarded here
        #[arg(required = true)]
        devices: Vec<String>,
        /// Carry the kernel's SAs and policies too that have an interface id (docs/control.md)
        #[arg(long)]
        keys: bool,
        /// Forward flows with this conntrack mark past the kernel's packet filter, instead of those its rules accept without
        /// looking at single packets: `0x100/0x100` (docs/firewall.md)
        #[arg(long, value_name = "MARK/MASK", conflicts_with_all = ["keys", "bypass_firewall"])]
        ct_mark: Option<String>,
        /// The same with the conntrack label of this number (`/etc/xtables/connlabel.conf`)
        #[arg(long, value_name = "NUMBER", conflicts_with_all = ["keys", "bypass_firewall", "ct_mark"])]
        ct_label: Option<u8>,
        /// Forward past the kernel's packet filter and address translation, which are not asked
        #[arg(long)]
        bypass_firewall: bool,
        /// Take over from the one that runs, which ends in order
        #[arg(long)]
        take_over: bool,
    },
    /// Say what of this machine's kernel a router with this configuration would do without
    #[command(after_help = "Examples:\n  \
        sudo weir doctor router.toml   packet filters, routes, policy rules, bridges and settings, a line each\n\n\
        Nothing is changed. Status 1 when `weir run` would refuse: a packet filter or address translation decides there.")]
    Doctor {
        /// The configuration file
        file: PathBuf,
    },
    /// Run a relay (DERP server): of a file, or at once for a try
    #[command(
        override_usage = "weir relay FILE\n       weir relay --dev [OPTIONS]\n       weir relay map FILE --tailscale|--headscale",
        after_help = "Examples:\n  \
        weir relay --dev                          plain on 127.0.0.1:3340; says how to use it\n  \
        weir relay --dev --tls user --listen :3340  TLS with a certificate nobody trusts, on every address\n  \
        sudo weir relay relay.toml                the same as `weir run relay.toml`\n  \
        sudo weir relay --take-over relay.toml    in place of the one that runs, which ends when this one is ready\n\n\
        examples/relay.toml is a file to start from, docs/relay.md says what each key does.\n\
        SIGTERM, SIGINT  no new connections are accepted, clients are told to come back, what waits for them is sent\n\
        SIGHUP           reads FILE again; the next connections go by it"
    )]
    Relay(RelayArgs),
    /// Have a relay accept no new connections, tell its clients to come back, and end
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
        weir check router.toml        every complaint with file:line:column, or one line of summary\n  \
        weir check --json router.toml the same for a program: errors with line and column, warnings, notes\n  \
        weir check - < router.toml    standard input\n\n\
        Needs no privilege and no daemon; devices are not looked at. Status 1 when anything is wrong.\n\
        A keys file this user may not read is said so, and the rest is checked.")]
    Check {
        /// The configuration file; - is standard input
        file: PathBuf,
        /// One JSON document, for programs
        #[arg(long)]
        json: bool,
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
    /// Have a running daemon read its file again and become what it says
    #[command(after_help = "Examples:\n  \
        sudo weir reload               prints what changed; a wrong file changes nothing and is said\n  \
        sudo weir --socket /run/weir/edge.sock reload\n\n\
        The same as SIGHUP and `systemctl reload`, with an answer. `weir apply FILE` takes another file.")]
    Reload,
    /// Have a running daemon end in order; returns when it has
    #[command(after_help = "Examples:\n  \
        sudo weir stop\n  \
        sudo weir --socket /run/weir/edge.sock stop\n\n\
        The same as SIGTERM. Under a service manager prefer `systemctl stop`, which knows that it was meant. With IPsec,\n\
        transit stays dropped until weir runs again, or `weir release`.")]
    Stop,
    /// Say what happens on a running router, a line each: links, neighbours, SAs, drops over a rate
    #[command(after_help = "Examples:\n  \
        weir monitor                   seconds since 1970, then + comes, - goes, ~ changes, ! drops above the rate\n  \
        weir monitor --rate 0          every reason that drops anything\n  \
        weir monitor --every 0.1 | grep sa\n\n\
        Looks every so often and tells differences: what comes and goes between two looks is not seen.")]
    Monitor {
        /// Seconds between two looks
        #[arg(long, default_value_t = 0.5, value_parser = top::interval)]
        every: f64,
        /// Drops a second of one reason above which it is told
        #[arg(long, default_value_t = 10.0, value_parser = rate)]
        rate: f64,
    },
    /// Write packets that a running router drops into a file
    #[command(after_help = capture::help())]
    Capture(CaptureArgs),
    /// Show what a running router has and counts
    #[command(after_help = "Examples:\n  \
        weir show                      what there is to show\n  \
        weir show ports                devices, addresses, traffic, how each was opened\n  \
        weir show routes for 10.9.0.1  the routes that lead there, the one that is used last\n  \
        weir show routes --from 1001   the next thousand\n  \
        weir show neighbors --match reachable   some of them; --limit 100 --from 101: the second hundred\n  \
        weir show flows --match 192.0.2.7       flows of this host; --match not_established: of this reason\n  \
        weir show drops                why packets were dropped, and who has to act\n  \
        weir show sa                   security associations: traffic, state, why packets failed\n  \
        weir show spd                  policies in their order, with what each decided; --hit: those that did\n  \
        weir show cache                SPD lookup sources: flow cache, classifier or scan\n  \
        weir show workers --json       the ledgers, for a program\n  \
        weir --socket /run/weir/b.sock show routes\n\n\
        The same with curl: curl --unix-socket /run/weir/router.sock http://weir/v1/ports")]
    Show {
        /// What to show; without it, what there is
        topic: Option<Topic>,
        /// routes: `for ADDRESS`
        #[arg(value_name = "for ADDRESS", num_args = 0..=2)]
        about: Vec<String>,
        /// routes, neighbors, sa, spd, tunnels, flows, peers: begin with this one, counted from 1
        #[arg(long, value_name = "N")]
        from: Option<usize>,
        /// The same: this many
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
        /// neighbors, sa, tunnels, flows, peers: those with this in a name, an address, a key, a state or a reason
        #[arg(long = "match", value_name = "TEXT")]
        matching: Option<String>,
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
    /// The configuration of a running router, as a file
    #[command(after_help = "Examples:\n  \
        weir config show --toml > now.toml    what runs, with changes made by `weir policy`\n  \
        weir config show | diff /etc/weir/router.toml -\n\n\
        Changes that no file has are named in comments in front. Without any, the text is that of the file.")]
    Config {
        #[command(subcommand)]
        verb: ConfigVerb,
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
        verb: Box<PolicyVerb>,
    },
    /// Give devices back to the kernel whose transit a gateway keeps from it
    #[command(after_help = "Examples:\n  \
        sudo weir release              every device of this network namespace\n  \
        sudo weir release eth1         this one\n\n\
        A configuration with IPsec keeps what its policies have not seen from the kernel, and goes on when weir has\n\
        stopped or was killed. Refused while a weir runs there; says what the kernel forwards from now on.")]
    Release {
        /// Devices; all that have it by default
        devices: Vec<String>,
    },
    /// Live rates: packets, bits and drops a second, by port, worker and reason; of a relay, by client
    #[command(after_help = "Examples:\n  \
        weir top                       the whole screen, every second\n  \
        weir top --once | grep lan     one interval, as text\n  \
        weir top --every 0.2\n  \
        weir top --sort drops          a relay: clients that lose most first; its keys stand in the last line\n\n\
        A relay's clients have the names that Tailscale's tools give them, `[AbCd1]`; `weir show peers` has whole keys.")]
    Top(TopArgs),
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
    /// What a state directory remembers of SAs, while weir is stopped
    #[command(after_help = "Examples:\n  \
        sudo weir state list                          every SA whose key was ever used\n  \
        sudo weir state forget --unused-days 400      their keys must never be used again\n\n\
        docs/ipsec.md says what is kept, and what a power cut costs.")]
    State(StateVerb),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  weir completions bash > /etc/bash_completion.d/weir")]
    Completions { shell: Shell },
    /// Print the JSON Schema of configuration files, for editors
    #[command(after_help = "Example:\n  \
        weir schema > weir.schema.json\n  \
        sed -i '1i #:schema ./weir.schema.json' router.toml     editors with a TOML language server complete keys\n\n\
        `man weir.toml` says the same in words; `weir check` judges more than a schema can.")]
    Schema,
    /// Write the manual pages into a folder
    #[command(after_help = "Example:\n  weir man /usr/local/share/man/man1")]
    Man { folder: PathBuf },
}

/// Frames a second.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(r) if r >= 0.0 && r.is_finite() => Ok(r),
        _ => Err("expected drops a second, from 0 on".to_owned()),
    }
}

pub fn run(cli: Cli) -> Result<(), Failure> {
    let socket = || client::find(cli.socket.clone()).map_err(Failure::of);
    match &cli.verb {
        Verb::Run { file, take_over, state_dir, accept_replay_risk, bypass_firewall } => {
            log::begin(cli.log);
            if config::is_relay(file) {
                return relay::of_file(file, cli.socket.clone(), *take_over);
            }
            let folder =
                state_dir.as_ref().map(|dir| std::path::absolute(dir).unwrap_or_else(|_| dir.clone()));
            let state = router::durable::StateArgs { folder, accept_risk: *accept_replay_risk };
            let args = router::StartArgs { state, bypass_firewall: *bypass_firewall, take_over: *take_over };
            router::start(file, cli.socket.clone(), args)?.run()
        }
        Verb::Accelerate { devices, keys, ct_mark, ct_label, bypass_firewall, take_over } => {
            log::begin(cli.log);
            let state = Default::default();
            let args = router::StartArgs { state, bypass_firewall: *bypass_firewall, take_over: *take_over };
            let mark = ct_mark.as_ref().map(|mark| format!("{{ ct_mark = {mark:?} }}"));
            let told = mark.or_else(|| ct_label.map(|label| format!("{{ ct_label = {label} }}")));
            router::accelerate((devices, *keys, told), cli.socket.clone(), args)?.run()
        }
        Verb::Doctor { file } => doctor::run(file),
        Verb::Relay(args) => {
            log::begin(cli.log);
            relay::run(args, cli.socket.clone())
        }
        Verb::Drain => relay::drain(&socket()?),
        Verb::Derper { flags } => {
            log::begin(cli.log);
            derper::run(flags, cli.socket.clone())
        }
        Verb::Check { file, json } => check::run(file, *json),
        Verb::Apply { file, dry_run } => apply::run(cli.socket.clone(), file, *dry_run),
        Verb::Reload => daemon::reload(&socket()?),
        Verb::Stop => daemon::stop(&socket()?),
        Verb::Monitor { every, rate } => monitor::run(&socket()?, Duration::from_secs_f64(*every), *rate),
        Verb::Capture(args) => capture::run(&socket()?, args),
        Verb::Show { topic, about, from, limit, matching, json, all, named, hit } => {
            let Some(topic) = topic else { return show::topics() };
            let chosen = show::PageArgs { from: *from, limit: *limit, matching: matching.as_deref() };
            let page = show::Page::of(*topic, about, chosen)?;
            let shown = show::Shown { all: *all, named: named.clone(), hit: *hit };
            show::run(&socket()?, *topic, *json, &shown, &page)
        }
        Verb::Config { verb } => running::run(&socket()?, verb),
        Verb::Policy { verb } => policy::run(&socket()?, verb),
        Verb::Release { devices } => release::run(devices),
        Verb::Top(args) => top::run(&socket()?, args),
        Verb::Trace(args) => trace::run(&socket()?, args),
        Verb::Genkey(args) => genkey::run(args),
        Verb::State(args) => state::run(args),
        Verb::Completions { shell } => print(&completions::script(*shell, &mut Cli::command())),
        Verb::Schema => print(&schema::text()),
        Verb::Man { folder } => print(&man::write(Cli::command(), folder)?),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::process::Stdio;

    use clap::ValueEnum as _;

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
        for shell in Shell::value_variants() {
            let script = completions::script(*shell, &mut Cli::command());
            for verb in Cli::command().get_subcommands() {
                assert!(script.contains(verb.get_name()), "{shell:?}: {}", verb.get_name());
            }
        }
    }

    /// What bash offers after these words, the last of which is being written.
    fn offered(words: &[&str]) -> String {
        let script = completions::script(Shell::Bash, &mut Cli::command());
        let [.., before, last] = words else { panic!("two words at least") };
        let call = format!(
            "{script}\nCOMP_WORDS=({}) COMP_CWORD={}\n_weir weir '{last}' '{before}'\nprintf '%s ' \"${{COMPREPLY[@]}}\"",
            words.iter().map(|w| format!("'{w}' ")).collect::<String>(),
            words.len() - 1
        );
        let mut bash = std::process::Command::new("bash");
        let mut bash = bash.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("bash is there");
        bash.stdin.take().expect("piped").write_all(call.as_bytes()).expect("it reads");
        let output = bash.wait_with_output().expect("it ends");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[test]
    fn bash_completes_verbs_what_stands_below_them_and_values() {
        assert_eq!(offered(&["weir", "acc"]), "accelerate ");
        assert!(offered(&["weir", "policy", ""]).contains("replace"));
        assert_eq!(offered(&["weir", "show", "nei"]), "neighbors ");
        assert_eq!(offered(&["weir", "run", "--take"]), "--take-over ");
        assert_eq!(offered(&["weir", "--log", "j"]), "json ");
    }
}
