//! Compiles the XDP programs with clang, and refuses to go on where C and Rust disagree about what they share.

use std::env;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[path = "src/layout.rs"]
#[allow(dead_code, reason = "the build needs the tables, the library the structures")]
mod layout;

/// Files of `bpf/`, and the programs in each.
const PROGRAMS: [(&str, &[&str]); 8] = [
    ("deliver", &["deliver"]),
    ("enforce", &["enforce"]),
    ("fib", &["fib"]),
    ("generate", &["generate"]),
    ("pass", &["pass"]),
    ("steer", &["steer", "steer_flow", "steer_tracked"]),
    ("tally", &["tally"]),
    ("transmit", &["transmit"]),
];

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        // Plain words: cargo prints each line marked so.
        Err(error) => {
            error.to_string().lines().for_each(|line| println!("cargo::error={line}"));
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<()> {
    println!("cargo::rerun-if-changed=bpf");
    println!("cargo::rerun-if-changed=src/layout.rs");
    println!("cargo::rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let check = out.join("layout_check.c");
    fs::write(&check, layout::check())?;
    clang(&check, &out.join("layout_check.o"))?;
    let mut table = String::new();
    for (file, programs) in PROGRAMS {
        let object = out.join(format!("{file}.o"));
        clang(&Path::new("bpf").join(format!("{file}.c")), &object)?;
        let constant = format!("{}_OBJECT", file.to_uppercase());
        table += &format!("const {constant}: &[u8] = aya::include_bytes_aligned!({object:?});\n");
        for program in programs {
            let name = format!("weir_{program}");
            let stack = stack(&out.join(format!("{file}.su")), &name)?;
            table += &format!(
                "pub const {}: crate::Source = crate::Source {{ name: {name:?}, stack: {stack}, object: {constant} }};\n",
                program.to_uppercase()
            );
        }
    }
    fs::write(out.join("programs.rs"), table)?;
    Ok(())
}

/// Compiles one file.
fn clang(source: &Path, object: &Path) -> Result<()> {
    let compiler = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let architecture = env::var("CARGO_CFG_TARGET_ARCH")?;
    let mut command = Command::new(&compiler);
    command
        // v3: 32-bit arithmetic and jumps, Linux 5.1.
        .args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"])
        .args(["-fstack-usage", "-Ibpf/include"])
        // Where Debian has asm/types.h, which linux/types.h asks for: of this machine's architecture, and of another one.
        .arg(format!("-idirafter/usr/include/{architecture}-linux-gnu"))
        .arg(format!("-idirafter/usr/{architecture}-linux-gnu/include"))
        // No path of the machine that builds goes into the binary.
        .arg(format!("-ffile-prefix-map={}=weir-xdp", env::current_dir()?.display()))
        .arg(format!("-ffile-prefix-map={}=out", env::var("OUT_DIR")?))
        .arg("-c")
        .arg(source)
        .arg("-o")
        .arg(object);
    let output = command.output().map_err(|error| {
        format!(
            "clang: {compiler}: {error}; the XDP programs are compiled by it: \
             apt-get install clang libbpf-dev (packaging/debian-packages), or set CLANG"
        )
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let missing = said.contains("file not found");
    let remedy = if missing { "; headers come with apt-get install libbpf-dev linux-libc-dev" } else { "" };
    Err(format!("{}: not compiled{remedy}; {compiler} said:\n{said}", source.display()).into())
}

/// Bytes of stack of a program, into which everything it calls is compiled: `file:line:function\tbytes\tkind`.
fn stack(usage: &Path, program: &str) -> Result<u32> {
    let text = fs::read_to_string(usage)?;
    let mut lines = text.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let line =
        lines.find(|line| line.first().is_some_and(|function| function.ends_with(&format!(":{program}"))));
    let bytes = line.and_then(|line| line.get(1)?.parse().ok());
    bytes.ok_or_else(|| format!("{}: no stack usage of {program} in {text:?}", usage.display()).into())
}
