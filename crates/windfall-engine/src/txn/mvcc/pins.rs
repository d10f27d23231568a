//! The pins of read views.
//!
//! **Purpose.** A list in the order in which the pins were made: the oldest limits purge. A view that is taken and
//! released allocates nothing here.
//!
//! **Invariants.** The numbers grow, and no two pins have the same (checked by `mvcc/pins.rs::push`). Neither the
//! first nor the last place is empty (checked by `mvcc/pins.rs::check_invariants`). At most about half of the places
//! are empty, however long the oldest pin stays (test: `pins_are_found_as_in_a_map`).

use core::time::Duration;
use std::collections::VecDeque;

use super::snapshot::Snapshot;
use crate::sync::{Arc, atomic::AtomicBool};

/// Empty places that are left alone.
const FEW_PLACES: usize = 32;

/// The pin of a read view, which keeps versions from purge.
#[derive(Debug)]
pub(super) struct Pinned {
    pub snapshot: Arc<Snapshot>,
    pub since: Duration,
    pub is_ended: Arc<AtomicBool>,
}

/// The pins, each with its number, the oldest first.
#[derive(Debug)]
pub(super) struct Pins<T = Pinned> {
    places: VecDeque<(u64, Option<T>)>,
    count: usize,
    next: u64,
}

impl<T> Default for Pins<T> {
    fn default() -> Self {
        Self { places: VecDeque::new(), count: 0, next: 0 }
    }
}

impl<T> Pins<T> {
    /// Adds a pin, the newest. Returns its number.
    pub(super) fn push(&mut self, pinned: T) -> u64 {
        let number = self.next;
        debug_assert!(
            self.places.back().is_none_or(|(last, _)| *last < number),
            "a pin gets a number that another one has or had"
        );
        self.next += 1;
        self.count += 1;
        self.places.push_back((number, Some(pinned)));
        number
    }

    /// Removes the pin of a number; `None` if it was removed before.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let place = self.places.binary_search_by_key(&number, |(known, _)| *known).ok()?;
        let removed = self.places[place].1.take()?;
        self.count -= 1;
        while self.places.back().is_some_and(|(_, pinned)| pinned.is_none()) {
            self.places.pop_back();
        }
        while self.places.front().is_some_and(|(_, pinned)| pinned.is_none()) {
            self.places.pop_front();
        }
        if self.places.len() > FEW_PLACES + 2 * self.count {
            self.places.retain(|(_, pinned)| pinned.is_some());
        }
        Some(removed)
    }

    /// Removes the oldest pin.
    pub(super) fn remove_oldest(&mut self) {
        if let Some((number, _)) = self.places.front() {
            self.remove(*number);
        }
    }

    /// Returns whether there is none.
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the oldest pin.
    pub(super) fn oldest(&self) -> Option<&T> {
        self.places.front().and_then(|(_, pinned)| pinned.as_ref())
    }

    /// Returns the newest pin.
    pub(super) fn newest(&self) -> Option<&T> {
        self.places.back().and_then(|(_, pinned)| pinned.as_ref())
    }

    /// Returns all pins, the oldest first.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.places.iter().filter_map(|(_, pinned)| pinned.as_ref())
    }

    /// Checks that the ends are pins, and the count.
    ///
    /// # Panics
    /// An invariant is violated.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check_invariants(&self) {
        assert!(self.values().count() == self.count, "{} pins are counted", self.count);
        assert!(self.is_empty() == self.places.is_empty(), "empty places are left without a pin");
        assert!(
            self.is_empty() || self.oldest().is_some() && self.newest().is_some(),
            "the oldest or the newest pin is not found"
        );
        assert!(self.places.iter().is_sorted_by_key(|(number, _)| *number), "the pins are not in order");
        assert!(self.places.back().is_none_or(|(last, _)| *last < self.next), "a pin has a number to come");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    #[test]
    fn pins_are_found_as_in_a_map() {
        let mut rng = StdRng::seed_from_u64(1);
        let (mut pins, mut model) = (Pins::<u64>::default(), BTreeMap::new());
        for most in [3, 200, 40, 1] {
            for step in 0..5000 {
                if model.len() < most && rng.random_bool(0.5) {
                    model.insert(pins.push(step), step);
                } else if rng.random_bool(0.05) {
                    pins.remove_oldest();
                    model.pop_first();
                } else if let Some((number, _)) = model.iter().nth(rng.random_range(0..most)) {
                    let number = *number;
                    assert_eq!(pins.remove(number), model.remove(&number));
                    assert_eq!(pins.remove(number), None, "it was removed before");
                }
                pins.check_invariants();
                assert!(pins.values().eq(model.values()), "step {step}");
                assert_eq!(pins.oldest(), model.values().next());
                assert_eq!(pins.newest(), model.values().next_back());
            }
        }
        let stays = pins.push(0);
        let mut before = pins.push(0);
        for step in 0..10_000 {
            let number = pins.push(step);
            pins.remove(before);
            before = number;
            assert!(pins.places.len() <= FEW_PLACES + 2 * pins.count, "{}", pins.places.len());
        }
        assert_eq!(pins.remove(stays), Some(0));
    }
}
