//! Whether datagrams above a rate are dropped.
//!
//! A saturated link has a queue before it drops packets. Loss without a queue, while a link carries traffic, comes from
//! a policer: UDP is throttled. A bad radio link looks the same, so the message names both causes. Only the sending
//! direction is checked: at a client the upload; the gateway checks the download.

use crate::{
    control::{LinkState, LinkStatus},
    doctor::problem::Problem,
};

/// Judges two statuses of a link, taken a second or more apart.
pub(crate) fn verdict(before: &LinkStatus, after: &LinkStatus) -> Option<Problem> {
    let sent = after.tx_bytes.saturating_sub(before.tx_bytes);
    let is_used = after.state == LinkState::Up && sent >= LEAST_BYTES;
    let has_loss = before.loss >= LEAST_LOSS && after.loss >= LEAST_LOSS;
    let queue = after.queue_delay_ms.unwrap_or(0.0);
    let has_queue = queue > LONGEST_QUEUE_MS.max(after.rtt_ms.unwrap_or(0.0) / 4.0);
    (is_used && has_loss && !has_queue).then(|| {
        Problem::new(
            "udp-throttled",
            format!(
                "{:.0} % of the sent datagrams are lost although there is no queue: the network limits the rate of UDP, or the radio signal is bad",
                after.loss * 100.0
            ),
            "set `upload` of this link to the rate that `pleach speedtest` measures, or let the gateway use another port, such as 443",
        )
        .on(&after.name)
    })
}

/// Minimum number of bytes sent between the two statuses, about 200 kbit/s: with less traffic, the loss means nothing.
const LEAST_BYTES: u64 = 30_000;
/// Minimum loss, 0 to 1: more than a working link loses.
const LEAST_LOSS: f64 = 0.03;
/// Longest queue delay, in milliseconds, that counts as no queue: pacing and scheduling cause as much.
const LONGEST_QUEUE_MS: f64 = 5.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_with_a_queue_or_without_traffic_is_none_of_it() {
        let link = |loss, queue, tx_bytes| LinkStatus {
            state: LinkState::Up,
            rtt_ms: Some(30.0),
            queue_delay_ms: Some(queue),
            loss,
            tx_bytes,
            ..LinkStatus::bare("lte", "wwan0")
        };
        let found =
            |loss, queue, sent: u64| verdict(&link(loss, queue, 5), &link(loss, queue, 5 + sent));
        assert!(found(0.1, 1.0, 100_000).is_some());
        assert!(found(0.1, 40.0, 100_000).is_none(), "a full line");
        assert!(found(0.1, 1.0, 1_000).is_none(), "idle");
        assert!(found(0.01, 1.0, 100_000).is_none(), "hardly any loss");
    }
}
