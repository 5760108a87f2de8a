//! Captures that peers read test packets from, and write what they made of them to (pcap).

/// Frames as a capture of this machine's byte order.
pub fn write(frames: &[Vec<u8>]) -> Vec<u8> {
    /// Magic, version 2.4, no zone, longest frame, Ethernet.
    const HEADER: [u32; 6] = [0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1];
    let mut file: Vec<u8> = HEADER.iter().flat_map(|word| word.to_ne_bytes()).collect();
    for frame in frames {
        let len = frame.len() as u32;
        file.extend([0, 0, len, len].iter().flat_map(|word| word.to_ne_bytes()));
        file.extend(frame);
    }
    file
}

/// The frames of a capture of this machine's byte order; what is half written is left out.
pub fn read(file: &[u8]) -> Vec<Vec<u8>> {
    const HEADER: usize = 24;
    let (mut rest, mut frames) = (file.get(HEADER..).unwrap_or_default(), Vec::new());
    while let Some((head, after)) = rest.split_at_checked(16) {
        let len = u32::from_ne_bytes([head[8], head[9], head[10], head[11]]) as usize;
        let Some((frame, after)) = after.split_at_checked(len) else { break };
        frames.push(frame.to_vec());
        rest = after;
    }
    frames
}
