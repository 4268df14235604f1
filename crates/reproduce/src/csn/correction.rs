//! Section V-D, figure 8: split error correction. Packets with bit errors are corrected with parity that is sent over
//! another path.
//!
//! The paper's error model: one packet in 30 is hit. Each block of 15 bytes of such a packet has errors with a
//! probability of 1/20: one wrong bit in 90 % of these blocks, two in 10 %. A packet counts as lost if its tag does
//! not verify.
//!
//! - *Codes alone*: real datagrams are sealed with a real key, damaged, and corrected with the engine's own codes
//!   ([`pleach_core::sec`]). Parity always arrives, because the 3G loses nothing and the receiver waits for it. Packets
//!   that are not hit are counted, but not generated. The expected loss for N blocks is (1 - 0.95^N) / 30 without
//!   correction, and (1 - 0.995^N) / 30 if one bit per block is corrected. The paper gives no numbers.
//! - *Through the tunnel*: the same errors hit a stream of packets, in the simulator and with real daemons
//!   (`block_errors` of a link, `parity` of the tunnel). IP and UDP headers are not damaged, because a real host
//!   discards a packet with errors there, which parity cannot correct.

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
/// Name of the cell in which the codes run without a tunnel.
const CODES: &str = "csn-correction-codes";
const PACKETS: u32 = 1_000_000;
/// Lengths of the datagrams in bytes.
const SIZES: [u32; 3] = [1500, 1250, 1000];
/// Published probability that a packet is hit.
const HIT: f64 = 1.0 / 30.0;
/// Published probability that a block of a hit packet has errors.
const BLOCK_HIT: f64 = 0.05;
/// Published probability that a block with errors has two wrong bits.
const TWO_BITS: f64 = 0.1;
/// Payload in bytes of the stream's datagrams. With the IP and UDP headers inside and outside the tunnel, the tunnel's
/// header and the tag, packets on the line have 1500 bytes.
const STREAM_PAYLOAD_BYTES: usize = 1500 - 2 * 28 - DATA_HEADER_LEN - TAG_LEN;
/// Codes that correct packets, each with its name in the names of flows.
const MENDED: [(&str, Option<Code>); 3] = [
    ("off", None),
    ("hamming", Some(Code::Hamming)),
    ("bch", Some(Code::Bch)),
];

/// Returns the experiment: the codes alone, and a tunnel with each code; one target.
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

/// Settings of the cell in which the codes run alone.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Correction {
    /// Name of the cell.
    pub name: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Number of packets of each size.
    pub packets: u32,
    /// Lengths of datagrams in bytes, each at least header and tag, at most 1500.
    pub sizes: Vec<u32>,
}

impl Correction {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// Fails if the text is not such a file, or a size is out of range.
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

/// Seals, damages, corrects and opens packets. The results have a flow for each size and each code, and for each size
/// without correction.
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

/// A line that damages datagrams, with its sender and receiver.
struct Line {
    size: usize,
    sealing: SealingKey,
    opening: OpeningKey,
    /// The datagram as it arrived, with errors.
    came: Vec<u8>,
    /// Parity for each of [`MENDED`], computed before the damage.
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

    /// Seals a packet of random bytes, computes its parity, and damages the packet.
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
                    // The second wrong bit differs from the first.
                    flip(block, (first + 1 + rng.below(bits - 1)) % bits);
                }
            }
        }
    }

    /// Whether the arrived packet can be opened after correction with `code`.
    fn opens(&mut self, counter: u64, code: Option<Code>) -> bool {
        self.mended.clone_from(&self.came);
        if let Some(code) = code {
            let made = MENDED.iter().position(|(_, other)| *other == Some(code));
            let parity = made.and_then(|index| self.parity.get(index));
            // If the correction fails, opening the packet fails as well.
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

/// Returns the expected loss in percent if each block of a hit packet is unusable with the probability `spoilt`.
fn expected(size: u32, spoilt: f64) -> f64 {
    let blocks = u32::try_from(BLOCK_BYTES).map_or(0, |bytes| size.div_ceil(bytes));
    100.0 * HIT * (1.0 - (1.0 - spoilt).powf(blocks.into()))
}

/// Returns the range of five standard deviations on either side of `percent`, for [`PACKETS`] packets.
fn around(percent: f64) -> Range {
    let share = percent / 100.0;
    let deviation = 100.0 * (share * (1.0 - share) / f64::from(PACKETS)).sqrt();
    Range::new(percent - 5.0 * deviation, percent + 5.0 * deviation)
}

/// Returns the name of the cell with a tunnel that uses the code `mended`.
fn tunnel_name(mended: &str) -> String {
    format!("{NAME}-tunnel-{mended}")
}

/// Returns the cell with a stream through a tunnel over a WLAN with the paper's errors. Parity takes the 3G.
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

/// Returns the loss of the stream through the tunnel, in percent.
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
        // 7 bits of parity per 120 bits of an 8 Mbit/s stream are 467 kbit/s. The last block of a packet is not full,
        // which adds parity.
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
