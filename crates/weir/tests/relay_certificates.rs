//! Certificates of the relay: made, read, read again, fetched by ACME; and the meta certificate behind each.

#[allow(dead_code)]
#[path = "common/daemon.rs"]
mod daemon;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use daemon::Running;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use rustls::pki_types::CertificateDer;
use weir::relay::certificates::{Identity, validity};
use weir::relay::settings::{Acme, Certificates, Challenge};
use weir_core::relay::Key;

const KEY: Key = Key([0xab; 32]);
const DAY: Duration = Duration::from_secs(86_400);

/// A folder of one test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weir-certificates-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        // Another inode, as when a file is replaced: times of change may be the same.
        let beside = self.0.join(format!("{name}.new"));
        fs::write(&beside, text).expect("written");
        fs::rename(beside, &path).expect("renamed");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// PEM of a certificate for `name` and of its key.
fn pair(name: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed([name.to_string()]).expect("a certificate");
    (made.cert.pem(), made.signing_key.serialize_pem())
}

fn contains(certificate: &CertificateDer<'_>, text: &str) -> bool {
    certificate.windows(text.len()).any(|window| window == text.as_bytes())
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
    let files =
        Certificates::Files { chain: folder.file("chain.pem", &chain), key: folder.file("key.pem", &key) };
    let now = SystemTime::now();
    let identity = Identity::open(&files, None, KEY, now).expect("is read");
    assert!(contains(&identity.chain()[0], "first.example"));
    assert_eq!(identity.refresh(now), Ok(false));
    let (chain, key) = pair("second.example");
    folder.file("chain.pem", &chain);
    // Between the two renames of somebody who replaces both.
    let refusal = identity.refresh(now).expect_err("chain and key do not belong together");
    assert!(refusal.contains("is not the key of"), "{refusal}");
    assert_eq!(identity.refresh(now), Ok(false), "what is refused is refused once");
    assert!(contains(&identity.chain()[0], "first.example"));
    folder.file("key.pem", &key);
    assert_eq!(identity.refresh(now), Ok(true));
    assert!(contains(&identity.chain()[0], "second.example"));
}

#[test]
fn files_that_are_gone_or_broken_leave_the_old_certificate() {
    let folder = Folder::new("broken");
    let (chain, key) = pair("first.example");
    let paths = (folder.file("chain.pem", &chain), folder.file("key.pem", &key));
    let files = Certificates::Files { chain: paths.0.clone(), key: paths.1.clone() };
    let now = SystemTime::now();
    let identity = Identity::open(&files, None, KEY, now).expect("is read");
    folder.file("chain.pem", "no certificate");
    assert!(identity.refresh(now).is_err());
    fs::remove_file(&paths.1).expect("it was there");
    assert_eq!(identity.refresh(now), Ok(false));
    assert!(contains(&identity.chain()[0], "first.example"));
}

#[test]
fn key_of_another_certificate_is_refused_at_the_start() {
    let folder = Folder::new("other");
    let files = Certificates::Files {
        chain: folder.file("chain.pem", &pair("a.example").0),
        key: folder.file("key.pem", &pair("b.example").1),
    };
    let refusal = Identity::open(&files, None, KEY, SystemTime::now()).expect_err("they do not match");
    assert!(refusal.contains("is not the key of the first certificate"), "{refusal}");
}

#[test]
fn missing_files_are_named_with_a_remedy() {
    let files = Certificates::Files { chain: "/nowhere/chain.pem".into(), key: "/nowhere/key.pem".into() };
    let refusal = Identity::open(&files, None, KEY, SystemTime::now()).expect_err("nothing is there");
    assert!(refusal.contains("/nowhere/chain.pem") && refusal.contains("name PEM files"), "{refusal}");
}

/// pebble, an ACME server for tests, and what trusts it.
struct Pebble {
    child: Child,
    directory: String,
}

impl Drop for Pebble {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn pebble_binary() -> Option<PathBuf> {
    let cache = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache")))?;
    let path = std::env::var("PATH").unwrap_or_default();
    let folders = std::iter::once(cache.join("weir/peers/bin")).chain(path.split(':').map(PathBuf::from));
    folders.map(|folder| folder.join("pebble")).find(|path| path.is_file())
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a port").port()
}

impl Pebble {
    /// It looks at challenges on these ports of the host a name leads to.
    fn start(binary: &Path, folder: &Folder, http_port: u16, tls_port: u16) -> Pebble {
        let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key"))
            .expect("an authority");
        let key = KeyPair::generate().expect("a key");
        let leaf = CertificateParams::new(["127.0.0.1".to_string()]).expect("parameters");
        let leaf = leaf.signed_by(&key, &authority).expect("a certificate");
        folder.file("root.pem", &authority.pem());
        let (port, management) = (free_port(), free_port());
        let config = serde_json::json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": folder.file("pebble.pem", &leaf.pem()),
            "privateKey": folder.file("pebble.key", &key.serialize_pem()),
            "httpPort": http_port,
            "tlsPort": tls_port,
        }});
        let config = folder.file("pebble.json", &config.to_string());
        let child = Command::new(binary)
            .arg("-config")
            .arg(config)
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", "0")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pebble starts");
        let pebble = Pebble { child, directory: format!("https://127.0.0.1:{port}/dir") };
        let patience = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(Instant::now() < patience, "pebble does not listen");
            thread::sleep(Duration::from_millis(20));
        }
        pebble
    }
}

/// Answers challenges of `identity` on `listener`, as the relay's port 80 does.
fn answer(listener: TcpListener, identity: Arc<Identity>) {
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut line = String::new();
            let mut reader = BufReader::new(&stream);
            let _ = reader.read_line(&mut line);
            let mut header = String::new();
            while reader.read_line(&mut header).is_ok_and(|length| length > 2) {
                header.clear();
            }
            let token =
                line.strip_prefix("GET /.well-known/acme-challenge/").and_then(|rest| rest.split(' ').next());
            let body = token.and_then(|token| identity.challenge(token)).unwrap_or_default();
            let length = body.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
            );
        }
    });
}

fn pebble_or_skip(test: &str) -> Option<PathBuf> {
    let binary = pebble_binary();
    if binary.is_none() {
        writeln!(std::io::stderr(), "SKIP {test}: needs pebble; run scripts/peers").expect("stderr is open");
    }
    binary
}

#[test]
fn certificate_is_fetched_over_the_tls_port_alone_while_clients_are_served() {
    let test = "certificate_is_fetched_over_the_tls_port_alone_while_clients_are_served";
    let Some(binary) = pebble_or_skip(test) else { return };
    let folder = Folder::new("alpn");
    let port = free_port();
    let pebble = Pebble::start(&binary, &folder, free_port(), port);
    let file = folder.file(
        "relay.toml",
        &format!(
            "[relay]\nlisten = \"127.0.0.1:{port}\"\nhostname = \"127.0.0.1\"\nkey = \"relay.key\"\n\
             [relay.acme]\ndirectory = \"{}\"\nroot = \"root.pem\"\nstore = \"store\"\n",
            pebble.directory
        ),
    );
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.arg("--socket").arg(folder.0.join("socket")).arg("run").arg(file);
    let relay = Running::start(&mut command, folder.0.join("socket"));
    let patience = Instant::now() + Duration::from_secs(60);
    while !relay.log().contains("certificate fetched by ACME") {
        assert!(Instant::now() < patience, "nothing was fetched: {}", relay.log());
        thread::sleep(Duration::from_millis(20));
    }
    // What everybody else meets is the certificate, with what follows it.
    let shown = Command::new("openssl")
        .args(["s_client", "-showcerts", "-alpn", "http/1.1", "-connect", &format!("127.0.0.1:{port}")])
        .stdin(Stdio::null())
        .output();
    let Ok(shown) = shown else { return };
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("Pebble Intermediate") && shown.contains("derpkey"), "{shown}");
}

#[test]
fn certificate_is_fetched_by_acme_kept_and_served() {
    let Some(binary) = pebble_or_skip("certificate_is_fetched_by_acme_kept_and_served") else { return };
    let folder = Folder::new("acme");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let pebble = Pebble::start(&binary, &folder, listener.local_addr().expect("bound").port(), free_port());
    let store = folder.0.join("store");
    let acme = Certificates::Acme(Acme {
        directory: pebble.directory.clone(),
        contact: Some("operator@example.com".into()),
        store: store.clone(),
        root: Some(folder.0.join("root.pem")),
        challenge: Challenge::Http,
    });
    let open = || Identity::open(&acme, Some("127.0.0.1"), KEY, SystemTime::now()).expect("opens");
    let identity = open();
    assert!(identity.chain().is_empty(), "nothing was fetched yet");
    answer(listener, Arc::clone(&identity));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    identity.keep().expect("a thread");
    let patience = Instant::now() + Duration::from_secs(60);
    while identity.chain().is_empty() {
        assert!(Instant::now() < patience, "nothing was fetched");
        thread::sleep(Duration::from_millis(20));
    }
    // Leaf, at least one intermediate, meta certificate.
    let chain = identity.chain();
    assert!(chain.len() >= 3, "{} certificates", chain.len());
    assert!(identity.expires().expect("its times are there") > SystemTime::now() + DAY);
    assert_eq!(open().chain()[..chain.len() - 1], chain[..chain.len() - 1], "after a restart");
    for name in ["account.json", "127.0.0.1.pem"] {
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(store.join(name)).expect("is kept"));
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    // The same account again.
    runtime.block_on(identity.fetch()).expect("is fetched again");
    assert_ne!(identity.chain()[0], chain[0]);
}
