//! Schedulers and estimators of another crate (this test) in the whole engine.

use pleach_core::{
    path::{
        estimators::Estimators,
        rate::{Delivered, RateEstimator, RateSample},
    },
    sched::{PacketInfo, PathView, Pick, Policy, Scheduler, SchedulerSettings},
    time::Instant,
    units::Bitrate,
};
use pleach_sim::{
    results::Results,
    run::{EngineWith, Options, RunError, run},
    scenario::Scenario,
};

use crate::pair_for;

const DOWNLOAD: &str = "[[traffic]]\nkind = \"tcp\"\nname = \"download\"\ncc = \"cubic\"\n";

fn run_with(settings: SchedulerSettings<String>, scenario: &Scenario) -> Result<Results, RunError> {
    let options = Options {
        program: &EngineWith::new([settings]),
        skip_baselines: true,
        progress: &|_| {},
    };
    run(scenario, &options)
}

/// A scheduler that sends only on the path with the highest id.
#[derive(Debug)]
struct Last;

impl Scheduler for Last {
    fn pick(&mut self, _: Instant, paths: &[PathView], _: &PacketInfo) -> Pick {
        let last = paths.iter().rposition(|path| path.usable);
        last.filter(|index| paths[*index].ready)
            .map_or(Pick::Wait, Pick::One)
    }
}

#[test]
fn a_scheduler_of_another_crate_rules_both_ends() {
    let scenario = pair_for("3s", "last", DOWNLOAD);
    let results = run_with(SchedulerSettings::own("last", || Last), &scenario);
    let results = results.expect("the name is known");
    assert_eq!(results.policy, "last");
    let goodput = results.flows[0].goodput_mbps;
    assert!((5.0..10.0).contains(&goodput), "lte has 10: {goodput}");
    let [dsl, lte] = [0, 1].map(|link| results.links[link].tx_bytes);
    assert!(dsl < lte / 20, "dsl carries control only: {dsl}, {lte}");
}

#[test]
fn the_profile_is_the_scenarios_and_keys_of_the_policy_are_refused() {
    let own = || SchedulerSettings::own("last", || Last);
    let scenario = pair_for("1s", "last", &format!("repair = true\n{DOWNLOAD}"));
    run_with(own(), &scenario).expect("a part of the profile");
    let scenario = pair_for("1s", "last", &format!("k = 1\n{DOWNLOAD}"));
    let error = run_with(own(), &scenario).expect_err("a key of another policy");
    assert!(error.to_string().contains("k: \"last\""), "{error}");
    let scenario = pair_for("1s", "fastest", DOWNLOAD);
    let error = run_with(own(), &scenario).expect_err("no such policy");
    assert!(error.to_string().contains("fastest"), "{error}");
}

/// A rate estimator that always returns 2 Mbit/s.
#[derive(Debug)]
struct Stuck;

const STUCK: Bitrate = Bitrate::from_mbps(2);

impl RateEstimator for Stuck {
    fn on_report(&mut self, _: Instant, _: Delivered, app_limited: bool) -> Option<RateSample> {
        let rate = STUCK;
        Some(RateSample { rate, app_limited })
    }

    fn latest(&self) -> Option<RateSample> {
        Some(RateSample {
            rate: STUCK,
            app_limited: false,
        })
    }

    fn max(&self) -> Option<Bitrate> {
        Some(STUCK)
    }
}

#[test]
fn paths_are_paced_by_an_estimator_of_another_crate() {
    let scenario = pair_for("3s", "adaptive", DOWNLOAD);
    let goodput = |estimators| {
        let adaptive: Policy<String> = Policy::named("adaptive").expect("it is listed");
        let settings = SchedulerSettings {
            estimators,
            ..adaptive.into()
        };
        let results = run_with(settings, &scenario).expect("a policy of the engine");
        results.flows[0].goodput_mbps
    };
    let usual = goodput(Estimators::default());
    assert!(usual > 20.0, "dsl has 20, lte 10: {usual}");
    let stuck = goodput(Estimators::with_rate(|| Stuck));
    assert!((1.0..10.0).contains(&stuck), "twice 2 and probes: {stuck}");
}
