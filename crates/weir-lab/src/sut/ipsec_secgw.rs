//! DPDK's ipsec-secgw: policies decide, SAs seal, routes of tunnels' ends lead to a port.
//!
//! Debian has its source alone; `scripts/peers dpdk-ipsec-secgw` builds it. Its ciphers are those of Intel's library
//! intel-ipsec-mb, by the device `crypto_aesni_gcm`. It stands in memory only, and outbound: one policy, of every
//! address, one SA, one route. Refuses, by name: what this device lacks, and what is of weir's own.

use std::fs;
use std::path::PathBuf;

use weir_core::ipsec::Encryption;

use super::dpdk::{Dpdk, DpdkProgram, Ends};
use super::peer::{self, ProcessPlacement};
use crate::model::ipsec::{Backend, Direction, Mode, Protection};
use crate::model::{Configuration, Family, LabError};

const NAME: &str = "dpdk-ipsec-secgw";
const MISSING: &str = "dpdk-ipsec-secgw: no such program in ~/.cache/weir/peers/bin or on the PATH: `scripts/peers dpdk-ipsec-secgw` builds it";
/// What holds intel-ipsec-mb to its code for CPUs without AVX-512: DPDK's own option does not reach that library.
const AVX2: &str = "ipsec-mb-avx2";
const MISSING_AVX2: &str =
    "ipsec-mb-avx2: not in ~/.cache/weir/peers/bin: `scripts/peers ipsec-mb-avx2` builds it";
/// Buffers of 2 KiB: rings, bursts under way, and the frames that its source repeats.
const BUFFERS: u32 = 16_384;

pub fn missing(configuration: &Configuration) -> Option<String> {
    let Some(protection) = configuration.ipsec() else {
        return Some("dpdk-ipsec-secgw: seals every packet: give it a table `ipsec`".into());
    };
    refused(&protection, configuration.workload.family)
        .map(|reason| format!("{NAME}: {reason}"))
        .or_else(|| peer::find(NAME).is_none().then(|| MISSING.into()))
        .or_else(|| {
            (is_narrow(protection.backend) && peer::find(AVX2).is_none()).then(|| MISSING_AVX2.into())
        })
}

/// Whether a backend is that of CPUs without AVX-512.
fn is_narrow(backend: Backend) -> bool {
    matches!(backend, Backend::Vaes256 | Backend::AesNi)
}

/// Why it cannot do as a configuration asks, with the remedy.
fn refused(p: &Protection, family: Family) -> Option<&'static str> {
    if p.direction != Direction::Out {
        Some("its source repeats plain packets: use direction = \"out\"")
    } else if p.mode != Mode::Policy {
        Some("its policies choose SAs: use mode = \"policy\"")
    } else if p.policies != 1 || !p.spd.is_default() {
        Some("it has one policy here: remove `policies` and what its SPD has")
    } else if p.esn {
        Some("its numbers have 32 bits here: remove `esn`")
    } else if family != Family::Inet || p.outer != Family::Inet {
        Some("its tunnel is IPv4 in IPv4 here: use family = \"inet\" and outer = \"inet\"")
    } else if algorithm(p).is_none() {
        Some("its device has AES-GCM: use aes-gcm-128, aes-gcm-192 or aes-gcm-256")
    } else if matches!(p.backend, Backend::AwsLc | Backend::Vaes) {
        Some(
            "its ciphers are its own: use backend = \"auto\", or \"vaes-256\" or \"aes-ni\" for vectors of 256 or 128 bits",
        )
    } else {
        None
    }
}

/// What its file calls the cipher, and the bytes of a key and its salt.
fn algorithm(p: &Protection) -> Option<(&'static str, usize)> {
    match p.cipher.0.encryption() {
        Encryption::AesGcm128 => Some(("aes-128-gcm", 20)),
        Encryption::AesGcm192 => Some(("aes-192-gcm", 28)),
        Encryption::AesGcm256 => Some(("aes-256-gcm", 36)),
        _ => None,
    }
}

/// Starts it in memory: from a capture file to nowhere.
pub fn start_alone(capture: PathBuf, cpu: u32, p: &Protection) -> Result<Dpdk, LabError> {
    start(Ends::Capture(capture), cpu, p)
}

fn start(ends: Ends, cpu: u32, p: &Protection) -> Result<Dpdk, LabError> {
    let refused = || LabError::new(format!("{NAME}: {}", refused(p, Family::Inet).unwrap_or(MISSING)));
    let text = rules(p).ok_or_else(refused)?;
    let avx2 = || peer::find(AVX2).ok_or_else(|| LabError::new(MISSING_AVX2.into()));
    let preload = is_narrow(p.backend).then(avx2).transpose()?;
    let held = if preload.is_some() { "its ciphers held to AVX2 and AES-NI; " } else { "" };
    let plan = DpdkProgram {
        name: NAME,
        program: peer::find(NAME).ok_or_else(|| LabError::new(MISSING.into()))?,
        cores: format!("0@{cpu}"),
        ends,
        environment: vec!["--vdev=crypto_aesni_gcm0".into()],
        preload,
        words: Box::new(move |folder| {
            let file = folder.join("rules");
            fs::write(&file, text)?;
            let mut words: Vec<String> = ["-p", "0x3", "-P", "-u", "0x2"].map(String::from).to_vec();
            words.extend(["-s".into(), BUFFERS.to_string(), "--config=(0,0,0),(1,0,0)".into()]);
            words.extend(["-f".into(), file.display().to_string()]);
            Ok(words)
        }),
        ready: "entering main loop",
        note: format!(
            "{held}one policy of every address, one SA, numbers of 32 bits; without its option -l, with which it was slower; \
             what it sealed is not opened: its sink throws away"
        ),
    };
    // its telemetry answers from another CPU than the busy one
    Dpdk::start(plan, ProcessPlacement { namespace: None, cpus: &[] })
}

/// Policies, SAs, a route and a neighbour; it does not start without an inbound SA.
fn rules(p: &Protection) -> Option<String> {
    let (name, bytes) = algorithm(p)?;
    let key = |byte: &str| vec![byte; bytes].join(":");
    let policy = |way: &str, spi: u32| {
        format!("sp ipv4 {way} esp protect {spi} pri 1 dst 0.0.0.0/0 sport 0:65535 dport 0:65535\n")
    };
    let sa = |way: &str, spi: u32, byte: &str, (from, to): (&str, &str)| {
        format!(
            "sa {way} {spi} aead_algo {name} aead_key {} mode ipv4-tunnel src {from} dst {to} type no-offload\n",
            key(byte)
        )
    };
    let ends = ("192.0.2.1", "192.0.2.2");
    Some(
        [
            policy("out", 5),
            policy("in", 6),
            sa("out", 5, "5a", ends),
            sa("in", 6, "a5", (ends.1, ends.0)),
            format!("rt ipv4 dst {}/32 port 1\n", ends.1),
            "neigh port 1 02:00:00:01:00:00\n".to_string(),
        ]
        .concat(),
    )
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::time::{Duration, Instant};

    use weir_core::ipsec::{Job, Keys, Secret};
    use weir_testing::folder::Folder;

    use super::*;
    use crate::model::ipsec::CipherName;
    use crate::workload::capture;

    fn protection(cipher: &str) -> Protection {
        let cipher = CipherName::named(cipher).expect("a suite");
        Protection::new(Mode::Policy, Direction::Out, cipher)
    }

    #[test]
    fn its_file_has_a_policy_and_an_sa_each_way_with_a_key_as_long_as_the_cipher_takes() {
        for (cipher, name, bytes) in [("aes-gcm-128", "aes-128-gcm", 20), ("aes-gcm-256", "aes-256-gcm", 36)]
        {
            let text = rules(&protection(cipher)).expect("a cipher it has");
            let sa = text.lines().find(|line| line.starts_with("sa out 5 ")).expect("an outbound SA");
            let words: Vec<_> = sa.split(' ').collect();
            assert_eq!((words[4], words[6].split(':').count()), (name, bytes), "{sa}");
            assert_eq!(text.lines().filter(|line| line.starts_with("sp ")).count(), 2, "{text}");
        }
        assert!(rules(&protection("chacha20-poly1305")).is_none());
    }

    #[test]
    fn what_it_cannot_do_is_refused_with_the_remedy() {
        let good = protection("aes-gcm-128");
        let says = |p: Protection| refused(&p, Family::Inet).expect("a refusal");
        assert_eq!(refused(&good, Family::Inet), None);
        assert!(says(Protection { direction: Direction::In, ..good }).contains("direction = \"out\""));
        assert!(says(Protection { mode: Mode::Route, ..good }).contains("mode = \"policy\""));
        assert!(says(Protection { policies: 2, ..good }).contains("remove `policies`"));
        assert!(says(Protection { esn: true, ..good }).contains("remove `esn`"));
        assert!(says(Protection { backend: Backend::AwsLc, ..good }).contains("backend = \"auto\""));
        assert!(says(protection("null")).contains("aes-gcm-128"));
        assert!(refused(&good, Family::Inet6).is_some_and(|why| why.contains("family = \"inet\"")));
    }

    /// A frame of UDP from 10.10.0.2 to 32.0.0.1 that names itself in its last byte.
    fn plain(number: u8) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 10, 0, 2, 0, 0, 0, 10, 1, 8, 0];
        frame.extend([0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 10, 0, 2, 32, 0, 0, 1]);
        let sum = weir_core::wire::checksum::checksum(&frame[14..34]);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame.extend([3, 232, 7, 208, 0, 26, 0, 0]);
        frame.extend([0; 17]);
        frame.push(number);
        frame
    }

    fn seals(p: &Protection) {
        let folder = Folder::new("secgw");
        let (from, to) = (PathBuf::from(folder.at("from.pcap")), PathBuf::from(folder.at("to.pcap")));
        let sent: Vec<Vec<u8>> = (0..64).map(plain).collect();
        fs::write(&from, capture::write(&sent)).expect("a capture");
        let ends = Ends::Captures { from, to: to.clone() };
        let mut gateway = start(ends, 0, p).expect("it starts");
        let until = Instant::now() + Duration::from_secs(20);
        while gateway.ports().expect("telemetry")[1].opackets < 64 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
        // its capture is whole once it has ended
        drop(gateway);
        let keys = Keys { encryption: Secret::new(vec![0x5a; 20]), integrity: Secret::new(Vec::new()) };
        let cipher = weir_io::cipher::portable().cipher(p.cipher.0, false, &keys).expect("a cipher");
        let sealed = capture::read(&fs::read(&to).expect("its capture"));
        assert_eq!(sealed.len(), 64);
        for (number, frame) in sealed.into_iter().enumerate() {
            let mut esp = frame[34..].to_vec();
            assert_eq!((frame[23], &esp[..8]), (50, &[0, 0, 0, 5, 0, 0, 0, number as u8 + 1][..]));
            let mut jobs = [Job { packet: &mut esp, sequence: number as u64 + 1, authentic: false }];
            cipher.open(&mut jobs);
            assert!(jobs[0].authentic, "packet {number}");
            assert_eq!(esp[16..62][12..], sent[number][14..60][12..], "packet {number}");
        }
    }

    #[test]
    fn what_it_seals_opens_with_its_keys_and_is_what_went_in() {
        let test = "what_it_seals_opens_with_its_keys_and_is_what_went_in";
        for (needs, missing, backend) in
            [(NAME, MISSING, Backend::Auto), (AVX2, MISSING_AVX2, Backend::AesNi)]
        {
            if peer::find(needs).is_none() {
                writeln!(std::io::stderr(), "SKIP {test}: {missing}").expect("stderr is open");
                return;
            }
            seals(&Protection { backend, ..protection("aes-gcm-128") });
        }
    }
}
