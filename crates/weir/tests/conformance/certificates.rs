//! Certificates of the relay fetched by ACME; those that are made or read are tested with the library.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use crate::daemon::Running;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, KeyUsagePurpose};
use weir_core::relay::Key;
use weir_relay::certificates::Identity;
use weir_relay::settings::{Acme, Certificates, Challenge};
use weir_testing::folder::Folder;

const KEY: Key = Key([0xab; 32]);
const DAY: Duration = Duration::from_secs(86_400);

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
        folder.replace("root.pem", &authority.pem());
        let (port, management) = (free_port(), free_port());
        let config = serde_json::json!({ "pebble": {
            "listenAddress": format!("127.0.0.1:{port}"),
            "managementListenAddress": format!("127.0.0.1:{management}"),
            "certificate": folder.replace("pebble.pem", &leaf.pem()),
            "privateKey": folder.replace("pebble.key", &key.serialize_pem()),
            "httpPort": http_port,
            "tlsPort": tls_port,
        }});
        let config = folder.replace("pebble.json", &config.to_string());
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
    let file = folder.replace(
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
