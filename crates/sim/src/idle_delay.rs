//! Shortest possible one-way delay of a packet: the delay over the fastest link that passes packets when the packet is
//! sent, without other traffic.
//!
//! It is the propagation delay of the link in the scenario, including changes by events, plus the distance of the
//! server. It does not include the serialisation time of the packet, the pauses of a recorded link, or jitter.
//! Therefore the extra delay of a packet, which is its one-way delay minus this delay, is never underestimated.

use core::time::Duration;

use crate::{
    link::{LinkConfig, LinkState},
    scenario::{Action, Cost, Direction, Directions, Scenario, Traffic},
};

/// The shortest one-way delay over time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdleDelay {
    /// Pairs of start time and delay, in order of time. The first pair starts at zero.
    steps: Vec<(Duration, Duration)>,
}

impl IdleDelay {
    /// Returns the idle delay of `traffic` in `scenario`.
    #[must_use]
    pub fn of(scenario: &Scenario, traffic: &Traffic) -> Self {
        let way = traffic.direction;
        let is_used = |index: usize| match traffic.link {
            Some(only) => only == index,
            None => scenario.tunnel.is_none() || scenario.links[index].cost != Cost::Never,
        };
        let mut lines: Vec<Option<LinkConfig>> = (0..scenario.links.len())
            .map(|index| {
                let link = &scenario.links[index];
                let line = match way {
                    Direction::Down => &link.down,
                    Direction::Up => &link.up,
                };
                is_used(index).then(|| line.clone())
            })
            .collect();
        let least = |lines: &[Option<LinkConfig>]| {
            let passing = lines.iter().flatten();
            let passing = passing.filter(|line| line.state == LinkState::Up);
            let least = passing.map(|line| line.delay).min();
            least.map(|delay| delay + traffic.distance)
        };
        let mut steps = vec![(Duration::ZERO, least(&lines).unwrap_or_default())];
        for event in &scenario.events {
            let Action::Link {
                link,
                directions,
                change,
            } = &event.action
            else {
                continue;
            };
            let line = lines[*link].as_mut().filter(|_| has(*directions, way));
            let Some(line) = line else {
                continue;
            };
            change.apply_to(line);
            // While no link passes packets, the last delay remains valid, because no packet arrives.
            if let Some(delay) = least(&lines) {
                steps.push((event.at, delay));
            }
        }
        Self { steps }
    }

    /// Returns an idle delay that does not change.
    #[cfg(test)]
    pub(crate) fn constant(delay: Duration) -> Self {
        Self {
            steps: vec![(Duration::ZERO, delay)],
        }
    }

    /// Returns the idle delay of a packet sent at time `at` since the start of the run.
    #[must_use]
    pub fn at(&self, at: Duration) -> Duration {
        let after = self.steps.partition_point(|(since, _)| *since <= at);
        let step = after.checked_sub(1).and_then(|index| self.steps.get(index));
        step.map_or(Duration::ZERO, |(_, delay)| *delay)
    }
}

fn has(directions: Directions, way: Direction) -> bool {
    match way {
        Direction::Down => directions.has_down(),
        Direction::Up => directions.has_up(),
    }
}

#[cfg(test)]
mod tests {

    use super::*;

    const TEXT: &str = r#"
        name = "two"
        duration = "10s"
        [[link]]
        name = "near"
        delay = "10ms"
        [[link]]
        name = "far"
        delay = "40ms"
        [[event]]
        at = "2s"
        link = "near"
        state = "blackhole"
        direction = "down"
        [[event]]
        at = "3s"
        link = "far"
        state = "blackhole"
        [[event]]
        at = "4s"
        link = "near"
        state = "up"
        delay = "15ms"
        [tunnel]
        policy = "adaptive"
        [[traffic]]
        kind = "voice"
        name = "down"
        distance = "5ms"
        [[traffic]]
        kind = "voice"
        name = "up"
        direction = "up"
        [[traffic]]
        kind = "voice"
        name = "beside"
        link = "far"
    "#;

    #[test]
    fn is_that_of_the_quickest_link_that_passes_packets() {
        let scenario = Scenario::parse_alone("two.toml", TEXT).expect("valid");
        let delays = |index: usize| {
            let idle = IdleDelay::of(&scenario, &scenario.traffic[index]);
            [0, 1_999, 2_000, 3_500, 4_000].map(|at| idle.at(Duration::from_millis(at)).as_millis())
        };
        assert_eq!(delays(0), [15, 15, 45, 45, 20]);
        assert_eq!(delays(1), [10, 10, 10, 10, 15]);
        assert_eq!(delays(2), [40; 5], "nothing passes from 3 s on");
    }
}
