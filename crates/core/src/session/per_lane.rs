//! A table with one entry for each lane, which takes memory only up to the highest path in use.

use crate::ids::PathId;

/// One `T` for each lane of a session, [`PathId::LANES`] at most. Most sessions use one or two paths.
#[derive(Debug)]
pub(super) struct PerLane<T>(Vec<T>);

impl<T> Default for PerLane<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> PerLane<T> {
    /// Returns the entry of `lane`; `None` if it is unused or `lane` is out of range.
    pub(super) fn get(&self, lane: PathId) -> Option<&T> {
        self.0.get(slot(lane)?)
    }

    /// Returns the entry of `lane`, which is created if it is unused; `None` if `lane` is out of range.
    pub(super) fn get_mut(&mut self, lane: PathId) -> Option<&mut T> {
        let slot = slot(lane)?;
        if slot >= self.0.len() {
            self.0.reserve_exact(slot + 1 - self.0.len());
            self.0.resize_with(slot + 1, T::default);
        }
        self.0.get_mut(slot)
    }
}

/// Whether `lane` exists.
pub(super) fn exists(lane: PathId) -> bool {
    slot(lane).is_some()
}

/// Returns the place of a lane: the two lanes of a path are neighbours.
fn slot(lane: PathId) -> Option<usize> {
    let (path, kind) = (lane.index() % PathId::MAX, lane.index() / PathId::MAX);
    (lane.index() < PathId::LANES).then_some(2 * path + kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_an_entry_of_its_own_and_low_paths_take_little() {
        let mut table = PerLane::<u8>::default();
        assert_eq!(table.get(PathId(0).control_lane()), None);
        *table.get_mut(PathId(0).control_lane()).expect("a lane") = 9;
        assert_eq!((table.0.len(), table.0.capacity()), (2, 2));
        for lane in (0..32).map(PathId) {
            *table.get_mut(lane).expect("a lane") = lane.0 + 1;
        }
        assert!((0..32).all(|lane| table.get(PathId(lane)) == Some(&(lane + 1))));
        assert!(table.get_mut(PathId(32)).is_none() && !exists(PathId(32)));
        assert_eq!(table.0.len(), 32);
    }
}
