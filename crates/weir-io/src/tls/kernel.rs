//! Kernel TLS: the socket carries plaintext, and the kernel makes records of it (Linux "tls" ULP).
//!
//! Promises: a socket whose offload is refused before a key was given can go on with records in user space,
//! and the refusal says why; keys are overwritten once the kernel has them; no nonce of TLS 1.2 is used
//! twice although the kernel counts its own. Refuses: sockets of which a part of a record was read already,
//! since that part cannot be given back; new keys on kernels that cannot change them (before 6.14): the
//! stream ends, and says so.

use std::fmt;
use std::io;
use std::mem::size_of;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use rustls::ConnectionTrafficSecrets;
use zeroize::Zeroizing;

use super::post_handshake::{KEY_UPDATE, Message, Messages};
use super::record::{BLOCKS_KEY_LIMIT, BLOCKS_LIMIT, PLAIN_LIMIT};
use super::session::{Established, News, Schedule};
use super::{TlsError, alert, kind};

// linux/tcp.h, linux/tls.h
const SOL_TLS: libc::c_int = 282;
const TLS_TX: libc::c_int = 1;
const TLS_RX: libc::c_int = 2;
const TLS_SET_RECORD_TYPE: libc::c_int = 1;
const TLS_GET_RECORD_TYPE: libc::c_int = 2;
const VERSION_12: u16 = 0x0303;
const VERSION_13: u16 = 0x0304;
const AES_GCM_128: u16 = 51;
const AES_GCM_256: u16 = 52;
const CHACHA20_POLY1305: u16 = 54;

/// Why the kernel does not do TLS.
#[derive(Debug)]
pub enum KernelTlsError {
    /// No connection could be made to try it on.
    NotTried(io::Error),
    /// The kernel was built without TLS, or its module is not there.
    NoModule,
    /// The kernel attaches no TLS to the socket.
    NotAttached(io::Error),
    /// The kernel takes no key to open records with.
    ReceiveKeyRefused(io::Error),
    /// The kernel takes no key to seal records with.
    SendKeyRefused(io::Error),
}

impl fmt::Display for KernelTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut refused = |direction: &str, error: &io::Error| {
            write!(
                f,
                "kernel takes no key to {direction}: {error}; use TLS in user space, or another cipher suite"
            )
        };
        match self {
            KernelTlsError::NotTried(error) => {
                write!(f, "kernel TLS could not be tried on loopback: {error}")
            }
            KernelTlsError::NoModule => {
                f.write_str("kernel has no TLS (CONFIG_TLS, module `tls`): load it, or use TLS in user space")
            }
            KernelTlsError::NotAttached(error) => {
                write!(f, "kernel attaches no TLS to the socket: {error}")
            }
            KernelTlsError::ReceiveKeyRefused(error) => refused("receive", error),
            KernelTlsError::SendKeyRefused(error) => refused("send", error),
        }
    }
}

impl std::error::Error for KernelTlsError {}

/// Why the kernel does not do TLS on a socket, and the keys to go on without it where that is possible.
#[derive(Debug)]
pub struct NotOffloaded {
    pub why: KernelTlsError,
    /// `None` when the kernel has taken one direction and refused the other: the stream has to end.
    pub keys: Option<Box<Established>>,
}

/// What the kernel can do of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Support {
    /// Keys can be changed (Linux 6.14).
    pub rekey: bool,
}

/// Tries kernel TLS on a connection of its own, or says why it cannot be.
pub fn support() -> Result<Support, KernelTlsError> {
    let pair = || -> io::Result<(TcpStream, TcpStream)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let near = TcpStream::connect(listener.local_addr()?)?;
        Ok((near, listener.accept()?.0))
    };
    let (near, _far) = pair().map_err(KernelTlsError::NotTried)?;
    attach(near.as_fd())?;
    // Keys of no stream: the connection ends here.
    let iv: [u8; 12] = *b"only a trial";
    let trial = ConnectionTrafficSecrets::Aes128Gcm { key: [0; 32].into(), iv: iv.into() };
    give(near.as_fd(), TLS_RX, true, 0, &trial).map_err(KernelTlsError::ReceiveKeyRefused)?;
    give(near.as_fd(), TLS_TX, true, 0, &trial).map_err(KernelTlsError::SendKeyRefused)?;
    Ok(Support { rekey: give(near.as_fd(), TLS_TX, true, 0, &trial).is_ok() })
}

impl Established {
    /// Gives the keys to the kernel: from now on, `socket` carries plaintext.
    ///
    /// Nothing may have been read from `socket` beyond whole records that are used up: read no more
    /// than [`super::record::missing`] says while the handshake goes on.
    pub fn offload(mut self, socket: BorrowedFd<'_>) -> Result<Kernel, NotOffloaded> {
        if let Err(why) = attach(socket) {
            return Err(NotOffloaded { why, keys: Some(Box::new(self)) });
        }
        let tls13 = self.schedule.tls13();
        let (received, sent) = (&self.secrets.rx, &mut self.secrets.tx);
        if let Err(error) = give(socket, TLS_RX, tls13, received.0, &received.1) {
            // With the ULP attached but no keys, the socket carries bytes as before.
            let why = KernelTlsError::ReceiveKeyRefused(error);
            return Err(NotOffloaded { why, keys: Some(Box::new(self)) });
        }
        if let Err(error) = give(socket, TLS_TX, tls13, sent.0, &sent.1) {
            return Err(NotOffloaded { why: KernelTlsError::SendKeyRefused(error), keys: None });
        }
        Ok(Kernel {
            limited: !matches!(sent.1, ConnectionTrafficSecrets::Chacha20Poly1305 { .. }),
            blocks: sent.0 * (PLAIN_LIMIT as u64 / 16),
            messages: Messages::default(),
            schedule: Box::new(self.schedule),
        })
    }
}

/// A TLS stream whose records the kernel opens and seals.
pub struct Kernel {
    schedule: Box<Schedule>,
    messages: Messages,
    /// Blocks the sending key encrypted, as far as we know.
    blocks: u64,
    /// Whether they have a limit.
    limited: bool,
}

impl Kernel {
    /// Judges a record that is no data, as the socket gave it.
    pub fn control(
        &mut self,
        socket: BorrowedFd<'_>,
        kind: u8,
        plain: &[u8],
    ) -> Result<Option<News>, TlsError> {
        let tls13 = self.schedule.tls13();
        let mut news = None;
        self.messages.take(tls13, kind, plain)?;
        while let Some(message) = self.messages.next()? {
            match message {
                Message::CloseNotify => news = Some(News::CloseNotify),
                Message::Alert(description) => news = Some(News::Alert(description)),
                Message::Ticket(payload) => self.schedule.ticket(&payload)?,
                Message::KeyUpdate { answer } => {
                    let (sequence, secrets) = self.schedule.next_received()?;
                    give(socket, TLS_RX, true, sequence, &secrets).map_err(|error| kernel_keys(&error))?;
                    if answer {
                        news = Some(News::UpdateWanted);
                    }
                }
            }
        }
        Ok(news)
    }

    /// Data came: to be told now and then, so that honest key updates are not taken for a flood.
    pub fn data_came(&mut self) -> Result<(), TlsError> {
        // The kernel gives no empty records.
        self.messages.data_came(1)
    }

    /// Counts `bytes` that the socket took in one call.
    pub fn sent(&mut self, bytes: usize) {
        // The kernel makes records of at most PLAIN_LIMIT, each with two blocks of its own.
        self.blocks += (bytes / 16 + 2 * (1 + bytes / PLAIN_LIMIT)) as u64;
    }

    /// Whether [`Kernel::update`] is due, and this kernel can.
    pub fn key_limit_reached(&self) -> bool {
        // Who cannot change keys goes on to the end of this one.
        self.limited && self.blocks >= BLOCKS_KEY_LIMIT && rekeys()
    }

    /// Whether the stream has to end, because nobody changed its key.
    pub fn key_exhausted(&self) -> bool {
        self.limited && self.blocks >= BLOCKS_LIMIT
    }

    /// Sends a key update and gives the kernel the new key. A socket that is full refuses with
    /// `Err(None)`, and nothing has happened.
    pub fn update(&mut self, socket: BorrowedFd<'_>) -> Result<(), Option<TlsError>> {
        if !self.schedule.tls13() {
            return Err(Some(TlsError::KeyExhausted));
        }
        if !rekeys() {
            return Err(Some(TlsError::KernelKeys { why: "it gives no second key to a socket".into() }));
        }
        match send_control(socket, kind::HANDSHAKE, &KEY_UPDATE) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(None),
            Err(error) => return Err(Some(kernel_keys(&error))),
        }
        let (sequence, secrets) = self.schedule.next_sent().map_err(Some)?;
        give(socket, TLS_TX, true, sequence, &secrets).map_err(|error| Some(kernel_keys(&error)))?;
        self.blocks = 0;
        Ok(())
    }

    /// Says that nothing more will come. Tried once: who cannot be told finds out.
    pub fn close_notify(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        send_control(socket, kind::ALERT, &[alert::WARNING, alert::CLOSE_NOTIFY])
    }

    /// Tells the peer why the stream ends. Tried once.
    pub fn alert(&self, socket: BorrowedFd<'_>, error: &TlsError) -> io::Result<()> {
        match error.alert() {
            alert::CLOSE_NOTIFY => self.close_notify(socket),
            description => send_control(socket, kind::ALERT, &[alert::FATAL, description]),
        }
    }
}

/// Whether this kernel changes keys: found out once.
fn rekeys() -> bool {
    static REKEYS: OnceLock<bool> = OnceLock::new();
    *REKEYS.get_or_init(|| support().is_ok_and(|support| support.rekey))
}

fn kernel_keys(error: &io::Error) -> TlsError {
    TlsError::KernelKeys { why: error.to_string() }
}

fn attach(socket: BorrowedFd<'_>) -> Result<(), KernelTlsError> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_ULP, b"tls\0").map_err(|error| match error.raw_os_error() {
        Some(libc::ENOENT) => KernelTlsError::NoModule,
        _ => KernelTlsError::NotAttached(error),
    })
}

fn give(
    socket: BorrowedFd<'_>,
    direction: libc::c_int,
    tls13: bool,
    sequence: u64,
    secrets: &ConnectionTrafficSecrets,
) -> io::Result<()> {
    let info = crypto_info(direction == TLS_TX, tls13, sequence, secrets)
        .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, "cipher suite is not known here"))?;
    set(socket, SOL_TLS, direction, &info)
}

/// `struct tls12_crypto_info_…` of linux/tls.h, which has no holes:
/// version and cipher (u16 each), iv, key, salt, sequence number (big endian).
fn crypto_info(
    sends: bool,
    tls13: bool,
    sequence: u64,
    secrets: &ConnectionTrafficSecrets,
) -> Option<Zeroizing<Vec<u8>>> {
    let (cipher, used, key, iv) = match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (AES_GCM_128, 16, key, iv),
        ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (AES_GCM_256, 32, key, iv),
        ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (CHACHA20_POLY1305, 32, key, iv),
        _ => return None,
    };
    let mut iv: Zeroizing<[u8; 12]> = Zeroizing::new(iv.as_ref().try_into().ok()?);
    let salt = if cipher == CHACHA20_POLY1305 { 0 } else { 4 };
    if sends && !tls13 && salt > 0 {
        // rustls sealed with explicit nonces IV xor 0, 1, 2 … The kernel counts up from what it is given:
        // from the other half of all nonces, it meets none of those.
        iv[salt] ^= 0x80;
    }
    // With room for all of it: a vector that grows leaves copies behind.
    let mut info = Zeroizing::new(Vec::with_capacity(64));
    info.extend_from_slice(&if tls13 { VERSION_13 } else { VERSION_12 }.to_ne_bytes());
    info.extend_from_slice(&cipher.to_ne_bytes());
    info.extend_from_slice(&iv[salt..]);
    info.extend_from_slice(key.as_ref().get(..used)?);
    info.extend_from_slice(&iv[..salt]);
    info.extend_from_slice(&sequence.to_be_bytes());
    Some(info)
}

fn set(socket: BorrowedFd<'_>, level: libc::c_int, option: libc::c_int, value: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads `value.len()` bytes at `value`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Room for one control message of one byte, aligned as `cmsghdr` is.
#[repr(C, align(8))]
struct ControlRoom([u8; CONTROL_ROOM]);

/// CMSG_SPACE(1) where it matters: a header and one byte, each padded to a word.
const CONTROL_ROOM: usize = size_of::<libc::cmsghdr>() + size_of::<usize>();

/// Sends a record that is no data; never waits.
pub fn send_control(socket: BorrowedFd<'_>, kind: u8, plain: &[u8]) -> io::Result<()> {
    let mut part = libc::iovec { iov_base: plain.as_ptr().cast_mut().cast(), iov_len: plain.len() };
    let mut room = ControlRoom([0; CONTROL_ROOM]);
    // SAFETY: msghdr is plain data for which all zeros is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = room.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_ROOM as _;
    // SAFETY: the room holds one header and one byte of data and is aligned for it; the kernel reads
    // `message`, `part`, `room` and `plain`, which outlive the call, and writes to none of them.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = SOL_TLS;
        (*header).cmsg_type = TLS_SET_RECORD_TYPE;
        (*header).cmsg_len = libc::CMSG_LEN(1) as _;
        *libc::CMSG_DATA(header) = kind;
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    };
    match usize::try_from(sent) {
        Ok(sent) if sent == plain.len() => Ok(()),
        Ok(sent) => Err(io::Error::new(
            io::ErrorKind::WriteZero,
            format!("kernel took {sent} bytes of a record of {}", plain.len()),
        )),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Receives from a socket of kernel TLS: content type and length; a length of 0 of type data is the end.
pub fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<(u8, usize)> {
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    let mut room = ControlRoom([0; CONTROL_ROOM]);
    // SAFETY: msghdr is plain data for which all zeros is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = room.0.as_mut_ptr().cast();
    message.msg_controllen = CONTROL_ROOM as _;
    // SAFETY: the kernel writes to `into` and `room` within the lengths it is given; both outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let length = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let mut kind = kind::DATA;
    // SAFETY: the kernel left whole control messages in `room` and their length in `message`; the data of
    // one of this type is one byte.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if !header.is_null() && (*header).cmsg_level == SOL_TLS && (*header).cmsg_type == TLS_GET_RECORD_TYPE
        {
            kind = *libc::CMSG_DATA(header);
        }
    }
    Ok((kind, length))
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

const _: () = {
    const fn sendable<T: Send>() {}
    sendable::<Kernel>();
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_is_given_what_its_structures_hold() {
        let iv: [u8; 12] = std::array::from_fn(|i| i as u8);
        let key: [u8; 32] = std::array::from_fn(|i| 100 + i as u8);
        let gcm = ConnectionTrafficSecrets::Aes256Gcm { key: key.into(), iv: iv.into() };
        let info = crypto_info(false, true, 0x0102, &gcm).expect("it is known");
        // sizeof(struct tls12_crypto_info_aes_gcm_256)
        assert_eq!(info.len(), 56);
        assert_eq!(info[..4], [VERSION_13.to_ne_bytes(), AES_GCM_256.to_ne_bytes()].concat());
        assert_eq!(info[4..12], iv[4..]);
        assert_eq!(info[12..44], key);
        assert_eq!(info[44..48], iv[..4]);
        assert_eq!(info[48..], [0, 0, 0, 0, 0, 0, 1, 2]);
        let chacha = ConnectionTrafficSecrets::Chacha20Poly1305 { key: key.into(), iv: iv.into() };
        let info = crypto_info(true, false, 0, &chacha).expect("it is known");
        // sizeof(struct tls12_crypto_info_chacha20_poly1305)
        assert_eq!((info.len(), &info[4..16]), (56, &iv[..]));
    }

    #[test]
    fn nonces_of_tls_12_begin_in_the_half_that_the_handshake_did_not_use() {
        let gcm = ConnectionTrafficSecrets::Aes256Gcm { key: [0; 32].into(), iv: [0x11; 12].into() };
        let sent = crypto_info(true, false, 3, &gcm).expect("it is known");
        assert_eq!(sent[4..12], [0x91, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11, 0x11]);
        let received = crypto_info(false, false, 3, &gcm).expect("it is known");
        assert_eq!(received[4..12], [0x11; 8]);
        let tls13 = crypto_info(true, true, 3, &gcm).expect("it is known");
        assert_eq!(tls13[4..12], [0x11; 8], "TLS 1.3 counts by sequence number alone");
    }
}
