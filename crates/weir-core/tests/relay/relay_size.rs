//! A registry of a million peers: what each costs, and that no step of a connection grows with how many there are.
//!
//! The only test of its process, because it counts the process' memory.

use weir_core::relay::frame::{KEY, Key};
use weir_core::relay::registry::{Closing, Destination, Effect, Entry, Registry};
use weir_core::relay::{ConnId, Place};

const MANY: u64 = 1_000_000;
/// Key, connection, their tables and the allocator's own.
const BYTES_EACH: u64 = 640;

fn key(n: u64) -> Key {
    // Spread over the key space, as keys are.
    let mut key = Key([0x5a; KEY]);
    key.0[..8].copy_from_slice(&n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

fn entry(n: u64) -> Entry {
    Entry {
        key: key(n),
        mesh: false,
        dialled: false,
        prober: false,
        can_ack_pings: true,
        ideal: true,
        address: ([10, (n >> 16) as u8, (n >> 8) as u8, n as u8], 41641).into(),
        worker: (n % 2) as u16,
        slot: (n / 2) as u32,
    }
}

fn place(conn: ConnId) -> Place {
    Place { worker: (conn % 2) as u16, slot: (conn / 2) as u32, conn }
}

/// Resident bytes; nothing where the kernel does not say.
fn resident() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
}

#[test]
fn a_million_peers_cost_what_each_costs_and_the_next_one_is_refused() {
    let before = resident();
    let mut registry = Registry::new(Key([0; KEY]), MANY as usize);
    let mut effects = Vec::new();
    for n in 0..MANY {
        registry.connect(n, entry(n), &mut effects);
        let said = Effect::Route { key: key(n), to: Some(Destination::Local(place(n))) };
        assert_eq!(effects, [said], "peer {n}");
        effects.clear();
    }
    if let (Some(before), Some(after)) = (before, resident()) {
        let each = after.saturating_sub(before) / MANY;
        assert!(each <= BYTES_EACH, "{each} bytes a peer");
        println!("{each} bytes a peer");
    }
    assert_eq!(registry.counts().local_keys as u64, MANY);
    registry.connect(MANY, entry(MANY), &mut effects);
    assert_eq!(effects, [Effect::Close { at: place(MANY), why: Closing::Full }]);
    effects.clear();
    for n in (0..MANY).step_by(101) {
        assert_eq!(registry.route(&key(n)), Some(Destination::Local(place(n))));
    }
    // One leaves: those who heard from it are told, nobody else; and there is room for one.
    registry.note_sent_to(key(7), key(9));
    registry.disconnect(7, &[key(8)], &mut effects);
    let told: Vec<Place> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Send { to, .. } => Some(*to),
            _ => None,
        })
        .collect();
    assert_eq!((told.len(), effects.len()), (2, 3), "{effects:?}");
    assert!(told.contains(&place(8)) && told.contains(&place(9)));
    effects.clear();
    registry.connect(MANY + 1, entry(MANY), &mut effects);
    assert!(matches!(effects[..], [Effect::Route { .. }]), "{effects:?}");
}
