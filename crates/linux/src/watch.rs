//! Watching the links of the host: see [`LinkWatch`].

pub use crate::netlink::watch::{LinkSnapshot, LinkWatch};
