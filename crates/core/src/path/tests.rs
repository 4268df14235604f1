use core::time::Duration;

use super::{line::Line, *};

#[test]
fn a_drained_queue_counts_no_longer_than_what_is_in_flight_takes() {
    let mut line = Line::new(20, 5_000_000);
    line.run(3_000);
    // 800 ms of cross traffic; then the sender pauses, and the last packets of the queue report its length.
    line.burst(2_000_000);
    line.run(900);
    let queue_ms = |line: &Line| line.path.queue_delay(line.now).as_millis();
    assert!(queue_ms(&line) > 100, "{}", queue_ms(&line));
    line.demand = Bitrate::ZERO;
    let mut most = 0;
    for _ in 0..200 {
        line.run(10);
        let in_flight = line.path.sender().in_flight() + FULL_PACKET;
        if let Some(latest) = line.path.rate().latest() {
            let most_delay = in_flight / latest.rate.scale(1, 2);
            assert!(line.path.queue_delay(line.now) <= most_delay);
            most = most.max(most_delay.as_millis());
        }
    }
    assert!(most > 50, "the queue was long: {most} ms");
    assert!(line.path.queue_delay(line.now) < Duration::from_millis(2));
}
