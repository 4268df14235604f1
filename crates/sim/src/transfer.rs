//! One file over several lines at once, and what its order of arrival costs: the evaluation of schedulers for concurrent
//! multipath transfer.
//!
//! A sender that has the whole file gives each packet a line, in the order of the file; each line sends what it was given, at
//! its rate. The receiver acknowledges each arrival at once, with the first packet it misses. Three acknowledgements in a
//! row that miss the same packet are an *event*: to TCP and SCTP, a loss. So the number of events and the time the file
//! takes tell what an order is worth to a transport that takes disorder for loss.
//!
//! Two models, by [`Transfer::reacts`]:
//!
//! - Without reaction: events are counted, nothing is lost or sent again. What is left is the order itself.
//! - With reaction, in the manner of SCTP over several paths: a window per line, halved by an event, one packet more a round
//!   trip after that; the missing packet is sent again, where it was sent before; without an acknowledgement, after a
//!   second (RFC 4960's least timeout). All acknowledgements return over the quickest line, so they keep their order. Windows begin
//!   at what a line holds, since the lines are known.
//!
//! Lines lose packets by chance and carry cross traffic that comes and goes by a Pareto law. The sender knows the rates that
//! are left on average, and the delays.
//!
//! A [`Transfer`] is a file of its own kind beside scenarios: there is no tunnel and no host in it. Times of the model are in
//! whole nanoseconds; the same file and seed give the same numbers.

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

/// Runs every case as often as it says, each time with another seed; a flow of the results is the mean of a case's runs.
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
