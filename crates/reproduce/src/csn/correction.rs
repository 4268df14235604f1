//! Section V-D, figure 8: split error correction. Packets with wrong bits, mended by parity that came another way.
//!
//! The paper's errors: one packet in 30 is hit; each block of 15 bytes of it has errors with a chance of 1/20, 90 %
//! of them of one bit, 10 % of two. A packet counts as lost if its tag does not fit. Real datagrams under a real key,
//! with the engine's own codes ([`pleach_core::sec`]); parity always comes, as the 3G loses nothing and is waited
//! for. Packets that are not hit are drawn and not made: nothing happens to them. So loss is (1 - 0.95^N) / 30
//! without, and (1 - 0.995^N) / 30 with one bit a block mended, for N blocks (the paper gives no number).
//!
//! The same errors then hit a stream of such packets through the tunnel, simulated and with real daemons
//! (`block_errors` of a link, `parity` of the tunnel): damaged datagrams and parity as they travel. The headers of IP
//! and UDP are spared: with wrong bits there a packet is lost at a real host, whatever the parity.

use pleach_core::{
    ids::PathId,
    rng::Rng,
    sec::{BLOCK_BYTES, Code},
    session::aead::{KEY_LEN, OpeningKey, SealingKey, Suite},
    wire::header::{DATA_HEADER_LEN, TAG_LEN},
};
use pleach_sim::{
    report::{Chart, ChartLine},
    results::{FlowResult, Results, World},
};
use serde::Deserialize;

use crate::{
    experiment::{Cell, Check, Experiment, Figure, Kind, Panel, Range, Source, Target},
    runs::Runs,
    series,
};

const NAME: &str = "csn-correction";
/// The cell in which the codes work alone.
const CODES: &str = "csn-correction-codes";
const PACKETS: u32 = 1_000_000;
/// Datagrams of 1500 bytes, and with 1250 and 1000.
const SIZES: [u32; 3] = [1500, 1250, 1000];
/// Published chances.
const HIT: f64 = 1.0 / 30.0;
const BLOCK_HIT: f64 = 0.05;
const TWO_BITS: f64 = 0.1;
/// Payload of the stream's datagrams, so that packets on the line have 1500 bytes: less both IP and UDP headers,
/// header and tag.
const STREAM_PAYLOAD_BYTES: usize = 1500 - 2 * 28 - DATA_HEADER_LEN - TAG_LEN;
/// How packets are mended, as names of flows have it.
const MENDED: [(&str, Option<Code>); 3] = [
    ("off", None),
    ("hamming", Some(Code::Hamming)),
    ("bch", Some(Code::Bch)),
];

/// The codes alone, and a tunnel with each of them; one target.
#[must_use]
pub fn experiment() -> Experiment {
    let sizes: Vec<String> = SIZES.iter().map(u32::to_string).collect();
    let sizes = sizes.join(", ");
    let mut cells = vec![Cell {
        name: CODES.to_owned(),
        toml: format!("name = \"{CODES}\"\nseed = 1\npackets = {PACKETS}\nsizes = [{sizes}]\n"),
        kind: Kind::Correction(NAME),
    }];
    cells.extend(MENDED.map(|(mended, code)| tunnel_cell(mended, code)));
    Experiment {
        name: NAME,
        paper: "CSN",
        about: "packets with wrong bits, mended by parity over the other path (V-D)",
        cells,
        targets: vec![target()],
        figures: vec![Figure {
            id: "figure-8",
            title: "Using the small-bandwidth path for Split Error Correction (figure 8)",
            caption: "Lost packets by their length. BCH, which mends two bits a block, is ours.",
            panels: vec![Panel {
                title: "lost packets".to_owned(),
                draw: Box::new(draw),
            }],
        }],
    }
}

/// What is to be damaged.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    /// What it is called.
    pub name: String,
    /// Seed of all chance.
    pub seed: u64,
    /// How many packets of each size.
    pub packets: u32,
    /// Bytes of a datagram, each at least header and tag, at most 1500.
    pub sizes: Vec<u32>,
}

impl Correction {
    /// Reads its text.
    ///
    /// # Errors
    /// If it is not such a file, or a size is out of range.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let this: Self = toml::from_str(text)?;
        let least = u32::try_from(DATA_HEADER_LEN + TAG_LEN)?;
        anyhow::ensure!(
            this.sizes.iter().all(|size| (least..=1500).contains(size)),
            "sizes: out of range; use {least} to 1500 bytes"
        );
        Ok(this)
    }
}

/// Sends, damages, mends and opens; a flow for each size and way of mending.
#[must_use]
pub fn run(correction: &Correction) -> Results {
    let mut flows = Vec::new();
    for &size in &correction.sizes {
        let mut rng = Rng::new(correction.seed ^ u64::from(size));
        let mut line = Line::new(usize::try_from(size).unwrap_or(0), &mut rng);
        let mut lost = [0_u32; MENDED.len()];
        for packet in 0..correction.packets {
            if rng.chance(HIT) {
                line.send(packet.into(), &mut rng);
                for ((_, code), lost) in MENDED.iter().zip(&mut lost) {
                    *lost += u32::from(!line.opens(packet.into(), *code));
                }
            }
        }
        for ((name, _), lost) in MENDED.iter().zip(lost) {
            flows.push(FlowResult {
                name: flow_name(size, name),
                loss: f64::from(lost) / f64::from(correction.packets),
                sent_pkts: Some(correction.packets.into()),
                received_pkts: Some((correction.packets - lost).into()),
                ..FlowResult::default()
            });
        }
    }
    Results {
        scenario: correction.name.clone(),
        world: World::Sim,
        seed: correction.seed,
        flows,
        ..Results::default()
    }
}

/// A line that damages datagrams, and both ends of it.
struct Line {
    size: usize,
    sealing: SealingKey,
    opening: OpeningKey,
    /// As it arrived.
    came: Vec<u8>,
    /// Parity under each code, made before the damage.
    parity: Vec<Vec<u8>>,
    mended: Vec<u8>,
}

impl Line {
    fn new(size: usize, rng: &mut Rng) -> Self {
        let mut key = [0; KEY_LEN];
        rng.fill(&mut key);
        Self {
            size,
            sealing: SealingKey::new(Suite::Aes256Gcm, &key),
            opening: OpeningKey::new(Suite::Aes256Gcm, &key),
            came: Vec::new(),
            parity: Vec::new(),
            mended: Vec::new(),
        }
    }

    /// Seals a packet of random bytes, makes its parity, and damages it.
    fn send(&mut self, counter: u64, rng: &mut Rng) {
        self.came.resize(self.size, 0);
        rng.fill(&mut self.came);
        let (header, rest) = self.came.split_at_mut(DATA_HEADER_LEN);
        let (body, tag) = rest.split_at_mut(self.size - DATA_HEADER_LEN - TAG_LEN);
        tag.copy_from_slice(&self.sealing.seal(PathId(0), counter, header, body));
        let came = &self.came;
        self.parity.clear();
        self.parity.extend(MENDED.iter().map(|(_, code)| {
            let mut parity = vec![0; code.map_or(0, |code| code.parity_len(came.len()))];
            code.and_then(|code| code.encode(came, &mut parity));
            parity
        }));
        for block in self.came.chunks_mut(BLOCK_BYTES) {
            if rng.chance(BLOCK_HIT) {
                let bits = 8 * block.len() as u64;
                let first = rng.below(bits);
                flip(block, first);
                if rng.chance(TWO_BITS) {
                    // Another one.
                    flip(block, (first + 1 + rng.below(bits - 1)) % bits);
                }
            }
        }
    }

    /// Whether what came, mended by `code`, is what was sealed.
    fn opens(&mut self, counter: u64, code: Option<Code>) -> bool {
        self.mended.clone_from(&self.came);
        if let Some(code) = code {
            let made = MENDED.iter().position(|(_, other)| *other == Some(code));
            let parity = made.and_then(|index| self.parity.get(index));
            // What cannot be mended does not open either.
            let _ = code.correct(&mut self.mended, parity.map_or(&[][..], Vec::as_slice));
        }
        let (header, body) = self.mended.split_at_mut(DATA_HEADER_LEN);
        self.opening.open(PathId(0), counter, header, body).is_ok()
    }
}

fn flip(block: &mut [u8], bit: u64) {
    let byte = usize::try_from(bit / 8)
        .ok()
        .and_then(|byte| block.get_mut(byte));
    if let Some(byte) = byte {
        *byte ^= 0x80 >> (bit % 8);
    }
}

fn flow_name(size: u32, mended: &str) -> String {
    format!("{size} bytes, {mended}")
}

fn loss(runs: &Runs, size: u32, mended: &str) -> Option<f64> {
    let flow = series::flow(runs.get(CODES)?, &flow_name(size, mended))?;
    Some(100.0 * flow.loss)
}

/// What is lost if a block is spoilt with this chance, in percent.
fn expected(size: u32, spoilt: f64) -> f64 {
    let blocks = u32::try_from(BLOCK_BYTES).map_or(0, |bytes| size.div_ceil(bytes));
    100.0 * HIT * (1.0 - (1.0 - spoilt).powf(blocks.into()))
}

/// Five standard deviations of a share of [`PACKETS`].
fn around(percent: f64) -> Range {
    let share = percent / 100.0;
    let deviation = 100.0 * (share * (1.0 - share) / f64::from(PACKETS)).sqrt();
    Range::new(percent - 5.0 * deviation, percent + 5.0 * deviation)
}

/// Name of the cell in which a tunnel mends.
fn tunnel_name(mended: &str) -> String {
    format!("{NAME}-tunnel-{mended}")
}

/// The stream over WLAN with these errors, through a tunnel that has the 3G for parity.
fn tunnel_cell(mended: &str, code: Option<Code>) -> Cell {
    let name = tunnel_name(mended);
    let parity = code.map_or(String::new(), |_| format!("parity = \"{mended}\"\n"));
    let mtu = STREAM_PAYLOAD_BYTES + 28;
    Cell {
        toml: format!(
            "name = \"{name}\"
description = \"WLAN spoils bits; parity over the 3G: {mended}\"
duration = \"60s\"

[[link]]
name = \"wlan\"
rate = \"25Mbit\"
delay = \"30ms\"
[link.down]
block_errors = {{ packet = {HIT:.6}, block = {BLOCK_HIT}, two = {TWO_BITS} }}

[[link]]
name = \"umts\"
rate = \"4Mbit\"
delay = \"160ms\"

[tunnel]
policy = \"single\"
link = \"wlan\"
mtu = {mtu}
compression = false
{parity}
[[traffic]]
kind = \"udp\"
name = \"stream\"
rate = \"8Mbit\"
size = \"{STREAM_PAYLOAD_BYTES}B\"
"
        ),
        name,
        kind: Kind::Scenario,
    }
}

/// What the stream lost through the tunnel, in percent.
fn tunnel_loss(runs: &Runs, mended: &str) -> Option<f64> {
    let stream = series::flow(runs.get(&tunnel_name(mended))?, "stream")?;
    Some(100.0 * stream.loss)
}

fn target() -> Target {
    let mut checks = Vec::new();
    for size in SIZES {
        checks.push(Check::statement(
            format!("{size} bytes, hamming: lost"),
            "%",
            around(expected(size, BLOCK_HIT * TWO_BITS)),
            "the published error model by algebra, (1 - (1 - p)^N) / 30 for N blocks with two wrong bits; five standard deviations",
            Box::new(move |runs| loss(runs, size, "hamming")),
        ));
        checks.push(Check::statement(
            format!("{size} bytes, BCH: lost"),
            "%",
            Range::at_most(0.0),
            "no block has more than two wrong bits, and this code mends two; it is ours",
            Box::new(move |runs| loss(runs, size, "bch")),
        ));
    }
    checks.push(Check::statement(
        "1500 bytes: lost without correction over lost with it".to_owned(),
        "times",
        Range::at_least(2.0),
        "\"significantly decreases the loss rate\": by half at least",
        Box::new(|runs| Some(loss(runs, 1500, "off")? / loss(runs, 1500, "hamming")?)),
    ));
    checks.push(Check::statement(
        "stream through the tunnel: lost without parity over lost with it".to_owned(),
        "times",
        Range::at_least(2.0),
        "the same of the tunnel as it is, parity over a line of 160 ms",
        Box::new(|runs| Some(tunnel_loss(runs, "off")? / tunnel_loss(runs, "hamming")?)),
    ));
    checks.push(Check::statement(
        "stream through the tunnel, BCH: lost".to_owned(),
        "%",
        Range::at_most(0.3),
        "no block has more than two wrong bits; what comes before the first parity is lost, and parity may be",
        Box::new(|runs| tunnel_loss(runs, "bch")),
    ));
    let mut cells = vec![CODES.to_owned()];
    cells.extend(MENDED.iter().map(|(mended, _)| tunnel_name(mended)));
    Target {
        id: "R-CSN-8",
        what: "split error correction loses significantly less: packets of 1500 bytes with it",
        checks,
        cells,
        order: &[],
        source: Source::Published,
        known: "",
    }
}

fn draw(runs: &Runs) -> Option<Chart> {
    let lines = MENDED.iter().filter_map(|(mended, _)| {
        let values = SIZES.iter().rev().map(|size| loss(runs, *size, mended));
        Some(ChartLine {
            name: (*mended).to_owned(),
            values: values.collect::<Option<_>>()?,
            is_ideal: false,
        })
    });
    let lines: Vec<ChartLine> = lines.collect();
    (!lines.is_empty()).then(|| Chart {
        label: "Lost packets by length".to_owned(),
        unit: "%".to_owned(),
        interval_s: 0.0,
        across: Some((
            "bytes".to_owned(),
            SIZES.iter().rev().map(u32::to_string).collect(),
        )),
        lines,
        at_least: 1.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parity_is_as_long_as_published() {
        assert_eq!(Code::Hamming.parity_len(1500), 88);
        // 7 bits for 120 of 8 Mbit/s are 467 kbit/s, and packets end in a block that is not full.
        let parity = Code::Hamming.parity_len(1250) * (8_000_000 / 1250);
        assert!((465_000..475_000).contains(&parity), "{parity}");
    }

    #[test]
    fn losses_are_those_of_the_algebra() {
        assert!((expected(1500, BLOCK_HIT) - 3.31).abs() < 0.005);
        assert!((expected(1500, 0.005) - 1.31).abs() < 0.01);
        let text = "name = \"t\"\nseed = 3\npackets = 60000\nsizes = [1250]\n";
        let correction = Correction::parse(text).expect("good");
        let flows = run(&correction).flows;
        let [off, hamming, bch] = [0, 1, 2].map(|index: usize| 100.0 * flows[index].loss);
        assert!((off - 3.29).abs() < 0.4, "{off}");
        assert!((hamming - 1.15).abs() < 0.25, "{hamming}");
        assert_eq!(bch, 0.0);
        assert!(Correction::parse(&text.replace("1250", "30")).is_err());
    }
}
