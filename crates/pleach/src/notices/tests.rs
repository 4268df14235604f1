use super::*;

const AFTER: Duration = Duration::from_secs(10);

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(1000 + seconds)
}

fn status(state: LinkState, reason: Option<&str>) -> StatusReport {
    let mut link = LinkStatus::bare("lte", "wwan0");
    link.state = state;
    link.idle_reason = reason.map(str::to_owned);
    link.why = reason.map(|reason| format!("lte is not used: {reason}"));
    StatusReport {
        mode: "client".to_owned(),
        name: "pleach0".to_owned(),
        up: true,
        links: vec![link],
        ..StatusReport::default()
    }
}

fn up() -> StatusReport {
    status(LinkState::Up, None)
}

fn down() -> StatusReport {
    status(LinkState::Down, Some("down"))
}

fn states(judge: &mut Judge, now: Instant, status: &StatusReport) -> Vec<String> {
    let notices = judge.take(now, status);
    notices.into_iter().map(|notice| notice.state).collect()
}

#[test]
fn a_state_that_lasts_is_told_once_and_so_is_its_end() {
    let mut judge = Judge::new(AFTER);
    let none = Vec::<String>::new();
    assert_eq!(states(&mut judge, at(0), &up()), none);
    assert_eq!(states(&mut judge, at(1), &down()), none);
    assert_eq!(states(&mut judge, at(10), &down()), none);
    let notices = judge.take(at(11), &down());
    assert_eq!(notices.len(), 1);
    assert_eq!((notices[0].kind, &*notices[0].subject), (Kind::Link, "lte"));
    assert!(notices[0].text.starts_with("lte is not used: down. "));
    assert_eq!(states(&mut judge, at(60), &down()), none);
    assert_eq!(states(&mut judge, at(61), &up()), none);
    assert_eq!(states(&mut judge, at(71), &up()), ["ok"]);
}

#[test]
fn a_short_outage_and_what_traffic_or_configuration_changes_are_not_told() {
    let mut judge = Judge::new(AFTER);
    for second in 0..120 {
        let shown = if second % 10 < 5 { down() } else { up() };
        assert!(judge.take(at(second), &shown).is_empty());
    }
    let mut now = 200;
    for (state, reason) in [
        (LinkState::Standby, "standby"),
        (LinkState::Never, "never"),
        (LinkState::Down, reasons::BUDGET),
        (LinkState::Up, "no-traffic"),
        (LinkState::Up, "too-late-for-its-flows"),
    ] {
        let shown = status(state, Some(reason));
        assert!(judge.take(at(now), &shown).is_empty());
        assert!(judge.take(at(now + 30), &shown).is_empty(), "{reason}");
        now += 60;
    }
}

#[test]
fn a_subject_that_changes_again_and_again_is_told_at_a_limited_rate() {
    let mut judge = Judge::new(AFTER);
    let mut count = 0;
    let seconds = 4 * 3600;
    for second in 0..seconds {
        // A modem that resets again and again: its device disappears.
        let mut shown = up();
        if second % 60 < 30 {
            shown.links.clear();
        }
        count += judge.take(at(second), &shown).len();
    }
    let limit = seconds / REFILL.as_secs() + u64::from(BURST);
    assert!((limit - 2..=limit).contains(&(count as u64)), "{count}");
    // The state that lasts is told in the end.
    let told = (seconds..seconds + 1000).flat_map(|second| judge.take(at(second), &up()));
    let last = told.last();
    assert!(last.is_none_or(|notice| notice.state == OK));
    assert_eq!(judge.subjects[&(Kind::Link, "lte".to_owned())].told, OK);
}

#[test]
fn a_link_whose_device_disappears_is_told_and_forgotten_after_a_day() {
    let mut judge = Judge::new(AFTER);
    assert!(judge.take(at(0), &up()).is_empty());
    let mut gone = up();
    gone.links.clear();
    assert!(judge.take(at(1), &gone).is_empty());
    assert_eq!(states(&mut judge, at(11), &gone), [DOWN]);
    let day = FORGET.as_secs();
    assert!(judge.take(at(day), &gone).is_empty());
    assert_eq!(judge.subjects.len(), 2, "link and tunnel");
    assert!(judge.take(at(day + 2), &gone).is_empty());
    assert_eq!(judge.subjects.len(), 1);
}

#[test]
fn budgets_gateways_and_the_tunnel_are_told() {
    let gateway = |name: &str, used| GatewayStatus {
        name: name.to_owned(),
        used,
        priority: 1,
        answers: true,
        rtt_ms: None,
        why: String::new(),
    };
    let with = |used_bytes, first, is_up| {
        let mut status = up();
        let budget = BudgetStatus {
            bytes: 50,
            used_bytes,
            forecast_bytes: None,
            renews_at_s: 0,
            standing: "within".to_owned(),
        };
        status.budgets.insert("lte".to_owned(), budget);
        status.gateways = vec![gateway("a", first), gateway("b", !first)];
        status.up = is_up;
        status
    };
    let mut judge = Judge::new(AFTER);
    assert!(judge.take(at(0), &with(39, true, true)).is_empty());
    assert!(judge.take(at(100), &with(40, false, false)).is_empty());
    let told = states(&mut judge, at(110), &with(40, false, false));
    assert_eq!(told, ["80-percent", "b", DOWN]);
    assert!(judge.take(at(120), &with(50, false, true)).is_empty());
    let told = states(&mut judge, at(130), &with(50, false, true));
    assert_eq!(told, ["spent", "up"]);
    // A new month needs no notice, and its budget is told again.
    for now in [140, 150] {
        assert!(judge.take(at(now), &with(0, false, true)).is_empty());
    }
    for now in [160, 171] {
        let told = states(&mut judge, at(now), &with(45, false, true));
        assert_eq!(told.len(), usize::from(now == 171), "{told:?}");
    }
}

#[test]
fn clients_of_a_small_gateway_are_told() {
    let with = |count: usize, is_up| StatusReport {
        mode: "gateway".to_owned(),
        clients: (0..count)
            .map(|number| ClientStatus {
                name: format!("c{number}"),
                up: is_up && number == 0,
                ..ClientStatus::default()
            })
            .collect(),
        ..StatusReport::default()
    };
    for (count, told) in [(2, vec!["away"]), (MAX_CLIENTS + 1, vec![])] {
        let mut judge = Judge::new(AFTER);
        assert!(judge.take(at(0), &with(count, true)).is_empty());
        assert!(judge.take(at(1), &with(count, false)).is_empty());
        assert_eq!(states(&mut judge, at(11), &with(count, false)), told);
    }
}
