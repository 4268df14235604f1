use super::*;

/// A client with two gateways, and what these do.
struct World {
    gateways: Gateways,
    now: Instant,
    /// For each gateway: round-trip time over links 0 and 1 in milliseconds; `None` if it does not answer.
    rtts: [Option<u64>; 2],
    /// Whether each gateway gives a session.
    has_session: [bool; 2],
    /// Whether each gateway asks its clients to use another one.
    drains: [bool; 2],
    uses_tcp: bool,
    /// Answers that have not arrived yet: time of arrival, gateway, link and nonce.
    flying: Vec<(Instant, usize, u8, [u8; 16])>,
    /// Gateways that were chosen, with the time since the start.
    chosen: Vec<(usize, Duration)>,
    /// Gateways that gave no session while the one in use worked.
    rejected: Vec<usize>,
    asked: u64,
}

fn peer(name: &str, key: u8, priority: u8) -> GatewayPeer {
    GatewayPeer {
        name: name.to_owned(),
        priority,
        public_key: [key; 32],
        preshared_key: None,
        endpoints: vec!["192.0.2.1:7700".parse().expect("literal")],
        names: Vec::new(),
        allowed_ips: Vec::new(),
    }
}

impl World {
    fn new(priorities: [u8; 2], return_after: Option<Duration>) -> Self {
        let known = [peer("a", 1, priorities[0]), peer("b", 2, priorities[1])];
        let mut gateways = Gateways::of(Instant::ZERO, &known, return_after);
        gateways.on_link(Instant::ZERO);
        Self {
            gateways,
            now: Instant::ZERO,
            rtts: [Some(20), Some(30)],
            has_session: [true; 2],
            drains: [false; 2],
            uses_tcp: false,
            flying: Vec::new(),
            chosen: Vec::new(),
            rejected: Vec::new(),
            asked: 0,
        }
    }

    fn run(&mut self, millis: u64) {
        for _ in 0..millis {
            self.now += Duration::from_millis(1);
            self.step();
        }
    }

    fn step(&mut self) {
        let now = self.now;
        let arrived: Vec<_> = self.flying.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, index, link, nonce) in arrived {
            let answer = Answer {
                nonce,
                is_draining: self.drains[index],
            };
            assert!(self.gateways.on_answer(now, index, link, answer));
        }
        // A session takes a round-trip time and a half.
        let is_up = self.gateways.used.is_some_and(|used| {
            let since = now.since(self.gateways.used_at);
            self.has_session[used]
                && self.rtts[used].is_some_and(|rtt| since >= Duration::from_millis(rtt * 3 / 2))
        });
        let was_up = self.gateways.silent_since.is_none();
        if was_up && !is_up {
            self.gateways.hurry(now);
        }
        if self.gateways.next_at().is_none_or(|at| at > now) {
            return;
        }
        let heard = Heard {
            is_up,
            uses_tcp: self.uses_tcp,
        };
        while let Some(action) = self.gateways.poll(now, heard) {
            match action {
                Action::Ask => self.ask(),
                Action::Prepare(index) if self.has_session[index] => {
                    assert_eq!(self.gateways.adopt(now, true), Some(index));
                    self.chosen.push((index, now.since(Instant::ZERO)));
                }
                Action::Prepare(index) => {
                    self.rejected.push(index);
                    self.gateways.reject(now);
                }
                Action::Use(index) => {
                    self.chosen.push((index, now.since(Instant::ZERO)));
                    return;
                }
            }
        }
    }

    fn ask(&mut self) {
        self.asked += 1;
        let mut secret = [0; 8];
        secret.copy_from_slice(&self.asked.to_be_bytes());
        self.gateways.begin_round(self.now, secret);
        let round = *self.gateways.rounds.back().expect("a round");
        for link in 0..2 {
            for (index, rtt) in self.rtts.iter().enumerate() {
                if let Some(rtt) = rtt {
                    let at = self.now + Duration::from_millis(rtt + u64::from(link) * 10);
                    self.flying
                        .push((at, index, link, nonce(&round, index, link)));
                }
            }
        }
    }

    /// Returns the gateways chosen so far, and forgets them.
    fn chosen(&mut self) -> Vec<usize> {
        self.chosen.drain(..).map(|(index, _)| index).collect()
    }

    fn why(&self, index: usize) -> String {
        self.gateways.explain(self.now, index)
    }
}

const MINUTE: u64 = 60_000;
const RETURN: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn the_quicker_gateway_is_chosen_at_the_start() {
    let mut world = World::new([0, 0], RETURN);
    world.rtts = [Some(150), Some(20)];
    world.run(1_000);
    assert_eq!(world.chosen, [(1, Duration::from_millis(151))]);
    assert!(world.why(1).contains("round-trip time was the lowest"));
    // A gateway that does not answer is not waited for.
    let mut world = World::new([0, 0], RETURN);
    world.rtts = [None, Some(20)];
    world.run(400);
    assert_eq!(world.chosen(), [1]);
}

#[test]
fn priority_comes_before_round_trip_time() {
    let mut world = World::new([0, 1], RETURN);
    world.rtts = [Some(150), Some(20)];
    world.run(5 * MINUTE);
    assert_eq!(world.chosen(), [0]);
    assert!(world.why(0).contains("first priority"));
    assert_eq!(world.why(1), "b is on standby: it answers");
}

#[test]
fn another_gateway_takes_over_when_the_one_in_use_falls_silent() {
    let mut world = World::new([0, 0], RETURN);
    world.run(20_000);
    assert_eq!(world.chosen(), [0]);
    world.rtts[0] = None;
    let before = world.now;
    world.run(2_000);
    assert_eq!(world.why(0), "a does not answer");
    let (index, at) = world.chosen[0];
    let gap = at - before.since(Instant::ZERO);
    assert!(index == 1 && gap < Duration::from_millis(600), "{gap:?}");
    assert_eq!(
        world.why(1),
        "b is in use, because a fell silent on all links"
    );
    world.run(40_000);
    assert_eq!(world.why(0), "a does not answer");
    assert_eq!(world.chosen().len(), 1);
}

#[test]
fn a_gateway_that_drains_is_left_at_once_if_another_one_answers() {
    for return_after in [RETURN, None] {
        let mut world = World::new([0, 1], return_after);
        world.run(20_000);
        assert_eq!(world.chosen(), [0]);
        world.drains[0] = true;
        let before = world.now;
        world.run(12_000);
        let (index, at) = world.chosen[0];
        let waited = at - before.since(Instant::ZERO);
        assert!(
            index == 1 && waited <= ROUND + Duration::from_millis(100),
            "{waited:?}"
        );
        assert_eq!(
            world.why(1),
            "b is in use, because a asked its clients to leave"
        );
        assert_eq!(world.why(0), "a asks its clients to use another gateway");
        world.chosen();
        // Nor does the client come back by the order of the gateways, until the first one takes clients again.
        world.run(5 * MINUTE);
        assert!(world.chosen().is_empty());
        world.drains[0] = false;
        world.run(5 * MINUTE);
        let expected: &[usize] = if return_after.is_some() { &[0] } else { &[] };
        assert_eq!(world.chosen(), expected);
    }
}

#[test]
fn a_gateway_that_drains_is_used_if_no_other_one_answers() {
    let mut world = World::new([0, 1], RETURN);
    world.run(20_000);
    world.drains = [true; 2];
    world.run(MINUTE);
    assert_eq!(world.chosen(), [0]);
    world.rtts[1] = None;
    world.drains[1] = false;
    world.run(MINUTE);
    assert!(world.chosen().is_empty());
    // A gateway that gives no session does not take over.
    world.rtts[1] = Some(30);
    world.has_session[1] = false;
    world.run(MINUTE / 2);
    assert!(world.chosen().is_empty());
    assert!(world.why(1).starts_with("b answers but gave no session"));
    world.has_session[1] = true;
    world.run(MINUTE);
    assert_eq!(world.chosen(), [1]);
}

#[test]
fn an_outage_of_all_links_changes_nothing() {
    let mut world = World::new([0, 0], RETURN);
    world.run(20_000);
    let rtts = std::mem::take(&mut world.rtts);
    world.run(10 * MINUTE);
    // The paths need longer than the answers.
    world.rtts = rtts;
    world.has_session = [false; 2];
    world.run(250);
    world.has_session = [true; 2];
    world.run(MINUTE);
    assert_eq!(world.chosen(), [0]);
}

#[test]
fn a_restarted_gateway_is_waited_for_and_one_that_gives_no_session_is_left_out() {
    let mut world = World::new([0, 1], RETURN);
    world.run(20_000);
    world.has_session[0] = false;
    world.run(3_000);
    world.has_session[0] = true;
    world.run(20_000);
    assert_eq!(world.chosen(), [0]);
    world.has_session[0] = false;
    world.run(6_000);
    assert_eq!(world.chosen(), [1]);
    assert_eq!(
        world.why(1),
        "b is in use, because a answers but gives no session"
    );
    assert!(world.why(0).starts_with("a answers but gave no session"));
    // It is tried again after a minute as its number is lower, while the other one stays in use, and left out for longer.
    world.run(3 * MINUTE);
    assert_eq!(world.rejected, [0]);
    world.run(2 * MINUTE - 5_000);
    assert_eq!(world.rejected, [0]);
    world.run(30_000);
    assert_eq!(world.rejected, [0, 0]);
    assert!(world.chosen().is_empty());
}

#[test]
fn the_better_gateway_returns_after_the_configured_time() {
    for (return_after, expected) in [(RETURN, vec![1, 0]), (None, vec![1])] {
        let mut world = World::new([0, 1], return_after);
        world.run(20_000);
        assert_eq!(world.chosen(), [0]);
        world.rtts[0] = None;
        world.run(MINUTE);
        world.rtts[0] = Some(20);
        world.run(MINUTE);
        assert_eq!(world.chosen(), [1]);
        if return_after.is_some() {
            assert!(world.why(0).starts_with("a is better"), "{}", world.why(0));
        }
        world.run(20_000);
        let all: Vec<usize> = [1].into_iter().chain(world.chosen()).collect();
        assert_eq!(all, expected);
    }
}

#[test]
fn clients_return_at_different_times() {
    let returned = |random: u8| {
        let mut world = World::new([0, 1], RETURN);
        // The first byte of the secrets of all rounds.
        world.asked = u64::from(random) << 56;
        world.run(20_000);
        world.rtts[0] = None;
        world.run(MINUTE);
        world.rtts[0] = Some(20);
        world.run(2 * MINUTE);
        let (index, time) = *world.chosen.last().expect("a choice");
        assert_eq!(index, 0);
        time
    };
    let (first, last) = (returned(0), returned(255));
    let spread = last.saturating_sub(first);
    assert!((14..=15).contains(&spread.as_secs()), "{first:?} {last:?}");
}

#[test]
fn the_time_of_return_begins_when_the_better_gateway_answers_again() {
    let mut world = World::new([0, 1], RETURN);
    world.run(20_000);
    world.rtts[0] = None;
    world.run(5_000);
    assert_eq!(world.chosen(), [0, 1]);
    world.rtts[0] = Some(20);
    world.run(MINUTE);
    assert!(world.chosen().is_empty());
    world.run(20_000);
    assert_eq!(world.chosen(), [0]);
}

#[test]
fn a_gateway_that_is_better_now_and_then_does_not_replace_one_that_works() {
    let mut world = World::new([0, 0], RETURN);
    world.rtts = [Some(100), Some(110)];
    world.run(20_000);
    assert_eq!(world.chosen(), [0]);
    for _ in 0..10 {
        // A short round-trip time counts for 35 s.
        world.rtts[1] = Some(50);
        world.run(20_000);
        world.rtts[1] = Some(90);
        world.run(60_000);
    }
    assert!(world.chosen().is_empty());
    world.rtts[1] = Some(50);
    world.run(3 * MINUTE);
    assert_eq!(world.chosen(), [1]);
}

#[test]
fn a_gateway_behind_a_satellite_is_not_taken_for_dead() {
    let mut world = World::new([0, 1], RETURN);
    world.rtts = [Some(700), Some(20)];
    world.run(10 * MINUTE);
    // At the start the one that answers first is used, then the one with the lower number.
    assert_eq!(world.chosen(), [1, 0]);
}

#[test]
fn without_answers_the_gateways_are_tried_in_turn() {
    let mut world = World::new([0, 0], RETURN);
    world.rtts = [None; 2];
    world.run(50_000);
    assert_eq!(world.chosen(), [0, 1, 0, 1]);
    // Once there has been a session, an outage of all links is likelier, unless TCP carries a link.
    let mut world = World::new([0, 0], RETURN);
    world.run(20_000);
    world.rtts = [None; 2];
    world.run(5 * MINUTE);
    assert_eq!(world.chosen(), [0]);
    let mut world = World::new([0, 0], RETURN);
    world.uses_tcp = true;
    world.run(20_000);
    world.rtts = [None; 2];
    world.run(100);
    world.uses_tcp = false;
    world.run(20_000);
    assert_eq!(world.chosen(), [0, 1]);
}

#[test]
fn a_gateway_of_a_better_priority_is_waited_for_while_its_name_is_resolved() {
    let address: SocketAddr = "192.0.2.9:7700".parse().expect("literal");
    for (resolved_after, expected) in [(1_000, 0), (3_000, 1)] {
        let mut world = World::new([0, 1], None);
        world.gateways.known = vec![
            Known::new(&unresolved("a", 1)),
            Known::new(&peer("b", 2, 1)),
        ];
        world.rtts = [None, Some(20)];
        world.run(resolved_after);
        world.gateways.set_named(world.now, 0, vec![address]);
        world.rtts = [Some(30), Some(20)];
        world.run(1_000);
        assert_eq!(
            world.chosen(),
            [expected],
            "resolved after {resolved_after} ms"
        );
    }
    // A gateway of a lower priority is not waited for.
    let mut world = World::new([1, 0], None);
    world.gateways.known = vec![
        Known::new(&GatewayPeer {
            priority: 1,
            ..unresolved("a", 1)
        }),
        Known::new(&peer("b", 2, 0)),
    ];
    world.rtts = [None, Some(20)];
    world.run(400);
    assert_eq!(world.chosen(), [1]);
}

/// Returns a gateway of priority 0 whose only endpoint is a host name that is not resolved yet.
fn unresolved(name: &str, key: u8) -> GatewayPeer {
    GatewayPeer {
        endpoints: Vec::new(),
        ..peer(name, key, 0)
    }
}

#[test]
fn questions_are_few_while_a_gateway_works() {
    let mut world = World::new([0, 0], RETURN);
    world.run(20_000);
    let before = world.asked;
    world.run(10 * MINUTE);
    assert!((58..=62).contains(&(world.asked - before)));
}

#[test]
fn each_question_counts_for_its_gateway_and_link() {
    let mut world = World::new([0, 0], RETURN);
    world.gateways.begin_round(world.now, [7; 8]);
    let round = *world.gateways.rounds.back().expect("a round");
    let answered = nonce(&round, 1, 0);
    let mut wrong = answered;
    wrong[0] ^= 1;
    let answer = |nonce| Answer {
        nonce,
        is_draining: false,
    };
    assert!(!world.gateways.on_answer(world.now, 1, 0, answer(wrong)));
    assert!(!world.gateways.on_answer(world.now, 0, 0, answer(answered)));
    assert!(!world.gateways.on_answer(world.now, 1, 1, answer(answered)));
    assert!(world.gateways.on_answer(world.now, 1, 0, answer(answered)));
    let from = "192.0.2.1:7700".parse().expect("literal");
    assert!(!world.gateways.on_datagram(world.now, 0, from, &[8; 36]));
    let questions = world.gateways.questions(0, |address| address.is_ipv4());
    assert_eq!(questions.len(), 2);
    assert_eq!(world.gateways.questions(0, SocketAddr::is_ipv6), []);
}

#[test]
fn names_add_addresses_to_their_gateway() {
    let mut world = World::new([0, 0], RETURN);
    let found: Vec<SocketAddr> = ["192.0.2.1:7700", "192.0.2.9:7700"]
        .map(|text| text.parse().expect("literal"))
        .to_vec();
    assert!(world.gateways.set_named(world.now, 1, found.clone()));
    assert!(!world.gateways.set_named(world.now, 1, found));
    assert!(!world.gateways.set_named(world.now, 1, Vec::new()));
    assert_eq!(world.gateways.all_addresses().len(), 3);
    assert_eq!(world.gateways.addresses(), []);
    world.run(1_000);
    assert_eq!(world.gateways.addresses().len(), 1);
}

#[test]
fn after_a_long_outage_a_gateway_has_time_from_its_first_answer() {
    for rtt in [20, 700] {
        let mut world = World::new([0, 1], RETURN);
        world.rtts = [Some(rtt), Some(30)];
        world.run(3 * MINUTE);
        assert_eq!(world.gateways.used(), Some(0));
        world.chosen();
        let rtts = std::mem::take(&mut world.rtts);
        world.run(10 * MINUTE);
        world.rtts = rtts;
        world.has_session = [false; 2];
        world.run(2_000);
        world.has_session = [true; 2];
        world.run(MINUTE);
        assert!(world.chosen().is_empty(), "{rtt} ms");
    }
}

#[test]
fn a_gateway_with_short_sessions_is_left_out_for_longer_each_time() {
    let mut world = World::new([0, 1], RETURN);
    world.run(20_000);
    let mut left_out = Vec::new();
    for _ in 0..3 {
        world.has_session[0] = false;
        world.run(6_000);
        assert_eq!(world.gateways.used(), Some(1));
        left_out.push(
            world.gateways.known[0]
                .left_out_until
                .since(world.now)
                .as_secs()
                / 30,
        );
        world.has_session[0] = true;
        while world.gateways.used() != Some(0) {
            world.run(1_000);
        }
        world.run(5_000);
    }
    assert_eq!(left_out, [1, 3, 7]);
    world.run(6 * MINUTE);
    assert_eq!(world.gateways.known[0].failures, 0);
}

#[test]
fn the_address_that_answered_is_asked_until_it_fails() {
    let mut world = World::new([0, 0], RETURN);
    let other: SocketAddr = "192.0.2.9:7700".parse().expect("literal");
    assert!(world.gateways.set_named(world.now, 0, vec![other]));
    world.run(20_000);
    let asked = |world: &mut World| {
        world.ask();
        world.gateways.questions(0, SocketAddr::is_ipv4)[0].0
    };
    assert_ne!(asked(&mut world), asked(&mut world));
    world.gateways.known[0].good.insert(0, (other, world.now));
    assert_eq!([asked(&mut world), asked(&mut world)], [other; 2]);
    world.now += Duration::from_secs(30);
    assert_ne!(asked(&mut world), asked(&mut world));
}

#[test]
fn the_time_of_return_counts_for_one_gateway_only() {
    let peers = [peer("a", 1, 2), peer("b", 2, 1), peer("c", 3, 0)];
    let mut gateways = Gateways::of(Instant::ZERO, &peers, RETURN);
    let rtt = Duration::from_millis(20);
    let mut chosen = Vec::new();
    for second in 1..=110 {
        let now = Instant::ZERO + Duration::from_secs(second);
        gateways.known[0].on_answer(now + rtt, now, None);
        if second <= 20 {
            gateways.known[1].on_answer(now + rtt, now, None);
        }
        if second >= 30 {
            gateways.known[2].on_answer(now + rtt, now, None);
        }
        if let Some((index, _)) = gateways.while_it_works(now + rtt, 0) {
            chosen.push((index, second));
        }
    }
    assert_eq!(chosen[0], (2, 101));
}
