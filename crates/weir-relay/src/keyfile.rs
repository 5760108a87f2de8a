//! The relay's private key in a file: made once, kept for ever. Clients know a relay by its key.
//!
//! ```text
//! {"PrivateKey": "privkey:0123…"}        as derper's -c has it, so that either can take over from the other
//! ```
//!
//! Promises: a file it makes has mode 600 from its first moment and is whole or not there; of two that make it at the
//! same time one wins and both have its key. Refuses: a file that others may read, and one that is not understood:
//! it is never overwritten.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};
use weir_core::relay::handshake::Secret;
use zeroize::{Zeroize as _, Zeroizing};

use super::error::KeyError;
use super::settings::MeshKey;

/// A key file is a line or two.
const FILE_MAX: u64 = 16 << 10;

#[derive(Deserialize, Serialize)]
struct Content {
    #[serde(rename = "PrivateKey")]
    private_key: String,
}

/// The key of this file; made now where there is none.
pub fn read_or_make(path: &Path) -> Result<Secret, KeyError> {
    match read(path) {
        Ok(Some(secret)) => Ok(secret),
        Ok(None) => {
            make(path)?;
            read(path)?.ok_or_else(|| KeyError::Vanished { path: path.to_owned() })
        }
        Err(refused) => Err(refused),
    }
}

/// The key of this file, if there is one.
pub fn read(path: &Path) -> Result<Option<Secret>, KeyError> {
    let Some(text) = private_text(path)? else { return Ok(None) };
    parse(&text).map(Some).ok_or_else(|| KeyError::NoKey { path: path.to_owned() })
}

/// The key that a file's text has.
pub(crate) fn parse(text: &str) -> Option<Secret> {
    let trimmed = text.trim();
    let key = match trimmed.starts_with('{') {
        false => Zeroizing::new(trimmed.to_owned()),
        true => Zeroizing::new(serde_json::from_str::<Content>(trimmed).ok()?.private_key),
    };
    let mut bytes = hex(key.strip_prefix("privkey:").unwrap_or(&key))?;
    let secret = Secret::new(bytes);
    bytes.zeroize();
    Some(secret)
}

/// The mesh key of this file.
pub fn read_mesh_key(path: &Path) -> Result<MeshKey, KeyError> {
    let text = private_text(path)?.ok_or_else(|| KeyError::NoMeshKeyFile { path: path.to_owned() })?;
    MeshKey::new(&text).map_err(|found| KeyError::NoMeshKey { path: path.to_owned(), found })
}

/// A new key of 32 random bytes.
pub fn fresh() -> Result<Secret, KeyError> {
    let mut bytes = random::<32>()?;
    let secret = Secret::new(bytes);
    bytes.zeroize();
    Ok(secret)
}

/// Random bytes of the operating system.
pub fn random<const N: usize>() -> Result<[u8; N], KeyError> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

/// Fills `bytes` with random ones of the operating system.
pub fn fill(bytes: &mut [u8]) -> Result<(), KeyError> {
    let mut filled = 0;
    // More than 256 bytes may come in parts.
    while filled < bytes.len() {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())
            .or_else(|e| if e == Errno::INTR { Ok(0) } else { Err(e) })
            .map_err(|e| KeyError::NoRandomness(e.into()))?;
    }
    Ok(())
}

fn make(path: &Path) -> Result<(), KeyError> {
    let failed = |error: io::Error| KeyError::CannotMake { path: path.to_owned(), error };
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(failed)?;
    let secret = fresh()?.bytes();
    let mut private_key = String::with_capacity(80);
    private_key.push_str("privkey:");
    for byte in secret.iter() {
        private_key.push(digit(byte >> 4));
        private_key.push(digit(byte & 15));
    }
    let mut content = Content { private_key };
    let text = Zeroizing::new(serde_json::to_string(&content).map_err(|e| failed(e.into()))? + "\n");
    content.private_key.zeroize();
    // Written beside it and linked: nobody ever sees half a key, and an older one is never replaced.
    let beside = folder.join(format!(".{}.{}", name_of(path), std::process::id()));
    let written =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside).and_then(|mut f| {
            f.write_all(text.as_bytes())?;
            f.sync_all()
        });
    let linked = written.and_then(|()| std::fs::hard_link(&beside, path));
    // It was only on the way.
    let _ = std::fs::remove_file(&beside);
    match linked {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(failed(e)),
        _ => Ok(()),
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| "relay.key".to_owned(), |n| n.to_string_lossy().into_owned())
}

fn digit(value: u8) -> char {
    char::from_digit(value.into(), 16).unwrap_or('0')
}

fn hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 {
        return None;
    }
    let mut bytes = [0; 32];
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let value = |c: u8| char::from(c).to_digit(16);
        *byte = (value(pair[0])? << 4 | value(pair[1])?) as u8;
    }
    Some(bytes)
}

/// The text of a file that only its owner can read; `None` where there is no file.
fn private_text(path: &Path) -> Result<Option<Zeroizing<String>>, KeyError> {
    let failed = |error: io::Error| KeyError::Unreadable { path: path.to_owned(), error };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(e)),
    };
    let about = file.metadata().map_err(failed)?;
    if !about.is_file() || about.len() > FILE_MAX {
        return Err(KeyError::NoKeyFile { path: path.to_owned(), most: FILE_MAX });
    }
    weir_io::private::check(path, &about)?;
    let mut text = Zeroizing::new(String::with_capacity(about.len() as usize + 1));
    file.read_to_string(&mut text).map_err(failed)?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
    use std::path::PathBuf;

    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            let path = std::env::temp_dir().join(format!("weir-keyfile-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).expect("a folder");
            Folder(path)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_key_is_made_once_private_and_read_ever_after() {
        let folder = Folder::new("once");
        let path = folder.0.join("relay.key");
        let first = read_or_make(&path).expect("made");
        assert_eq!(std::fs::metadata(&path).expect("there").mode() & 0o777, 0o600);
        assert_eq!(read_or_make(&path).expect("read").public(), first.public());
        assert_eq!(std::fs::read_dir(&folder.0).expect("a folder").count(), 1, "nothing is left beside it");
    }

    #[test]
    fn a_key_others_may_read_is_refused_with_the_command_that_mends_it() {
        let folder = Folder::new("mode");
        let path = folder.0.join("relay.key");
        read_or_make(&path).expect("made");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("changed");
        let said = read_or_make(&path).expect_err("refused").to_string();
        assert!(said.contains("has mode 644") && said.contains("run `chmod 600"), "{said}");
    }

    #[test]
    fn a_file_with_something_else_in_it_is_neither_taken_nor_overwritten() {
        let folder = Folder::new("else");
        let path = folder.0.join("relay.key");
        for text in ["", "{}", "privkey:12", "{\"PrivateKey\": \"privkey:zz\"}"] {
            std::fs::write(&path, text).expect("written");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("changed");
            let said = read_or_make(&path).expect_err("refused").to_string();
            assert!(said.ends_with("remove it to have one made"), "{said}");
            assert_eq!(std::fs::read_to_string(&path).expect("there"), text);
        }
    }
}
