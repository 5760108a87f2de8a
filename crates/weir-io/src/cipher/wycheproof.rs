//! Wycheproof (`testdata/wycheproof`) through what the ciphers of ESP are made of.

use serde_json::Value;
use weir_core::ipsec::{Encryption, Integrity, Secret};

use super::aws_lc::{AeadKey, CbcKey};
use super::hmac::Hmac;

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/wycheproof/");
const BLOCK: usize = 16;

fn bytes(case: &Value, field: &str) -> Vec<u8> {
    let digits = case[field].as_str().expect("a field of hexadecimal digits");
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

/// Every case of a file; the number of them that ran.
fn each(file: &str, run: impl Fn(&Value, bool)) -> usize {
    let text = std::fs::read_to_string(format!("{DIRECTORY}{file}.json")).expect("the file is in the tree");
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let mut cases = 0;
    for group in value["testGroups"].as_array().expect("groups") {
        for case in group["tests"].as_array().expect("tests") {
            run(case, case["result"] == "valid");
            cases += 1;
        }
    }
    cases
}

fn aead_case(encryption: impl Fn(usize) -> Encryption, case: &Value, valid: bool) {
    let key = bytes(case, "key");
    let key = AeadKey::new(encryption(key.len()), &key);
    let nonce: [u8; 12] = bytes(case, "iv").try_into().expect("12 bytes");
    let (aad, msg, ct, tag) = (bytes(case, "aad"), bytes(case, "msg"), bytes(case, "ct"), bytes(case, "tag"));
    let mut body = msg.clone();
    let sealed = key.seal(nonce, &aad, &mut body).expect("a length aws-lc seals");
    assert_eq!(valid, body == ct && sealed[..] == tag, "seal, case {}", case["tcId"]);
    let mut body = ct;
    let authentic = key.open(nonce, &aad, &mut body, &tag).is_some();
    assert_eq!(authentic, valid, "open, case {}", case["tcId"]);
    assert!(!authentic || body == msg, "open, case {}", case["tcId"]);
}

fn gcm(key_len: usize) -> Encryption {
    match key_len {
        16 => Encryption::AesGcm128,
        24 => Encryption::AesGcm192,
        _ => Encryption::AesGcm256,
    }
}

#[test]
fn aes_gcm_agrees_with_wycheproof() {
    assert_eq!(each("aes_gcm", |case, valid| aead_case(gcm, case, valid)), 197);
}

#[test]
fn chacha20_poly1305_agrees_with_wycheproof() {
    let run = |case: &Value, valid| aead_case(|_| Encryption::ChaCha20Poly1305, case, valid);
    assert_eq!(each("chacha20_poly1305", run), 316);
}

#[test]
fn aes_cbc_agrees_with_wycheproof_whose_padding_is_added_here() {
    let run = |case: &Value, valid: bool| {
        let key = CbcKey::new(&bytes(case, "key"));
        let iv: [u8; BLOCK] = bytes(case, "iv").try_into().expect("16 bytes");
        let (mut padded, ct) = (bytes(case, "msg"), bytes(case, "ct"));
        let pad = BLOCK - padded.len() % BLOCK;
        padded.extend(std::iter::repeat_n(pad as u8, pad));
        let mut opened = ct.clone();
        key.decrypt(iv, &mut opened).expect("whole blocks");
        assert_eq!(opened == padded, valid, "decrypt, case {}", case["tcId"]);
        key.encrypt(iv, &mut padded).expect("whole blocks");
        assert_eq!(padded == ct, valid, "encrypt, case {}", case["tcId"]);
    };
    assert_eq!(each("aes_cbc_pkcs5", run), 216);
}

#[test]
fn hmac_agrees_with_wycheproof() {
    let files = [
        ("hmac_sha1", Integrity::HmacSha1_96, 170),
        ("hmac_sha256", Integrity::HmacSha256_128, 174),
        ("hmac_sha384", Integrity::HmacSha384_192, 174),
        ("hmac_sha512", Integrity::HmacSha512_256, 174),
    ];
    for (file, integrity, cases) in files {
        let run = |case: &Value, valid: bool| {
            let hmac = Hmac::new(integrity, &Secret::new(bytes(case, "key")), false);
            let (msg, tag) = (bytes(case, "msg"), bytes(case, "tag"));
            assert_eq!(hmac.verify(&msg, 0, &tag).is_some(), valid, "{file}, case {}", case["tcId"]);
            let mut icv = vec![0; tag.len()];
            hmac.write(&msg, 0, &mut icv);
            assert_eq!(icv == tag, valid, "{file}, case {}", case["tcId"]);
        };
        assert_eq!(each(file, run), cases, "{file}");
    }
}

/// Each message alone, and in each lane beside a longer one: a lane must not see its neighbour.
#[cfg(target_arch = "x86_64")]
fn several_agree_with_wycheproof<H, const BLOCK: usize, const LANES: usize>(
    file: &str,
    proof: Option<H::Proof>,
) where
    H: super::multi_hmac::Hash<BLOCK, LANES>,
{
    use std::io::Write;

    use super::multi_hmac::{Message, MultiHmac};

    let Some(proof) = proof else {
        let test = "hmac_of_several_packets_agrees_with_wycheproof";
        let _ = writeln!(std::io::stderr(), "SKIP {test}: the CPU has no {} for {file}", H::NAME);
        return;
    };
    let run = |case: &Value, valid| {
        let (key, msg, tag) = (bytes(case, "key"), bytes(case, "msg"), bytes(case, "tag"));
        if key.len() > BLOCK {
            // ESP's keys are as long as the hash: longer than a block is never needed.
            return;
        }
        let hmac = MultiHmac::<H, BLOCK, LANES>::new(proof, &key);
        let longer = vec![0xff; 300];
        for lane in 0..=LANES {
            let count = if lane == LANES { 1 } else { LANES };
            let message = |i| if i == lane % LANES || count == 1 { &msg } else { &longer };
            let messages = (0..count).map(|i| (Message { bytes: message(i), more: None }, i));
            let mut computed = vec![Vec::new(); count];
            hmac.tags(messages, |i, tag| computed[i] = tag.to_vec());
            let tag_of_msg = &computed[if count == 1 { 0 } else { lane }];
            assert_eq!(tag_of_msg[..tag.len()] == tag, valid, "{file}, case {}, lane {lane}", case["tcId"]);
        }
    };
    assert!(each(file, run) >= 170, "{file}");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn hmac_of_several_packets_agrees_with_wycheproof() {
    use super::sha_ni::{Sha1, Sha256, ShaNi};
    use super::sha512::{Avx2, Sha384, Sha512};

    several_agree_with_wycheproof::<Sha1, 64, 2>("hmac_sha1", ShaNi::new());
    several_agree_with_wycheproof::<Sha256, 64, 2>("hmac_sha256", ShaNi::new());
    several_agree_with_wycheproof::<Sha384, 128, 4>("hmac_sha384", Avx2::new());
    several_agree_with_wycheproof::<Sha512, 128, 4>("hmac_sha512", Avx2::new());
}

/// Keys, nonces and messages of Wycheproof as ESP packets: its associated data becomes the header, the
/// message is filled to whole units, and the result is held against aws-lc, which passed above.
#[cfg(target_arch = "x86_64")]
#[test]
fn vector_code_agrees_with_aws_lc_on_the_packets_made_of_wycheproof() {
    use std::io::Write;

    use weir_core::ipsec::{Cipher, Ciphers, Job, Keys, Suite};

    use super::aws_lc::AwsLc;

    let ours: Vec<_> = super::BACKENDS[1..].iter().filter_map(|name| super::by_name(name)).collect();
    if ours.is_empty() {
        let test = "vector_code_agrees_with_aws_lc_on_the_packets_made_of_wycheproof";
        let _ = writeln!(std::io::stderr(), "SKIP {test}: the CPU has no AES instructions");
        return;
    }
    let run = |case: &Value, _| {
        let (key, nonce) = (bytes(case, "key"), bytes(case, "iv"));
        let suite = Suite::new(gcm(key.len()), None, false).expect("an AEAD");
        let keys = Keys {
            encryption: Secret::new([&key[..], &nonce[..4]].concat()),
            integrity: Secret::new(Vec::new()),
        };
        let mut header = bytes(case, "aad");
        header.resize(8, 0);
        let mut body = bytes(case, "msg");
        body.resize(body.len().next_multiple_of(4).max(4), 0);
        let plain = [&header[..], &nonce[4..], &body, &[0; 16]].concat();
        let sequence = nonce[4..].iter().fold(0u64, |n, &b| n << 8 | u64::from(b));
        for (esn, ours) in [false, true].into_iter().flat_map(|esn| ours.iter().map(move |ours| (esn, ours)))
        {
            let ours = ours.cipher(suite, esn, &keys).expect("keys of the suite's length");
            let theirs = AwsLc.cipher(suite, esn, &keys).expect("keys of the suite's length");
            let seal = |cipher: &dyn Cipher| {
                let mut packet = plain.clone();
                cipher.seal(&mut [Job { packet: &mut packet, sequence, authentic: false }]);
                packet
            };
            let sealed = seal(&*ours);
            assert_eq!(sealed, seal(&*theirs), "case {}", case["tcId"]);
            let mut packet = sealed.clone();
            let mut jobs = [Job { packet: &mut packet, sequence, authentic: false }];
            ours.open(&mut jobs);
            let is_same = jobs[0].authentic && jobs[0].packet[16..16 + body.len()] == body;
            assert!(is_same, "case {}", case["tcId"]);
        }
    };
    assert_eq!(each("aes_gcm", run), 197);
}
