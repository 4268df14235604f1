use pleach_core::session::{invitation, secret::Secret};

use super::*;

const GATEWAY: [u8; 32] = [200; 32];
const CLIENT: [u8; 32] = [1; 32];
const OTHER: [u8; 32] = [2; 32];
const HOUR: u64 = 3600;

struct Bench {
    _dir: tempfile::TempDir,
    store: Store,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::TempDir::new().expect("directory");
        let store = Store::open(&dir.path().join("store")).expect("opens");
        Self { _dir: dir, store }
    }

    fn invite(&self, secret: u8, name: &str) -> io::Result<Invitation> {
        let networks = nets(&["10.77.0.1/22", "fd77::1/64"]);
        let offer = offer(secret, name);
        self.store
            .invite(&offer, 0, &networks, &nets(&["10.77.0.2/32"]))
    }

    fn claim(&self, secret: u8, client: &[u8; 32], now: u64) -> Result<Claimed, Refusal> {
        self.store
            .claim(&claim(secret, client), client, &GATEWAY, now)
    }

    fn open_count(&self) -> usize {
        self.store.invitations().expect("readable").len()
    }
}

fn keys_of(secret: u8) -> ([u8; 16], InvitationKey) {
    let secret = Secret::from([secret; 32]);
    (invitation::id(&secret), InvitationKey::from_secret(&secret))
}

fn offer(secret: u8, name: &str) -> Offer<'_> {
    let (id, key) = keys_of(secret);
    Offer {
        id,
        name,
        key,
        expires_at: HOUR,
    }
}

fn nets(texts: &[&str]) -> Vec<IpNet> {
    let parse = |text: &&str| text.parse().expect("net");
    texts.iter().map(parse).collect()
}

fn claim(secret: u8, client: &[u8; 32]) -> Claim {
    let (id, key) = keys_of(secret);
    Claim {
        id,
        proof: key.proof(client, &GATEWAY),
    }
}

#[test]
fn an_invitation_serves_one_client_once_and_that_client_again() {
    let bench = Bench::new();
    let invitation = bench.invite(7, "home").expect("made");
    let expected = ["10.77.0.3", "fd77::2"].map(|text| text.parse::<IpAddr>().expect("ip"));
    assert_eq!(
        invitation.addresses, expected,
        "the gateway has the first, another client the second"
    );

    let Claimed { client, is_new } = bench.claim(7, &CLIENT, 1).expect("enrolled");
    assert!(is_new);
    assert_eq!(
        (client.name.as_str(), client.addresses.as_slice()),
        ("home", &expected[..])
    );
    assert_eq!(client.preshared_key.expose(), keys_of(7).1.psk().expose());
    assert_eq!(bench.open_count(), 0);
    assert!(matches!(bench.claim(7, &OTHER, 1), Err(Refusal::Unknown)));
    let again = bench.claim(7, &CLIENT, 2 * HOUR).expect("the same client");
    assert_eq!((&again.client, again.is_new), (&client, false));
    assert_eq!(bench.store.clients().expect("readable"), [client]);
}

#[test]
fn expired_altered_and_guessed_claims_change_nothing_but_the_expired_invitation() {
    let bench = Bench::new();
    bench.invite(7, "home").expect("made");
    assert!(matches!(bench.claim(8, &CLIENT, 1), Err(Refusal::Unknown)));
    let stolen = bench.store.claim(&claim(7, &CLIENT), &OTHER, &GATEWAY, 1);
    assert!(
        matches!(stolen, Err(Refusal::WrongProof)),
        "seen on the way, for another key"
    );
    let mut altered = claim(7, &CLIENT);
    altered.proof[0] ^= 1;
    let altered = bench.store.claim(&altered, &CLIENT, &GATEWAY, 1);
    assert!(matches!(altered, Err(Refusal::WrongProof)));
    assert_eq!(bench.open_count(), 1);
    assert!(matches!(
        bench.claim(7, &CLIENT, HOUR),
        Err(Refusal::Expired)
    ));
    assert!(
        matches!(bench.claim(7, &CLIENT, 1), Err(Refusal::Unknown)),
        "expired is gone"
    );
    assert_eq!(bench.store.clients().expect("readable"), []);
}

#[test]
fn an_interruption_between_the_two_files_does_not_open_the_invitation_again() {
    let bench = Bench::new();
    bench.invite(7, "home").expect("made");
    let path = bench.store.invitation_path(&HEXLOWER.encode(&keys_of(7).0));
    let left = fs::read(&path).expect("there");
    bench.claim(7, &CLIENT, 1).expect("enrolled");
    fs::write(&path, &left).expect("left by an interruption");
    assert!(matches!(bench.claim(7, &OTHER, 1), Err(Refusal::Unknown)));
    fs::write(&path, &left).expect("once more");
    assert!(bench.claim(7, &CLIENT, 1).is_ok());
    assert_eq!(bench.open_count(), 0);
}

#[test]
fn a_second_invitation_for_a_name_withdraws_the_first_and_a_clients_name_is_refused() {
    let bench = Bench::new();
    bench.invite(7, "home").expect("made");
    bench.invite(8, "home").expect("made");
    assert!(matches!(bench.claim(7, &CLIENT, 1), Err(Refusal::Unknown)));
    let first = bench.claim(8, &CLIENT, 1).expect("enrolled").client;
    let refused = bench.invite(9, "home").expect_err("there is such a client");
    assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
    let other = bench.invite(9, "other").expect("made");
    assert_ne!(other.addresses, first.addresses);
    assert!(bench.store.remove("home").expect("removed"));
    assert!(bench.store.remove("other").expect("withdrawn"));
    assert!(!bench.store.remove("home").expect("gone"));
    assert!(matches!(bench.claim(8, &CLIENT, 1), Err(Refusal::Unknown)));
    assert!(matches!(bench.claim(9, &CLIENT, 1), Err(Refusal::Unknown)));
}

#[test]
fn a_claim_that_cannot_be_written_leaves_the_invitation_open() {
    let bench = Bench::new();
    bench.invite(7, "home").expect("made");
    // The client's file cannot be made, as on a full disk.
    let clients = bench.store.path.join(CLIENTS);
    fs::remove_dir(&clients).expect("empty");
    fs::create_dir(&clients).expect("made");
    fs::create_dir(clients.join(".home.json.new")).expect("in the way");
    assert!(matches!(bench.claim(7, &CLIENT, 1), Err(Refusal::Io(_))));
    fs::remove_dir(clients.join(".home.json.new")).expect("empty");
    assert!(bench.claim(7, &CLIENT, 1).is_ok());
}

#[test]
fn a_full_network_is_told() {
    let bench = Bench::new();
    let networks = nets(&["10.77.0.1/30"]);
    let invite = |secret, name| bench.store.invite(&offer(secret, name), 0, &networks, &[]);
    let only: IpAddr = "10.77.0.2".parse().expect("ip");
    assert_eq!(invite(1, "a").expect("room").addresses, [only]);
    let refused = invite(2, "b").expect_err("full");
    assert_eq!(refused.kind(), io::ErrorKind::QuotaExceeded);
}

#[test]
fn files_hold_no_secret_of_a_token_and_are_roots_alone() {
    use std::os::unix::fs::PermissionsExt as _;

    let bench = Bench::new();
    bench.invite(7, "home").expect("made");
    let path = bench.store.invitation_path(&HEXLOWER.encode(&keys_of(7).0));
    let text = fs::read_to_string(&path).expect("readable");
    let secret = SecretKey::new(Zeroizing::new([7; 32]));
    assert!(!text.contains(secret.to_base64().as_str()));
    let mode = fs::metadata(&path).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(
        !format!("{:?}", bench.store.invitations()).contains(text.split('"').nth(7).expect("key"))
    );
}
