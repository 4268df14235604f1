//! The user's settings of the link behind a path.

use crate::{
    time::Instant,
    units::Bitrate,
    wire::control::{LinkInfo, LinkRole, MAX_NAME_LEN},
};

/// The user's settings of one link. The client owns them and describes them to the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The user's name of the link.
    pub name: String,
    /// Rank of the link: links with a lower rank are filled first.
    pub cost: u8,
    /// Role: how the link may be used.
    pub role: LinkRole,
    /// Share under the `weighted` policy; at least 1.
    pub weight: u32,
    /// Rate limit of the client's sending direction.
    pub upload: Option<Bitrate>,
    /// Rate limit of the gateway's sending direction.
    pub download: Option<Bitrate>,
    /// Largest inner packet that the link carries, in bytes.
    pub mtu: u16,
}

impl Link {
    /// Creates the default settings of a link called `name`.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.into(),
            cost: 0,
            role: LinkRole::Active,
            weight: 1,
            upload: None,
            download: None,
            mtu: 1400,
        }
    }

    /// The description for the gateway.
    #[must_use]
    pub fn info(&self) -> LinkInfo<'_> {
        LinkInfo {
            name: &self.name[..self.name.floor_char_boundary(MAX_NAME_LEN)],
            cost: self.cost,
            role: self.role,
            weight: self.weight,
            download: self.download,
            mtu: self.mtu,
        }
    }

    /// Applies the client's description.
    pub fn update(&mut self, info: &LinkInfo<'_>) {
        self.name.clear();
        self.name.push_str(info.name);
        self.cost = info.cost;
        self.role = info.role;
        self.weight = info.weight.max(1);
        self.download = info.download;
        self.mtu = info.mtu;
    }
}

/// State of a link description that is repeated until acknowledged.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    /// Version; increases with every change.
    pub version: u32,
    /// When to send the description (again); `None` once it is acknowledged.
    pub due: Option<Instant>,
}

impl Announced {
    /// Creates the state of a first description that is due now.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self {
            version: 1,
            due: Some(now),
        }
    }
}
