//! Certificates in PEM files: read, checked against their key, and known by how they look from outside.
//!
//! Refuses: a key that is not the certificate's, and one that others than its owner may read.

use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use zeroize::Zeroizing;

use crate::error::CertificateError;

/// A chain of some certificates, or a key, is a few KiB.
const FILE_MAX: u64 = 1 << 20;

/// A chain and its private key.
#[derive(Clone, Debug)]
pub struct Files {
    pub chain: PathBuf,
    pub key: PathBuf,
}

/// How both files look: another inode, size or time of change means another content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp([(u64, u64, u64, i64, i64); 2]);

impl Files {
    /// Reads both files as they are now.
    pub fn stamp(&self) -> Result<Stamp, CertificateError> {
        let one = |path: &Path| {
            let found = fs::metadata(path).map_err(|error| CertificateError::Unreadable {
                path: path.to_owned(),
                cause: error.to_string(),
            })?;
            if found.len() > FILE_MAX {
                let (path, bytes) = (path.to_owned(), found.len());
                return Err(CertificateError::TooLong { path, bytes, most: FILE_MAX });
            }
            Ok((found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec()))
        };
        Ok(Stamp([one(&self.chain)?, one(&self.key)?]))
    }

    /// The text of the file with the key, which its owner alone may read.
    fn private_pem(&self) -> Result<Zeroizing<Vec<u8>>, CertificateError> {
        let failed = |error: io::Error| CertificateError::KeyUnreadable {
            path: self.key.clone(),
            cause: error.to_string(),
        };
        let mut file = fs::File::open(&self.key).map_err(failed)?;
        let about = file.metadata().map_err(failed)?;
        weir_io::private::check(&self.key, &about)?;
        let length = about.len().min(FILE_MAX);
        // Whole from the start, so that no half-grown buffer is left behind with the key in it.
        let mut text = Zeroizing::new(Vec::with_capacity(length as usize + 1));
        file.by_ref().take(length).read_to_end(&mut text).map_err(failed)?;
        Ok(text)
    }

    /// The chain with its key, which has to be the leaf's.
    pub fn read(&self) -> Result<CertifiedKey, CertificateError> {
        let (chain, key) = (|| self.chain.clone(), || self.key.clone());
        let said = |error: &dyn std::fmt::Display| error.to_string();
        let certificates = CertificateDer::pem_file_iter(&self.chain)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|error| CertificateError::NoChain { path: chain(), cause: Some(said(&error)) })?;
        if certificates.is_empty() {
            return Err(CertificateError::NoChain { path: chain(), cause: None });
        }
        let private = PrivateKeyDer::from_pem_slice(&self.private_pem()?)
            .map_err(|error| CertificateError::NoKey { path: key(), cause: said(&error) })?;
        let signer = any_supported_type(&private)
            .map_err(|error| CertificateError::CannotSign { path: key(), cause: said(&error) })?;
        let certified = CertifiedKey::new(certificates, signer);
        match certified.keys_match() {
            // A key that cannot tell is believed.
            Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
            Err(error) => Err(CertificateError::Mismatch { chain: chain(), key: key(), cause: said(&error) }),
        }
    }
}
