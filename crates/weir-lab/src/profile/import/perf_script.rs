//! The text of `perf script`: a head line a sample, then its frames leaf first, then an empty line.
//!
//! ```text
//! weir  4711 [001]  8123.456789:     250000 cpu-clock:pppH:
//!             55d0c0ffee12 weir_core::lpm::lookup+0x42 (/usr/bin/weir)
//!         ffffffff81abcdef net_rx_action+0x10f ([kernel.kallsyms])
//! ```
//!
//! Promises: kernel and inlined frames carry their marks, the command is the root frame, a sample counts once whatever its period, samples of one CPU
//! make one part. Refuses: a frame before the first head, a line that is neither.

use std::collections::BTreeMap;

use super::Fault;
use crate::profile::folded;
use crate::profile::{INLINED, KERNEL, Profile, UNKNOWN};

/// Addresses of kernels on x86-64 and arm64 lie above.
const KERNEL_SPACE: u64 = 1 << 63;

/// What a head line says.
struct Head<'a> {
    command: &'a str,
    cpu: u32,
    event: &'a str,
    /// The only frame, printed on the head line when the sample has no call chain.
    frame: &'a str,
}

pub fn is_head(line: &str) -> bool {
    head(line).is_some()
}

pub fn parse(text: &str) -> Result<Vec<Profile>, Fault> {
    let mut parts: BTreeMap<u32, Profile> = BTreeMap::new();
    let mut open: Option<(Head<'_>, Vec<String>)> = None;
    for (line, number) in text.lines().zip(1..) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            close(open.take(), &mut parts);
        } else if let Some(head) = head(line) {
            close(open.take(), &mut parts);
            let mut frames = Vec::new();
            if !head.frame.is_empty() {
                frames.extend(frame(head.frame, parts.entry(head.cpu).or_default()));
            }
            open = Some((head, frames));
        } else {
            let (head, frames) = open.as_mut().ok_or_else(|| Fault {
                line: number,
                message: "a frame before its sample; expected `command pid [cpu] time: event:`".into(),
            })?;
            let frame = frame(line, parts.entry(head.cpu).or_default()).ok_or_else(|| Fault {
                line: number,
                message: format!(
                    "expected `address symbol+offset (file)`, got `{}`; run `perf script` without -F",
                    line.trim().chars().take(60).collect::<String>()
                ),
            })?;
            frames.push(frame);
        }
    }
    close(open, &mut parts);
    Ok(parts.into_values().filter(|p| !p.stacks.is_empty()).collect())
}

fn close(sample: Option<(Head<'_>, Vec<String>)>, parts: &mut BTreeMap<u32, Profile>) {
    let Some((head, mut frames)) = sample else { return };
    frames.push(head.command.to_string());
    frames.reverse();
    let part = parts.entry(head.cpu).or_default();
    part.event = head.event.to_string();
    part.add(frames, 1);
}

/// `command pid[/tid] [cpu] time: [period] event:[modifiers:] [frame]`; the CPU is absent in some recordings.
fn head(line: &str) -> Option<Head<'_>> {
    if line.starts_with(char::is_whitespace) {
        // perf pads short commands to the left in some versions, but then the time is still there
        let trimmed = line.trim_start();
        return trimmed.split_whitespace().any(is_time).then(|| head(trimmed)).flatten();
    }
    let words: Vec<(usize, &str)> =
        line.split_whitespace().map(|w| (w.as_ptr() as usize - line.as_ptr() as usize, w)).collect();
    let time = words.iter().position(|(_, w)| is_time(w))?;
    let bracketed = |w: &str| w.strip_prefix('[').and_then(|w| w.strip_suffix(']')?.parse().ok());
    let cpu: Option<u32> = time.checked_sub(1).and_then(|i| bracketed(words[i].1));
    let pid = time.checked_sub(1 + usize::from(cpu.is_some())).filter(|&i| i > 0)?;
    words[pid].1.split('/').all(|n| n.parse::<i64>().is_ok()).then_some(())?;
    let after = &words[time + 1..];
    let event = after.iter().position(|(_, w)| w.ends_with(':'))?;
    let (at, name) = after[event];
    Some(Head {
        command: line[..words[pid].0].trim_end(),
        cpu: cpu.unwrap_or(0),
        event: name.split(':').next().unwrap_or(name),
        frame: line[at + name.len()..].trim(),
    })
}

/// `8123.456789:`.
fn is_time(word: &str) -> bool {
    word.strip_suffix(':')
        .and_then(|t| t.split_once('.'))
        .is_some_and(|(s, f)| [s, f].iter().all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit())))
}

/// The function of `address symbol+offset (file)` with its mark; an unknown one is named by its file.
fn frame(line: &str, part: &mut Profile) -> Option<String> {
    let (address, rest) = line.trim().split_once(' ')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let (symbol, file) = rest.rsplit_once(" (").or_else(|| Some(("", rest.trim().strip_prefix('(')?)))?;
    let file = file.strip_suffix(')')?.trim_start_matches('[').trim_end_matches(']');
    let module = file.rsplit('/').next().unwrap_or(file);
    let symbol = symbol.trim();
    let symbol = match symbol.rsplit_once("+0x") {
        Some((name, offset)) if offset.bytes().all(|b| b.is_ascii_hexdigit()) => name,
        _ => symbol,
    };
    let mark = match module {
        "inlined" => INLINED,
        _ if address >= KERNEL_SPACE => KERNEL,
        _ => "",
    };
    if symbol.is_empty() || symbol == UNKNOWN {
        return Some(format!("[{module}]{mark}"));
    }
    // an inlined function has no file of its own
    if mark != INLINED && !part.modules.contains_key(symbol) {
        part.modules.insert(symbol.to_string(), module.to_string());
    }
    Some(folded::frame(symbol) + mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# captured on: somewhere
weir worker 4711/4712 [001]  8123.456789:     250000 cpu-clock:pppH: 
\t    55d0c0ffee12 <weir::Rx as core::Poll>::poll+0x42 (/usr/bin/weir)
\t    55d0c0ffee99 weir::inner (inlined)
\tffffffff81abcdef net_rx_action+0x10f ([kernel.kallsyms])

swapper     0 [000]  8123.456790:     250000 cpu-clock:pppH: 
\tffffffff81000001 [unknown] ([kernel.kallsyms])
\t    7f00deadbeef [unknown] (/lib/libcrypto.so.3)

swapper     0 [000]  8123.456791:          1 cycles:  ffffffff81000002 default_idle+0xf ([kernel.kallsyms])
";

    #[test]
    fn samples_become_stacks_root_first_under_their_command_one_part_a_cpu() {
        let parts = parse(TEXT).expect("perf script");
        let folded: Vec<String> = parts.iter().map(Profile::folded).collect();
        assert_eq!(
            folded,
            [
                "swapper;[libcrypto.so.3];[kernel.kallsyms]_[k] 1\nswapper;default_idle_[k] 1\n",
                "weir worker;net_rx_action_[k];weir::inner_[i];<weir::Rx as core::Poll>::poll 1\n",
            ]
        );
        assert_eq!(parts[1].event, "cpu-clock");
        assert_eq!(parts[1].modules["net_rx_action"], "kernel.kallsyms");
        assert!(!parts[1].modules.contains_key("weir::inner"));
    }

    #[test]
    fn a_frame_without_its_sample_is_refused_by_number() {
        let fault = parse("\n\tffffffff81000001 f+0x1 (x)\n").expect_err("no head");
        assert_eq!(fault.line, 2);
    }

    #[test]
    fn a_line_that_is_neither_head_nor_frame_is_refused_by_number() {
        let text = "weir 7 [001] 1.5: cycles: \n\tnonsense\n";
        let fault = parse(text).expect_err("no frame");
        assert_eq!(fault.line, 2);
        assert!(fault.message.contains("got `nonsense`"), "{}", fault.message);
    }
}
