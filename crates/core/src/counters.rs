//! Why packets were dropped, counted by reason.

use crate::queue::QueueDrop;

/// The reasons an inner packet or a datagram is dropped. Every one dropped is counted under exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(usize)]
pub enum DropReason {
    // Alphabetical.
    /// Inner packet: CoDel asked its sender to slow down.
    Aqm,
    /// Inner packet: a copy had arrived before.
    Duplicate,
    /// Handshake: its sender is unknown and showed no invitation that is open.
    EnrolmentRefused,
    /// Inner packet: taken back from a silent path, and no other worked in time.
    Expired,
    /// Datagram: the tag does not fit; damaged, or sealed by a stranger.
    Forged,
    /// Handshake: not valid for our key, or the sender is unknown.
    HandshakeInvalid,
    /// Handshake: over the rate limit; a cookie was asked for or the client has used up its share.
    HandshakeLimited,
    /// Handshake: seen before.
    HandshakeReplayed,
    /// Datagram: none of ours by its form.
    Malformed,
    /// Inner packet: no peer has its destination.
    NoRoute,
    /// Inner packet: neither IPv4 nor IPv6, or cut short.
    NotIp,
    /// Data datagram: its peer has made this end work too much ([`crate::tunnel`]).
    OverBudget,
    /// Inner packet: the tunnel queue was full.
    QueueFull,
    /// Datagram: seen before.
    Replayed,
    /// Inner packet: still queued or held when its association ended.
    Reset,
    /// Inner packet: its source address is not the peer's.
    SourceNotAllowed,
    /// Inner packet: an acknowledgement, while a later one of its flow waited behind it and says all that it said.
    Superseded,
    /// Inner packet: arrived when nothing was known any more of its place.
    TooOld,
    /// Inner packet: longer than the tunnel's MTU.
    TooLong,
    /// Datagram: no session of ours.
    UnknownSession,
    /// Inner packet: what its headers leave out is not known.
    UnknownTemplate,
}

impl DropReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 21] = [
        Self::Aqm,
        Self::Duplicate,
        Self::EnrolmentRefused,
        Self::Expired,
        Self::Forged,
        Self::HandshakeInvalid,
        Self::HandshakeLimited,
        Self::HandshakeReplayed,
        Self::Malformed,
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
            Self::Duplicate => "duplicate",
            Self::EnrolmentRefused => "enrolment_refused",
            Self::Expired => "expired",
            Self::Forged => "forged",
            Self::HandshakeInvalid => "handshake_invalid",
            Self::HandshakeLimited => "handshake_limited",
            Self::HandshakeReplayed => "handshake_replayed",
            Self::Malformed => "malformed",
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

/// Drops by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts `n` drops.
    pub fn add(&mut self, reason: DropReason, n: u64) {
        self.0[reason as usize] += n;
    }

    /// One drop counted for `reason` was none after all.
    pub fn take_back(&mut self, reason: DropReason) {
        let count = &mut self.0[reason as usize];
        *count = count.saturating_sub(1);
    }

    /// Drops for `reason` so far.
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

    /// Drops for all reasons.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}
