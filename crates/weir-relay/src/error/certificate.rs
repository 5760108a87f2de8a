//! Certificates that cannot be had, kept or used. Causes are what libraries said: text for people.

use std::fmt;
use std::path::PathBuf;

use weir_io::private::NotPrivate;

use super::Blame;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CertificateError {
    /// A file with the chain or the key.
    Unreadable {
        path: PathBuf,
        cause: String,
    },
    TooLong {
        path: PathBuf,
        bytes: u64,
        most: u64,
    },
    KeyUnreadable {
        path: PathBuf,
        cause: String,
    },
    KeyNotPrivate(NotPrivate),
    /// The file with the chain holds none.
    NoChain {
        path: PathBuf,
        cause: Option<String>,
    },
    /// The file with the key holds none.
    NoKey {
        path: PathBuf,
        cause: String,
    },
    CannotSign {
        path: PathBuf,
        cause: String,
    },
    /// Key and first certificate do not belong together.
    Mismatch {
        chain: PathBuf,
        key: PathBuf,
        cause: String,
    },
    /// A self-signed one for this name.
    CannotMake {
        name: String,
        cause: String,
    },
    /// The meta certificate, or that of a challenge.
    CannotMakeOwn {
        what: &'static str,
        cause: String,
    },
    Digest {
        bytes: usize,
    },
    Tls {
        cause: String,
    },
    NoThread {
        cause: String,
    },
    NotByAcme,
    /// ACME without a name to have a certificate for.
    NoName,
    NoHostName {
        name: String,
    },
    /// An order at the authority came to nothing.
    Acme {
        name: String,
        directory: String,
        port: &'static str,
        cause: AcmeError,
    },
    CannotKeep {
        path: PathBuf,
        cause: String,
    },
}

/// Why an authority gave no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AcmeError {
    /// What the protocol's library or the authority said.
    Server(String),
    /// The order, or an authorization, is in a state that leads nowhere.
    State {
        of: &'static str,
        is: String,
    },
    NoChallenge {
        name: &'static str,
    },
    NoAccount {
        path: PathBuf,
        cause: String,
    },
    AccountUnreadable {
        path: PathBuf,
        cause: String,
    },
    AccountNotKept {
        path: PathBuf,
        cause: String,
    },
    Challenge(Box<CertificateError>),
}

impl CertificateError {
    pub fn blame(&self) -> Blame {
        match self {
            CertificateError::CannotMakeOwn { .. } | CertificateError::Digest { .. } => Blame::Us,
            CertificateError::Tls { .. } => Blame::Us,
            CertificateError::NoThread { .. } => Blame::Machine,
            CertificateError::Acme { .. } => Blame::Peer,
            _ => Blame::Operator,
        }
    }

    /// What to do, where there is something.
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            CertificateError::Unreadable { .. } | CertificateError::TooLong { .. } => "name PEM files",
            CertificateError::KeyUnreadable { .. } => "run as the user who owns it",
            CertificateError::NoChain { cause: Some(_), .. } => "name the PEM chain",
            CertificateError::NoChain { cause: None, .. } => "name the PEM chain, leaf first",
            CertificateError::NoKey { .. } => "name the PEM key",
            CertificateError::CannotSign { .. } => "use ECDSA, Ed25519 or RSA",
            CertificateError::Mismatch { .. } => "name files that belong together",
            CertificateError::CannotMake { .. } => "a host name or an address is expected",
            CertificateError::NoThread { .. } => "raise the limit of threads",
            CertificateError::NotByAcme => "write [relay.acme]",
            CertificateError::NoName | CertificateError::NoHostName { .. } => {
                "write `hostname = \"derp.example.com\"`"
            }
            // `KeyNotPrivate` and `Acme` end with it themselves.
            _ => return None,
        })
    }
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CertificateError::Unreadable { path, cause } => {
                write!(f, "{}: certificate or key cannot be read: {cause}", path.display())
            }
            CertificateError::TooLong { path, bytes, most } => {
                let shown = path.display();
                write!(f, "{shown}: {bytes} bytes are no certificate or key, at most {most} are read")
            }
            CertificateError::KeyUnreadable { path, cause } => {
                write!(f, "{}: key cannot be read: {cause}", path.display())
            }
            CertificateError::KeyNotPrivate(found) => found.fmt(f),
            CertificateError::NoChain { path, cause: Some(cause) } => {
                write!(f, "{}: holds no certificates: {cause}", path.display())
            }
            CertificateError::NoChain { path, cause: None } => {
                write!(f, "{}: holds no certificate", path.display())
            }
            CertificateError::NoKey { path, cause } => {
                write!(f, "{}: holds no private key: {cause}", path.display())
            }
            CertificateError::CannotSign { path, cause } => {
                write!(f, "{}: cannot be signed with: {cause}", path.display())
            }
            CertificateError::Mismatch { chain, key, cause } => write!(
                f,
                "{}: is not the key of the first certificate in {}: {cause}",
                key.display(),
                chain.display()
            ),
            CertificateError::CannotMake { name, cause } => {
                write!(f, "certificate of `{name}` cannot be made: {cause}")
            }
            CertificateError::CannotMakeOwn { what, cause } => write!(f, "{what} cannot be made: {cause}"),
            CertificateError::Digest { bytes } => {
                write!(f, "digest of the challenge has {bytes} bytes, expected 32")
            }
            CertificateError::Tls { cause } => write!(f, "relay: TLS cannot be set up: {cause}"),
            CertificateError::NoThread { cause } => {
                write!(f, "relay: acme: no thread can be started: {cause}")
            }
            CertificateError::NotByAcme => f.write_str("certificate does not come from ACME"),
            CertificateError::NoName => f.write_str("relay: acme: a certificate is for a name"),
            CertificateError::NoHostName { name } => write!(f, "relay: acme: `{name}` is no host name"),
            CertificateError::Acme { name, directory, port, cause } => write!(
                f,
                "certificate of {name} cannot be fetched from {directory}: {cause}; the name has to lead here, {port}"
            ),
            CertificateError::CannotKeep { path, cause } => {
                write!(f, "{}: certificate cannot be kept: {cause}", path.display())
            }
        }?;
        self.remedy().map_or(Ok(()), |remedy| write!(f, "; {remedy}"))
    }
}

impl std::error::Error for CertificateError {}

impl From<NotPrivate> for CertificateError {
    fn from(found: NotPrivate) -> CertificateError {
        CertificateError::KeyNotPrivate(found)
    }
}

impl fmt::Display for AcmeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AcmeError::Server(words) => f.write_str(words),
            AcmeError::State { of, is } => write!(f, "{of} is {is}"),
            AcmeError::NoChallenge { name } => {
                write!(f, "authority offers no {name} challenge; choose another `challenge`")
            }
            AcmeError::NoAccount { path, cause } => {
                write!(f, "{}: is no ACME account: {cause}; remove it", path.display())
            }
            AcmeError::AccountUnreadable { path, cause } => {
                write!(f, "{}: cannot be read: {cause}", path.display())
            }
            AcmeError::AccountNotKept { path, cause } => {
                write!(f, "{}: cannot be kept: {cause}", path.display())
            }
            AcmeError::Challenge(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for AcmeError {}
