//! The keys file: TOML of `name = "hex"`, apart from the configuration so that that may be read by anyone.
//!
//! Promises: read only when nobody but its owner can have read or changed it; no byte of a key is in any
//! complaint; what was read is zeroised. Refuses: a file that is not regular, is another user's, has any
//! permission for group or others, or lies in a folder anyone may write to.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use weir_core::ipsec::cipher::Secret;
use zeroize::Zeroizing;

/// Entries by name. Prints names, never keys.
#[derive(Clone, Default)]
pub struct Keyring {
    path: PathBuf,
    keys: BTreeMap<String, Secret>,
}

/// Why a keys file is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This user may not read it; another one (the daemon's) may.
    Denied(String),
    /// A sentence with the remedy.
    Wrong(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Denied(sentence) | Refusal::Wrong(sentence) => f.write_str(sentence),
        }
    }
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("path", &self.path).field("names", &self.keys.keys()).finish()
    }
}

/// Largest keys file: 10,000 SAs at some 100 bytes.
const FILE_MAX: u64 = 1 << 20;
/// Longest key: AES-256 and salt are 36 bytes, HMAC-SHA2-512 takes 64.
const KEY_MAX: usize = 64;

/// A name is what configurations refer to: as short and plain as the names of what uses it.
pub const NAME_MAX: usize = 48;

pub fn name_fits(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    !name.is_empty() && name.len() <= NAME_MAX && name.chars().all(fits)
}

impl Keyring {
    pub fn find(&self, name: &str) -> Option<&Secret> {
        self.keys.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and judges a file.
    pub fn read(path: &Path) -> Result<Keyring, Refusal> {
        let shown = path.display();
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::PermissionDenied => Refusal::Denied(format!(
                "{shown}: this user may not read it ({e}); run as the user who owns it"
            )),
            io::ErrorKind::NotFound => Refusal::Wrong(format!(
                "{shown}: there is no such file; make it with `weir genkey NAME --write {shown}`"
            )),
            _ => Refusal::Wrong(format!("{shown}: cannot read it ({e}); name a readable file")),
        };
        // Before it is opened: opening a pipe waits for its other end.
        regular(path, &std::fs::metadata(path).map_err(failed)?)?;
        folder(path)?;
        let mut file = File::open(path).map_err(failed)?;
        // And of what was opened: the name may mean another file by now.
        let metadata = file.metadata().map_err(failed)?;
        regular(path, &metadata)?;
        private(path, &metadata)?;
        // Whole from the start, so that no half-grown buffer is left behind with keys in it.
        let mut text = Zeroizing::new(Vec::with_capacity(metadata.len() as usize + 1));
        file.by_ref().take(metadata.len()).read_to_end(&mut text).map_err(failed)?;
        Keyring::parse(path, &text).map_err(Refusal::Wrong)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Keyring, String> {
        let shown = path.display();
        let line = |at: usize| bytes.iter().take(at).filter(|b| **b == b'\n').count() + 1;
        let text = std::str::from_utf8(bytes).map_err(|e| {
            format!("{shown}:{}: is not UTF-8; write `name = \"hex\"` lines", line(e.valid_up_to()))
        })?;
        let (table, errors) = DeTable::parse_recoverable(text);
        if let Some(error) = errors.first() {
            // Without the parser's words: they may quote the file.
            let at = error.span().map_or(text.len(), |s| s.start);
            return Err(format!(
                "{shown}:{}: is not TOML; write each key as `name = \"hex\"`, each name once",
                line(at)
            ));
        }
        let mut keys = BTreeMap::new();
        for (name, value) in table.get_ref() {
            let at = format!("{shown}:{}: key {}", line(value.span().start), printable(name.get_ref()));
            let DeValue::String(hex) = value.get_ref() else {
                return Err(format!("{at}: is not a text, expected hex digits in quotes; write `\"0123…\"`"));
            };
            let secret = secret(hex).map_err(|why| format!("{at}: {why}"))?;
            keys.insert(name.get_ref().to_string(), secret);
        }
        Ok(Keyring { path: path.to_owned(), keys })
    }
}

/// Names of keys are no secret, but what stands in their place by mistake may be.
fn printable(name: &str) -> String {
    const SHOWN: usize = 32;
    match name.len() <= SHOWN && !name.chars().any(char::is_control) {
        true => format!("`{name}`"),
        false => format!("with a name of {} bytes", name.len()),
    }
}

/// Hex digits, with spaces, colons and dashes between bytes as people write them.
fn secret(hex: &str) -> Result<Secret, String> {
    let mut bytes = Vec::with_capacity(hex.len() / 2);
    let mut digits = hex.bytes().filter(|b| !b" :-".contains(b));
    let wrong = |bytes: Vec<u8>, why: String| {
        drop(Secret::new(bytes));
        Err(why)
    };
    while let Some(high) = digits.next() {
        let Some(low) = digits.next() else {
            return wrong(
                bytes,
                "has an odd number of hex digits, expected two a byte; write every byte in full".into(),
            );
        };
        let pair = char::from(high).to_digit(16).zip(char::from(low).to_digit(16));
        let Some((high, low)) = pair else {
            return wrong(bytes, "has a character that is no hex digit; write 0 to 9 and a to f".into());
        };
        bytes.push((high << 4 | low) as u8);
    }
    if bytes.is_empty() || bytes.len() > KEY_MAX {
        let got = bytes.len();
        return wrong(
            bytes,
            format!("has {got} bytes, expected 1 to {KEY_MAX}; make one with `weir genkey`"),
        );
    }
    Ok(Secret::new(bytes))
}

fn regular(path: &Path, metadata: &Metadata) -> Result<(), Refusal> {
    let shown = path.display();
    if !metadata.is_file() {
        return Err(Refusal::Wrong(format!("{shown}: is no regular file; name the file with the keys")));
    }
    if metadata.len() > FILE_MAX {
        return Err(Refusal::Wrong(format!(
            "{shown}: has {} bytes, expected at most {FILE_MAX}; is it the keys file?",
            metadata.len()
        )));
    }
    Ok(())
}

/// Owner and permissions.
fn private(path: &Path, metadata: &Metadata) -> Result<(), Refusal> {
    let shown = path.display();
    let user = user();
    if metadata.uid() != 0 && metadata.uid() != user {
        return Err(Refusal::Wrong(format!(
            "{shown}: belongs to user {}, expected root or user {user}; run `chown {user} {shown}`",
            metadata.uid()
        )));
    }
    weir_io::private::judge(path, metadata).map_err(|why| Refusal::Wrong(why.to_string()))
}

/// In a folder anyone may write to, anyone may have put the file.
fn folder(path: &Path) -> Result<(), Refusal> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let Some(folder) = real.parent() else { return Ok(()) };
    let Ok(metadata) = std::fs::metadata(folder) else { return Ok(()) };
    if metadata.mode() & 0o002 != 0 {
        return Err(Refusal::Wrong(format!(
            "{}: its folder {} is writable for everyone; run `chmod o-w {}` or move the file",
            path.display(),
            folder.display(),
            folder.display()
        )));
    }
    Ok(())
}

/// The user this process acts as.
fn user() -> u32 {
    std::fs::metadata("/proc/self").map_or(0, |m| m.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Keyring, String> {
        Keyring::parse(Path::new("k"), text.as_bytes())
    }

    #[test]
    fn hex_is_read_as_people_write_it() {
        let ring = parse("a = \"00 01:02-FF\"\n\"b.c\" = \"0a\"\n").expect("two keys");
        assert_eq!(ring.find("a").map(Secret::bytes), Some(&[0, 1, 2, 255][..]));
        assert_eq!(ring.names().collect::<Vec<_>>(), ["a", "b.c"]);
    }

    #[test]
    fn no_complaint_and_no_debug_text_has_a_byte_of_a_key() {
        let secret = "deadbeefdeadbeefdeadbeefdeadbeef";
        let files = [
            format!("a = \"{secret}x\""),
            format!("a = \"{secret}0\""),
            format!("a = [\"{secret}\"]"),
            format!("a = {secret}"),
            format!("a = \"{secret}"),
            format!("{secret}{secret} = 1"),
            format!("a = \"{secret}\"\na = \"{secret}\""),
            format!("a = \"{}\"", secret.repeat(20)),
            secret.to_owned(),
        ];
        for file in &files {
            let said = parse(file).expect_err("refused");
            assert!(!said.contains("deadbeef"), "{said}");
            assert!(said.starts_with("k:") && said.contains("; "), "{said}");
        }
        let ring = parse(&format!("a = \"{secret}\"")).expect("a key");
        assert!(!format!("{ring:?}").contains("dead"));
    }
}
