//! A value with its uncertainty.

/// The most likely value, and bounds that the value rarely exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate<T> {
    /// Lower bound: the value is rarely below it.
    pub low: T,
    /// The most likely value.
    pub likely: T,
    /// Upper bound: the value is rarely above it.
    pub high: T,
}
