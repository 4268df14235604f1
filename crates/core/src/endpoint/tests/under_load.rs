//! The number of curve operations that strangers can cause at a gateway.

use super::*;
use crate::session::{
    cookie::CookieCache,
    handshake::{Initiator, NO_PSK},
    limiter::GUARD,
};

/// A sender with a static key that performs handshakes with the gateway step by step.
struct Sender {
    keys: StaticKeys,
    cookies: CookieCache,
    address: SocketAddr,
    time: Option<u64>,
    next: u32,
    rng: Rng,
}

impl Sender {
    fn new(key: u8, address: &str) -> Self {
        Self {
            keys: StaticKeys::from_private([key; 32]),
            cookies: CookieCache::new(&public(200)),
            address: address.parse().expect("address"),
            time: Some(1),
            next: 0,
            rng: Rng::new(key.into()),
        }
    }

    /// Returns a new initiation, with a cookie if the sender has one. Its timestamp is later than before if the sender
    /// has a clock.
    fn initiation(&mut self, now: Instant) -> Vec<u8> {
        self.time = self.time.map(|time| time + 1);
        self.next += 1;
        let hello = Hello {
            protocol_version: PROTOCOL_VERSION,
            capabilities: 0,
            suites: Suite::offer(Suite::preferred(true)),
            association: 7,
            time: self.time,
        };
        let mut seed = [0; 32];
        self.rng.fill(&mut seed);
        let index = self.next;
        let (_, mut datagram) =
            Initiator::new(&self.keys, &public(200), &NO_PSK, index, hello, seed).expect("valid");
        self.cookies.stamp(now, &mut datagram).expect("valid");
        datagram
    }

    /// Sends `datagram`. Returns the kind of the answer. Stores the cookie of a cookie reply.
    fn send(&mut self, gateway: &mut Endpoint, now: Instant, datagram: &[u8]) -> Option<u8> {
        send(gateway, now, self.address, datagram);
        let answer = transmit(gateway, now).pop();
        answer.map(|(route, answer)| {
            assert_eq!(route.remote, self.address);
            assert!(answer.len() <= datagram.len());
            if answer[0] == KIND_COOKIE_REPLY {
                let taken = self.cookies.handle_reply(now, datagram, &answer);
                taken.expect("for us");
            }
            answer[0]
        })
    }

    /// Performs a handshake, with a cookie if the gateway asks for one. Returns the number of datagrams sent.
    fn connect(&mut self, gateway: &mut Endpoint, now: Instant) -> Option<usize> {
        let mut datagram = self.initiation(now);
        for tries in 1..=2 {
            match self.send(gateway, now, &datagram) {
                Some(KIND_RESPONSE) => return Some(tries),
                _ => self.cookies.stamp(now, &mut datagram).expect("valid"),
            }
        }
        None
    }
}

fn public(key: u8) -> [u8; 32] {
    *StaticKeys::from_private([key; 32]).public()
}

fn send(gateway: &mut Endpoint, now: Instant, address: SocketAddr, datagram: &[u8]) {
    let incoming = from(&address.to_string());
    gateway.handle_datagram(now, &incoming, &mut datagram.to_vec());
    gateway.work_inline(now);
}

fn start(clients: u8, now: Instant) -> Endpoint {
    let mut entropy = [9; 32];
    entropy[..8].copy_from_slice(&now.since(Instant::ZERO).as_secs().to_be_bytes());
    Endpoint::new(gateway(clients), Seeded::new(entropy), now)
}

fn seconds(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

#[test]
fn a_thousand_recorded_initiations_cost_no_curve_operation_however_often_they_are_replayed() {
    let mut gateway = start(1, Instant::ZERO);
    let mut client = Sender::new(1, CLIENT);
    let mut recorded = Vec::new();
    for second in 0..1000 {
        let datagram = client.initiation(seconds(second));
        client.send(&mut gateway, seconds(second), &datagram);
        recorded.push(datagram);
    }
    let before = *gateway.handshakes();
    assert!(before.answered > 900, "{before:?}");
    // Replay the initiations from the original address and from another address, for an hour, to the same gateway and
    // to a gateway that has restarted.
    for (mut gateway, name) in [(gateway, "same"), (start(1, seconds(1000)), "restarted")] {
        let before = gateway.handshakes().curve_operations();
        for round in 0..60 {
            let now = seconds(1000 + 60 * round);
            for datagram in &recorded {
                for address in [CLIENT, "203.0.113.9:5"] {
                    send(
                        &mut gateway,
                        now,
                        address.parse().expect("address"),
                        datagram,
                    );
                }
                transmit(&mut gateway, now);
            }
        }
        let spent = gateway.handshakes().curve_operations() - before;
        // One initiation is read per minute, to find that it is not fresh.
        let most = 2 * 60;
        assert!(spent <= most, "{name}: {spent} for 120 000 datagrams");
        // The client is served as before.
        assert_eq!(
            client.connect(&mut gateway, seconds(4700)),
            Some(2),
            "{name}"
        );
    }
}

#[test]
fn a_replay_from_the_address_of_its_cookie_is_not_read_again() {
    let mut gateway = start(1, Instant::ZERO);
    gateway.limiter.on_wasted(seconds(1));
    let mut client = Sender::new(1, CLIENT);
    let datagram = client.initiation(seconds(1));
    assert_eq!(
        client.send(&mut gateway, seconds(1), &datagram),
        Some(KIND_COOKIE_REPLY)
    );
    let proved = client.initiation(seconds(1));
    assert_eq!(
        client.send(&mut gateway, seconds(1), &proved),
        Some(KIND_RESPONSE)
    );
    let spent = gateway.handshakes().curve_operations();
    for second in 1..1200 {
        let answer = client.send(&mut gateway, seconds(second), &proved);
        assert_ne!(answer, Some(KIND_RESPONSE));
        if second < 120 {
            assert_eq!(gateway.handshakes().curve_operations(), spent);
        }
    }
    // An expired cookie proves nothing. The gateway reads the initiation once to find that it is not fresh, and
    // remembers it for 120 to 240 s.
    assert!(gateway.handshakes().curve_operations() - spent <= 2 * 10);
}

#[test]
fn garbage_with_the_ephemeral_key_of_an_initiation_does_not_take_its_place() {
    let (mut gateway, now) = (start(1, Instant::ZERO), seconds(1));
    gateway.limiter.on_wasted(now);
    let mut stranger = Sender::new(201, "203.0.113.9:5");
    stranger.connect(&mut gateway, now);
    let mut client = Sender::new(1, CLIENT);
    let mut datagram = client.initiation(now);
    // The stranger sees the client's datagrams and sends its own faster, with a proof of its own address.
    let mut overtakes = |gateway: &mut Endpoint, datagram: &[u8]| {
        let mut copy = datagram.to_vec();
        let last = copy.len() - 33;
        copy[last] ^= 1;
        stranger.cookies.stamp(now, &mut copy).expect("valid");
        let read = gateway.handshakes().read;
        stranger.send(gateway, now, &copy);
        gateway.handshakes().read - read
    };
    assert_eq!(overtakes(&mut gateway, &datagram), 1);
    let answer = client.send(&mut gateway, now, &datagram);
    assert_eq!(answer, Some(KIND_COOKIE_REPLY));
    client.cookies.stamp(now, &mut datagram).expect("valid");
    assert_eq!(overtakes(&mut gateway, &datagram), 0, "a replay");
    let answer = client.send(&mut gateway, now, &datagram);
    assert_eq!(answer, Some(KIND_RESPONSE));
}

#[test]
fn a_client_is_not_locked_out_by_a_wrong_clock() {
    let mut gateway = start(2, Instant::ZERO);
    let mut client = Sender::new(1, CLIENT);
    // First the client's clock is years ahead, then it is set back. The second client has no clock, like older
    // versions.
    for (time, tries) in [
        (Some(1 << 62), 1),
        (Some(1 << 62 | 1 << 40), 1),
        (Some(5), 2),
        (Some(1 << 61), 2),
    ] {
        client.cookies = CookieCache::new(&public(200));
        client.time = time;
        let now = Instant::ZERO + Duration::from_secs(u64::from(client.next) * 300);
        assert_eq!(client.connect(&mut gateway, now), Some(tries), "{time:?}");
        confirm(&mut gateway);
    }
    // The gateway's clock is far ahead.
    gateway.set_time_of_day(Instant::ZERO, 1 << 63);
    client.time = Some(1 << 62 | 1 << 41);
    client.cookies = CookieCache::new(&public(200));
    assert_eq!(client.connect(&mut gateway, seconds(1500)), Some(2));
    confirm(&mut gateway);
    let mut older = Sender::new(2, "198.51.100.2:4000");
    older.time = None;
    for second in [2000, 2300, 2600] {
        assert_eq!(older.connect(&mut gateway, seconds(second)), Some(2));
        confirm(&mut gateway);
    }
}

/// Ends all sessions. This removes unconfirmed sessions, as the client's first datagram would.
fn confirm(gateway: &mut Endpoint) {
    for index in gateway.peers.indices() {
        gateway.peers[index].tunnel.sessions().clear();
        gateway.free_indices(index);
    }
}

#[test]
fn a_flood_from_one_prefix_leaves_the_others_their_share() {
    let mut gateway = start(100, Instant::ZERO);
    let clients = (1..=100_u8).map(|key| Sender::new(key, &format!("198.51.100.{key}:4000")));
    let mut clients: Vec<Sender> = clients.collect();
    let mut strangers: Vec<Sender> = (0..4_u16)
        .map(|host| Sender::new(201, &format!("[2001:db8::{host}]:4000")))
        .collect();
    let (mut served, mut by_strangers) = (0, 0);
    for second in 0..20 {
        let now = seconds(second);
        for stranger in &mut strangers {
            for _ in 0..50 {
                let before = gateway.handshakes().curve_operations();
                let datagram = stranger.initiation(now);
                stranger.send(&mut gateway, now, &datagram);
                by_strangers += gateway.handshakes().curve_operations() - before;
            }
        }
        let due = (0..5).map(|step| usize::try_from(second * 5 + step).expect("small"));
        for index in due {
            served += usize::from(clients[index].connect(&mut gateway, now).is_some());
        }
    }
    assert_eq!(served, 100, "every client");
    // 20 initiations per second and a burst of 20, at two operations each, although all four hosts have proved their
    // addresses.
    assert!(by_strangers <= 2 * (20 * 20 + 20), "{by_strangers}");
}

#[test]
fn a_busy_gateway_tells_a_proved_client_when_to_come_back() {
    let mut gateway = start(1, Instant::ZERO);
    gateway.limiter.on_wasted(seconds(5));
    gateway.set_handshake_limits(Limits {
        all: crate::session::limiter::Rate::new(1, 1),
        ..Limits::default()
    });
    let now = seconds(5);
    let mut stranger = Sender::new(201, "203.0.113.9:5");
    stranger.connect(&mut gateway, now);
    let mut pair = Pair::new();
    pair.gateway = gateway;
    pair.now = now;
    // The cookie reply, then the busy reply.
    pair.step();
    assert_eq!(pair.gateway.handshakes().told_to_come_back, 1);
    assert!(!pair.client.is_up());
    let asked_at = pair.now;
    let mut sent = 0;
    while !pair.client.is_up() {
        pair.now += Duration::from_millis(1);
        let before = pair.gateway.handshakes().initiations;
        pair.step();
        sent += pair.gateway.handshakes().initiations - before;
        assert!(pair.now.since(asked_at) < Duration::from_secs(5));
    }
    assert!(pair.now.since(asked_at) >= Duration::from_secs(1));
    assert_eq!(sent, 1, "nothing before");
}

/// Returns how long a client takes to connect over its only link with the one-way delay `delay`, while the gateway
/// reads only initiations with a proved address. Panics if the client does not connect.
fn connect_from_afar(delay: Duration, time_of_day: u64) -> Duration {
    let mut pair = Pair::new();
    pair.client.set_time_of_day(Instant::ZERO, time_of_day);
    pair.gateway.set_time_of_day(Instant::ZERO, 1 << 60);
    let mut under_way: Vec<(Instant, bool, Vec<u8>)> = Vec::new();
    while !pair.client.is_up() {
        pair.now += Duration::from_millis(10);
        let now = pair.now;
        assert!(now.since(Instant::ZERO) < 20 * delay, "never connects");
        pair.gateway.limiter.on_wasted(now);
        pair.client.handle_timeout(now);
        pair.gateway.handle_timeout(now);
        for (_, to_gateway, mut datagram) in under_way.extract_if(.., |(at, ..)| *at <= now) {
            if to_gateway {
                let incoming = from(CLIENT);
                pair.gateway.handle_datagram(now, &incoming, &mut datagram);
                pair.gateway.work_inline(now);
            } else {
                let incoming = from(GATEWAY);
                pair.client.handle_datagram(now, &incoming, &mut datagram);
            }
        }
        for (end, to_gateway) in [(&mut pair.client, true), (&mut pair.gateway, false)] {
            let sent = transmit(end, now);
            let sent = sent.into_iter();
            under_way.extend(sent.map(|(_, datagram)| (now + delay, to_gateway, datagram)));
        }
    }
    assert!(pair.gateway.handshakes().asked_for_proof > 0);
    pair.now.since(Instant::ZERO)
}

#[test]
fn a_client_with_a_long_round_trip_uses_its_cookie() {
    for round_trip_ms in [50, 300, 700, 2000, 3500] {
        for time_of_day in [0, 1 << 61] {
            let round_trip = Duration::from_millis(round_trip_ms);
            let took = connect_from_afar(round_trip / 2, time_of_day);
            // Three round trips: for the cookie, for the response, and for the gateway's first datagram.
            let steps = Duration::from_millis(100);
            assert!(took <= 3 * round_trip + steps, "{round_trip:?}: {took:?}");
        }
    }
}

#[test]
fn a_client_that_never_needed_a_cookie_changes_keys_through_a_flood_of_proved_strangers() {
    let mut pair = Pair::new();
    pair.run(Duration::from_millis(100));
    assert!(pair.client.is_up() && pair.gateway.is_up());
    assert_eq!(pair.gateway.handshakes().asked_for_proof, 0);
    pair.now += Duration::from_secs(120);
    let came_at = pair.now;
    let answered = pair.gateway.handshakes().answered;
    pair.gateway.limiter.on_wasted(came_at);
    let mut strangers: Vec<Sender> = (2..=101)
        .map(|key| Sender::new(key, &format!("203.0.113.{key}:5")))
        .collect();
    // Each stranger sends as often as its source may, which is far more than the gateway reads.
    let mut flood = |gateway: &mut Endpoint, now| {
        for stranger in &mut strangers {
            let datagram = stranger.initiation(now);
            stranger.send(gateway, now, &datagram);
        }
    };
    for _ in 0..5 {
        flood(&mut pair.gateway, came_at);
    }
    let spent = pair.gateway.handshakes();
    assert!(spent.told_to_come_back > 100, "{spent:?}");
    while pair.gateway.handshakes().answered == answered {
        assert!(pair.now.since(came_at) < Duration::from_secs(3));
        pair.now += Duration::from_millis(5);
        flood(&mut pair.gateway, pair.now);
        pair.step();
    }
    assert!(pair.now.since(came_at) < Duration::from_millis(50));
}

#[test]
fn a_busy_reply_of_a_stranger_is_not_heeded() {
    let mut pair = Pair::new();
    pair.client.handle_timeout(pair.now);
    let sent = transmit(&mut pair.client, pair.now).pop().expect("tries");
    let index = u32::from_be_bytes(*sent.1[4..].first_chunk().expect("long"));
    let mut forged = crate::wire::handshake::busy(index, 9_000);
    let incoming = from(GATEWAY);
    pair.client
        .handle_datagram(pair.now, &incoming, &mut forged);
    assert_eq!(pair.client.drops().get(DropReason::HandshakeInvalid), 1);
    pair.run(Duration::from_millis(500));
    assert!(pair.client.is_up());
}

#[test]
fn a_client_that_hides_its_address_costs_one_read_a_minute() {
    let mut gateway = start(1, Instant::ZERO);
    // One handshake was answered, so the gateway does not require proofs.
    assert!(
        Sender::new(1, CLIENT)
            .connect(&mut gateway, seconds(0))
            .is_some()
    );
    let before = gateway.handshakes().curve_operations();
    let mut stranger = Sender::new(201, "203.0.113.9:5");
    for millis in 0..600_000_u64 / 50 {
        let now = seconds(1) + Duration::from_millis(50 * millis);
        let [a, b, ..] = millis.to_le_bytes();
        stranger.address = SocketAddr::from(([203, 0, a, b], 5));
        stranger.cookies = CookieCache::new(&public(200));
        let datagram = stranger.initiation(now);
        send(&mut gateway, now, stranger.address, &datagram);
        transmit(&mut gateway, now);
    }
    let minutes = 600 / GUARD.as_secs();
    let spent = gateway.handshakes().curve_operations() - before;
    assert!(spent <= 2 * minutes, "{spent}");
}

#[test]
fn a_hostile_client_that_hides_its_address_does_not_use_up_the_gateways_rate() {
    let mut gateway = start(1, Instant::ZERO);
    let mut hostile = Sender::new(1, CLIENT);
    for number in 0..10_000_u32 {
        let now = seconds(1) + Duration::from_millis(number.into());
        let [.., a, b, c] = number.to_be_bytes();
        hostile.address = SocketAddr::from(([203, a, b, c], 5));
        hostile.cookies = CookieCache::new(&public(200));
        let datagram = hostile.initiation(now);
        send(&mut gateway, now, hostile.address, &datagram);
        transmit(&mut gateway, now);
    }
    // The bucket of the client admits a burst of initiations. One more initiation is read. After that, the gateway
    // reads only initiations with a proved address.
    let spent = gateway.handshakes().curve_operations();
    assert!(spent <= 5 * 20, "{spent}");
}

#[test]
fn arithmetic_that_waits_is_bounded() {
    let mut gateway = start(1, Instant::ZERO);
    gateway.limiter.on_wasted(seconds(1));
    let mut proved = 0;
    for host in 0..200_u8 {
        let mut stranger = Sender::new(201, &format!("203.0.113.{host}:5"));
        let first = stranger.initiation(seconds(1));
        stranger.send(&mut gateway, seconds(1), &first);
        let second = stranger.initiation(seconds(1));
        let incoming = from(&stranger.address.to_string());
        gateway.handle_datagram(seconds(1), &incoming, &mut second.clone());
        proved += 1;
    }
    let mut waiting = 0;
    let mut works = Vec::new();
    while let Some(work) = gateway.poll_handshake_work() {
        waiting += 1;
        works.push(work);
    }
    assert!(waiting <= work::MAX_WORK && waiting < proved, "{waiting}");
    // Work in progress still counts until its result is returned.
    let mut late = Sender::new(201, "203.0.114.1:5");
    late.connect(&mut gateway, seconds(60));
    assert!(gateway.poll_handshake_work().is_none() || waiting < work::MAX_WORK);
    for work in works {
        gateway.handle_handshake_result(seconds(61), work.run());
    }
    assert!(
        Sender::new(1, CLIENT)
            .connect(&mut gateway, seconds(62))
            .is_some()
    );
}

#[test]
fn recorded_initiations_with_a_proof_of_another_address_do_not_use_up_what_the_client_has() {
    let mut gateway = start(1, Instant::ZERO);
    let mut client = Sender::new(1, CLIENT);
    let mut recorded = Vec::new();
    for second in 0..200 {
        recorded.push(client.initiation(seconds(second)));
        client.connect(&mut gateway, seconds(second));
    }
    // The cookies in the recorded initiations have expired, and the gateway remembers only the last 64 initiations.
    // Whoever knows the gateway's key gets a cookie for its own address, and can use it with the recorded initiations.
    let mut thief = Sender::new(1, "203.0.113.9:5");
    let now = seconds(1000);
    let mut answered = 0;
    for datagram in recorded.iter().take(100).cycle().take(400) {
        let mut datagram = datagram.clone();
        thief.cookies.stamp(now, &mut datagram).expect("valid");
        answered += u64::from(thief.send(&mut gateway, now, &datagram) == Some(KIND_RESPONSE));
    }
    assert!((1..=5).contains(&answered), "{answered}");
    // The client's own budget is untouched.
    for _ in 0..5 {
        assert!(client.connect(&mut gateway, now).is_some());
        gateway.peers[0].tunnel.sessions().clear();
    }
}
