//! The thread that decides, with a service that is asked by other threads.

use std::{io, net::TcpListener, path::PathBuf, time::Duration};

use pleach_core::{endpoint::enrolment::MAX_ASKED, time::Instant};
use pleach_linux::clock;

use super::super::{Answer, Asker, Refused, Start};
use super::*;
use crate::{
    clients::{
        http::HttpStore,
        service::{Service, TOKEN, text},
    },
    config::{HttpConfig, Password, StoreConfig, StorePlace},
    keys,
    run_tunnel::ledger::Ledger,
};

struct Bench {
    service: Service,
    dir: tempfile::TempDir,
    asker: Asker,
    /// Answers that were not expected yet.
    told: Vec<Answer>,
}

impl Bench {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let service = Service::start(listener, |stream| stream);
        let dir = tempfile::TempDir::new().expect("directory");
        let asker = start(&service, dir.path().join("answers.db"));
        Self {
            service,
            dir,
            asker,
            told: Vec::new(),
        }
    }

    /// Stops the gateway, and starts it again.
    fn again(self) -> Self {
        self.asker.finish();
        let asker = start(&self.service, self.dir.path().join("answers.db"));
        Self {
            asker,
            told: Vec::new(),
            ..self
        }
    }

    fn put(&self, number: u16) {
        let net = format!("10.77.{}.{}", number / 256, number % 256);
        let name = format!("c{number}");
        self.service.put(&text_of(number), &name, &[&net]);
    }

    /// Passes a question about the client `number`, with the number as its ticket.
    fn ask(&self, number: u16) {
        assert!(self.asker.tell(Note::Ask(Box::new(request(number)))));
    }

    /// Waits for the first answer for which `wanted` returns a value.
    #[track_caller]
    fn until<T>(&mut self, what: &str, wanted: impl Fn(&Answer) -> Option<T>) -> T {
        let deadline = clock::now() + PATIENCE;
        loop {
            while let Some(answer) = self.asker.collect() {
                self.told.push(answer);
            }
            let found = self.told.iter().enumerate();
            let mut found = found.filter_map(|(at, answer)| Some((at, wanted(answer)?)));
            if let Some((at, value)) = found.next() {
                drop(found);
                self.told.remove(at);
                return value;
            }
            assert!(clock::now() < deadline, "{what}: {:?}", self.told);
            thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Returns what the engine is told about the client `number`.
    #[track_caller]
    fn decision(&mut self, number: u16) -> Result<String, Refused> {
        self.ask(number);
        self.until("a decision", |answer| decided(answer, number))
    }

    /// Waits until the trouble of the store is, or is not, told.
    #[track_caller]
    fn until_trouble(&mut self, is_there: bool) {
        self.until("the trouble", |answer| {
            let is_meant = matches!(answer, Answer::State(text) if text.is_some() == is_there);
            is_meant.then_some(())
        });
    }

    #[track_caller]
    fn until_gone(&mut self, number: u16) -> Instant {
        self.until("the removal", |answer| {
            matches!(answer, Answer::Gone(gone) if *gone == key(number)).then_some(())
        });
        clock::now()
    }
}

/// Returns the decision about the client `number`, if `answer` is one.
fn decided(answer: &Answer, number: u16) -> Option<Result<String, Refused>> {
    let Answer::Told { ticket, client } = answer else {
        return None;
    };
    let is_meant = *ticket == u64::from(number);
    is_meant.then(|| client.clone().map(|client| client.name))
}

fn start(service: &Service, cache: PathBuf) -> Asker {
    start_with(service, cache, "10.77.0.0/16")
}

fn start_with(service: &Service, cache: PathBuf, networks: &str) -> Asker {
    let place = HttpConfig {
        address: service.store("http").parse().expect("an address"),
        token: Password::of_file(TOKEN).expect("a token"),
        authorities: Vec::new(),
        cache,
    };
    let store = HttpStore::create(&place).expect("opens");
    let config = StoreConfig {
        place: StorePlace::Http(place),
        networks: vec![networks.parse().expect("net")],
        answer_life: Duration::from_secs(60),
        idle: Duration::from_secs(600),
        write_every: Duration::from_secs(1),
    };
    let no_file = Err(io::ErrorKind::NotFound.into());
    let start = Start {
        store: Box::new(store),
        config: &config,
        own_key: [200; 32],
        ledger: Ledger::open(no_file, "t0", "store", [0, 1]).expect("memory"),
        fleet: None,
        engines: ENGINES,
    };
    Asker::start(start).expect("started")
}

fn request(number: u16) -> EnrolmentRequest {
    EnrolmentRequest {
        ticket: u64::from(number),
        public_key: key(number),
        claim: None,
        source: ([198, 51, 100, 1], 4000).into(),
    }
}

fn key(number: u16) -> [u8; KEY_LEN] {
    let [high, low] = number.to_be_bytes();
    let mut key = [high; KEY_LEN];
    key[0] = low;
    key
}

fn text_of(number: u16) -> String {
    keys::encode_public(&key(number))
}

#[test]
fn a_storm_of_questions_is_answered_by_many_threads() {
    let mut bench = Bench::new();
    for number in 1..=200 {
        bench.put(number);
    }
    bench.service.state().delay = Duration::from_millis(50);
    let begin = clock::now();
    for number in 1..=200 {
        bench.ask(number);
    }
    for number in 1..=200 {
        let decision = bench.until("an answer", |answer| decided(answer, number));
        assert_eq!(decision, Ok(format!("c{number}")));
    }
    // 13 rounds of 50 ms; one after the other would take 10 s.
    let took = clock::now().since(begin);
    assert!(took < Duration::from_secs(4), "{took:?}");
    println!("200 look-ups in {took:?}");
}

#[test]
fn a_client_that_repeats_its_initiation_is_looked_up_once() {
    let mut bench = Bench::new();
    bench.put(1);
    bench.service.state().delay = Duration::from_millis(300);
    for _ in 0..10 {
        bench.ask(1);
    }
    for _ in 0..10 {
        let decision = bench.until("an answer", |answer| decided(answer, 1));
        assert_eq!(decision, Ok("c1".to_owned()));
    }
    // The first list of changes may be the reason for a second one.
    let asked = bench.service.state().asked.len();
    assert!(asked <= 2, "{asked}");
}

#[test]
fn removals_are_told_within_seconds_without_a_question_about_each_client() {
    let mut bench = Bench::new();
    for number in 1..=3 {
        bench.put(number);
        assert_eq!(bench.decision(number), Ok(format!("c{number}")));
    }
    assert_eq!(bench.decision(4), Err(Refused::Unknown));
    // Three lists of changes.
    thread::park_timeout(Duration::from_millis(3500));
    let asked = bench.service.state().asked.len();
    // The first list, which may have come late, is the reason for one more question about each.
    assert!(asked <= 7, "{asked}");
    let begin = clock::now();
    bench.service.remove(&text_of(1));
    let took = bench.until_gone(1).since(begin);
    assert!(took < Duration::from_secs(5), "{took:?}");
    println!("told after {took:?}");
    assert_eq!(bench.service.state().asked.len(), asked + 1);
    assert_eq!(bench.decision(1), Err(Refused::Unknown));
    // A removal that the list has lost, for example by a restart of the service.
    bench.service.remove(&text_of(2));
    bench.service.state().id = "two".to_owned();
    bench.until_gone(2);
    assert_eq!(bench.decision(3), Ok("c3".to_owned()));
}

#[test]
fn a_removal_during_a_look_up_is_not_lost() {
    let mut bench = Bench::new();
    bench.put(1);
    // The first list of changes has come.
    assert_eq!(bench.decision(2), Err(Refused::Unknown));
    thread::park_timeout(Duration::from_millis(1500));
    bench.service.state().delay = Duration::from_millis(1300);
    bench.ask(1);
    thread::park_timeout(Duration::from_millis(100));
    bench.service.remove(&text_of(1));
    let decision = bench.until("the outdated answer", |answer| decided(answer, 1));
    assert_eq!(decision, Ok("c1".to_owned()));
    bench.service.state().delay = Duration::ZERO;
    bench.until_gone(1);
}

#[test]
fn a_second_question_about_a_client_removes_or_changes_it() {
    let mut bench = Bench::new();
    // No change is ever listed, and no answer becomes old.
    let list = "{\"store\":\"fixed\",\"first\":0,\"last\":0,\"public_keys\":[]}";
    bench.service.state().fault = Some(("changes".to_owned(), text(200, list)));
    for number in 1..=2 {
        bench.put(number);
        assert_eq!(bench.decision(number), Ok(format!("c{number}")));
    }
    bench.service.remove(&text_of(1));
    assert_eq!(bench.decision(1), Err(Refused::Unknown));
    bench.until_gone(1);
    bench.service.put(&text_of(2), "c2", &["10.77.9.9"]);
    assert_eq!(bench.decision(2), Ok("c2".to_owned()));
    bench.until("the change", |answer| {
        matches!(answer, Answer::Changed(client) if client.name == "c2").then_some(())
    });
}

#[test]
fn a_client_that_was_refused_once_and_admitted_later_is_removed() {
    let mut bench = Bench::new();
    bench.put(1);
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    bench.asker.on_clash(key(1));
    bench.asker.on_admitted(key(1));
    bench.service.remove(&text_of(1));
    bench.until_gone(1);
}

#[test]
fn a_removal_does_not_wait_for_strangers() {
    let mut bench = Bench::new();
    bench.put(1);
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    bench.service.state().delay = Duration::from_secs(1);
    // Ten rounds of all threads for new clients.
    for number in 100..260 {
        bench.ask(number);
    }
    bench.ask(1);
    bench.service.remove(&text_of(1));
    let begin = clock::now();
    let took = bench.until_gone(1).since(begin);
    assert!(took < Duration::from_secs(6), "{took:?}");
}

#[test]
fn a_short_life_replaces_a_list_of_changes() {
    let mut bench = Bench::new();
    bench.service.put_as(
        &text_of(1),
        serde_json::json!({
            "name": "c1", "public_key": text_of(1), "allowed_ips": ["10.77.0.1"], "life": 2,
        }),
    );
    let list = "{\"store\":\"fixed\",\"first\":0,\"last\":0,\"public_keys\":[]}";
    bench.service.state().fault = Some(("changes".to_owned(), text(200, list)));
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    thread::park_timeout(Duration::from_millis(2500));
    let begin = clock::now();
    bench.service.remove(&text_of(1));
    let took = bench.until_gone(1).since(begin);
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn known_clients_are_served_and_new_ones_refused_while_the_service_is_away_also_after_a_restart() {
    let mut bench = Bench::new();
    for number in 1..=3 {
        bench.put(number);
    }
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    bench.service.state().is_away = true;
    bench.until_trouble(true);
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    assert_eq!(bench.decision(2), Err(Refused::Unreadable));
    let mut bench = bench.again();
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    assert_eq!(bench.decision(2), Err(Refused::Unreadable));
    bench.until_trouble(true);
    // It is removed meanwhile, and gone when the service is back.
    bench.service.remove(&text_of(1));
    bench.service.state().is_away = false;
    bench.until_trouble(false);
    bench.until_gone(1);
    assert_eq!(bench.decision(2), Ok("c2".to_owned()));
    // Also the file has forgotten it.
    bench.service.state().is_away = true;
    let mut bench = bench.again();
    assert_eq!(bench.decision(1), Err(Refused::Unreadable));
    assert_eq!(bench.decision(2), Ok("c2".to_owned()));
}

#[test]
fn a_former_answer_is_not_used_if_the_networks_have_changed() {
    let mut bench = Bench::new();
    for number in 1..=2 {
        bench.put(number);
        assert_eq!(bench.decision(number), Ok(format!("c{number}")));
    }
    bench.service.state().is_away = true;
    bench.asker.finish();
    let cache = bench.dir.path().join("answers.db");
    bench.asker = start_with(&bench.service, cache.clone(), "10.77.0.1/32");
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    assert_eq!(bench.decision(2), Err(Refused::Unreadable));
    bench.asker.finish();
    bench.asker = start(&bench.service, cache);
    assert_eq!(bench.decision(2), Err(Refused::Unreadable), "also the file");
}

#[test]
fn the_questions_of_all_engines_wait_for_a_slow_service() {
    let bench = Bench::new();
    bench.service.state().hangs = true;
    let most = u16::try_from(ENGINES * MAX_ASKED).expect("few");
    for number in 0..most {
        assert!(bench.asker.ask(request(number)), "{number}");
    }
    assert!(!bench.asker.ask(request(most)), "no more than the engines");
    bench.service.state().hangs = false;
}

#[test]
fn a_service_that_hangs_is_noticed_although_all_threads_wait() {
    let mut bench = Bench::new();
    for number in 1..=60 {
        bench.put(number);
    }
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    bench.service.state().hangs = true;
    for number in 2..=60 {
        bench.ask(number);
    }
    let begin = clock::now();
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    let last = bench.until("the last of many", |answer| decided(answer, 60));
    assert_eq!(last, Err(Refused::Unreadable));
    // A list of changes begins within a second, and times out after five. All threads one after the other: 20 s.
    let took = clock::now().since(begin);
    assert!(took < Duration::from_secs(9), "{took:?}");
    bench.service.state().hangs = false;
    bench.until_trouble(true);
    bench.until_trouble(false);
    bench.put(61);
    assert_eq!(bench.decision(61), Ok("c61".to_owned()));
}

#[test]
fn an_answer_about_a_client_with_the_address_of_another_one_is_not_kept() {
    let mut bench = Bench::new();
    bench.put(1);
    bench.put(2);
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    assert_eq!(bench.decision(2), Ok("c2".to_owned()));
    bench.asker.on_clash(key(2));
    bench.service.state().is_away = true;
    let mut bench = bench.again();
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    assert_eq!(bench.decision(2), Err(Refused::Unreadable));
}

#[test]
fn a_fault_of_one_client_neither_harms_the_others_nor_hides_its_removal() {
    let mut bench = Bench::new();
    for number in 1..=3 {
        bench.put(number);
    }
    assert_eq!(bench.decision(1), Ok("c1".to_owned()));
    let part = text_of(1)[..8].to_owned();
    bench.service.state().fault = Some((part, text(500, "")));
    bench.service.remove(&text_of(1));
    bench.until_trouble(true);
    assert_eq!(bench.decision(1), Ok("c1".to_owned()), "the last answer");
    for number in 2..=3 {
        assert_eq!(bench.decision(number), Ok(format!("c{number}")));
    }
    bench.service.state().fault = None;
    bench.until_gone(1);
    bench.until_trouble(false);
}

/// Number of data threads of the gateway.
const ENGINES: usize = 3;
/// Longest wait for what must happen: two answers that time out.
const PATIENCE: Duration = Duration::from_secs(15);
