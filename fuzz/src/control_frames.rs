//! Control frames: what parses is written again and parses to the same.

use pleach_core::wire::control::{Frame, FrameWriter, Frames};

/// `data`: the body of a control datagram.
pub fn run(data: &[u8]) {
    let mut steps = 0;
    for frame in Frames::new(data) {
        steps += 1;
        if let Frame::Missing { ranges, .. } | Frame::Recovered { ranges } = &frame {
            assert!(ranges.count() <= data.len());
        }
        let mut out = vec![0; 2048];
        let mut writer = FrameWriter::new(&mut out);
        // A value that no sender writes, as a longer parity than the code has, need not fit.
        if !writer.push(&frame) {
            continue;
        }
        let len = writer.len();
        let mut again = Frames::new(&out[..len]);
        assert_eq!(
            again.next().as_ref(),
            Some(&frame),
            "a frame changes when it is written"
        );
        assert_eq!(again.next(), None);
    }
    assert!(steps <= data.len(), "each frame takes bytes");
}
