//! A value with its uncertainty.

/// The most likely value, and bounds that the value rarely exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate<T> {
    /// The value is rarely below this.
    pub low: T,
    /// Most likely.
    pub likely: T,
    /// The value is rarely above this.
    pub high: T,
}
