//! The terminal of `weir top`: its size, and keys as they are pressed.
//!
//! Promises: the terminal is as it was when this is dropped, which Ctrl-C and SIGTERM lead to.

use std::io::{self, IsTerminal as _, Read as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use rustix::termios::{self, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

/// Home and clear to the end.
pub const REDRAW: &str = "\x1b[H\x1b[J";

/// Columns and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub columns: usize,
    pub lines: usize,
}

/// The size of the terminal that standard output is; `None` for a file or pipe.
pub fn size() -> Option<Size> {
    let stdout = io::stdout();
    let size = termios::tcgetwinsize(&stdout).ok().filter(|_| stdout.is_terminal())?;
    // A terminal that does not know its size says 0.
    let or = |got: u16, usual: usize| if got == 0 { usual } else { usize::from(got) };
    Some(Size { columns: or(size.ws_col, 80), lines: or(size.ws_row, 24) })
}

/// Keys of a terminal, one by one.
pub struct Keys {
    /// How the terminal was.
    before: Option<Termios>,
    stop: &'static AtomicBool,
}

impl Keys {
    /// Lets the terminal hand on keys at once and unseen; where standard input is none, no key is ever pressed.
    pub fn new() -> io::Result<Keys> {
        let stop = weir_io::signal::stop_flag()?;
        let stdin = io::stdin();
        let before = termios::tcgetattr(&stdin).ok().filter(|_| stdin.is_terminal());
        if let Some(before) = &before {
            let mut modes = before.clone();
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // A read returns after a tenth of a second, with a key or without.
            modes.special_codes[SpecialCodeIndex::VMIN] = 0;
            modes.special_codes[SpecialCodeIndex::VTIME] = 1;
            termios::tcsetattr(&stdin, OptionalActions::Now, &modes)?;
        }
        Ok(Keys { before, stop })
    }

    /// Told to end.
    pub fn ended(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The next key, if one is pressed before then.
    pub fn until(&self, then: Instant) -> Option<u8> {
        while !self.ended() {
            let left = then.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            if self.before.is_none() {
                std::thread::sleep(left.min(std::time::Duration::from_millis(100)));
                continue;
            }
            let mut key = [0];
            match io::stdin().lock().read(&mut key) {
                Ok(1) => return Some(key[0]),
                Ok(_) => {}
                // Nobody types there any more.
                Err(_) => std::thread::sleep(left),
            }
        }
        None
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // A terminal that has gone has no mode to put back.
            let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}
