//! A token bucket: so many a second on average, so many at once.
//!
//! Promises: over any span of time t no more than `burst + rate · t` is taken, plus the one debt that [`Bucket::spend`]
//! allows; fractions of tokens are not lost, however often it is asked. Time that runs backwards earns nothing.

use crate::time::{Nanos, SECOND};

#[derive(Clone, Debug)]
pub struct Bucket {
    /// Tokens a second.
    rate: u64,
    burst: u64,
    /// Tokens there are; a number below zero is owed.
    tokens: i64,
    /// What was earned until then is in `tokens`.
    earned_until: Nanos,
}

impl Bucket {
    /// Full at `now`. A rate of zero never fills again; a burst above `i64::MAX` is that.
    pub fn new(rate: u64, burst: u64, now: Nanos) -> Bucket {
        let burst = burst.min(i64::MAX as u64);
        Bucket { rate, burst, tokens: burst as i64, earned_until: now }
    }

    pub fn rate(&self) -> u64 {
        self.rate
    }

    pub fn burst(&self) -> u64 {
        self.burst
    }

    /// Takes `n` when they are there.
    pub fn take(&mut self, n: u64, now: Nanos) -> bool {
        self.earn(now);
        let there = i64::try_from(n).is_ok_and(|n| self.tokens >= n);
        if there {
            self.tokens -= n as i64;
        }
        there
    }

    /// Takes `n` in any case, owing what is missing, and says how long to wait until nothing is owed.
    ///
    /// For what was received before it could be refused: the next receive waits instead.
    pub fn spend(&mut self, n: u64, now: Nanos) -> Nanos {
        self.earn(now);
        self.tokens = self.tokens.saturating_sub(i64::try_from(n).unwrap_or(i64::MAX));
        self.wait()
    }

    /// Whether the bucket is full, as a new one is.
    pub fn is_full(&mut self, now: Nanos) -> bool {
        self.earn(now);
        self.tokens == self.burst as i64
    }

    /// Keeps what is owed or left, as far as the new burst holds it.
    pub fn change(&mut self, rate: u64, burst: u64, now: Nanos) {
        self.earn(now);
        self.rate = rate;
        self.burst = burst.min(i64::MAX as u64);
        self.tokens = self.tokens.min(self.burst as i64);
    }

    /// How long to wait, from `earned_until` on.
    fn wait(&self) -> Nanos {
        if self.tokens >= 0 {
            return 0;
        }
        let owed = u128::from(self.tokens.unsigned_abs()) * u128::from(SECOND);
        match owed.div_ceil(u128::from(self.rate.max(1))) {
            _ if self.rate == 0 => Nanos::MAX,
            nanos => Nanos::try_from(nanos).unwrap_or(Nanos::MAX),
        }
    }

    fn earn(&mut self, now: Nanos) {
        let elapsed = now.saturating_sub(self.earned_until);
        let earned = u128::from(elapsed) * u128::from(self.rate) / u128::from(SECOND);
        let missing = (i128::from(self.burst) - i128::from(self.tokens)).unsigned_abs();
        if earned >= missing {
            self.tokens = self.burst as i64;
            self.earned_until = self.earned_until.max(now);
        } else if earned > 0 {
            self.tokens += earned as i64;
            // Only the time that whole tokens took: the rest counts next time.
            let spent = (earned * u128::from(SECOND)).div_ceil(u128::from(self.rate));
            self.earned_until += spent as Nanos;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::MILLISECOND;

    #[test]
    fn a_burst_is_taken_at_once_and_then_the_rate() {
        let mut bucket = Bucket::new(10, 3, 0);
        assert_eq!((0..5).filter(|_| bucket.take(1, 0)).count(), 3);
        assert!(!bucket.take(1, 99 * MILLISECOND));
        assert!(bucket.take(1, 100 * MILLISECOND));
        assert!(!bucket.take(1, 100 * MILLISECOND));
    }

    #[test]
    fn fractions_are_not_lost_when_it_is_asked_often() {
        let mut bucket = Bucket::new(3, 1, 0);
        assert!(bucket.take(1, 0));
        let taken = (1..=10_000).filter(|&ms| bucket.take(1, ms * MILLISECOND)).count();
        assert!((29..=30).contains(&taken), "{taken} in ten seconds at 3 a second");
    }

    #[test]
    fn what_is_owed_is_waited_for_and_no_longer() {
        let mut bucket = Bucket::new(1000, 500, 0);
        assert_eq!(bucket.spend(500, 0), 0);
        let wait = bucket.spend(100, 0);
        assert_eq!(wait, 100 * MILLISECOND);
        assert!(!bucket.take(1, wait));
        assert!(bucket.take(1, wait + MILLISECOND));
    }

    #[test]
    fn it_holds_no_more_than_its_burst_however_long_nothing_is_taken() {
        let mut bucket = Bucket::new(u64::MAX, 7, 0);
        assert!(bucket.take(7, u64::MAX));
        assert!(!bucket.take(1, u64::MAX));
    }

    #[test]
    fn a_rate_of_zero_never_fills() {
        let mut bucket = Bucket::new(0, 1, 0);
        assert_eq!(bucket.spend(1, 0), 0);
        assert_eq!(bucket.spend(1, SECOND), Nanos::MAX);
    }

    #[test]
    fn time_that_runs_backwards_earns_nothing() {
        let mut bucket = Bucket::new(1000, 1, SECOND);
        assert!(bucket.take(1, SECOND));
        assert!(!bucket.take(1, 0));
        assert!(!bucket.take(1, SECOND));
        assert!(bucket.take(1, SECOND + MILLISECOND));
    }
}
