//! Files a daemon makes for itself, and where: beside its configuration, or in the folder that a service manager keeps for
//! what outlives it (`StateDirectory=`, systemd.exec(5)). A packaged unit may write nowhere else.

use std::path::{Path, PathBuf};

/// The first folder of `STATE_DIRECTORY`, which may name several; a relative one is none.
pub fn state_directory() -> Option<PathBuf> {
    directory("STATE_DIRECTORY")
}

/// The same of `RUNTIME_DIRECTORY` (`RuntimeDirectory=`): what is there ends with the service.
pub fn runtime_directory() -> Option<PathBuf> {
    directory("RUNTIME_DIRECTORY")
}

fn directory(variable: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable)?;
    std::env::split_paths(&named).next().filter(|path| path.is_absolute())
}

/// The file `name` of a daemon whose configuration lies in `folder`. One that is there already stays in use.
pub fn own_file(folder: &Path, state: Option<&Path>, name: &str) -> PathBuf {
    let beside = folder.join(name);
    match state {
        Some(state) if !beside.exists() => state.join(name),
        _ => beside,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_where_the_service_manager_keeps_state_unless_it_lies_beside_the_configuration() {
        let folder = std::env::temp_dir().join(format!("weir-own-files-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let state = Path::new("/var/lib/weir-relay");
        assert_eq!(own_file(&folder, Some(state), "a.key"), state.join("a.key"));
        assert_eq!(own_file(&folder, None, "a.key"), folder.join("a.key"));
        std::fs::write(folder.join("a.key"), "").expect("a file");
        assert_eq!(own_file(&folder, Some(state), "a.key"), folder.join("a.key"));
        let _ = std::fs::remove_dir_all(&folder);
    }
}
