//! stub
pub mod report;
pub mod results;
