//! Why packets were dropped, counted by reason.

use crate::queue::QueueDrop;

/// The reasons why an inner packet or a datagram is dropped. Every drop is counted under exactly one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum DropReason {
    // Alphabetical.
    /// Inner packet: CoDel dropped it so that its sender slows down.
    Aqm,
    /// Inner packet: the user has blocked its class.
    Blocked,
    /// Inner packet: a copy arrived before.
    Duplicate,
    /// Handshake: the sender is unknown, and neither an invitation nor the store of clients admits it.
    EnrolmentRefused,
    /// Inner packet: its path fell silent, and no other path worked in time.
    Expired,
    /// Datagram: the tag is wrong, because the datagram is damaged or a stranger sealed it.
    Forged,
    /// Handshake: not valid for this end's key, or the sender is unknown.
    HandshakeInvalid,
    /// Handshake: above the rate limit. A cookie was requested, or the client has used up its share.
    HandshakeLimited,
    /// Handshake: received before.
    HandshakeReplayed,
    /// Datagram: does not have the form of a pleach datagram.
    Malformed,
    /// Inner packet: its class is restricted to links of which none could carry it.
    NoLink,
    /// Inner packet: its destination belongs to no peer.
    NoRoute,
    /// Inner packet: neither IPv4 nor IPv6, or truncated.
    NotIp,
    /// Data datagram: the peer has caused this end too much work ([`crate::tunnel`]).
    OverBudget,
    /// Inner packet: the tunnel queue was full.
    QueueFull,
    /// Datagram: received before.
    Replayed,
    /// Inner packet: still in the tunnel queue or the resequencer when its association ended.
    Reset,
    /// Inner packet: its source address is not the peer's.
    SourceNotAllowed,
    /// Inner packet: an acknowledgement that became superfluous, because a later acknowledgement of the same flow was
    /// queued and contains all of its information.
    Superseded,
    /// Inner packet: arrived so late that its position in the order was no longer known.
    TooOld,
    /// Inner packet: longer than the tunnel's MTU.
    TooLong,
    /// Datagram: belongs to no session of this end.
    UnknownSession,
    /// Inner packet: the header bytes that it omits are not known.
    UnknownTemplate,
}

impl DropReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 23] = [
        Self::Aqm,
        Self::Blocked,
        Self::Duplicate,
        Self::EnrolmentRefused,
        Self::Expired,
        Self::Forged,
        Self::HandshakeInvalid,
        Self::HandshakeLimited,
        Self::HandshakeReplayed,
        Self::Malformed,
        Self::NoLink,
        Self::NoRoute,
        Self::NotIp,
        Self::OverBudget,
        Self::QueueFull,
        Self::Replayed,
        Self::Reset,
        Self::SourceNotAllowed,
        Self::Superseded,
        Self::TooOld,
        Self::TooLong,
        Self::UnknownSession,
        Self::UnknownTemplate,
    ];

    /// Name in reports, `snake_case`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Aqm => "aqm",
            Self::Blocked => "blocked",
            Self::Duplicate => "duplicate",
            Self::EnrolmentRefused => "enrolment_refused",
            Self::Expired => "expired",
            Self::Forged => "forged",
            Self::HandshakeInvalid => "handshake_invalid",
            Self::HandshakeLimited => "handshake_limited",
            Self::HandshakeReplayed => "handshake_replayed",
            Self::Malformed => "malformed",
            Self::NoLink => "no_link",
            Self::NoRoute => "no_route",
            Self::NotIp => "not_ip",
            Self::OverBudget => "over_budget",
            Self::QueueFull => "queue_full",
            Self::Replayed => "replayed",
            Self::Reset => "reset",
            Self::SourceNotAllowed => "source_not_allowed",
            Self::Superseded => "superseded",
            Self::TooOld => "too_old",
            Self::TooLong => "too_long",
            Self::UnknownSession => "unknown_session",
            Self::UnknownTemplate => "unknown_template",
        }
    }
}

impl From<QueueDrop> for DropReason {
    fn from(reason: QueueDrop) -> Self {
        match reason {
            QueueDrop::Aqm => Self::Aqm,
            QueueDrop::Overflow => Self::QueueFull,
            QueueDrop::Superseded => Self::Superseded,
        }
    }
}

/// Number of drops by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts `n` drops.
    pub fn add(&mut self, reason: DropReason, n: u64) {
        self.0[reason as usize] += n;
    }

    /// Subtracts one drop that was counted under `reason`, because the packet was not dropped after all.
    pub fn take_back(&mut self, reason: DropReason) {
        let count = &mut self.0[reason as usize];
        *count = count.saturating_sub(1);
    }

    /// Number of drops counted under `reason` so far.
    #[must_use]
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// Adds the drops of `other`.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// Every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .into_iter()
            .map(|reason| (reason, self.get(reason)))
    }

    /// Number of drops for all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
