//! Reno's window, RFC 5681 section 3.1. It grows by one segment per acknowledged segment in slow start, and by one
//! segment per window afterwards. After a loss it is halved. As in Linux, the window is halved, not the data in flight.

use super::{MIN_SSTHRESH, Window};

/// Grows the window by the acknowledged segments.
pub(super) fn on_ack(window: &mut Window, acked_pkts: u32) {
    let left = window.slow_start(acked_pkts);
    if left > 0 {
        window.additive_increase(window.cwnd, left);
    }
}

/// Returns the threshold after a loss.
pub(super) fn ssthresh(window: &Window) -> u32 {
    (window.cwnd / 2).max(MIN_SSTHRESH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_per_round_then_adds_one() {
        let mut window = Window::new(10);
        window.ssthresh = 40;
        for expected in [20, 40, 41, 42, 43] {
            (0..window.cwnd).for_each(|_| on_ack(&mut window, 1));
            assert_eq!(window.cwnd, expected);
        }
        assert_eq!(ssthresh(&window), 21);
        assert_eq!(ssthresh(&Window::new(3)), MIN_SSTHRESH);
    }
}
