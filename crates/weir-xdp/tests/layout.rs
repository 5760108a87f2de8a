//! C and Rust that disagree about a structure are not built together.

use std::process::{Command, Output};

use weir_xdp::layout;

/// Compiles as the build script compiles its check, from a file of this name.
fn compile(name: &str, source: &str) -> Output {
    let dir = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (from, to) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.o")));
    std::fs::write(&from, source).expect("written");
    let headers = concat!(env!("CARGO_MANIFEST_DIR"), "/bpf/include");
    let system = format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH);
    let mut clang = Command::new(std::env::var("CLANG").unwrap_or_else(|_| "clang".into()));
    clang.args(["-target", "bpf", "-I", headers, "-idirafter", &system, "-c"]).arg(from).arg("-o").arg(to);
    clang.output().expect("clang built the programs, so it is there")
}

#[test]
fn a_layout_that_differs_is_not_built_and_says_where() {
    let right = layout::check();
    assert!(compile("right", &right).status.success());
    let shared = layout::STRUCTS.iter().map(|s| 1 + 2 * s.fields.len()).sum::<usize>();
    assert_eq!(right.matches("_Static_assert").count(), shared + layout::CONSTANTS.len());
    let faults = [
        (
            "size",
            "sizeof(struct tally_state) == 56",
            "sizeof(struct tally_state) == 64",
            "size of struct tally_state",
        ),
        (
            "offset",
            "offsetof(struct tally_state, last_ns) == 48",
            "offsetof(struct tally_state, last_ns) == 40",
            "offset of struct tally_state, last_ns",
        ),
        (
            "width",
            "sizeof(((struct tally_flow *)0)->next) == 4",
            "sizeof(((struct tally_flow *)0)->next) == 8",
            "width of struct tally_flow, next",
        ),
        ("number", "TALLY_WINDOW == 64", "TALLY_WINDOW == 32", "TALLY_WINDOW"),
    ];
    for (name, from, to, named) in faults {
        let wrong = right.replace(from, to);
        assert_ne!(wrong, right, "{from} is checked");
        let output = compile(name, &wrong);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(named), "{name}: {said}");
        assert_eq!(said.matches("error:").count(), 1, "{said}");
    }
}
