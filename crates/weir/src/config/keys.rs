//! The keys file: TOML of `name = "hex"`, apart from the configuration so that that may be read by anyone.
//!
//! Promises: read only when nobody but its owner can have read or changed it; no byte of a key is in any
//! complaint; what was read is zeroised. Refuses: a file that is not regular, is another user's, has any
//! permission for group or others, or lies in a folder anyone may write to.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};
use weir_core::ipsec::cipher::Secret;
use weir_io::private::NotPrivate;
use zeroize::Zeroizing;

/// Entries by name. Prints names, never keys.
#[derive(Clone, Default)]
pub struct Keyring {
    path: PathBuf,
    keys: BTreeMap<String, Secret>,
}

/// Why a keys file is not used. Holds names of keys, never a byte of one.
#[derive(Debug)]
pub enum KeysError {
    /// This user may not read it; another one (the daemon's) may.
    Denied {
        path: PathBuf,
        error: io::Error,
    },
    Missing {
        path: PathBuf,
    },
    Unreadable {
        path: PathBuf,
        error: io::Error,
    },
    /// It is a folder, a pipe, a device.
    NotRegular {
        path: PathBuf,
    },
    TooLong {
        path: PathBuf,
        bytes: u64,
    },
    /// It belongs neither to root nor to `user`, as whom this process acts.
    Owner {
        path: PathBuf,
        owner: u32,
        user: u32,
    },
    NotPrivate(NotPrivate),
    /// Everyone may write to its folder.
    OpenFolder {
        path: PathBuf,
        folder: PathBuf,
    },
    NotUtf8 {
        path: PathBuf,
        line: usize,
    },
    /// The file is no TOML. The parser's words are left out: they may quote the file.
    NotToml {
        path: PathBuf,
        line: usize,
    },
    /// `name` as it may be printed.
    Entry {
        path: PathBuf,
        line: usize,
        name: String,
        fault: EntryFault,
    },
}

/// What is wrong with one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFault {
    NotText,
    OddDigits,
    NotHex,
    Length { bytes: usize },
}

impl EntryFault {
    pub fn remedy(self) -> &'static str {
        match self {
            EntryFault::NotText => "write `\"0123…\"`",
            EntryFault::OddDigits => "write every byte in full",
            EntryFault::NotHex => "write 0 to 9 and a to f",
            EntryFault::Length { .. } => "make one with `weir genkey`",
        }
    }
}

impl fmt::Display for EntryFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EntryFault::NotText => f.write_str("is not a text, expected hex digits in quotes"),
            EntryFault::OddDigits => f.write_str("has an odd number of hex digits, expected two a byte"),
            EntryFault::NotHex => f.write_str("has a character that is no hex digit"),
            EntryFault::Length { bytes } => write!(f, "has {bytes} bytes, expected 1 to {KEY_MAX}"),
        }
    }
}

impl KeysError {
    /// What to do.
    pub fn remedy(&self) -> Cow<'static, str> {
        match self {
            KeysError::Denied { .. } => "run as the user who owns it".into(),
            KeysError::Missing { path } => {
                format!("make it with `weir genkey NAME --write {}`", path.display()).into()
            }
            KeysError::Unreadable { .. } => "name a readable file".into(),
            KeysError::NotRegular { .. } => "name the file with the keys".into(),
            KeysError::TooLong { .. } => "is it the keys file?".into(),
            KeysError::Owner { path, user, .. } => format!("run `chown {user} {}`", path.display()).into(),
            KeysError::NotPrivate(found) => format!("run `chmod 600 {}`", found.path.display()).into(),
            KeysError::OpenFolder { folder, .. } => {
                format!("run `chmod o-w {}` or move the file", folder.display()).into()
            }
            KeysError::NotUtf8 { .. } => "write `name = \"hex\"` lines".into(),
            KeysError::NotToml { .. } => "write each key as `name = \"hex\"`, each name once".into(),
            KeysError::Entry { fault, .. } => fault.remedy().into(),
        }
    }
}

impl fmt::Display for KeysError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // It ends with the remedy itself.
            KeysError::NotPrivate(found) => return found.fmt(f),
            KeysError::Denied { path, error } => {
                write!(f, "{}: this user may not read it ({error})", path.display())
            }
            KeysError::Missing { path } => write!(f, "{}: there is no such file", path.display()),
            KeysError::Unreadable { path, error } => {
                write!(f, "{}: cannot read it ({error})", path.display())
            }
            KeysError::NotRegular { path } => write!(f, "{}: is no regular file", path.display()),
            KeysError::TooLong { path, bytes } => {
                write!(f, "{}: has {bytes} bytes, expected at most {FILE_MAX}", path.display())
            }
            KeysError::Owner { path, owner, user } => {
                write!(f, "{}: belongs to user {owner}, expected root or user {user}", path.display())
            }
            KeysError::OpenFolder { path, folder } => {
                write!(f, "{}: its folder {} is writable for everyone", path.display(), folder.display())
            }
            KeysError::NotUtf8 { path, line } => write!(f, "{}:{line}: is not UTF-8", path.display()),
            KeysError::NotToml { path, line } => write!(f, "{}:{line}: is not TOML", path.display()),
            KeysError::Entry { path, line, name, fault } => {
                write!(f, "{}:{line}: key {name}: {fault}", path.display())
            }
        }?;
        write!(f, "; {}", self.remedy())
    }
}

impl std::error::Error for KeysError {}

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
    pub fn read(path: &Path) -> Result<Keyring, KeysError> {
        let failed = |error: io::Error| {
            let path = path.to_owned();
            match error.kind() {
                io::ErrorKind::PermissionDenied => KeysError::Denied { path, error },
                io::ErrorKind::NotFound => KeysError::Missing { path },
                _ => KeysError::Unreadable { path, error },
            }
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
        Keyring::parse(path, &text)
    }

    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Keyring, KeysError> {
        let own = || path.to_owned();
        let line = |at: usize| bytes.iter().take(at).filter(|b| **b == b'\n').count() + 1;
        let text = std::str::from_utf8(bytes)
            .map_err(|e| KeysError::NotUtf8 { path: own(), line: line(e.valid_up_to()) })?;
        let (table, errors) = DeTable::parse_recoverable(text);
        if let Some(error) = errors.first() {
            let at = error.span().map_or(text.len(), |s| s.start);
            return Err(KeysError::NotToml { path: own(), line: line(at) });
        }
        let mut keys = BTreeMap::new();
        for (name, value) in table.get_ref() {
            let secret = match value.get_ref() {
                DeValue::String(hex) => secret(hex),
                _ => Err(EntryFault::NotText),
            };
            let secret = secret.map_err(|fault| {
                let (line, name) = (line(value.span().start), printable(name.get_ref()));
                KeysError::Entry { path: own(), line, name, fault }
            })?;
            keys.insert(name.get_ref().to_string(), secret);
        }
        Ok(Keyring { path: own(), keys })
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
fn secret(hex: &str) -> Result<Secret, EntryFault> {
    let mut bytes = Vec::with_capacity(hex.len() / 2);
    let mut digits = hex.bytes().filter(|b| !b" :-".contains(b));
    let wrong = |bytes: Vec<u8>, fault: EntryFault| {
        drop(Secret::new(bytes));
        Err(fault)
    };
    while let Some(high) = digits.next() {
        let Some(low) = digits.next() else { return wrong(bytes, EntryFault::OddDigits) };
        let pair = char::from(high).to_digit(16).zip(char::from(low).to_digit(16));
        let Some((high, low)) = pair else { return wrong(bytes, EntryFault::NotHex) };
        bytes.push((high << 4 | low) as u8);
    }
    match bytes.len() {
        1..=KEY_MAX => Ok(Secret::new(bytes)),
        got => wrong(bytes, EntryFault::Length { bytes: got }),
    }
}

fn regular(path: &Path, metadata: &Metadata) -> Result<(), KeysError> {
    if !metadata.is_file() {
        return Err(KeysError::NotRegular { path: path.to_owned() });
    }
    match metadata.len() {
        ..=FILE_MAX => Ok(()),
        bytes => Err(KeysError::TooLong { path: path.to_owned(), bytes }),
    }
}

/// Owner and permissions.
fn private(path: &Path, metadata: &Metadata) -> Result<(), KeysError> {
    let (owner, user) = (metadata.uid(), user());
    if owner != 0 && owner != user {
        return Err(KeysError::Owner { path: path.to_owned(), owner, user });
    }
    weir_io::private::check(path, metadata).map_err(KeysError::NotPrivate)
}

/// Refuses a folder anyone may write to: there anyone may have put the file.
fn folder(path: &Path) -> Result<(), KeysError> {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let Some(folder) = real.parent() else { return Ok(()) };
    let Ok(metadata) = std::fs::metadata(folder) else { return Ok(()) };
    match metadata.mode() & 0o002 {
        0 => Ok(()),
        _ => Err(KeysError::OpenFolder { path: path.to_owned(), folder: folder.to_owned() }),
    }
}

/// The user this process acts as.
fn user() -> u32 {
    std::fs::metadata("/proc/self").map_or(0, |m| m.uid())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Keyring, KeysError> {
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
            let said = parse(file).expect_err("refused").to_string();
            assert!(!said.contains("deadbeef"), "{said}");
            assert!(said.starts_with("k:") && said.contains("; "), "{said}");
        }
        let ring = parse(&format!("a = \"{secret}\"")).expect("a key");
        assert!(!format!("{ring:?}").contains("dead"));
    }
}
