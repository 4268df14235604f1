//! Connections to the peer port whose owners have not said who they are.

use std::{collections::VecDeque, rc::Rc};

use tokio::sync::Notify;

/// Those who have not said who they are, at most [`MAX_STRANGERS`], the oldest first.
#[derive(Debug, Default)]
pub(super) struct Strangers(VecDeque<Rc<Notify>>);

impl Strangers {
    /// Enters one, which leaves when it is notified: when too many newer ones have come. Silence must not keep peers out.
    pub(super) fn enter(&mut self) -> Rc<Notify> {
        if self.0.len() >= MAX_STRANGERS
            && let Some(oldest) = self.0.pop_front()
        {
            oldest.notify_one();
        }
        let stranger = Rc::new(Notify::new());
        self.0.push_back(Rc::clone(&stranger));
        stranger
    }

    pub(super) fn leave(&mut self, stranger: &Rc<Notify>) {
        self.0.retain(|other| !Rc::ptr_eq(other, stranger));
    }
}

const MAX_STRANGERS: usize = 256;

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn the_oldest_stranger_leaves_for_the_newest() {
        let mut strangers = Strangers::default();
        let entered: Vec<_> = (0..=MAX_STRANGERS).map(|_| strangers.enter()).collect();
        let leaves = |at: usize| entered[at].notified().now_or_never().is_some();
        assert!(leaves(0));
        assert!(!leaves(1) && !leaves(MAX_STRANGERS));
        strangers.leave(&entered[5]);
        strangers.enter();
        assert!(!leaves(1), "there was room");
        strangers.enter();
        assert!(leaves(1));
        assert_eq!(strangers.0.len(), MAX_STRANGERS);
    }
}
