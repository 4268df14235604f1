//! Transfer of one file over several lines (paths) at once, and the cost of its order of arrival: the evaluation of
//! schedulers for concurrent multipath transfer.
//!
//! A sender that has the whole file assigns each packet to a line, in the order of the file. Each line sends its
//! packets at its rate. The receiver acknowledges each arrival at once, with the first missing packet. Three
//! acknowledgements in a row that report the same packet as missing are an *event*, which TCP and SCTP treat as a loss.
//! So the number of events and the transfer time show how good an order is for a transport that mistakes reordering for
//! loss.
//!
//! There are two models, selected by [`Transfer::reacts`]:
//!
//! - Without reaction: events are counted, and no packet is lost or retransmitted. Only the order itself has an effect.
//! - With reaction, similar to SCTP over several paths: each line has a window, which an event halves and which then
//!   grows by one packet per RTT. The missing packet is retransmitted on the line on which it was sent before.
//!   Without an acknowledgement it is retransmitted after a second (RFC 4960's minimum timeout). All acknowledgements
//!   return over the line with the shortest delay, so they stay in order. Windows begin at the capacity of the line,
//!   since the sender knows the lines.
//!
//! Lines lose packets at random and carry on-off cross traffic with Pareto distributed periods. The sender knows the
//! average remaining rates, and the delays.
//!
//! A [`Transfer`] has a file format of its own beside scenarios: it contains no tunnel and no host. Times of the model
//! are in whole nanoseconds. The same file and seed give the same numbers.

mod crossing;
mod line;
mod order;
mod race;
mod settings;
mod stream;
#[cfg(test)]
mod tests;

pub use self::{
    order::Order,
    settings::{Case, LineSettings, ModelFileError, Transfer},
};

use crate::results::{FlowResult, Results, World};

/// Runs every case as often as the file says, each time with another seed. Each flow of the results is the mean of a
/// case's runs.
#[must_use]
pub fn run(transfer: &Transfer) -> Results {
    let flows = transfer.case.iter().map(|case| {
        let mut sum = FlowResult {
            name: case.name.clone(),
            ..FlowResult::default()
        };
        let (mut events, mut timeouts, mut again, mut held) = (0.0, 0.0, 0, 0);
        let runs = transfer.repeat;
        for run in 0..runs {
            let outcome = race::run(transfer, case, transfer.seed.wrapping_add(u64::from(run)));
            sum.goodput_mbps += outcome.goodput_mbps / f64::from(runs);
            sum.duration_s += outcome.seconds / f64::from(runs);
            events += f64::from(outcome.events) / f64::from(runs);
            timeouts += f64::from(outcome.timeouts) / f64::from(runs);
            again += outcome.sent_again;
            held = held.max(outcome.held_max);
        }
        FlowResult {
            retransmits: Some(again / u64::from(runs.max(1))),
            reorder_depth_max: held,
            dup_ack_events: Some(events),
            timeouts: Some(timeouts),
            ..sum
        }
    });
    Results {
        scenario: transfer.name.clone(),
        description: transfer.description.clone(),
        seed: transfer.seed,
        world: World::Sim,
        policy: transfer.order.name().to_owned(),
        flows: flows.collect(),
        ..Results::default()
    }
}
