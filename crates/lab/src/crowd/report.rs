//! The figures of a run, and their table.

use core::fmt;

use serde::Serialize;

/// The figures of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Number of clients.
    pub clients: u32,
    /// Number of links of each client.
    pub links: u8,
    /// Number of processor cores, which gateway and crowd share.
    pub cores: usize,
    /// Until all clients were connected.
    pub connect: Connect,
    /// Memory of the gateway.
    pub memory: Memory,
    /// The idle phase.
    pub idle: Idle,
    /// The load phase, if there was one.
    pub load: Option<Load>,
    /// The storm, if there was one.
    pub storm: Option<Storm>,
}

/// Times until clients were connected, in seconds from the start; `None` if that many were never connected.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Connect {
    /// Number of clients that were connected at the end of the phase.
    pub up: u32,
    /// Time until 50 % were connected.
    pub half_s: Option<f64>,
    /// Time until 99 % were connected.
    pub p99_s: Option<f64>,
    /// Time until all were connected.
    pub all_s: Option<f64>,
    /// Processor time that the gateway used in the phase, in seconds.
    pub gateway_cpu_s: f64,
    /// Processor time of the crowd in percent of a core.
    pub crowd_cpu_percent: f64,
}

/// Memory of the gateway's process in bytes: heap and stacks, without the pages of files.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Memory {
    /// With one configured client, not connected.
    pub empty_bytes: u64,
    /// With all clients configured, none connected.
    pub configured_bytes: u64,
    /// With all clients connected, at the end of the idle phase.
    pub idle_bytes: u64,
    /// All resident memory at the end of the idle phase, with the pages of files.
    pub resident_bytes: u64,
    /// `idle_bytes` minus `empty_bytes`, divided by the number of clients.
    pub per_client_bytes: f64,
}

/// The idle phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Idle {
    /// Duration in seconds.
    pub seconds: f64,
    /// Processor time of the gateway, in percent of a core.
    pub gateway_cpu_percent: f64,
    /// Processor time of the gateway divided by the number of clients, in percent of a core.
    pub per_client_cpu_percent: f64,
    /// Processor time of the crowd in percent of a core.
    pub crowd_cpu_percent: f64,
    /// Longest time by which a timer of the crowd was late, in milliseconds.
    pub crowd_lateness_ms: f64,
    /// Number of key changes: handshakes after the first of each client.
    pub key_changes: u64,
    /// Number of associations that were lost, for example because their keys expired.
    pub lost: u64,
}

/// The load phase.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Load {
    /// Duration of the measurement in seconds; it begins after 3 s of load.
    pub seconds: f64,
    /// Number of busy clients.
    pub busy: u32,
    /// Sum of the rates that they offered, in Mbit/s.
    pub offered_mbps: f64,
    /// Sum of the rates of packets that returned, in Mbit/s. Each packet passes the gateway twice.
    pub returned_mbps: f64,
    /// Jain's index of the rates of the busy clients: 1 if they are equal.
    pub jain: Option<f64>,
    /// Lowest rate of a busy client in Mbit/s.
    pub lowest_mbps: f64,
    /// Highest rate of a busy client in Mbit/s.
    pub highest_mbps: f64,
    /// Processor time of the gateway, in percent of a core.
    pub gateway_cpu_percent: f64,
    /// Processor time of the crowd in percent of a core.
    pub crowd_cpu_percent: f64,
    /// Number of changes of address.
    pub moves: u64,
    /// Number of restarts of clients.
    pub restarts: u64,
    /// Number of clients that were connected at the end.
    pub up: u32,
    /// Number of associations that were lost, without restarts.
    pub lost: u64,
    /// Memory of the gateway's heap and stacks at the end, in bytes.
    pub memory_bytes: u64,
}

/// The storm: all clients reconnect to a gateway that was killed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Storm {
    /// Time from the kill until the new gateway was ready, in seconds.
    pub gateway_ready_s: Option<f64>,
    /// Times from the kill.
    pub back: Connect,
}

/// Returns Jain's index of `rates` (Jain, Chiu and Hawe, 1984). `None` if nothing was transferred.
pub(super) fn jain(rates: &[f64]) -> Option<f64> {
    let sum: f64 = rates.iter().sum();
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    (squares > 0.0).then(|| sum * sum / (rates.len() as f64 * squares))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, value: String| {
            writeln!(f, "{name:<40} {value}")
        };
        let Self {
            connect,
            memory,
            idle,
            ..
        } = self;
        row(
            f,
            "clients, links of each",
            format!("{}, {}", self.clients, self.links),
        )?;
        write_connect(f, "connected", connect, self.clients)?;
        row(
            f,
            "gateway memory, idle",
            format!("{:.1} MiB", mib(memory.idle_bytes)),
        )?;
        row(
            f,
            "  per client",
            format!("{:.1} KiB", memory.per_client_bytes / 1024.0),
        )?;
        row(
            f,
            "gateway CPU, idle",
            format!(
                "{:.2} % of a core over {:.0} s",
                idle.gateway_cpu_percent, idle.seconds
            ),
        )?;
        row(
            f,
            "  per client",
            format!("{:.5} % of a core", idle.per_client_cpu_percent),
        )?;
        row(
            f,
            "key changes done, associations lost",
            format!("{}, {}", idle.key_changes, idle.lost),
        )?;
        if let Some(load) = &self.load {
            write_load(f, load, self.clients)?;
        }
        if let Some(storm) = &self.storm {
            row(
                f,
                "storm: gateway ready after",
                seconds(storm.gateway_ready_s),
            )?;
            write_connect(f, "storm: back", &storm.back, self.clients)?;
        }
        row(
            f,
            "crowd's own CPU, idle",
            format!(
                "{:.1} % of a core, timers at most {:.1} ms late",
                idle.crowd_cpu_percent, idle.crowd_lateness_ms
            ),
        )
    }
}

fn write_connect(
    f: &mut fmt::Formatter<'_>,
    name: &str,
    connect: &Connect,
    clients: u32,
) -> fmt::Result {
    writeln!(
        f,
        "{:<40} {} of {clients}: 50 % after {}, 99 % after {}, all after {}; CPU: gateway {:.1} s, crowd {:.0} %",
        name,
        connect.up,
        seconds(connect.half_s),
        seconds(connect.p99_s),
        seconds(connect.all_s),
        connect.gateway_cpu_s,
        connect.crowd_cpu_percent,
    )
}

fn write_load(f: &mut fmt::Formatter<'_>, load: &Load, clients: u32) -> fmt::Result {
    if load.busy > 0 {
        writeln!(
            f,
            "{:<40} {:.1} of {:.1} Mbit/s returned, each {:.2} to {:.2} Mbit/s",
            format!("{} busy clients", load.busy),
            load.returned_mbps,
            load.offered_mbps,
            load.lowest_mbps,
            load.highest_mbps,
        )?;
        let jain = load
            .jain
            .map_or_else(|| "-".to_owned(), |jain| format!("{jain:.3}"));
        writeln!(f, "{:<40} {jain}", "  Jain's index")?;
    }
    writeln!(
        f,
        "{:<40} {:.1} % of a core (crowd: {:.1} %)",
        "gateway CPU under load", load.gateway_cpu_percent, load.crowd_cpu_percent,
    )?;
    writeln!(
        f,
        "{:<40} {}, {}; then {} of {clients} connected, {} associations lost",
        "moves, restarts of clients", load.moves, load.restarts, load.up, load.lost,
    )
}

fn seconds(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2} s"))
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rates_have_index_one_and_a_single_taker_one_of_n() {
        assert_eq!(jain(&[3.0; 8]), Some(1.0));
        assert_eq!(jain(&[5.0, 0.0, 0.0, 0.0]), Some(0.25));
        assert_eq!(jain(&[0.0, 0.0]), None);
    }
}
