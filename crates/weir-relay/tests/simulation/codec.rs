//! The client's end of a connection: frames in WebSocket messages or not, in TLS records or not.

use std::sync::{Arc, OnceLock};

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{ClientConfig, ServerConfig, SupportedProtocolVersion};
use weir_core::random::SplitMix64;
use weir_core::relay::frame::{HEADER, head};
use weir_io::tls::{ClientOptions, Handshake, News, Progress, Session, Trust, client_config, server_config};

/// How frames travel, as the client has it.
#[derive(Default)]
pub struct Codec {
    pub tls: Option<Session>,
    pub websocket: bool,
    /// Ciphertext, then bytes of messages, then bytes of frames, that are not whole yet.
    records: Vec<u8>,
    messages: Vec<u8>,
    frames: Vec<u8>,
    /// The relay said goodbye.
    pub said_goodbye: bool,
    /// Times the relay changed its keys.
    pub update_wanted: bool,
}

struct Configs {
    server: Arc<ServerConfig>,
    clients: [Arc<ClientConfig>; 2],
}

fn configs() -> &'static Configs {
    static CONFIGS: OnceLock<Configs> = OnceLock::new();
    CONFIGS.get_or_init(|| {
        let made = rcgen::generate_simple_self_signed(vec!["relay.test".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
        let provider = aws_lc_rs::default_provider();
        let certified = CertifiedKey::from_der(vec![made.cert.der().clone()], key, &provider);
        let resolver = Arc::new(SingleCertAndKey::from(certified.expect("a pair of keys")));
        let client = |version: &'static SupportedProtocolVersion| {
            let options = ClientOptions { versions: vec![version], ..ClientOptions::default() };
            Arc::new(client_config(Trust::Unverified, &options).expect("a configuration"))
        };
        Configs {
            server: Arc::new(server_config(resolver).expect("a configuration")),
            clients: [client(&rustls::version::TLS13), client(&rustls::version::TLS12)],
        }
    })
}

/// Both ends after a handshake: the client's, the relay's.
pub fn sessions(tls12: bool) -> (Session, Session) {
    let configs = configs();
    let name = ServerName::try_from("relay.test").expect("a name");
    let mut client = Handshake::client(configs.clients[usize::from(tls12)].clone(), name).expect("a client");
    let mut server = Handshake::server(configs.server.clone()).expect("a server");
    let (mut up, mut down) = (Vec::new(), Vec::new());
    loop {
        let a = client.advance(&mut down, &mut up).expect("the client goes on");
        let b = server.advance(&mut up, &mut down).expect("the server goes on");
        if a == Progress::Ready && b == Progress::Ready && up.is_empty() && down.is_empty() {
            break;
        }
    }
    (client.finish().expect("keys").0, server.finish().expect("keys").0)
}

impl Codec {
    /// Bytes of frames as they go over the wire.
    pub fn encode(&mut self, frames: &[u8], random: &mut SplitMix64) -> Vec<u8> {
        let inside = if self.websocket { masked(frames, random) } else { frames.to_vec() };
        self.seal(&inside)
    }

    /// Bytes beside frames, in records if there are any.
    pub fn seal(&mut self, inside: &[u8]) -> Vec<u8> {
        let Some(session) = &mut self.tls else { return inside.to_vec() };
        let mut out = Vec::new();
        session.seal_into(inside, &mut out).expect("it is sealed");
        out
    }

    /// The whole frames that came with these bytes.
    pub fn decode(&mut self, bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let mut inside = Vec::new();
        match &mut self.tls {
            None => inside.extend_from_slice(bytes),
            Some(session) => {
                self.records.extend_from_slice(bytes);
                let opened = session.open(&mut self.records).expect("what the relay sealed opens");
                inside.extend_from_slice(&self.records[opened.plain]);
                self.records.drain(..opened.consumed);
                match opened.news {
                    Some(News::CloseNotify) => self.said_goodbye = true,
                    Some(News::UpdateWanted) => self.update_wanted = true,
                    Some(News::Alert(alert)) => panic!("the relay gave up with alert {alert}"),
                    None => {}
                }
            }
        }
        if self.websocket {
            self.messages.extend_from_slice(&inside);
            self.unframe();
        } else {
            self.frames.extend_from_slice(&inside);
        }
        let mut whole = Vec::new();
        let mut at = 0;
        while let Some((code, length)) = head(&self.frames[at..])
            && self.frames.len() >= at + HEADER + length
        {
            whole.push((code, self.frames[at + HEADER..at + HEADER + length].to_vec()));
            at += HEADER + length;
        }
        self.frames.drain(..at);
        whole
    }

    fn unframe(&mut self) {
        let mut at = 0;
        while let Some(&[first, short]) = self.messages.get(at..at + 2) {
            let rest = &self.messages[at + 2..];
            let wide = match short {
                126 => 2,
                127 => 8,
                _ => 0,
            };
            let Some(wider) = rest.get(..wide) else { break };
            let length = match wide {
                0 => usize::from(short),
                _ => wider.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte)),
            };
            let Some(payload) = rest.get(wide..wide + length) else { break };
            match first {
                0x82 => self.frames.extend_from_slice(payload),
                0x88 => self.said_goodbye = true,
                0x8a => {}
                other => panic!("a message that begins with {other:#x}"),
            }
            at += 2 + wide + length;
        }
        self.messages.drain(..at);
    }
}

/// A client's messages, cut in one or two; now and then a ping between them.
pub fn masked(payload: &[u8], random: &mut SplitMix64) -> Vec<u8> {
    let mut out = Vec::new();
    let (a, b) = payload.split_at(random.below(payload.len() as u64 + 1) as usize);
    message(0x02, a, random, &mut out);
    if random.below(8) == 0 {
        message(0x89, b"ping", random, &mut out);
    }
    message(0x80, b, random, &mut out);
    out
}

pub fn message(first: u8, payload: &[u8], random: &mut SplitMix64, out: &mut Vec<u8>) {
    let mask = (random.next_u64() as u32).to_be_bytes();
    out.push(first);
    match payload.len() {
        short @ ..126 => out.push(0x80 | short as u8),
        two @ ..=0xffff => {
            out.push(0x80 | 126);
            out.extend_from_slice(&(two as u16).to_be_bytes());
        }
        more => {
            out.push(0x80 | 127);
            out.extend_from_slice(&(more as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(&mask);
    out.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
}
