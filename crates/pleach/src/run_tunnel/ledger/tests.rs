use std::{fs, thread};

use super::*;

struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::TempDir::new().expect("directory");
        Self { dir }
    }

    /// Opens the ledger as the next process does after this one was killed.
    fn open(&self, store: &str, run: u64) -> Arc<Ledger> {
        let dir = StateDir::open(self.dir.path());
        let ledger = Ledger::open(dir, "t0", store, [0, run]).expect("opens");
        assert!(ledger.words.is_kept());
        ledger
    }

    fn files(&self) -> usize {
        let dirs = fs::read_dir(self.dir.path()).expect("reads");
        let dirs = dirs.map(|dir| fs::read_dir(dir.expect("entry").path()).expect("reads"));
        dirs.map(Iterator::count).sum()
    }
}

fn bytes(up_bytes: u64, down_bytes: u64) -> Usage {
    Usage {
        up_bytes,
        down_bytes,
    }
}

fn map<const N: usize>(all: [(&str, Usage); N]) -> BTreeMap<String, Usage> {
    all.map(|(name, usage)| (name.to_owned(), usage)).into()
}

#[test]
fn a_batch_is_unchanged_until_it_is_written() {
    let bench = Bench::new();
    let ledger = bench.open("store", 7);
    let mut batches = Batches::new(Arc::clone(&ledger));
    assert_eq!(batches.next(1), None);
    let home = ledger.account("home").expect("room");
    home.add(bytes(1, 0));
    home.add(bytes(2, 5));
    let first = batches.next(2).expect("a batch").clone();
    assert_eq!((first.number, first.at), (1, 2));
    assert_eq!(first.run, format!("{:032x}", 7));
    assert_eq!(first.usage, map([("home", bytes(3, 5))]));
    home.add(bytes(10, 0));
    assert_eq!(batches.next(3), Some(&first));
    batches.on_written();
    let second = batches.next(4).expect("a batch").clone();
    assert_eq!((second.number, second.at), (2, 4));
    assert_eq!(second.usage, map([("home", bytes(10, 0))]));
    batches.on_written();
    assert_eq!(batches.next(5), None);
}

#[test]
fn the_next_process_goes_on_where_the_last_one_was_killed() {
    let bench = Bench::new();
    let long = "a-name-with-thirty-two-character";
    for is_tried in [false, true] {
        let ledger = bench.open("store", 7);
        let mut batches = Batches::new(Arc::clone(&ledger));
        let (home, van) = (ledger.account("home"), ledger.account(long));
        let (home, van) = (home.expect("room"), van.expect("room"));
        home.add(bytes(3, 4));
        while batches.next(1).is_some() {
            batches.on_written();
        }
        van.add(bytes(20, 0));
        home.add(bytes(1, 1));
        let tried = is_tried.then(|| batches.next(2).expect("a batch").clone());
        van.add(bytes(0, 300));
        let before = ledger.file().get(NUMBER);

        // Another id of a run is not used, because the former run goes on.
        let ledger = bench.open("store", 8);
        let mut batches = Batches::new(Arc::clone(&ledger));
        let van = ledger.account(long).expect("room");
        van.add(bytes(5, 0));
        let first = batches.next(9).expect("a batch").clone();
        assert_eq!(first.run, format!("{:032x}", 7));
        if let Some(tried) = tried {
            assert_eq!(first, tried);
            batches.on_written();
            let rest = batches.next(9).expect("a batch").clone();
            assert_eq!(rest.number, first.number + 1);
            assert_eq!(rest.usage, map([(long, bytes(5, 300))]));
        } else {
            assert_eq!(first.number, before.cast_signed() + 1);
            let all = [("home", bytes(1, 1)), (long, bytes(25, 300))];
            assert_eq!(first.usage, map(all));
        }
        batches.on_written();
        assert_eq!(batches.next(9), None);
    }
}

#[test]
fn a_kill_in_the_middle_of_a_cut_changes_nothing() {
    let bench = Bench::new();
    let ledger = bench.open("store", 7);
    let mut batches = Batches::new(Arc::clone(&ledger));
    let accounts = ["a", "b"].map(|name| ledger.account(name).expect("room"));
    for round in 1..4 {
        accounts
            .iter()
            .for_each(|account| account.add(bytes(round, 2 * round)));
        batches.next(1).expect("a batch");
        batches.on_written();
        accounts
            .iter()
            .for_each(|account| account.add(bytes(10, 0)));
        // The cut of one of two slots was made, but not the batch.
        let (slot, number) = (accounts[0].slot, ledger.file().get(NUMBER));
        ledger
            .file()
            .set_usage(cut(slot, number + 1), ledger.file().usage(at(slot) + BYTES));
        let again = bench.open("store", 8);
        let mut batches = Batches::new(again);
        let next = batches.next(1).expect("a batch");
        assert_eq!(next.number, number.cast_signed() + 1);
        assert_eq!(next.usage, map([("a", bytes(10, 0)), ("b", bytes(10, 0))]));
        batches.on_written();
    }
}

#[test]
fn slots_are_free_when_their_bytes_are_written_and_nobody_holds_them() {
    let bench = Bench::new();
    let ledger = bench.open("store", 7);
    let mut batches = Batches::new(Arc::clone(&ledger));
    for number in 0..CHUNK as u64 + 10 {
        let name = format!("client{number}");
        let account = ledger.account(&name).expect("room");
        account.add(bytes(number + 1, 0));
        drop(account);
        assert!(ledger.table().used <= 2, "slots are not used again");
        let batch = batches.next(1).expect("a batch").clone();
        assert_eq!(batch.usage, map([(&name[..], bytes(number + 1, 0))]));
        batches.on_written();
    }
    // All slots of many clients at once survive as well.
    let names: Vec<_> = (0..2 * CHUNK).map(|number| format!("c{number}")).collect();
    for name in &names {
        ledger.account(name).expect("room").add(bytes(1, 1));
    }
    let mut batches = Batches::new(bench.open("store", 8));
    let batch = batches.next(1).expect("a batch");
    assert_eq!(batch.usage.len(), names.len());
    assert!(ledger.account("").is_none());
    assert!(ledger.account(&"n".repeat(33)).is_none());
}

#[test]
fn bytes_for_another_store_and_damaged_files_are_dropped() {
    let bench = Bench::new();
    let ledger = bench.open("store", 7);
    ledger.account("home").expect("room").add(bytes(1, 2));
    let other = bench.open("another store", 8);
    assert_eq!(Batches::new(Arc::clone(&other)).next(1), None);
    other.account("home").expect("room").add(bytes(1, 2));
    for (word, value) in [(0, 5), (WRITTEN, 9), (USED, u64::MAX), (at(0), u64::MAX)] {
        let ledger = bench.open("another store", 9);
        ledger.account("home").expect("room").add(bytes(1, 2));
        ledger.file().set(word, value);
        assert_eq!(Batches::new(bench.open("another store", 10)).next(1), None);
    }
}

#[test]
fn a_damaged_slot_costs_the_bytes_of_its_client_alone() {
    let bench = Bench::new();
    let ledger = bench.open("store", 7);
    let names = ["a", "b", "c", "d"];
    let accounts = names.map(|name| ledger.account(name).expect("room"));
    accounts.iter().for_each(|account| account.add(bytes(1, 1)));
    ledger.file().set(at(1), u64::MAX);
    ledger.file().set(at(2), ledger.file().get(at(3)));
    let again = bench.open("store", 8);
    let mut batches = Batches::new(Arc::clone(&again));
    let next = batches.next(1).expect("a batch");
    assert_eq!(next.usage, map([("a", bytes(1, 1)), ("d", bytes(1, 1))]));
    batches.on_written();
    again.account("e").expect("room").add(bytes(5, 0));
    let next = batches.next(1).expect("a batch");
    assert_eq!(next.usage, map([("e", bytes(5, 0))]));
}

#[test]
fn the_file_is_gone_when_everything_is_written() {
    let bench = Bench::new();
    let ledger = bench.open("store", 7);
    let mut batches = Batches::new(Arc::clone(&ledger));
    ledger.account("home").expect("room").add(bytes(1, 2));
    batches.next(1).expect("a batch");
    assert_eq!(bench.files(), 1);
    batches.on_written();
    ledger.remove();
    assert_eq!(bench.files(), 0);
}

#[test]
fn threads_add_while_batches_are_made() {
    let bench = Bench::new();
    let ledger = bench.open("store", 7);
    let mut batches = Batches::new(Arc::clone(&ledger));
    let mut sums = BTreeMap::<String, Usage>::new();
    let mut write = |batches: &mut Batches| {
        while let Some(batch) = batches.next(1) {
            for (name, more) in &batch.usage {
                let sum = sums.entry(name.clone()).or_default();
                sum.up_bytes += more.up_bytes;
                sum.down_bytes += more.down_bytes;
            }
            batches.on_written();
        }
    };
    thread::scope(|scope| {
        let threads = [0, 1].map(|thread| {
            let ledger = &ledger;
            scope.spawn(move || {
                for round in 0..2000 {
                    // Both threads have this client one after the other.
                    let shared = ledger.account("moves").expect("room");
                    let own = ledger.account(&format!("own{thread}-{}", round % 7));
                    shared.add(bytes(1, 0));
                    own.expect("room").add(bytes(0, 1));
                }
            })
        });
        while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
            write(&mut batches);
        }
    });
    write(&mut batches);
    assert_eq!(sums["moves"], bytes(4000, 0));
    let owned = sums.values().map(|usage| usage.down_bytes);
    assert_eq!(owned.sum::<u64>(), 4000);
}
