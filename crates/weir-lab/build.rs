//! Records how this binary was built, for the manifest of every experiment.

use std::env;
use std::process::Command;

fn main() {
    let rustc = env::var("RUSTC").unwrap_or("rustc".into());
    let version = output(&rustc, &["--version"]).unwrap_or("unknown".into());
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default().replace('\x1f', " ");
    println!("cargo:rustc-env=WEIR_BUILD_RUSTC={version}");
    println!("cargo:rustc-env=WEIR_BUILD_FLAGS={flags}");
    for key in ["PROFILE", "TARGET", "OPT_LEVEL"] {
        println!("cargo:rustc-env=WEIR_BUILD_{key}={}", env::var(key).unwrap_or_default());
    }
    println!("cargo:rustc-env=WEIR_BUILD_COMMIT={}", commit());
    for source in ["src", "../weir-core/src", "../weir-io/src", "../weir-stats/src", "build.rs"] {
        println!("cargo:rerun-if-changed={source}");
    }
    if let Some(head) = output("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={head}");
    }
}

/// The commit built from, `+changes` when the tree differs from it, empty outside a repository.
fn commit() -> String {
    let Some(commit) = output("git", &["rev-parse", "--short=12", "HEAD"]) else { return String::new() };
    let changed =
        output("git", &["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| !s.is_empty());
    if changed { format!("{commit}+changes") } else { commit }
}

fn output(program: &str, arguments: &[&str]) -> Option<String> {
    let output = Command::new(program).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
}
