//! A folder of its own for each test, removed at the end, however the test ends.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A folder in the system's for temporary files.
pub struct Folder(pub PathBuf);

impl Folder {
    /// Makes an empty folder.
    pub fn new(name: &str) -> Folder {
        let folder = Folder::absent(name);
        fs::create_dir_all(&folder.0).expect("a temporary folder");
        folder
    }

    /// Names a folder that is not there yet: whoever is tested makes it.
    pub fn absent(name: &str) -> Folder {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        let own = format!("weir-test-{}-{number}-{name}", std::process::id());
        let dir = std::env::temp_dir().join(own);
        let _ = fs::remove_dir_all(&dir);
        Folder(dir)
    }

    /// A path inside, as the program takes it.
    pub fn at(&self, name: &str) -> String {
        self.0.join(name).to_string_lossy().into_owned()
    }

    /// Writes a file with the folders it lies in, and gives its path.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.0.join(name);
        fs::create_dir_all(path.parent().expect("inside")).expect("space");
        fs::write(path, content).expect("space");
        self.at(name)
    }

    /// Writes a file only its owner may read, as another file that takes the place of the one before: times of change
    /// may be the same.
    pub fn replace(&self, name: &str, content: &str) -> PathBuf {
        let path = self.0.join(name);
        let beside = self.0.join(format!("{name}.new"));
        fs::write(&beside, content).expect("space");
        fs::set_permissions(&beside, Permissions::from_mode(0o600)).expect("our file");
        fs::rename(beside, &path).expect("one folder");
        path
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
