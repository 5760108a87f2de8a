//! The keys file: who may have written it, what it says, that its keys are seen nowhere, and `weir genkey`.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use weir::config;
use weir_core::tables::ReversePath;

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weir-keys-{}-{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str, text: &str, mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("permissions");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const KEY: &str = "00112233445566778899aabbccddeeff01020304";

fn sa(name: &str, direction: &str, spi: u32, cipher: &str, keys: &str) -> String {
    format!(
        "[[sa]]\nname = \"{name}\"\ndirection = \"{direction}\"\nspi = {spi}\nsource = \"192.0.2.1\"\n\
         destination = \"192.0.2.2\"\ncipher = \"{cipher}\"\n{keys}\n"
    )
}

/// A configuration whose tunnel uses all of them.
fn gateway(sas: &str) -> String {
    let named = |way: &str| -> Vec<&str> {
        let of =
            sas.split("[[sa]]\nname = ").skip(1).filter(|sa| sa.contains(&format!("direction = \"{way}\"")));
        of.filter_map(|sa| sa.lines().next()).collect()
    };
    let (out, inbound) = (named("out").join(", "), named("in").join(", "));
    format!(
        "[ipsec]\nkeys = \"k\"\n[[port]]\nname = \"wan\"\ndevice = \"eth0\"\n{sas}\
         [[tunnel]]\nname = \"far\"\nout = [{out}]\nin = [{inbound}]\n"
    )
}

/// What loading a configuration with this keys file says.
fn load(keys: &str, mode: u32, sas: &str) -> Result<config::Config, String> {
    let folder = Folder::new();
    folder.file("k", keys, mode);
    let file = folder.file("gateway.toml", &gateway(sas), 0o644);
    config::load(&file).map_err(|refused| refused.text)
}

fn weir(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_weir")).args(args).output().expect("weir starts")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours")
}

#[test]
fn keys_reach_the_desired_state_and_no_printed_form_of_it() {
    let sas = sa("a", "out", 4097, "aes-gcm-128", "key = \"a\"");
    let config = load(&format!("a = \"{KEY}\""), 0o600, &sas).expect("valid");
    let desired = config.desired(&|_| Vec::new());
    assert_eq!(desired.ipsec.sas[0].keys.encryption.bytes()[..4], [0, 0x11, 0x22, 0x33]);
    let printed = format!("{config:?} {desired:?}");
    assert!(!printed.contains("0011") && !printed.contains("17, 34, 51"), "{printed}");
}

#[test]
fn tunnels_ask_where_sources_lead_unless_told_otherwise() {
    let sas = sa("a", "out", 4097, "aes-gcm-128", "key = \"a\"");
    for (line, expected) in [
        ("", ReversePath::Strict),
        ("rpf = \"off\"\n", ReversePath::Off),
        ("rpf = \"loose\"\n", ReversePath::Loose),
    ] {
        let folder = Folder::new();
        folder.file("k", &format!("a = \"{KEY}\""), 0o600);
        let file = folder.file("gateway.toml", &(gateway(&sas) + line), 0o644);
        let config = config::load(&file).map_err(|refused| refused.text).expect("valid");
        assert_eq!(config.desired(&|_| Vec::new()).ipsec.tunnels[0].reverse_path, expected, "{line}");
    }
}

#[test]
fn a_file_others_may_read_is_refused_with_the_command_that_mends_it() {
    let sas = sa("a", "out", 4097, "aes-gcm-128", "key = \"a\"");
    for mode in [0o644, 0o640, 0o604, 0o620] {
        let said = load(&format!("a = \"{KEY}\""), mode, &sas).expect_err("refused");
        assert!(said.contains(&format!("mode {mode:03o}")) && said.contains("run `chmod 600 "), "{said}");
    }
    for mode in [0o600, 0o400] {
        load(&format!("a = \"{KEY}\""), mode, &sas).expect("private");
    }
}

#[test]
fn a_file_in_a_folder_for_everyone_is_refused() {
    let folder = Folder::new();
    fs::set_permissions(&folder.0, Permissions::from_mode(0o1777)).expect("permissions");
    folder.file("k", &format!("a = \"{KEY}\""), 0o600);
    let sas = sa("a", "out", 4097, "aes-gcm-128", "key = \"a\"");
    let file = folder.file("gateway.toml", &gateway(&sas), 0o644);
    let said = config::load(&file).expect_err("refused").text;
    assert!(said.contains("is writable for everyone; run `chmod o-w "), "{said}");
}

#[test]
fn what_is_no_file_or_not_there_is_one_sentence() {
    let folder = Folder::new();
    let sas = sa("a", "out", 4097, "aes-gcm-128", "key = \"a\"");
    let file = folder.file("gateway.toml", &gateway(&sas), 0o644);
    let said = config::load(&file).expect_err("refused").text;
    assert!(said.contains("there is no such file; make it with `weir genkey"), "{said}");
    fs::create_dir(folder.0.join("k")).expect("a folder");
    let said = config::load(&file).expect_err("refused").text;
    assert!(said.contains("is no regular file"), "{said}");
}

#[test]
fn keys_of_wrong_lengths_and_names_are_refused_where_they_are_named() {
    let said = |keys: &str, sas: &str| load(keys, 0o600, sas).expect_err("refused");
    let short = said("a = \"00112233\"", &sa("a", "out", 4097, "aes-gcm-128", "key = \"a\""));
    assert!(short.contains("sa a: key is 4 bytes, aes-gcm-128 takes 20 (16 key + 4 salt)"), "{short}");
    assert!(short.contains("gateway.toml:13:7"), "{short}");
    let cbc = "integrity = \"hmac-sha2-256-128\"\nkey = \"a\"\nintegrity_key = \"b\"";
    let short =
        said(&format!("a = \"{}\"\nb = \"00\"", &KEY[..32]), &sa("a", "out", 4097, "aes-cbc-128", cbc));
    assert!(short.contains("integrity key is 1 bytes, hmac-sha2-256-128 takes 32"), "{short}");
    let unknown = said(&format!("east = \"{KEY}\""), &sa("a", "out", 4097, "aes-gcm-128", "key = \"est\""));
    assert!(unknown.contains("there is no key `est`") && unknown.contains("write `east`"), "{unknown}");
}

#[test]
fn one_aead_key_for_two_sas_is_refused() {
    let two = sa("a", "out", 4097, "aes-gcm-128", "key = \"a\"")
        + &sa("b", "in", 4098, "aes-gcm-128", "key = \"b\"");
    let said = load(&format!("a = \"{KEY}\"\nb = \"{KEY}\""), 0o600, &two).expect_err("refused");
    assert!(said.contains("sa b: its key is that of sa a too"), "{said}");
}

#[test]
fn genkey_makes_a_private_file_that_fits_and_never_overwrites() {
    let folder = Folder::new();
    let keys = folder.0.join("k");
    let made = weir(&["genkey", "a", "b", "--write", text(&keys)]);
    assert!(made.status.success(), "{made:?}");
    assert_eq!(fs::metadata(&keys).expect("there").permissions().mode() & 0o777, 0o600);
    let again = weir(&["genkey", "a", "--write", text(&keys)]);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && said.contains("has a key `a` already"), "{said}");
    let more = weir(&[
        "genkey",
        "c",
        "--cipher",
        "aes-cbc-256",
        "--integrity",
        "hmac-sha2-512-256",
        "--write",
        text(&keys),
    ]);
    assert!(more.status.success(), "{more:?}");
    let cbc = "integrity = \"hmac-sha2-512-256\"\nkey = \"c\"\nintegrity_key = \"c-integrity\"";
    let sas = sa("a", "out", 4097, "aes-gcm-128", "key = \"a\"")
        + &sa("b", "in", 4098, "aes-gcm-128", "key = \"b\"")
        + &sa("c", "in", 4099, "aes-cbc-256", cbc);
    let file = folder.file("gateway.toml", &gateway(&sas), 0o644);
    config::load(&file).expect("keys that differ and fit");
    let checked = weir(&["check", text(&file)]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(said.contains("3 sas") && said.contains(": OK"), "{checked:?}");
}

#[test]
fn an_sa_that_protects_little_is_told_and_not_refused() {
    let folder = Folder::new();
    folder.file("k", "", 0o600);
    let sas = sa("a", "in", 4097, "null", "allow_unauthenticated = true\nesn = false\nreplay_window = 0");
    let file = folder.file("gateway.toml", &gateway(&sas), 0o644);
    let checked = weir(&["check", text(&file)]);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{checked:?}");
    assert!(
        said.contains("warning: sa a: neither encrypts nor authenticates")
            && said.contains("no replay window"),
        "{said}"
    );
}

#[test]
fn a_user_who_may_not_read_the_keys_can_check_the_rest() {
    let test = "a_user_who_may_not_read_the_keys_can_check_the_rest";
    let stranger = ["setpriv", "--reuid=65534", "--clear-groups"];
    let can = Command::new(stranger[0]).args(&stranger[1..]).arg("true").output();
    if !can.is_ok_and(|o| o.status.success()) {
        writeln!(std::io::stderr(), "SKIP {test}: needs root and setpriv").expect("stderr is open");
        return;
    }
    let folder = Folder::new();
    folder.file("k", &format!("a = \"{KEY}\""), 0o600);
    let sas = sa("a", "out", 4097, "aes-gcm-128", "key = \"a\"");
    let good = folder.file("gateway.toml", &gateway(&sas), 0o644);
    let bad = folder.file("bad.toml", &gateway(&sas).replace("4097", "7"), 0o644);
    // The program itself may lie where only its builder can read.
    let program = folder.0.join("weir");
    weir_testing::process::copy(env!("CARGO_BIN_EXE_weir"), &program);
    let check = |file: &Path| {
        let mut command = Command::new(stranger[0]);
        command.args(&stranger[1..]).arg(&program).arg("check").arg(file).output().expect("it runs")
    };
    let checked = check(&good);
    let said = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "{checked:?}");
    assert!(said.contains(": OK") && said.contains("names and lengths of keys are not checked"), "{said}");
    let refused = check(&bad);
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("spi: got 7"), "{refused:?}");
}

#[test]
fn genkey_prints_entries_and_knows_what_it_does_not() {
    let printed = weir(&["genkey", "lab", "--cipher", "chacha20-poly1305"]);
    let line = String::from_utf8_lossy(&printed.stdout).into_owned();
    assert!(line.starts_with("lab = \"") && line.trim_end().len() == "lab = \"\"".len() + 2 * 36, "{line}");
    let said = |args: &[&str]| {
        let output = weir(args);
        assert!(!output.status.success());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let genkey = |cipher: &str| said(&["genkey", "a", "--cipher", cipher]);
    assert!(genkey("aes-gcm-25").contains("; write `aes-gcm-256`"));
    for near_nothing in ["nul", "AES-GCM", "aes-gcm-12"] {
        assert!(genkey(near_nothing).trim_end().ends_with("; write one of these"), "{near_nothing}");
    }
    let spelled = weir(&["genkey", "lab", "--cipher", "aes256gcm16"]);
    assert_eq!(spelled.stdout.len(), "lab = \"\"\n".len() + 2 * 36, "{spelled:?}");
    assert!(said(&["genkey", "a", "--cipher", "null"]).contains("null takes no key"));
    assert!(said(&["genkey", "a b"]).contains("got the name `a b`"));
}

/// What `weir check` says of a relay with these files, and its exit status.
fn checked_relay(lines: &str, files: &[(&str, u32)]) -> (String, bool) {
    let folder = Folder::new();
    for (name, mode) in files {
        folder.file(name, "", *mode);
    }
    let relay = format!("[relay]\nlisten = \":443\"\n{lines}");
    let file = folder.file("relay.toml", &relay, 0o644);
    let output = weir(&["check", text(&file)]);
    let said =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (said, output.status.success())
}

#[test]
fn a_relays_keys_that_others_may_read_are_refused_by_check_with_one_sentence() {
    let lines = "certificate = \"fullchain.pem\"\nprivate_key = \"privkey.pem\"\nmesh_key = \"mesh.key\"\n";
    let (said, good) =
        checked_relay(lines, &[("privkey.pem", 0o600), ("mesh.key", 0o400), ("relay.key", 0o600)]);
    assert!(good && said.contains("a relay on 1 address"), "{said}");
    // Files of another machine are not there: nothing is said of them.
    assert!(checked_relay(lines, &[]).1);
    for (key, name) in [("private_key", "privkey.pem"), ("mesh_key", "mesh.key"), ("key", "relay.key")] {
        for mode in [0o644, 0o640] {
            let (said, good) = checked_relay(lines, &[(name, mode)]);
            assert!(!good, "{key} of mode {mode:o} was accepted: {said}");
            let sentence =
                format!("has mode {mode:03o}, expected no permission for group and others; run `chmod 600 ");
            assert!(said.contains(&format!("relay: {key}: ")) && said.contains(&sentence), "{said}");
        }
    }
}

#[test]
fn check_prints_warnings_and_still_succeeds() {
    let lines = "tls = \"off\"\nverify = \"http://127.0.0.1:1/\"\nmesh_key = \"m\"\nmesh_with = [\"http://10.0.0.2\"]\n";
    let (said, good) = checked_relay(lines, &[]);
    assert!(good, "{said}");
    assert!(said.contains("a relay on 1 address: 3 warnings\n"), "{said}");
    for start in
        ["tls is off: ", "verify: while http://127.0.0.1:1/ does not answer", "mesh_with: http://10.0.0.2 "]
    {
        assert!(said.contains(&format!("\nwarning: {start}")), "{said}");
    }
}
