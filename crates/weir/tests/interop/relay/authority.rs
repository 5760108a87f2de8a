//! A certificate authority of one test: what it signs is trusted by the peers that are told of it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
}

impl Authority {
    /// Its certificate is written into `folder`.
    pub fn new(folder: &Path) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let authority = Authority { issuer: Issuer::new(params, key), folder: folder.to_path_buf() };
        fs::write(authority.path(), certificate.pem()).expect("a file");
        authority
    }

    pub fn path(&self) -> PathBuf {
        self.folder.join("authority.pem")
    }

    /// A certificate and its key for a name or an address, as `<name>.crt` and `<name>.key` in the folder.
    pub fn issue(&self, name: &str) -> [PathBuf; 2] {
        let params = CertificateParams::new([name.to_string()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let files = ["crt", "key"].map(|ending| self.folder.join(format!("{name}.{ending}")));
        fs::write(&files[0], certificate.pem()).expect("a file");
        fs::write(&files[1], key.serialize_pem()).expect("a file");
        fs::set_permissions(&files[1], fs::Permissions::from_mode(0o600)).expect("our file");
        files
    }
}
