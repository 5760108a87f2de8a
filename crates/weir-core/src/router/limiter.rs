//! The token bucket of ICMP errors (RFC 1812 4.3.2.8, RFC 4443 2.4 f).

use crate::tables::Settings;
use crate::time::{Nanos, SECOND};

/// Tokens kept as time: one is worth `SECOND / rate`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limiter {
    /// When the bucket would have been empty: `now − empty_at` may be spent, at most a burst. Signed: a
    /// bucket full at the clock's start was empty before it.
    empty_at: i64,
}

impl Limiter {
    pub fn new() -> Self {
        Limiter { empty_at: i64::MIN }
    }

    /// Takes one token, or says no.
    pub fn take(&mut self, now: Nanos, settings: &Settings) -> bool {
        let (rate, burst) = (settings.icmp_errors_per_second, settings.icmp_error_burst);
        if rate == 0 || burst == 0 {
            return false;
        }
        let (now, token) = (now as i64, (SECOND / u64::from(rate)).max(1) as i64);
        let full = token.saturating_mul(i64::from(burst));
        let saved = now.saturating_sub(self.empty_at).min(full);
        if saved < token {
            return false;
        }
        self.empty_at = now - saved + token;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(rate: u32, burst: u32) -> Settings {
        Settings { icmp_errors_per_second: rate, icmp_error_burst: burst, ..Settings::default() }
    }

    #[test]
    fn burst_is_spent_at_once_and_refills_at_the_rate() {
        let (mut limiter, settings) = (Limiter::new(), settings(10, 3));
        let mut spend = |now| (0..10).filter(|_| limiter.take(now, &settings)).count();
        assert_eq!(spend(0), 3);
        assert_eq!(spend(SECOND / 10 - 1), 0);
        assert_eq!(spend(SECOND / 10), 1);
        assert_eq!(spend(100 * SECOND), 3);
    }

    #[test]
    fn rate_of_zero_never_allows() {
        assert!(!Limiter::new().take(SECOND, &settings(0, 50)));
        assert!(!Limiter::new().take(SECOND, &settings(50, 0)));
    }
}
