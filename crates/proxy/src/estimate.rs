//! Estimates of the properties of links and applications (DBAS, sections II-B and II-C).

pub mod application;
pub mod class;
pub mod link;
