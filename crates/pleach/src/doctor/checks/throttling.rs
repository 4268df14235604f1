//! Whether datagrams are dropped beyond a rate.
//!
//! A line that is full has a queue before it drops. Loss without a queue, while a link carries traffic, is a policer's: UDP is
//! throttled. A bad radio link looks alike; so the sentence names both. Only the way out is seen, at a client the upload; the
//! gateway sees the download.

use crate::{
    control::{LinkState, LinkStatus},
    doctor::problem::Problem,
};

/// From a link's status before and a second or so after.
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
                "{:.0} % of the datagrams sent are lost while no queue builds up: the network behind drops UDP beyond a rate, or its radio is bad",
                after.loss * 100.0
            ),
            "set upload of this link to what `pleach speedtest` finds for it, or try another port, such as 443, at the gateway",
        )
        .on(&after.name)
    })
}

/// In the time between, about 200 kbit/s: less says nothing.
const LEAST_BYTES: u64 = 30_000;
/// More than a line in order loses.
const LEAST_LOSS: f64 = 0.03;
/// What pacing and scheduling make up.
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
