//! The scenario file as it is written, before it is checked.

use std::collections::BTreeMap;

use core::{fmt, time::Duration};

use pleach_core::units::{Bitrate, Bytes};
use serde::{
    Deserialize, Deserializer,
    de::{Unexpected, Visitor},
};

use crate::{
    link::LinkState,
    pattern::Curve,
    scenario::{
        Baseline, Bounds, DaemonAction, Direction, Directions, End, Family, Opening, Recovery,
        VideoSource, VideoTransport,
    },
};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    pub(super) name: String,
    pub(super) description: Option<String>,
    #[serde(default = "default_seed")]
    pub(super) seed: u64,
    pub(super) duration: Span,
    #[serde(default)]
    pub(super) link: Vec<Link>,
    #[serde(default)]
    pub(super) shared: Vec<Shared>,
    #[serde(default)]
    pub(super) event: Vec<Event>,
    pub(super) tunnel: Option<toml::Table>,
    #[serde(default)]
    pub(super) equalizer: Vec<Equalizer>,
    #[serde(default)]
    pub(super) tcp: Tcp,
    #[serde(default)]
    pub(super) traffic: Vec<Traffic>,
    #[serde(default)]
    pub(super) baselines: Vec<Baseline>,
    pub(super) repeat: Option<u32>,
    #[serde(default)]
    pub(super) expect: BTreeMap<String, Bounds>,
}

/// A struct that contains the keys of a link direction and its own keys. Serde cannot flatten and refuse unknown keys
/// at the same time.
macro_rules! with_params {
    ($name:ident { $($field:ident: $type:ty,)* }) => {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct $name {
            $(pub(super) $field: $type,)*
            rate: Option<Bitrate>,
            trace: Option<String>,
            csv: Option<String>,
            column: Option<String>,
            queue: Option<Bytes>,
            delay: Option<Span>,
            jitter: Option<Span>,
            reorder: Option<bool>,
            loss: Option<f64>,
            gilbert: Option<Gilbert>,
            bit_errors: Option<f64>,
            block_errors: Option<BlockErrors>,
            mtu: Option<Bytes>,
        }

        impl $name {
            pub(super) fn params(&self) -> Params {
                Params {
                    rate: self.rate,
                    trace: self.trace.clone(),
                    csv: self.csv.clone(),
                    column: self.column.clone(),
                    queue: self.queue,
                    delay: self.delay,
                    jitter: self.jitter,
                    reorder: self.reorder,
                    loss: self.loss,
                    gilbert: self.gilbert,
                    bit_errors: self.bit_errors,
                    block_errors: self.block_errors,
                    mtu: self.mtu,
                }
            }
        }
    };
}

/// The keys of a link direction.
pub(super) struct Params {
    pub(super) rate: Option<Bitrate>,
    pub(super) trace: Option<String>,
    pub(super) csv: Option<String>,
    pub(super) column: Option<String>,
    pub(super) queue: Option<Bytes>,
    pub(super) delay: Option<Span>,
    pub(super) jitter: Option<Span>,
    pub(super) reorder: Option<bool>,
    pub(super) loss: Option<f64>,
    pub(super) gilbert: Option<Gilbert>,
    pub(super) bit_errors: Option<f64>,
    pub(super) block_errors: Option<BlockErrors>,
    pub(super) mtu: Option<Bytes>,
}

with_params!(Override {});
with_params!(Link {
    name: String,
    shared: Option<String>,
    weight: Option<u32>,
    cost: Option<Cost>,
    ipv6: Option<bool>,
    down: Option<Override>,
    up: Option<Override>,
});
with_params!(Shared {
    name: String,
    down: Option<Override>,
    up: Option<Override>,
});
with_params!(Event {
    at: Span,
    link: Option<String>,
    direction: Option<Directions>,
    state: Option<State>,
    daemon: Option<End>,
    action: Option<DaemonAction>,
    equalizer: Option<End>,
    weights: Option<BTreeMap<String, u32>>,
});

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Carrier {
    Auto,
    Tcp,
    Udp,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tunnel {
    pub(super) policy: Option<String>,
    pub(super) mtu: Option<u16>,
    pub(super) outer: Option<Family>,
    pub(super) compression: Option<bool>,
    #[serde(default)]
    pub(super) class: Vec<toml::Table>,
    pub(super) parity: Option<Parity>,
    pub(super) split_tcp: Option<String>,
    pub(super) carrier: Option<Carrier>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Traffic {
    pub(super) kind: Kind,
    pub(super) name: Option<String>,
    #[serde(default)]
    pub(super) direction: Direction,
    pub(super) start: Option<Span>,
    pub(super) stop: Option<Span>,
    #[serde(default)]
    pub(super) family: Family,
    pub(super) cc: Option<String>,
    pub(super) flows: Option<u32>,
    pub(super) opening: Option<Opening>,
    pub(super) rate: Option<Bitrate>,
    pub(super) rates: Option<Vec<RatePoint>>,
    pub(super) curve: Option<Curve>,
    pub(super) step: Option<Span>,
    pub(super) size: Option<Bytes>,
    pub(super) profile: Option<Profile>,
    pub(super) on: Option<Span>,
    pub(super) off: Option<Span>,
    pub(super) jitter: Option<Span>,
    pub(super) deadline: Option<Span>,
    pub(super) interval: Option<Span>,
    pub(super) link: Option<String>,
    pub(super) distance: Option<Span>,
    pub(super) buffer: Option<Span>,
    pub(super) transport: Option<VideoTransport>,
    pub(super) source: Option<VideoSource>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Equalizer {
    pub(super) end: End,
    pub(super) links: Option<Vec<String>>,
    #[serde(default)]
    pub(super) spread: Spread,
    #[serde(default)]
    pub(super) weights: Weights,
    pub(super) interval: Option<Span>,
    pub(super) gap: Option<Span>,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Spread {
    Delay,
    Flow,
    Flowlet,
    #[default]
    Packet,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Weights {
    Auto,
    #[default]
    Fixed,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Tcp {
    #[serde(default)]
    pub(super) recovery: Recovery,
    pub(super) max_reordering: Option<u32>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RatePoint {
    pub(super) at: Span,
    pub(super) rate: Bitrate,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Profile {
    Constant,
    Frames,
    OnOff,
    Video,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(super) enum Kind {
    Ping,
    Quic,
    Requests,
    Tcp,
    Udp,
    Video,
    Voice,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Blackhole,
    Down,
    Up,
}

impl From<State> for LinkState {
    fn from(state: State) -> Self {
        match state {
            State::Blackhole => Self::Blackhole,
            State::Down => Self::Down,
            State::Up => Self::Up,
        }
    }
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Gilbert {
    pub(super) p: f64,
    pub(super) r: f64,
    #[serde(default)]
    pub(super) loss_good: f64,
    #[serde(default = "certain")]
    pub(super) loss_bad: f64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockErrors {
    pub(super) packet: f64,
    pub(super) block: f64,
    #[serde(default)]
    pub(super) two: f64,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Parity {
    Bch,
    Hamming,
}

#[derive(Clone, Copy)]
pub(super) struct Cost(pub(super) super::Cost);

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CostVisitor;
        impl Visitor<'_> for CostVisitor {
            type Value = Cost;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rank from 0 to 255, \"standby\" or \"never\"")
            }

            fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<Cost, E> {
                let rank = u8::try_from(value)
                    .map_err(|_| E::invalid_value(Unexpected::Signed(value), &self))?;
                Ok(Cost(super::Cost::Rank(rank)))
            }

            fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<Cost, E> {
                match value {
                    "standby" => Ok(Cost(super::Cost::Standby)),
                    "never" => Ok(Cost(super::Cost::Never)),
                    other => Err(E::invalid_value(Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_any(CostVisitor)
    }
}

/// A duration such as `"250ms"` or `"6.5ms"`.
#[derive(Clone, Copy)]
pub(crate) struct Span(pub(crate) Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_span(&text).map(Self).ok_or_else(|| {
            serde::de::Error::custom(
                "expected a duration such as \"250ms\" (ns, us, ms, s, min, h; at most 1000h)",
            )
        })
    }
}

/// Parses a duration such as `250ms`. `None` if `text` is not a duration of at most 1000 hours.
pub(crate) fn parse_span(text: &str) -> Option<Duration> {
    let units = [
        ("ns", 1e-9),
        ("us", 1e-6),
        ("ms", 1e-3),
        ("s", 1.0),
        ("min", 60.0),
        ("h", 3600.0),
    ];
    let text = text.trim();
    let (number, unit) = units
        .iter()
        .find_map(|(unit, seconds)| Some((text.strip_suffix(unit)?.trim_end(), *seconds)))?;
    if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    let seconds = number.parse::<f64>().ok()? * unit;
    let rounded = Duration::try_from_secs_f64(seconds).ok()?;
    (rounded <= Duration::from_secs(3_600_000)).then_some(rounded)
}

fn default_seed() -> u64 {
    1
}

fn certain() -> f64 {
    1.0
}
