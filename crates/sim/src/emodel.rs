//! Quality of a call: the E-model of ITU-T Recommendation G.107 (06/2015), narrow band.
//!
//! R = Ro − Is − Id − Ie,eff + A (7-1) is a rating from 0 to 100. The mean opinion score that people would give follows
//! from it. Parameters that a network does not change keep the defaults of table 3: noise and side tone determine Ro
//! and Is, the advantage A is zero, and the echo path is that of a four-wire telephone (TELR 65 dB, WEPL 110 dB). A
//! network changes the delay (Id, 7-19 to 7-28) and the loss (Ie,eff, 7-29). Numbers of equations and symbols are those
//! of the Recommendation.
//!
//! Limits: the Recommendation covers burst ratios up to 2, or loss below 2 %. Outside this range, as in an outage,
//! the same formula is used, and its result only means "bad". The E-model rates a whole call. Dropouts show the
//! effect of an outage at one moment.

/// Sensitivity of a codec to loss (ITU-T G.113, appendix I).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    /// Ie: impairment without loss.
    pub impairment: f64,
    /// Bpl: robustness to loss.
    pub robustness: f64,
}

impl Codec {
    /// G.711 with the concealment of its appendix I.
    pub const G711: Self = Self {
        impairment: 0.0,
        robustness: 25.1,
    };
    /// G.711 that plays silence in place of lost packets.
    pub const G711_SILENCE: Self = Self {
        impairment: 0.0,
        robustness: 4.3,
    };
    /// G.729 annex A with voice activity detection.
    pub const G729A: Self = Self {
        impairment: 11.0,
        robustness: 19.0,
    };
}

/// Returns the rating R of a call with a mouth-to-ear delay of `delay_ms`. The share `loss` (0 to 1) of its packets is
/// not played, in runs that are `burst_ratio` times as long as under random loss. From 0 to 100; 0 if an argument is
/// NaN.
#[must_use]
pub fn rating(codec: Codec, delay_ms: f64, loss: f64, burst_ratio: f64) -> f64 {
    let r = RO - IS - delay_impairment(delay_ms) - loss_impairment(codec, loss, burst_ratio);
    if r.is_nan() { 0.0 } else { r.clamp(0.0, 100.0) }
}

/// Returns Id, the impairment by the mouth-to-ear delay: talker echo, listener echo and the delay of answers.
#[must_use]
pub fn delay_impairment(delay_ms: f64) -> f64 {
    // T = Ta, and Tr is twice T: on digital lines the far telephone causes the echo.
    let t = delay_ms;
    let terv =
        TELR - 40.0 * ((1.0 + t / 10.0) / (1.0 + t / 150.0)).log10() + 6.0 * (-0.3 * t * t).exp();
    let talker = half_sum(RO_E - (80.0 + 2.5 * (terv - 14.0)), 100.0) - 1.0;
    let talker = talker * (1.0 - (-t).exp());
    let listener = half_sum(
        RO - 10.5 * (WEPL + 7.0) * (2.0 * t + 1.0).powf(-0.25),
        169.0,
    );
    talker + listener + wait_impairment(t)
}

/// Returns Idd, the impairment by long delays without echo. Zero up to 100 ms.
fn wait_impairment(delay_ms: f64) -> f64 {
    if delay_ms <= 100.0 {
        return 0.0;
    }
    let x = (delay_ms / 100.0).log2();
    let root = |x: f64| (1.0 + x.powi(6)).powf(1.0 / 6.0);
    25.0 * (root(x) - 3.0 * root(x / 3.0) + 2.0)
}

/// Returns half of `x` plus the root of its squared half and `square`, the common form of Idte and Idle.
fn half_sum(x: f64, square: f64) -> f64 {
    x / 2.0 + (x * x / 4.0 + square).sqrt()
}

/// Returns Ie,eff, the impairment of the codec if the share `loss` of packets is not played.
#[must_use]
pub fn loss_impairment(codec: Codec, loss: f64, burst_ratio: f64) -> f64 {
    let percent = loss * 100.0;
    let lost = percent / (percent / burst_ratio + codec.robustness);
    codec.impairment + (95.0 - codec.impairment) * lost
}

/// Returns the mean opinion score, 1 to 4.5, for the rating `r` (annex B).
#[must_use]
pub fn opinion(r: f64) -> f64 {
    match r {
        r if r >= 100.0 => 4.5,
        r if r > 0.0 => 1.0 + 0.035 * r + r * (r - 60.0) * (100.0 - r) * 7e-6,
        _ => 1.0,
    }
    .max(1.0)
}

/// Ro (7-2): basic signal-to-noise ratio with the default values.
const RO: f64 = 15.0 - 1.5 * (8.0 - NOISE);
/// Roe (7-22): signal-to-noise ratio of the talker's echo.
const RO_E: f64 = -1.5 * (-NOISE - 2.0);
/// Is (7-8): simultaneous impairment with the default values, from loudness, side tone and quantisation.
const IS: f64 = 1.4136;
/// −No (7-3): sum of all noise with the default values, in dBm0p.
const NOISE: f64 = 61.1792;
/// Talker echo loudness rating, in dB.
const TELR: f64 = 65.0;
/// Weighted echo path loss, in dB.
const WEPL: f64 = 110.0;

#[cfg(test)]
mod tests {
    use super::*;

    fn near(value: f64, published: f64, tolerance: f64) {
        assert!(
            (value - published).abs() <= tolerance,
            "{value}, published {published}"
        );
    }

    #[test]
    fn defaults_give_93_2() {
        // G.107, 7.7: "a very high quality ... R = 93.2".
        near(rating(Codec::G711, 0.0, 0.0, 1.0), 93.2, 0.05);
        near(RO, 94.77, 0.005);
    }

    #[test]
    fn opinions_are_those_of_annex_b() {
        // Table B.1 lists 4.03 where its own formula gives 4.024.
        for (r, mos) in [
            (90.0, 4.34),
            (80.0, 4.03),
            (70.0, 3.60),
            (60.0, 3.10),
            (50.0, 2.58),
        ] {
            near(opinion(r), mos, 0.0065);
        }
        assert_eq!((opinion(0.0), opinion(100.0)), (1.0, 4.5));
        assert_eq!(opinion(3.0), 1.0, "the polynomial dips below 1");
    }

    #[test]
    fn loss_costs_what_g_113_lists() {
        // G.113 appendix I, planning values of Ie for G.729A with voice activity detection under random loss.
        for (percent, ie) in [
            (0.0, 11.0),
            (1.0, 15.0),
            (2.0, 19.0),
            (3.0, 23.0),
            (4.0, 26.0),
            (8.0, 36.0),
            (16.0, 49.0),
        ] {
            near(
                loss_impairment(Codec::G729A, percent / 100.0, 1.0),
                ie,
                0.75,
            );
        }
        // Planning values of Ie for G.711 with concealment.
        for (percent, ie) in [(2.0, 7.0), (3.0, 10.0), (5.0, 15.0), (7.0, 20.0)] {
            near(loss_impairment(Codec::G711, percent / 100.0, 1.0), ie, 1.0);
        }
        // Silence instead of concealment, and bursts, are far worse.
        let two = |codec, burst_ratio| loss_impairment(codec, 0.02, burst_ratio);
        assert!(two(Codec::G711_SILENCE, 1.0) > 4.0 * two(Codec::G711, 1.0));
        assert!(two(Codec::G711, 2.0) > two(Codec::G711, 1.0));
    }

    #[test]
    fn delay_costs_what_the_published_fit_says() {
        // Cole and Rosenbluth, "Voice over IP performance monitoring" (CCR 2001), fit the Recommendation's values by
        // 0.024 d, plus 0.11 (d - 177.3) above 177.3 ms. Above 350 ms the line deviates from the curve.
        let mut last = 0.0;
        for ms in [25, 50, 100, 150, 200, 250, 300, 350] {
            let d = f64::from(ms);
            let fit = 0.024 * d + 0.11 * (d - 177.3).max(0.0);
            let id = delay_impairment(d);
            near(id, fit, 2.5);
            assert!(id > last);
            last = id;
        }
    }

    #[test]
    fn nonsense_is_a_bad_call() {
        assert_eq!(rating(Codec::G711, f64::NAN, 0.0, 1.0), 0.0);
        assert_eq!(rating(Codec::G711, 1e9, 1.0, 1e6), 0.0);
    }
}
