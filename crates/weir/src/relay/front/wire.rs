//! A stranger's connection: bytes in the clear, whether TLS carries them or not.
//!
//! Promises: when the connection goes to a worker nothing that arrived is lost: what was read in the clear and what
//! nobody has opened yet go with it. Refuses: more unread bytes than the caller waits for.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use weir_io::tls::{Facts, Handshake, Progress};

/// Read at once: a TLS record, or a good deal of a head.
const CHUNK: usize = 4 << 10;

pub struct Wire {
    pub stream: TcpStream,
    tls: Option<Box<Handshake>>,
    /// What comes in is ciphertext.
    secure: bool,
    /// Ciphertext that is not opened yet.
    received: Vec<u8>,
    /// What was said and not used yet.
    pub plain: Vec<u8>,
    to_send: Vec<u8>,
}

/// Why nothing more can be heard.
#[derive(Debug)]
pub enum Broken {
    /// Hung up, with or without a word.
    Gone,
    /// Not what comes next.
    Wrong,
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
            received: Vec::new(),
            plain: Vec::new(),
            to_send: Vec::new(),
        }
    }

    /// TLS as the server.
    pub async fn accept(&mut self, config: Arc<ServerConfig>) -> Result<Facts, Broken> {
        self.handshake(Handshake::server(config)?).await
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
                tls.write(plain, &mut self.to_send)?;
                self.flush().await
            }
            None => Ok(self.stream.write_all(plain).await?),
        }
    }

    /// Nothing more will be said.
    pub async fn close(&mut self) {
        if let Some(tls) = &mut self.tls {
            // A peer that has gone needs no goodbye.
            let _ = tls.close_notify(&mut self.to_send);
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
        match self.stream.read_buf(into).await? {
            0 => Err(Broken::Gone),
            _ => Ok(()),
        }
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
