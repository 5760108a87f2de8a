//! A CPU that lacks what the build uses, as QEMU's user-mode emulation has it.

use std::io::Write as _;
use std::process::Command;

#[test]
fn a_cpu_that_is_too_old_gets_a_sentence_of_the_lab() {
    let test = "a_cpu_that_is_too_old_gets_a_sentence_of_the_lab";
    if !cfg!(all(target_arch = "x86_64", target_feature = "avx2")) {
        writeln!(std::io::stderr(), "SKIP {test}: needs a build for x86-64-v3").expect("stderr is open");
        return;
    }
    let run = |cpu: &str| {
        let lab = env!("CARGO_BIN_EXE_weir-lab");
        Command::new("qemu-x86_64").args(["-cpu", cpu, lab, "--version"]).output()
    };
    let Ok(old) = run("Nehalem") else {
        writeln!(std::io::stderr(), "SKIP {test}: needs qemu-x86_64; install qemu-user")
            .expect("stderr is open");
        return;
    };
    let said = String::from_utf8_lossy(&old.stderr);
    assert_eq!(old.status.code(), Some(1), "{said}");
    assert!(
        said.starts_with("weir-lab: this CPU lacks `") && said.contains("build it for this machine"),
        "{said}"
    );
    let new = run("max").expect("it was there before");
    let said = String::from_utf8_lossy(&new.stderr);
    assert!(new.status.success() && new.stdout.starts_with(b"weir-lab "), "{said}");
}
