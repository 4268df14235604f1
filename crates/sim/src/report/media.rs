//! The parts of the report about calls and videos: sentences, cards, tables, pictures.

use super::{
    format::{NOTHING, duration, maybe, number, percent, short},
    svg::escape,
    tables::Table,
};
use crate::results::{Freeze, Results, VideoResult, VoiceResult};

/// Returns the clauses of the verdict.
pub(super) fn clauses(results: &Results) -> Vec<String> {
    let video = results.video.iter().take(SHOWN_MAX).map(|v| {
        let name = &v.flow;
        match v.freezes.len() {
            0 => format!("{name} never froze"),
            1 => format!("{name} froze once, for {}", seconds(v.frozen_s)),
            n => format!("{name} froze {n} times, {} in total", seconds(v.frozen_s)),
        }
    });
    let voice = results.voice.iter().take(SHOWN_MAX).map(|v| {
        let word = quality(v.mos);
        format!("{} was {word} (MOS {})", v.flow, tenths(v.mos))
    });
    video.chain(voice).collect()
}

/// Returns the headline figures, each as value, unit and text.
pub(super) fn cards(results: &Results) -> Vec<(String, &'static str, String)> {
    let video = results.video.iter().take(SHOWN_MAX).map(|v| {
        let what = format!("{} frozen ({} freezes)", v.flow, v.freezes.len());
        (seconds(v.frozen_s), "", what)
    });
    let voice = results.voice.iter().take(SHOWN_MAX).map(|v| {
        let what = format!("{}: opinion score, 1 to 4.5 (E-model)", v.flow);
        (tenths(v.mos), " MOS", what)
    });
    video.chain(voice).collect()
}

pub(super) fn video(results: &Results) -> Table {
    let row = |v: &VideoResult| {
        vec![
            v.flow.clone(),
            v.transport.to_uppercase(),
            v.sent_pkts.to_string(),
            v.lost_pkts.to_string(),
            v.late_pkts.to_string(),
            v.frames.to_string(),
            v.frames_lost.to_string(),
            v.frames_late.to_string(),
            v.frames_held.to_string(),
            v.freezes.len().to_string(),
            seconds(v.frozen_s),
            v.ssim
                .map_or_else(|| NOTHING.to_owned(), |s| format!("{s:.4}")),
            v.ssim_min
                .map_or_else(|| NOTHING.to_owned(), |s| format!("{s:.2}")),
            maybe(v.psnr_db),
        ]
    };
    Table {
        title: "Video",
        left: 2,
        head: vec![
            "video",
            "in",
            "packets",
            "lost",
            "late",
            "frames",
            "lost",
            "late",
            "not shown",
            "freezes",
            "frozen",
            "SSIM",
            "worst",
            "PSNR dB",
        ],
        rows: results.video.iter().map(row).collect(),
    }
}

pub(super) fn voice(results: &Results) -> Table {
    let row = |v: &VoiceResult| {
        vec![
            v.flow.clone(),
            v.sent_pkts.to_string(),
            v.lost_pkts.to_string(),
            v.late_pkts.to_string(),
            percent(v.unplayed),
            short(v.burst_ratio),
            maybe(v.delay_ms.p50),
            maybe(v.delay_ms.p95),
            maybe(v.delay_ms.p99),
            maybe(v.added_ms.p99),
            maybe(v.mouth_to_ear_ms),
            short(v.r),
            tenths(v.mos),
            v.worst_mos.map_or_else(|| NOTHING.to_owned(), tenths),
            v.dropouts.len().to_string(),
        ]
    };
    Table {
        title: "Calls",
        left: 1,
        head: vec![
            "call",
            "packets",
            "lost",
            "late",
            "not played",
            "burst ratio",
            "delay p50 ms",
            "p95",
            "p99",
            "added p99",
            "mouth to ear ms",
            "R",
            "MOS",
            "worst 5 s",
            "dropouts",
        ],
        rows: results.voice.iter().map(row).collect(),
    }
}

pub(super) fn freezes(results: &Results) -> Table {
    let row = |(flow, freeze): (&str, &Freeze)| {
        vec![
            flow.to_owned(),
            format!("{} s", number(freeze.start_s)),
            seconds(freeze.length_s),
        ]
    };
    Table {
        title: "Freezes and dropouts",
        left: 1,
        head: vec!["flow", "at", "for"],
        rows: all_freezes(results).map(row).collect(),
    }
}

/// Returns the HTML of sent and seen pictures side by side.
pub(super) fn pictures(results: &Results) -> String {
    let mut out = String::new();
    for video in results.video.iter().take(SHOWN_MAX) {
        let pictures = video.pictures.iter().filter(|p| is_base64(&p.png_base64));
        for picture in pictures.take(PICTURES_MAX) {
            let (time, ssim) = (number(picture.time_s), format!("{:.2}", picture.ssim));
            let text = format!(
                "{} at {time} s: sent picture and received picture",
                video.flow
            );
            let text = escape(&text);
            out += &format!(
                "<figure>\n<figcaption><p>{text} (SSIM {ssim}).</p></figcaption>\n\
                 <img alt=\"{text}\" src=\"data:image/png;base64,{}\"/>\n</figure>\n",
                picture.png_base64
            );
        }
    }
    if out.is_empty() {
        return out;
    }
    format!("<section class=\"pictures\">\n<h2>Worst received pictures</h2>\n{out}</section>\n")
}

/// Returns all freezes and dropouts with the name of their flow.
pub(super) fn all_freezes(results: &Results) -> impl Iterator<Item = (&str, &Freeze)> {
    let video = results.video.iter().map(|v| (v.flow.as_str(), &v.freezes));
    let voice = results.voice.iter().map(|v| (v.flow.as_str(), &v.dropouts));
    video
        .chain(voice)
        .flat_map(|(flow, freezes)| freezes.iter().map(move |freeze| (flow, freeze)))
}

/// Whether `text` is base64 that cannot end the HTML attribute around it, and is short enough for a page.
fn is_base64(text: &str) -> bool {
    let is_digit = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
    !text.is_empty() && text.len() <= PICTURE_MAX_BYTES && text.bytes().all(is_digit)
}

/// Returns the name of the quality category of a score (G.107, table B.1).
fn quality(mos: f64) -> &'static str {
    match mos {
        mos if mos >= 4.34 => "excellent",
        mos if mos >= 4.03 => "good",
        mos if mos >= 3.60 => "fair",
        mos if mos >= 3.10 => "poor",
        _ => "hardly usable",
    }
}

fn seconds(s: f64) -> String {
    duration(s * 1e3)
}

fn tenths(mos: f64) -> String {
    if mos.is_finite() {
        format!("{mos:.2}")
    } else {
        NOTHING.to_owned()
    }
}

/// Highest number of flows of one kind in sentences and cards.
const SHOWN_MAX: usize = 2;
/// Highest number of pictures of a video.
const PICTURES_MAX: usize = 3;
const PICTURE_MAX_BYTES: usize = 2 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::{render, table, verdict},
        results::Picture,
    };

    fn results() -> Results {
        let freeze = |start_s, length_s| Freeze { start_s, length_s };
        Results {
            duration_s: 20.0,
            video: vec![VideoResult {
                flow: "film".to_owned(),
                transport: "rtp".to_owned(),
                sent_pkts: 14_000,
                lost_pkts: 46,
                frames: 500,
                frames_lost: 16,
                frames_held: 20,
                frozen_s: 0.8,
                freezes: vec![freeze(2.0, 0.48), freeze(7.0, 0.32)],
                ssim: Some(0.9653),
                pictures: vec![Picture {
                    time_s: 2.4,
                    ssim: 0.83,
                    file: "x.png".to_owned(),
                    png_base64: "iVBORw0KGgo=".to_owned(),
                }],
                ..VideoResult::default()
            }],
            voice: vec![VoiceResult {
                flow: "call".to_owned(),
                mos: 4.29,
                dropouts: vec![freeze(8.0, 0.14)],
                ..VoiceResult::default()
            }],
            ..Results::default()
        }
    }

    #[test]
    fn says_what_was_seen_and_heard() {
        let results = results();
        let verdict = verdict(&results);
        assert!(
            verdict.contains("film froze 2 times, 800 ms in total"),
            "{verdict}"
        );
        assert!(verdict.contains("call was good (MOS 4.29)"), "{verdict}");
        let table = table(&results);
        for cell in ["0.9653", "14000", "480 ms", "140 ms", "worst 5 s"] {
            assert!(table.contains(cell), "{cell}:\n{table}");
        }
        let page = render(&results);
        assert!(page.contains("src=\"data:image/png;base64,iVBORw0KGgo=\""));
        assert!(page.contains("film at 2.4 s"));
    }

    #[test]
    fn marks_freezes_in_plots_over_time() {
        let mut results = results();
        let bars = |results: &Results| render(results).matches("class=\"freeze\"").count();
        assert_eq!(bars(&results), 0, "nothing was measured over time");
        results.series.interval_ms = 100.0;
        results.series.links = vec![crate::results::LinkSeries {
            name: "dsl".to_owned(),
            down_mbps: vec![1.0; 200],
            ..Default::default()
        }];
        // There are three bars in each of two widths, and the legend.
        assert_eq!(bars(&results) % 7, 0);
        assert!(bars(&results) > 0);
    }

    #[test]
    fn a_picture_that_is_none_is_left_out() {
        let mut results = results();
        for hostile in ["\"><script>", "", "a b"] {
            results.video[0].pictures[0].png_base64 = hostile.to_owned();
            assert_eq!(pictures(&results), "");
        }
        results.video[0].flow = "<b>".to_owned();
        results.video[0].pictures[0].png_base64 = "AA==".to_owned();
        assert!(!pictures(&results).contains("<b>"));
    }

    #[test]
    fn pictures_stay_out_of_results_json() {
        let json = results().to_json().expect("serialises");
        assert!(!json.contains("iVBORw0KGgo") && json.contains("x.png"));
        let read = Results::from_json(&json).expect("reads");
        assert_eq!(read.video[0].freezes, results().video[0].freezes);
        assert_eq!(read.voice[0].mos, 4.29);
    }
}
