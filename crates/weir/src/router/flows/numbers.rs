//! Numbers of flows in the program's tables.
//!
//! Promises: a number is one flow's, from when it is taken until nothing under it is left in a table; one whose flow could not be
//! taken out of there is never another's. Refuses: more than there are.

use weir_io::steer::tracked::MAX_TRACKED;

#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Those that are free, below the first that was never used.
    free: Vec<u32>,
    unused: u32,
}

impl Numbers {
    pub fn are_all_used(&self) -> bool {
        self.free.is_empty() && self.unused >= MAX_TRACKED
    }

    pub fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let number = self.unused;
            self.unused = number.saturating_add(1).min(MAX_TRACKED);
            (number < MAX_TRACKED).then_some(number)
        })
    }

    /// The flow is over; `gone` says that nothing of it is left in a table, where it would be in force with the next of this number.
    pub fn give_back(&mut self, number: u32, gone: bool) {
        if gone {
            self.free.push(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_which_something_is_left_is_nobody_elses() {
        let mut numbers = Numbers::default();
        assert_eq!([0; 3].map(|_| numbers.take()), [Some(0), Some(1), Some(2)]);
        numbers.give_back(1, false);
        assert_eq!(numbers.take(), Some(3));
        numbers.give_back(2, true);
        assert_eq!([0; 2].map(|_| numbers.take()), [Some(2), Some(4)]);
        let rest = std::iter::from_fn(|| numbers.take()).count();
        assert_eq!(rest, MAX_TRACKED as usize - 5);
        assert!(numbers.are_all_used());
        numbers.give_back(7, true);
        assert!(!numbers.are_all_used());
        assert_eq!([0; 2].map(|_| numbers.take()), [Some(7), None]);
    }
}
