//! When a link is used: the user's setting, or the consequence of the link's budget.

/// When a link is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cost {
    /// Always. Links of lower rank are filled first.
    Rank(u8),
    /// After all ranks: the link has a budget, and has carried more than it has earned so far.
    Thrift,
    /// Only while no link of lower cost is up.
    Standby,
    /// Never.
    Never,
}

impl Default for Cost {
    fn default() -> Self {
        Self::Rank(0)
    }
}
