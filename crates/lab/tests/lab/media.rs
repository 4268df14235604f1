//! A film and a call over a link that fails.

use std::{path::Path, process::Command};

use pleach_linux::requirement;

use crate::run;

#[test]
fn a_viewer_sees_the_freeze_and_a_listener_hears_the_dropout() {
    if Command::new("ffmpeg").arg("-version").output().is_err() {
        requirement::skip("ffmpeg is not installed");
        return;
    }
    // There is a key frame each second. The deadline is longer than the expected stalls of this machine.
    let text = r#"
        name = "media"
        duration = "3s"
        [[link]]
        name = "near"
        rate = "20Mbit"
        delay = "5ms"
        [[event]]
        at = "1.2s"
        link = "near"
        state = "blackhole"
        [[event]]
        at = "1.5s"
        link = "near"
        state = "up"
        [[traffic]]
        kind = "video"
        name = "film"
        rate = "1Mbit"
        deadline = "1s"
        [[traffic]]
        kind = "voice"
        name = "call"
    "#;
    let Some((results, _files)) = run(text) else {
        return;
    };

    let film = &results.video[0];
    assert_eq!(film.frames, 75);
    assert!(film.lost_pkts > 0 && film.frames_lost >= 5, "{film:?}");
    let is_outage = |start_s: f64, length_s: f64| {
        (start_s + length_s - 2.0).abs() < 1e-6 && (1.0..1.5).contains(&start_s)
    };
    assert!(
        film.freezes
            .iter()
            .any(|f| is_outage(f.start_s, f.length_s)),
        "a freeze ends with the next key frame, at 2 s: {:?}",
        film.freezes
    );
    assert!(
        film.ssim.is_some_and(|ssim| (0.5..0.999).contains(&ssim)),
        "{film:?}"
    );
    assert!(film.psnr_db.is_some());
    let picture = film.pictures.first().expect("of the freeze");
    assert!(Path::new(&picture.file).exists() && !picture.png_base64.is_empty());

    let call = &results.voice[0];
    assert_eq!(call.sent_pkts, 150);
    assert!(
        call.lost_pkts >= 10 && !call.dropouts.is_empty(),
        "{call:?}"
    );
}
