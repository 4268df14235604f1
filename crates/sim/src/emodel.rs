//! How good a call is: the E-model of ITU-T Recommendation G.107 (06/2015), narrow band.
//!
//! R = Ro − Is − Id − Ie,eff + A (7-1), a rating from 0 to 100, from which follows the mean opinion score that people
//! would give. Everything that a network does not change keeps the default of table 3: noise and side tone give Ro and
//! Is, the advantage A is zero, the echo path is that of a four-wire telephone (TELR 65 dB, WEPL 110 dB). What a network
//! changes is delay (Id, 7-19 to 7-28) and loss (Ie,eff, 7-29). Numbers of equations and symbols are the
//! Recommendation's.
//!
//! Limits: the Recommendation knows burst ratios up to 2, or loss below 2 %; beyond, as in an outage, the same formula is
//! used and only says "bad". An E-model rates a whole call: what an outage does to one moment is told by dropouts.

/// What a codec suffers from loss (ITU-T G.113, appendix I).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Codec {
    /// Ie: impairment without loss.
    pub impairment: f64,
    /// Bpl: how robust it is to loss.
    pub robustness: f64,
}

impl Codec {
    /// G.711 with the concealment of its appendix I.
    pub const G711: Self = Self {
        impairment: 0.0,
        robustness: 25.1,
    };
    /// G.711 that puts silence in place of what is lost.
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

/// R of a call whose mouth-to-ear delay is `delay_ms`, of whose packets the share `loss` (0 to 1) is not played, in runs
/// `burst_ratio` times as long as chance would make them. From 0 to 100; 0 if an argument is no number.
#[must_use]
pub fn rating(codec: Codec, delay_ms: f64, loss: f64, burst_ratio: f64) -> f64 {
    let r = RO - IS - delay_impairment(delay_ms) - loss_impairment(codec, loss, burst_ratio);
    if r.is_nan() { 0.0 } else { r.clamp(0.0, 100.0) }
}

/// Id: what the delay from mouth to ear costs, talker echo, listener echo and the wait for an answer together.
#[must_use]
pub fn delay_impairment(delay_ms: f64) -> f64 {
    // T = Ta, and Tr is twice as long: with digital lines echo comes from the far telephone.
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

/// Idd: what too long a wait costs; nothing up to 100 ms.
fn wait_impairment(delay_ms: f64) -> f64 {
    if delay_ms <= 100.0 {
        return 0.0;
    }
    let x = (delay_ms / 100.0).log2();
    let root = |x: f64| (1.0 + x.powi(6)).powf(1.0 / 6.0);
    25.0 * (root(x) - 3.0 * root(x / 3.0) + 2.0)
}

/// The form of Idte and Idle: half of `x` plus the root of its square and `square`.
fn half_sum(x: f64, square: f64) -> f64 {
    x / 2.0 + (x * x / 4.0 + square).sqrt()
}

/// Ie,eff: what the codec makes of the share `loss` of packets not played.
#[must_use]
pub fn loss_impairment(codec: Codec, loss: f64, burst_ratio: f64) -> f64 {
    let percent = loss * 100.0;
    let lost = percent / (percent / burst_ratio + codec.robustness);
    codec.impairment + (95.0 - codec.impairment) * lost
}

/// The mean opinion score, 1 to 4.5, of the rating `r` (annex B).
#[must_use]
pub fn opinion(r: f64) -> f64 {
    match r {
        r if r >= 100.0 => 4.5,
        r if r > 0.0 => 1.0 + 0.035 * r + r * (r - 60.0) * (100.0 - r) * 7e-6,
        _ => 1.0,
    }
    .max(1.0)
}

/// Basic signal-to-noise ratio of the defaults (7-2).
const RO: f64 = 15.0 - 1.5 * (8.0 - NOISE);
/// Roe (7-22): of the talker's echo.
const RO_E: f64 = -1.5 * (-NOISE - 2.0);
/// Simultaneous impairment of the defaults (7-8): too loud a connection, side tone, quantising.
const IS: f64 = 1.4136;
/// −No: sum of all noise of the defaults, in dBm0p (7-3).
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
        // Table B.1, which has 4.03 where its own formula gives 4.024.
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
        // And for G.711 with concealment.
        for (percent, ie) in [(2.0, 7.0), (3.0, 10.0), (5.0, 15.0), (7.0, 20.0)] {
            near(loss_impairment(Codec::G711, percent / 100.0, 1.0), ie, 1.0);
        }
        // Silence in place of concealment is far worse, and so are bursts.
        let two = |codec, burst_ratio| loss_impairment(codec, 0.02, burst_ratio);
        assert!(two(Codec::G711_SILENCE, 1.0) > 4.0 * two(Codec::G711, 1.0));
        assert!(two(Codec::G711, 2.0) > two(Codec::G711, 1.0));
    }

    #[test]
    fn delay_costs_what_the_published_fit_says() {
        // Cole and Rosenbluth, "Voice over IP performance monitoring" (CCR 2001): 0.024 d, and 0.11 (d - 177.3) more
        // beyond that; drawn through the Recommendation's values. Beyond 350 ms the line leaves the curve.
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
