//! Comparison of the results of both worlds, the lab and the simulator.

use core::fmt;

use pleach_sim::results::{FlowKind, FlowResult, PingSummary, Quantiles, Results};

/// Permitted error of a model of TCP or QUIC, as a share.
pub const MODEL_SHARE: f64 = 0.10;

/// Student's t for 15 degrees of freedom, two-sided 99 %.
const STUDENT_T: f64 = 2.947;

/// Delay in milliseconds that the hosts of the lab add to packets, as means over its runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HostDelay {
    /// Difference between the idle RTT in the lab and in the simulator, at the quantile (median, p95, p99) with the
    /// largest difference. 0 without a ping.
    pub idle_ms: f64,
    /// 99th percentile of the lateness with which packets leave the emulator under load.
    pub lateness_ms: f64,
}

/// Kind of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// A quantile of a delay in milliseconds.
    Delay,
    /// Payload per second in Mbit/s.
    Goodput,
    /// Share of packets lost, in percent.
    Loss,
}

/// One number in both worlds.
#[derive(Clone, Debug, PartialEq)]
pub struct Check {
    /// Name of the flow and of the number.
    pub name: String,
    /// Kind of the number.
    pub quantity: Quantity,
    /// Value in the simulator.
    pub sim: f64,
    /// Value in the lab.
    pub lab: f64,
    /// Permitted difference.
    pub tolerance: f64,
    /// The part of `tolerance` that is due to chance.
    pub chance: f64,
}

impl Check {
    /// Whether both worlds agree.
    #[must_use]
    pub fn holds(&self) -> bool {
        (self.sim - self.lab).abs() <= self.tolerance
    }
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.quantity {
            Quantity::Delay => "ms",
            Quantity::Goodput => "Mbit/s",
            Quantity::Loss => "%",
        };
        write!(
            f,
            "{:22} {unit:6} sim {:8.3}  lab {:8.3}  {:+7.3} of ± {:6.3} (chance {:.3})  {}",
            self.name,
            self.sim,
            self.lab,
            self.lab - self.sim,
            self.tolerance,
            self.chance,
            if self.holds() { "agree" } else { "DIFFER" }
        )
    }
}

impl HostDelay {
    /// Computes the delay from the idle pings and the emulator's lateness of `pairs`.
    #[must_use]
    pub fn of(pairs: &[Pair]) -> Self {
        let quantiles: [fn(Quantiles) -> Option<f64>; 3] = [|q| q.p50, |q| q.p95, |q| q.p99];
        let longer = quantiles.into_iter().filter_map(|quantile| {
            let sim = idle(pairs.iter().map(|pair| &pair.sim), quantile)?;
            Some(idle(pairs.iter().map(|pair| &pair.lab), quantile)? - sim)
        });
        let late = pairs
            .iter()
            .filter_map(|pair| Some(pair.lab.lateness_us?.p99));
        Self {
            idle_ms: longer.fold(0.0, f64::max),
            lateness_ms: mean(late).unwrap_or(0.0) * 1e-3,
        }
    }

    /// Returns the permitted extra time of an RTT, and so also of a one-way delay.
    fn per_round_trip(self) -> f64 {
        self.idle_ms + self.lateness_ms
    }
}

/// A run in the lab and its simulations.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The simulator's run with the lab's seed.
    pub sim: Results,
    /// The simulator's runs with slightly longer delays.
    pub shifted: Vec<Results>,
    /// The lab's run.
    pub lab: Results,
}

/// Compares the numbers of both worlds, as means over `pairs`. `host` is the delay that the lab's hosts added. Returns
/// no numbers without pairs.
///
/// The compared numbers are: goodput of TCP and QUIC; goodput, loss, median and p95 of the delay of UDP; loss, median
/// and p95 of pings and requests. The p99 is not compared: the delay of the hosts is known only up to its own p99.
/// From this p99 and the p99 of the simulated delay, a bound follows only for the p98 of their sum. Delays beside a
/// TCP flow are those of the queue that it fills, so the model's allowance applies to them too.
#[must_use]
pub fn compare(pairs: &[Pair], host: HostDelay) -> Vec<Check> {
    let Some(first) = pairs.first() else {
        return Vec::new();
    };
    let mut flows = first.lab.flows.iter();
    let context = Context {
        host,
        idle_ms: idle(pairs.iter().map(|pair| &pair.sim), |rtt| rtt.p50),
        has_tcp: flows.any(is_modelled),
    };
    let mut checks = Vec::new();
    for (index, flow) in first.sim.flows.iter().enumerate() {
        for &number in numbers(flow) {
            let samples = pairs.iter().filter_map(|pair| {
                let shifted = pair.shifted.iter();
                Some(Sample {
                    binomial: number.binomial(pair, index),
                    sim: number.of(&pair.sim, index)?,
                    shifted: shifted.filter_map(|run| number.of(run, index)).collect(),
                    lab: number.of(&pair.lab, index)?,
                })
            });
            let samples: Vec<Sample> = samples.collect();
            checks.extend(context.check(number, flow, &samples));
        }
    }
    checks
}

/// One number of a [`Pair`].
struct Sample {
    /// Variance due to the choice of packets hit by random losses. 0 if it has no effect.
    binomial: f64,
    sim: f64,
    shifted: Vec<f64>,
    lab: f64,
}

/// A number of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Number {
    Goodput,
    Loss,
    Median,
    P95,
}

/// Conditions that determine tolerances.
struct Context {
    host: HostDelay,
    /// Simulated idle RTT.
    idle_ms: Option<f64>,
    has_tcp: bool,
}

impl Number {
    const fn label(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Loss => "loss",
            Self::Median => "p50",
            Self::P95 => "p95",
        }
    }

    const fn quantity(self) -> Quantity {
        match self {
            Self::Goodput => Quantity::Goodput,
            Self::Loss => Quantity::Loss,
            Self::Median | Self::P95 => Quantity::Delay,
        }
    }

    fn of(self, results: &Results, index: usize) -> Option<f64> {
        let flow = results.flows.get(index)?;
        let pings = results.pings.as_ref();
        let delays: Quantiles = match flow.kind {
            // Echoes before the traffic are not counted.
            FlowKind::Ping => pings.map(|pings| pings.loaded.rtt_ms)?,
            FlowKind::Quic
            | FlowKind::Requests
            | FlowKind::Tcp
            | FlowKind::Udp
            | FlowKind::Video
            | FlowKind::Voice => flow.delay_ms,
        };
        let loss = match flow.kind {
            FlowKind::Ping => pings.map(|pings| lost_share(&pings.loaded))?,
            FlowKind::Quic
            | FlowKind::Requests
            | FlowKind::Tcp
            | FlowKind::Udp
            | FlowKind::Video
            | FlowKind::Voice => flow.loss,
        };
        match self {
            Self::Goodput => Some(flow.goodput_mbps),
            Self::Loss => Some(100.0 * loss),
            Self::Median => delays.p50,
            Self::P95 => delays.p95,
        }
    }

    /// Returns the variance of one run's goodput or loss, if each packet is lost independently with the mean
    /// probability of both worlds.
    ///
    /// Both worlds draw the same losses, but in the lab another packet of the tunnel may be sent first and be lost
    /// instead.
    fn binomial(self, pair: &Pair, index: usize) -> f64 {
        let worlds = [&pair.sim, &pair.lab];
        let lost = worlds.map(|run| Self::Loss.of(run, index).unwrap_or(0.0) / 100.0);
        let sent = worlds.map(|run| match run.flows.get(index) {
            Some(flow) if !is_modelled(flow) => flow.sent_pkts.map_or(0.0, count64),
            _ => 0.0,
        });
        let (lost, sent) = (
            f64::midpoint(lost[0], lost[1]),
            f64::midpoint(sent[0], sent[1]),
        );
        if sent < 1.0 || lost >= 1.0 {
            return 0.0;
        }
        let share = lost * (1.0 - lost) / sent;
        match self {
            Self::Goodput => {
                let offered = self.of(&pair.sim, index).unwrap_or(0.0) / (1.0 - lost);
                share * offered.powi(2)
            }
            Self::Loss => share * 1e4,
            Self::Median | Self::P95 => 0.0,
        }
    }
}

impl Context {
    fn check(&self, number: Number, flow: &FlowResult, samples: &[Sample]) -> Option<Check> {
        let sim = mean(samples.iter().map(|sample| sample.sim))?;
        let lab = mean(samples.iter().map(|sample| sample.lab))?;
        let variance = |sample: &Sample| sample.variance().max(sample.binomial);
        let variance = mean(samples.iter().map(variance))?;
        let chance = STUDENT_T * (variance * 2.0 / count(samples.len())).sqrt();
        Some(Check {
            name: format!("{} {}", flow.name, number.label()),
            quantity: number.quantity(),
            sim,
            lab,
            tolerance: chance + self.allowance(number, flow, sim),
            chance,
        })
    }

    /// Returns the difference that the hosts and the model may cause besides chance.
    fn allowance(&self, number: Number, flow: &FlowResult, sim: f64) -> f64 {
        let late_ms = self.host.per_round_trip();
        let model = if self.has_tcp { MODEL_SHARE * sim } else { 0.0 };
        let sent = flow.sent_pkts.map_or(1.0, |sent| count64(sent).max(1.0));
        match number {
            Number::Goodput if is_modelled(flow) => model,
            // Packets in flight at the end do not count, and one datagram more or less is permitted.
            Number::Goodput => {
                let late_share = late_ms * 1e-3 / flow.duration_s.max(1e-3);
                sim * (late_share + 1.0 / sent) + model
            }
            // One packet more or less is permitted.
            Number::Loss => 100.0 / sent + model,
            Number::Median | Number::P95 => {
                let round_trips = match (flow.kind, self.idle_ms) {
                    (FlowKind::Requests, Some(idle)) if idle > 0.0 => (sim / idle).ceil().max(1.0),
                    _ => 1.0,
                };
                late_ms * round_trips + model
            }
        }
    }
}

fn numbers(flow: &FlowResult) -> &'static [Number] {
    match flow.kind {
        FlowKind::Ping | FlowKind::Requests => &[Number::Loss, Number::Median, Number::P95],
        FlowKind::Quic | FlowKind::Tcp => &[Number::Goodput],
        FlowKind::Udp | FlowKind::Video | FlowKind::Voice => {
            &[Number::Goodput, Number::Loss, Number::Median, Number::P95]
        }
    }
}

/// Whether a model of the simulator sends the flow, and not a program that both worlds share.
fn is_modelled(flow: &FlowResult) -> bool {
    matches!(flow.kind, FlowKind::Quic | FlowKind::Tcp)
}

fn lost_share(pings: &PingSummary) -> f64 {
    count64(pings.lost) / count64(pings.sent).max(1.0)
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, number) = values.fold((0.0, 0.0), |(sum, number), value| {
        (sum + value, number + 1.0)
    });
    (number > 0.0).then(|| sum / number)
}

impl Sample {
    /// Returns the variance of one simulated run. 0 if there are fewer than two runs.
    fn variance(&self) -> f64 {
        let values = || self.shifted.iter().copied().chain([self.sim]);
        let Some(mean) = mean(values()).filter(|_| !self.shifted.is_empty()) else {
            return 0.0;
        };
        let squares: f64 = values().map(|value| (value - mean).powi(2)).sum();
        squares / count(self.shifted.len())
    }
}

/// Returns the mean over `runs` of a quantile of the idle RTT, in milliseconds.
fn idle<'a>(
    runs: impl Iterator<Item = &'a Results>,
    quantile: impl Fn(Quantiles) -> Option<f64>,
) -> Option<f64> {
    mean(runs.filter_map(|run| quantile(run.pings.as_ref()?.idle.rtt_ms)))
}

#[expect(clippy::cast_precision_loss, reason = "a number of runs")]
const fn count(number: usize) -> f64 {
    number as f64
}

#[expect(clippy::cast_precision_loss, reason = "packets are far below 2^53")]
const fn count64(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use pleach_sim::results::{Lateness, Pings};

    use super::*;

    /// Returns a run of one UDP flow with a delay of `p50` ms and a share `loss`.
    fn run(p50: f64, loss: f64) -> Results {
        let quantiles = |ms: f64| Quantiles {
            p50: Some(ms),
            p95: Some(ms),
            p99: Some(ms),
        };
        Results {
            flows: vec![FlowResult {
                name: "stream".to_owned(),
                kind: FlowKind::Udp,
                duration_s: 10.0,
                goodput_mbps: 8.0 * (1.0 - loss),
                loss,
                delay_ms: quantiles(p50),
                sent_pkts: Some(10_000),
                ..FlowResult::default()
            }],
            pings: Some(Pings {
                idle: PingSummary {
                    rtt_ms: quantiles(2.0 * p50),
                    ..PingSummary::default()
                },
                ..Pings::default()
            }),
            lateness_us: Some(Lateness {
                p50: 10.0,
                p99: 200.0,
                ..Lateness::default()
            }),
            ..Results::default()
        }
    }

    fn pair(sim: Results, lab: Results) -> Pair {
        Pair {
            shifted: vec![sim.clone(); 15],
            sim,
            lab,
        }
    }

    /// Returns the names of the numbers that differ.
    fn differing(pairs: &[Pair]) -> Vec<String> {
        compare(pairs, HostDelay::of(pairs))
            .into_iter()
            .filter(|check| !check.holds())
            .map(|check| check.name)
            .collect()
    }

    #[test]
    fn what_the_hosts_add_is_measured_and_no_more_is_allowed() {
        let mut pair = pair(run(20.0, 0.0), run(20.4, 0.0));
        let host = HostDelay::of(std::slice::from_ref(&pair));
        assert!((host.idle_ms - 0.8).abs() < 1e-9, "{host:?}");
        assert!((host.lateness_ms - 0.2).abs() < 1e-9, "{host:?}");
        assert!(differing(std::slice::from_ref(&pair)).is_empty());
        pair.lab.flows[0].delay_ms.p95 = Some(21.1);
        assert_eq!(differing(&[pair]), ["stream p95"]);
    }

    #[test]
    fn losses_differ_by_the_binomial_law_and_more_runs_leave_less_to_chance() {
        // Of 10 000 packets 1.2 % are lost, with a standard deviation of 0.11 percentage points. Two runs differ by at
        // most 0.45.
        let near = pair(run(20.0, 0.010), run(20.0, 0.014));
        assert!(differing(std::slice::from_ref(&near)).is_empty());
        let far = pair(run(20.0, 0.010), run(20.0, 0.016));
        assert_eq!(differing(&[far]), ["stream goodput", "stream loss"]);
        assert_eq!(
            differing(&vec![near; 16]),
            ["stream goodput", "stream loss"]
        );
    }

    #[test]
    fn chance_is_what_shifted_runs_differ_by() {
        let mut pair = pair(run(20.0, 0.0), run(20.0, 0.0));
        pair.lab.flows[0].goodput_mbps = 7.0;
        assert_eq!(differing(std::slice::from_ref(&pair)), ["stream goodput"]);
        for (step, run) in (0_u32..).zip(&mut pair.shifted) {
            run.flows[0].goodput_mbps = 7.0 + f64::from(step % 3);
        }
        assert!(differing(&[pair]).is_empty());
    }

    #[test]
    fn a_model_of_tcp_gets_a_tenth() {
        let tcp = |mbps| {
            let mut results = run(20.0, 0.0);
            results.flows[0].kind = FlowKind::Tcp;
            results.flows[0].goodput_mbps = mbps;
            results
        };
        assert!(differing(&[pair(tcp(10.0), tcp(10.9))]).is_empty());
        assert_eq!(differing(&[pair(tcp(10.0), tcp(8.9))]), ["stream goodput"]);
        assert!(compare(&[], HostDelay::default()).is_empty());
    }
}
