//! A value with its uncertainty.

/// The bounds between which a value lies with few exceptions, and the most likely value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate<T> {
    /// Hardly less.
    pub low: T,
    /// Most likely.
    pub likely: T,
    /// Hardly more.
    pub high: T,
}
