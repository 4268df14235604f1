//! Counts the striped connections of a proxy, to limit their number.

use std::rc::Rc;

use super::{hub::Hub, settings::StripeSettings};

/// One striped connection in the count; dropping it decrements the count.
#[derive(Debug)]
pub(super) struct StripePlace(Rc<Hub>);

impl StripePlace {
    pub(super) fn take(hub: &Rc<Hub>, settings: &StripeSettings) -> Option<Self> {
        let count = hub.peering.stripe_count.get();
        (count < settings.max).then(|| {
            hub.peering.stripe_count.set(count + 1);
            Self(Rc::clone(hub))
        })
    }
}

impl Drop for StripePlace {
    fn drop(&mut self) {
        let count = self.0.peering.stripe_count.get();
        self.0.peering.stripe_count.set(count.saturating_sub(1));
    }
}
