//! A stranger's connection: bytes as cleartext, whether TLS carries them or not.
//!
//! Promises: when the connection goes to a worker nothing that arrived is lost: what was read as cleartext and what
//! nobody has opened yet go with it; where the kernel may take its TLS over, nothing is read beyond the record that is
//! coming, since what was read cannot be given back. Refuses: more unread bytes than the caller waits for, and more than
//! its [`Charge`] may hold.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_io::tls::record::missing;
use weir_io::tls::{Facts, Handshake, Progress, awaits, for_client};

use super::budget::Charge;

/// Read at once: a TLS record, or a good deal of a head.
const CHUNK: usize = 4 << 10;
/// Bytes in front of a TLS record: type, version, length.
const RECORD_HEAD: usize = 5;

pub struct Wire {
    pub stream: TcpStream,
    tls: Option<Box<Handshake>>,
    /// What comes in is ciphertext.
    secure: bool,
    /// Present where nothing is read beyond it.
    record: Option<Record>,
    /// Ciphertext that is not opened yet.
    received: Vec<u8>,
    /// What was said and not used yet.
    pub plain: Vec<u8>,
    to_send: Vec<u8>,
    /// What the buffers hold is charged to a stranger's source; what we dialled is not.
    charge: Option<Charge>,
}

/// Why nothing more can be heard.
#[derive(Debug)]
pub enum Broken {
    /// Hung up, with or without a word.
    Gone,
    /// The peer sent something other than what comes next.
    Wrong,
    /// More than strangers may hold.
    Full,
    Tls(rustls::Error),
}

impl From<io::Error> for Broken {
    fn from(_: io::Error) -> Broken {
        Broken::Gone
    }
}

impl From<rustls::Error> for Broken {
    fn from(error: rustls::Error) -> Broken {
        Broken::Tls(error)
    }
}

/// A connection taken apart for its worker.
pub struct Parts {
    pub stream: TcpStream,
    pub tls: Option<Box<Handshake>>,
    pub plain: Vec<u8>,
    pub unread: Vec<u8>,
}

impl Wire {
    pub fn new(stream: TcpStream) -> Wire {
        Wire {
            stream,
            tls: None,
            secure: false,
            record: None,
            received: Vec::new(),
            plain: Vec::new(),
            to_send: Vec::new(),
            charge: None,
        }
    }

    /// Wraps the stream of a stranger, whose buffers are charged.
    pub fn charged(stream: TcpStream, charge: Charge) -> Wire {
        Wire { charge: Some(charge), ..Wire::new(stream) }
    }

    /// Reads TLS record by record: the kernel can take the socket over after each.
    pub fn by_records(&mut self) {
        self.record = Some(Record::default());
    }

    /// TLS as the server.
    pub async fn accept(&mut self, config: Arc<ServerConfig>) -> Result<Facts, Broken> {
        self.secure = true;
        while awaits(&self.received) {
            self.receive().await?;
        }
        self.handshake(Handshake::server(for_client(config, &self.received))?).await
    }

    /// Whether the client speaks this protocol (ALPN). Nothing is answered, and nothing of what it said is used up.
    pub async fn offers(&mut self, protocol: &[u8]) -> Result<bool, Broken> {
        self.secure = true;
        loop {
            let (mut acceptor, mut said) = (Acceptor::default(), self.received.as_slice());
            while !said.is_empty() && acceptor.read_tls(&mut said)? > 0 {}
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    let offered = accepted.client_hello().alpn();
                    return Ok(offered.is_some_and(|mut all| all.any(|one| one == protocol)));
                }
                Ok(None) => self.receive().await?,
                Err((error, _)) => return Err(Broken::Tls(error)),
            }
        }
    }

    pub async fn handshake(&mut self, tls: Handshake) -> Result<Facts, Broken> {
        let mut tls = Box::new(tls);
        self.secure = true;
        loop {
            let progress = tls.read(&mut self.received, &mut self.plain, &mut self.to_send);
            self.flush().await?;
            match progress? {
                Progress::Ready => break,
                Progress::Closed => return Err(Broken::Gone),
                Progress::NeedMore => self.receive().await?,
            }
        }
        let facts = tls.facts().ok_or(Broken::Gone)?;
        self.tls = Some(tls);
        Ok(facts)
    }

    /// Waits until more was said.
    pub async fn more(&mut self) -> Result<(), Broken> {
        let before = self.plain.len();
        while self.plain.len() == before {
            self.receive().await?;
            if let Some(tls) = &mut self.tls {
                let progress = tls.read(&mut self.received, &mut self.plain, &mut self.to_send);
                self.flush().await?;
                self.charge_buffers(0)?;
                if progress? == Progress::Closed && self.plain.len() == before {
                    return Err(Broken::Gone);
                }
            }
        }
        Ok(())
    }

    /// Says it.
    pub async fn send(&mut self, plain: &[u8]) -> Result<(), Broken> {
        match &mut self.tls {
            Some(tls) => {
                tls.write(plain, &mut self.received, &mut self.to_send)?;
                self.flush().await
            }
            None => Ok(self.stream.write_all(plain).await?),
        }
    }

    /// Nothing more will be said.
    pub async fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            // A peer that has gone needs no goodbye.
            let _ = tls.close_notify(&mut self.received, &mut self.to_send);
            let _ = self.flush().await;
        }
        let _ = self.stream.shutdown().await;
    }

    pub fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    pub fn into_parts(self) -> Parts {
        Parts { stream: self.stream, tls: self.tls, plain: self.plain, unread: self.received }
    }

    async fn receive(&mut self) -> Result<(), Broken> {
        let into = if self.secure { &mut self.received } else { &mut self.plain };
        into.reserve(CHUNK);
        let record = self.record.as_mut().filter(|_| self.secure);
        let most = record.as_ref().map_or(CHUNK, |record| record.missing().min(CHUNK));
        let at = into.len();
        if (&mut self.stream).take(most as u64).read_buf(into).await? == 0 {
            return Err(Broken::Gone);
        }
        if let Some(record) = record {
            record.came(&into[at..]);
        }
        self.charge_buffers(0)
    }

    /// Charges what the buffers have, and what the caller keeps `beside` them of what was said.
    pub fn charge_buffers(&mut self, beside: usize) -> Result<(), Broken> {
        let buffers = [&self.received, &self.plain, &self.to_send];
        let bytes = buffers.iter().map(|b| b.capacity()).sum::<usize>() + beside;
        let fits = self.charge.as_mut().is_none_or(|charge| charge.hold(bytes));
        if fits { Ok(()) } else { Err(Broken::Full) }
    }

    /// Gives back room that holds nothing any more.
    pub fn shrink(&mut self) -> Result<(), Broken> {
        self.received.shrink_to_fit();
        self.plain.shrink_to_fit();
        self.charge_buffers(0)
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        if !self.to_send.is_empty() {
            let done = self.stream.write_all(&self.to_send).await;
            self.to_send.clear();
            done?;
        }
        Ok(())
    }
}

/// The record that is coming: its header as far as it came, and how much of all of it.
#[derive(Default)]
struct Record {
    head: [u8; RECORD_HEAD],
    came: usize,
}

impl Record {
    /// How much may be read: the rest of the header, then the rest of the body.
    fn missing(&self) -> usize {
        let (head, body) = (self.came.min(RECORD_HEAD), self.came.saturating_sub(RECORD_HEAD));
        missing(&self.head[..head]).saturating_sub(body)
    }

    /// Takes note of `bytes`, no more than were missing.
    fn came(&mut self, bytes: &[u8]) {
        if let Some(head) = self.head.get_mut(self.came..self.came + bytes.len()) {
            head.copy_from_slice(bytes);
        }
        self.came += bytes.len();
        if self.missing() == 0 {
            self.came = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_by_record_nothing_is_read_beyond_the_one_that_is_coming() {
        // An empty record, one of 3 bytes, the header of one of 65,535.
        let stream = [22, 3, 3, 0, 0, 23, 3, 3, 0, 3, 1, 2, 3, 23, 3, 3, 255, 255];
        for most in 1..6 {
            let (mut record, mut at, mut ends) = (Record::default(), 0, Vec::new());
            while at < stream.len() {
                let length = record.missing().min(most).min(stream.len() - at);
                record.came(&stream[at..at + length]);
                at += length;
                if record.came == 0 {
                    ends.push(at);
                }
            }
            assert_eq!((ends, record.missing()), (vec![5, 13], 65_535), "{most} bytes at a time");
        }
    }
}
