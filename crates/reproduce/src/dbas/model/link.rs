//! A link that divides its rate equally among its connections.

use super::settings::LinkSettings;

/// Part of a connection that one link carries.
#[derive(Clone, Copy, Debug)]
struct Part {
    connection: usize,
    /// Value of [`Link::served`] at which the part is done.
    done_at_bytes: f64,
}

/// A link under processor sharing.
#[derive(Clone, Debug)]
pub(super) struct Link {
    /// Capacity, lost packets deducted, in bytes per second.
    bytes_per_s: f64,
    /// Maximum rate of one connection in bytes per second.
    most_per_s: f64,
    /// Bytes that a connection would have received if it had existed from the beginning.
    served: f64,
    parts: Vec<Part>,
}

impl Link {
    pub(super) fn new(settings: &LinkSettings, rtt_ms: u32) -> Self {
        Self {
            bytes_per_s: settings.carries_bps() / 8.0,
            most_per_s: aimd_bytes_per_s(settings.loss, f64::from(rtt_ms) / 1e3),
            served: 0.0,
            parts: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, connection: usize, bytes: f64) {
        self.parts.push(Part {
            connection,
            done_at_bytes: self.served + bytes,
        });
    }

    /// Returns the seconds until the next part is done.
    pub(super) fn next_done_s(&self) -> Option<f64> {
        let first = self.parts.iter().map(|part| part.done_at_bytes);
        let first = first.min_by(f64::total_cmp)?;
        Some(((first - self.served) / self.each_per_s()).max(0.0))
    }

    /// Advances the time by `seconds`, at most until the next part is done. Appends the connections whose part is
    /// done to `done`.
    pub(super) fn advance(&mut self, seconds: f64, done: &mut Vec<usize>) {
        if self.parts.is_empty() {
            return;
        }
        self.served += self.each_per_s() * seconds;
        let served = self.served;
        self.parts.retain(|part| {
            let is_done = part.done_at_bytes <= served + ROUNDING_BYTES;
            if is_done {
                done.push(part.connection);
            }
            !is_done
        });
    }

    /// Returns the remaining bytes of each part on this link.
    pub(super) fn left(&self) -> impl Iterator<Item = (usize, f64)> {
        let parts = self.parts.iter();
        parts.map(|part| (part.connection, (part.done_at_bytes - self.served).max(0.0)))
    }

    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    fn each_per_s(&self) -> f64 {
        (self.bytes_per_s / self.parts.len().max(1) as f64).min(self.most_per_s)
    }
}

/// Returns the maximum rate of a TCP connection through `loss`, in bytes per second: Padhye, Firoiu, Towsley and
/// Kurose, 1998, equation 31, with delayed acknowledgements.
fn aimd_bytes_per_s(loss: f64, rtt_s: f64) -> f64 {
    if loss <= 0.0 {
        return f64::INFINITY;
    }
    let timeout_s = (rtt_s * 4.0).max(LEAST_TIMEOUT_S);
    let halvings = rtt_s * (2.0 * 2.0 * loss / 3.0).sqrt();
    let chance = (3.0 * (3.0 * 2.0 * loss / 8.0).sqrt()).min(1.0);
    let timeouts = timeout_s * chance * loss * (1.0 + 32.0 * loss * loss);
    SEGMENT_BYTES / (halvings + timeouts)
}

const SEGMENT_BYTES: f64 = 1_460.0;
/// Minimum retransmission timeout in seconds: that of Windows, and approximately that of Linux.
const LEAST_TIMEOUT_S: f64 = 0.3;
/// Number of remaining bytes at which a part counts as done, because of rounding.
const ROUNDING_BYTES: f64 = 1e-3;
