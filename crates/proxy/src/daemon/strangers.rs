//! Connections to the peer port that have not yet authenticated.

use std::{collections::VecDeque, rc::Rc};

use tokio::sync::Notify;

/// Connections that have not authenticated, at most [`MAX_STRANGERS`], the oldest first.
#[derive(Debug, Default)]
pub(super) struct Strangers(VecDeque<Rc<Notify>>);

impl Strangers {
    /// Adds a connection. The returned [`Notify`] fires when too many newer connections have been added; the
    /// connection must then be closed. So silent connections cannot keep peers out.
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
