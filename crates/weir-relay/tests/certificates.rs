//! Certificates of the relay: made, read, read again; and the meta certificate behind each.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, SystemTime};

use rustls::pki_types::CertificateDer;
use weir_core::relay::Key;
use weir_relay::certificates::{Identity, validity};
use weir_relay::settings::Certificates;
use weir_testing::folder::Folder;

const KEY: Key = Key([0xab; 32]);
const DAY: Duration = Duration::from_secs(86_400);

/// PEM of a certificate for `name` and of its key.
fn pair(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_string()]).expect("a certificate");
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn contains(certificate: &CertificateDer<'_>, text: &str) -> bool {
    certificate.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_key_that_others_may_read_is_refused_at_the_start_and_later() {
    let folder = Folder::new("mode");
    let (chain, key) = pair("derp.example");
    let files = Certificates::Files {
        chain: folder.replace("chain.pem", &chain),
        key: folder.replace("key.pem", &key),
    };
    let open = || Identity::open(&files, Some("derp.example"), KEY, SystemTime::now());
    let path = folder.0.join("key.pem");
    let identity = open().expect("the key is its owner's alone");
    for mode in [0o640, 0o644, 0o604] {
        fs::set_permissions(&path, Permissions::from_mode(mode)).expect("our file");
        let said = open().err().unwrap_or_else(|| panic!("accepted with mode {mode:o}")).to_string();
        let expected =
            format!("has mode {mode:03o}, expected no permission for group and others; run `chmod 600 ");
        assert!(said.contains(&expected), "{said}");
    }
    // Replaced while it runs: what was read is served on.
    let (served, other) = (identity.chain(), pair("derp.example"));
    folder.replace("chain.pem", &other.0);
    folder.replace("key.pem", &other.1);
    fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("our file");
    let said = identity.refresh(SystemTime::now()).expect_err("refused").to_string();
    assert!(said.contains("has mode 644"), "{said}");
    assert_eq!(identity.chain()[0], served[0]);
}

#[test]
fn self_signed_certificate_is_for_the_host_and_followed_by_the_meta_certificate() {
    let now = SystemTime::now();
    let identity =
        Identity::open(&Certificates::SelfSigned, Some("derp.example"), KEY, now).expect("is made");
    let chain = identity.chain();
    assert_eq!(chain.len(), 2);
    assert!(contains(&chain[0], "derp.example"));
    assert!(contains(&chain[1], &format!("derpkey{}", "ab".repeat(32))));
    let (begin, end) = validity(&chain[1]).expect("its times are there");
    assert!(begin < now - 29 * DAY && end > now + 29 * DAY);
    assert!(identity.server_config().is_ok());
}

#[test]
fn clients_may_know_the_leaf_by_the_sum_that_other_programs_take_of_it() {
    let identity = Identity::open(&Certificates::SelfSigned, None, KEY, SystemTime::now()).expect("is made");
    let folder = Folder::new("pin");
    let path = folder.0.join("leaf.der");
    fs::write(&path, &identity.chain()[0]).expect("written");
    let output = Command::new("sha256sum").arg(&path).output().expect("coreutils are there");
    let sum = String::from_utf8_lossy(&output.stdout);
    let sum = sum.split(' ').next().expect("a sum");
    assert_eq!(identity.pin(), Some(format!("sha256-raw:{sum}")));
}

#[test]
fn meta_certificate_is_what_openssl_reads_in_it() {
    let identity = Identity::open(&Certificates::SelfSigned, None, KEY, SystemTime::now()).expect("is made");
    let folder = Folder::new("meta");
    let path = folder.0.join("meta.der");
    fs::write(&path, &identity.chain()[1]).expect("written");
    let Ok(said) = Command::new("openssl")
        .args(["x509", "-inform", "der", "-noout", "-text", "-in"])
        .arg(&path)
        .output()
    else {
        writeln!(
            std::io::stderr(),
            "SKIP meta_certificate_is_what_openssl_reads_in_it: needs the `openssl` command; install openssl"
        )
        .expect("stderr is open");
        return;
    };
    let said = String::from_utf8_lossy(&said.stdout);
    for expected in [
        "Serial Number: 2 (0x2)",
        "Signature Algorithm: ED25519",
        &format!("Subject: CN = derpkey{}", "ab".repeat(32)),
        &format!("Issuer: CN = derpkey{}", "ab".repeat(32)),
        "CA:FALSE",
    ] {
        assert!(said.contains(expected), "no `{expected}` in\n{said}");
    }
}

#[test]
fn meta_certificate_is_made_again_long_before_it_ends() {
    let now = SystemTime::now();
    let identity = Identity::open(&Certificates::SelfSigned, None, KEY, now).expect("is made");
    let before = identity.chain();
    assert_eq!(identity.refresh(now + DAY / 2), Ok(false));
    assert_eq!(identity.refresh(now + 2 * DAY), Ok(true));
    let after = identity.chain();
    assert_eq!(before[0], after[0]);
    let end = |chain: &[CertificateDer<'_>]| validity(&chain[1]).expect("its times are there").1;
    assert!(end(&after) > end(&before));
    // A clock that was set back.
    assert_eq!(identity.refresh(now - 40 * DAY), Ok(true));
}

#[test]
fn files_that_change_are_served_from_then_on() {
    let folder = Folder::new("change");
    let (chain, key) = pair("first.example");
    let files = Certificates::Files {
        chain: folder.replace("chain.pem", &chain),
        key: folder.replace("key.pem", &key),
    };
    let now = SystemTime::now();
    let identity = Identity::open(&files, None, KEY, now).expect("is read");
    assert!(contains(&identity.chain()[0], "first.example"));
    assert_eq!(identity.refresh(now), Ok(false));
    let (chain, key) = pair("second.example");
    folder.replace("chain.pem", &chain);
    // Between the two renames of somebody who replaces both.
    let refusal = identity.refresh(now).expect_err("chain and key do not belong together").to_string();
    assert!(refusal.contains("is not the key of"), "{refusal}");
    assert_eq!(identity.refresh(now), Ok(false), "what is refused is refused once");
    assert!(contains(&identity.chain()[0], "first.example"));
    folder.replace("key.pem", &key);
    assert_eq!(identity.refresh(now), Ok(true));
    assert!(contains(&identity.chain()[0], "second.example"));
}

#[test]
fn files_that_are_gone_or_broken_leave_the_old_certificate() {
    let folder = Folder::new("broken");
    let (chain, key) = pair("first.example");
    let paths = (folder.replace("chain.pem", &chain), folder.replace("key.pem", &key));
    let files = Certificates::Files { chain: paths.0.clone(), key: paths.1.clone() };
    let now = SystemTime::now();
    let identity = Identity::open(&files, None, KEY, now).expect("is read");
    folder.replace("chain.pem", "no certificate");
    assert!(identity.refresh(now).is_err());
    fs::remove_file(&paths.1).expect("it was there");
    assert_eq!(identity.refresh(now), Ok(false));
    assert!(contains(&identity.chain()[0], "first.example"));
}

#[test]
fn key_of_another_certificate_is_refused_at_the_start() {
    let folder = Folder::new("other");
    let files = Certificates::Files {
        chain: folder.replace("chain.pem", &pair("a.example").0),
        key: folder.replace("key.pem", &pair("b.example").1),
    };
    let refusal =
        Identity::open(&files, None, KEY, SystemTime::now()).expect_err("they do not match").to_string();
    assert!(refusal.contains("is not the key of the first certificate"), "{refusal}");
}

#[test]
fn missing_files_are_named_with_a_remedy() {
    let files = Certificates::Files { chain: "/nowhere/chain.pem".into(), key: "/nowhere/key.pem".into() };
    let refusal =
        Identity::open(&files, None, KEY, SystemTime::now()).expect_err("nothing is there").to_string();
    assert!(refusal.contains("/nowhere/chain.pem") && refusal.contains("name PEM files"), "{refusal}");
}
