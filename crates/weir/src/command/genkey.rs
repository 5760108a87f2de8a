//! `weir genkey`: entries of a keys file, from the random source of the operating system.
//!
//! Promises: as many bytes as the algorithm takes, salt included; a file it makes has mode 600 from its
//! first moment, one it adds to was private before; an entry that is there is never overwritten.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use weir_core::ipsec::suite::{Encryption, Integrity};
use weir_relay::keyfile;
use zeroize::Zeroizing;

use crate::config::ipsec::spelling;
use crate::config::keys::{Keyring, NAME_MAX, name_fits};
use crate::config::read::alternatives;
use crate::failure::Failure;
use crate::text::print;

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

pub fn run(args: &GenkeyArgs) -> Result<(), Failure> {
    let lengths = lengths(args)?;
    let mut names = Vec::new();
    for name in &args.names {
        if !name_fits(name) {
            return Err(Failure(format!(
                "genkey: got the name `{name}`, expected 1 to {NAME_MAX} letters, digits, `_`, `-` or `.`; write for example `east-out`"
            )));
        }
        let several = lengths.len() > 1;
        for (what, length) in &lengths {
            let suffix = if several && *what == INTEGRITY { "-integrity" } else { "" };
            names.push((format!("{name}{suffix}"), *length));
        }
    }
    // Room for all of it from the start: text that grows leaves copies behind.
    let room = names.iter().map(|(name, length)| name.len() + 2 * length + 8).sum();
    let mut text = Zeroizing::new(String::with_capacity(room));
    for (name, length) in &names {
        let mut key = Zeroizing::new(vec![0; *length]);
        keyfile::fill(&mut key).map_err(Failure::of)?;
        let quoted = if name.contains('.') { format!("\"{name}\"") } else { name.clone() };
        let _ = write!(text, "{quoted} = \"");
        for byte in key.iter() {
            let _ = write!(text, "{byte:02x}");
        }
        text.push_str("\"\n");
    }
    match &args.write {
        None => print(&text),
        Some(path) => write(path, &names, &text),
    }
}

const ENCRYPTION: &str = "encryption";
const INTEGRITY: &str = "integrity";

/// Which keys an SA of these algorithms takes, and how long they are.
fn lengths(args: &GenkeyArgs) -> Result<Vec<(&'static str, usize)>, Failure> {
    let wrong = |option: &str, got: &str, known: &[&str]| {
        // A shell needs no quotes.
        let remedy = spelling::remedy(got, known).replace('"', "");
        Failure(format!("--{option}: got `{got}`, expected {}; {remedy}", alternatives(known)))
    };
    let mut lengths = Vec::new();
    let cipher = match (&args.cipher, &args.integrity) {
        (Some(cipher), _) => Some(cipher.as_str()),
        (None, None) => Some(Encryption::AesGcm128.name()),
        (None, Some(_)) => None,
    };
    if let Some(got) = cipher {
        let known = Encryption::ALL.map(Encryption::name);
        let cipher = spelling::encryption(got).ok_or_else(|| wrong("cipher", got, &known))?;
        if cipher.key_len() > 0 {
            lengths.push((ENCRYPTION, cipher.key_len() + cipher.salt_len()));
        }
    }
    if let Some(got) = &args.integrity {
        let known = Integrity::ALL.map(Integrity::name);
        let found = spelling::integrity(got).ok_or_else(|| wrong("integrity", got, &known))?;
        lengths.push((INTEGRITY, found.key_len()));
    }
    if lengths.is_empty() {
        return Err(Failure("genkey: null takes no key; write `--integrity hmac-sha2-256-128`".into()));
    }
    Ok(lengths)
}

/// Makes the file, or adds to it.
fn write(path: &Path, names: &[(String, usize)], text: &str) -> Result<(), Failure> {
    let shown = path.display();
    let failed =
        |e: io::Error| Failure(format!("{shown}: cannot write it ({e}); name a file in a folder of yours"));
    let fresh = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let (mut file, verb) = match fresh {
        Ok(file) => (file, "made with"),
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
            let ring = Keyring::read(path).map_err(|refusal| Failure(refusal.to_string()))?;
            if let Some((name, _)) = names.iter().find(|(name, _)| ring.find(name).is_some()) {
                return Err(Failure(format!(
                    "{shown}: has a key `{name}` already; choose another name, or remove the old line first"
                )));
            }
            let mut file = OpenOptions::new().read(true).append(true).open(path).map_err(failed)?;
            if !ends_a_line(&mut file).map_err(failed)? {
                file.write_all(b"\n").map_err(failed)?;
            }
            (file, "extended by")
        }
        Err(e) => return Err(failed(e)),
    };
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(failed)?;
    let names: Vec<&str> = names.iter().map(|n| n.0.as_str()).collect();
    print(&format!("{shown}: {verb} {}\n", names.join(", ")))
}

fn ends_a_line(file: &mut File) -> io::Result<bool> {
    use std::io::{Seek as _, SeekFrom};
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}
