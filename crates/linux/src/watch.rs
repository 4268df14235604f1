//! Watches the links of the host: see [`LinkWatch`].

pub use crate::netlink::{
    lookup::{Targets, Way},
    watch::{LinkSnapshot, LinkWatch},
};
