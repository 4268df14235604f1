//! When a link is used, as the user says or its budget.

/// When a link is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// Always; lower ranks are filled first.
    Rank(u8),
    /// After all ranks: it has a budget, and has carried more than it has earned of it.
    Thrift,
    /// Only while no link of another kind is up.
    Standby,
    /// Not at all.
    Never,
}

impl Default for Cost {
    fn default() -> Self {
        Self::Rank(0)
    }
}
