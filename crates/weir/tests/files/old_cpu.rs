//! A CPU that lacks what the build uses, as QEMU's user-mode emulation has it.

use std::io::Write as _;
use std::process::Command;

#[test]
fn a_cpu_that_is_too_old_gets_a_sentence() {
    let test = "a_cpu_that_is_too_old_gets_a_sentence";
    if !cfg!(all(target_arch = "x86_64", target_feature = "avx2")) {
        writeln!(std::io::stderr(), "SKIP {test}: needs a build for x86-64-v3").expect("stderr is open");
        return;
    }
    let run = |cpu: &str| {
        let weir = env!("CARGO_BIN_EXE_weir");
        Command::new("qemu-x86_64").args(["-cpu", cpu, weir, "--version"]).output()
    };
    let Ok(old) = run("Nehalem") else {
        writeln!(std::io::stderr(), "SKIP {test}: needs qemu-x86_64; install qemu-user")
            .expect("stderr is open");
        return;
    };
    let said = String::from_utf8_lossy(&old.stderr);
    assert_eq!(old.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("weir: this CPU lacks `") && said.contains("build it for this machine"),
        "{said}"
    );
    let new = run("max").expect("it was there before");
    assert!(
        new.status.success() && new.stdout.starts_with(b"weir "),
        "{}",
        String::from_utf8_lossy(&new.stderr)
    );
}
