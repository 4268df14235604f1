//! Bytes of clients that are not in the store yet, in a file that outlives the process.
//!
//! The data threads add to an [`Account`] of each client after each round of packets. From time to time the thread that asks
//! the store makes a batch of what was added since the last one ([`Batches`]). A batch that was tried must be tried again
//! until it is known to be written, because a failed attempt may have been written all the same. The store adds a batch
//! only once, by the id of the run and the number of the batch.
//!
//! All of this is in a mapped file ([`MappedWords`]), so a process that is killed loses at most the bytes of one round. The
//! next process goes on with the same run: it tries the same batch, and makes the next one of what was added since. Nothing
//! is counted twice, wherever the process was killed.
//!
//! | words of the file | contents |
//! | --- | --- |
//! | 0 | [`MAGIC`], stored last |
//! | 1, 2 | id of the run |
//! | 3, 4, 5 | number of the last batch, number of the last batch that is written (the same or one less), time of the last batch |
//! | 6 | number of slots that are or were in use |
//! | 8 to 39 | the store: another store must not get these bytes |
//! | from [`HEADER`], [`SLOT`] each | slots: name (0 to 3, first word 0: free), bytes up and down (4, 5), both when the last batch with an even number was made (8, 9), and with an odd number (10, 11) |
//!
//! A batch with an even number is the difference between the even and the odd cut of each slot, and the other way round.
//! While the cut of the next batch is made, all former ones are written, so half a cut does no harm. Slots of clients that
//! no engine knows any more are free as soon as all of their bytes are written.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use pleach_core::endpoint::accounts::Usage;
use pleach_linux::{mapped::MappedWords, state::StateDir};

use crate::clients::UsageBatch;

/// The file, for all threads.
#[derive(Debug)]
pub(super) struct Ledger {
    words: MappedWords,
    table: Mutex<Table>,
    /// Directory and name of the file.
    place: Option<(StateDir, String)>,
}

/// Which slot belongs to whom.
#[derive(Debug, Default)]
struct Table {
    owners: BTreeMap<String, Owner>,
    free: Vec<usize>,
    /// Number of slots that are or were in use.
    used: usize,
    /// Whether the file system had no room for another slot since the last batch.
    is_full: bool,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    slot: usize,
    /// Number of [`Account`]s.
    holders: usize,
}

impl Ledger {
    /// Opens the ledger of the tunnel `tunnel` for the store `store`. If no file can be used, the ledger is in memory alone.
    /// `run`: id of a run that begins, if no former one goes on.
    ///
    /// # Errors
    /// If there is no memory.
    pub(super) fn open(
        dir: io::Result<StateDir>,
        tunnel: &str,
        store: &str,
        run: [u64; 2],
    ) -> io::Result<Arc<Self>> {
        let name = format!("{tunnel}.bytes");
        let kept = dir.and_then(|dir| {
            let words = MappedWords::of_file(dir.open_file(&name)?, WORDS);
            let words = words.or_else(|error| {
                if error.kind() != io::ErrorKind::InvalidData {
                    return Err(error);
                }
                dir.remove(&name)?;
                MappedWords::of_file(dir.open_file(&name)?, WORDS)
            })?;
            words.reserve(HEADER + CHUNK * SLOT)?;
            Ok((words, dir))
        });
        let (words, place) = match kept {
            Ok((words, dir)) => (words, Some((dir, name))),
            Err(error) => {
                tracing::warn!(
                    "the bytes of clients that are not in the store yet are lost if this process is killed: {name}: {error}"
                );
                (MappedWords::in_memory(WORDS)?, None)
            }
        };
        let mut ledger = Self {
            words,
            table: Mutex::default(),
            place,
        };
        let mut store = store.as_bytes().to_vec();
        // The end of a path or of a connection string tells more than its beginning.
        store.drain(..store.len().saturating_sub(STORE_WORDS * 8));
        store.resize(STORE_WORDS * 8, 0);
        if ledger.get(0) == MAGIC && ledger.bytes(STORE_AT, STORE_WORDS) != store {
            tracing::warn!(
                "bytes of clients for another store, which a former process has left, are dropped: {}.bytes",
                tunnel
            );
            ledger.set(0, 0);
        }
        match ledger.recall() {
            Ok(table) => ledger.table = Mutex::new(table),
            Err(reason) => {
                if let Some(reason) = reason {
                    tracing::warn!("{tunnel}.bytes: {reason}; bytes of clients are lost");
                }
                ledger.set(0, 0);
                ledger.set(RUN, run[0]);
                ledger.set(RUN + 1, run[1]);
                for word in [NUMBER, WRITTEN, AT, USED] {
                    ledger.set(word, 0);
                }
                ledger.set_bytes(STORE_AT, &store);
                ledger.set(0, MAGIC);
            }
        }
        Ok(Arc::new(ledger))
    }

    /// Returns the slots of the run in the file.
    ///
    /// # Errors
    /// Why there is none; `None` if the file is new.
    fn recall(&self) -> Result<Table, Option<String>> {
        if self.get(0) != MAGIC {
            let is_new = self.get(0) == 0;
            return Err((!is_new).then(|| "not a file of this version".to_owned()));
        }
        let (number, written) = (self.get(NUMBER), self.get(WRITTEN));
        let used = usize::try_from(self.get(USED)).unwrap_or(usize::MAX);
        if used > SLOTS || number.checked_sub(written).is_none_or(|more| more > 1) {
            return Err(Some("damaged".to_owned()));
        }
        let reserved = self.words.reserve(HEADER + used * SLOT);
        reserved.map_err(|error| Some(error.to_string()))?;
        let mut table = Table {
            used,
            ..Table::default()
        };
        for slot in 0..used {
            if self.get(at(slot)) == 0 {
                table.free.push(slot);
                continue;
            }
            let mut name = self.bytes(at(slot), NAME_WORDS);
            name.truncate(
                name.iter()
                    .rposition(|byte| *byte != 0)
                    .map_or(0, |at| at + 1),
            );
            let name = String::from_utf8(name).map_err(|_| Some("damaged".to_owned()))?;
            let owner = Owner { slot, holders: 0 };
            if table.owners.insert(name, owner).is_some() {
                return Err(Some("damaged".to_owned()));
            }
        }
        Ok(table)
    }

    /// Returns the account of the client `name`. `None` if there is no room for it now.
    pub(super) fn account(self: &Arc<Self>, name: &str) -> Option<Account> {
        let mut table = self.table();
        let slot = match table.owners.get_mut(name) {
            Some(owner) => {
                owner.holders += 1;
                owner.slot
            }
            None => {
                let slot = self.add_slot(&mut table, name)?;
                table
                    .owners
                    .insert(name.to_owned(), Owner { slot, holders: 1 });
                slot
            }
        };
        Some(Account {
            ledger: Arc::clone(self),
            name: name.into(),
            slot,
        })
    }

    /// Gives a free slot to the client `name`.
    fn add_slot(&self, table: &mut Table, name: &str) -> Option<usize> {
        let mut bytes = name.as_bytes().to_vec();
        if bytes.is_empty() || bytes.len() > NAME_WORDS * 8 {
            // No configuration and no store has such a name.
            return None;
        }
        let slot = match table.free.pop() {
            Some(slot) => slot,
            None => {
                if table.is_full || table.used == SLOTS {
                    return None;
                }
                let slots = (table.used / CHUNK + 1) * CHUNK;
                if let Err(error) = self.words.reserve(HEADER + slots * SLOT) {
                    tracing::warn!(
                        "no room for the bytes of clients: {error}; they wait in memory"
                    );
                    table.is_full = true;
                    return None;
                }
                table.used += 1;
                table.used - 1
            }
        };
        bytes.resize(NAME_WORDS * 8, 0);
        let first = at(slot);
        // The first word is stored last: it says that the slot is in use.
        (1..SLOT).for_each(|word| self.set(first + word, 0));
        self.set_bytes(first + 1, &bytes[8..]);
        self.set(USED, table.used as u64);
        self.set_bytes(first, &bytes[..8]);
        Some(slot)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        &self.words.words()[index]
    }

    fn get(&self, index: usize) -> u64 {
        self.word(index).load(Ordering::Acquire)
    }

    fn set(&self, index: usize, value: u64) {
        // Stores take effect in the order of the program, wherever the process is killed.
        self.word(index).store(value, Ordering::Release);
    }

    fn bytes(&self, first: usize, words: usize) -> Vec<u8> {
        let words = first..first + words;
        words
            .flat_map(|word| self.get(word).to_le_bytes())
            .collect()
    }

    fn set_bytes(&self, first: usize, bytes: &[u8]) {
        for (word, bytes) in (first..).zip(bytes.as_chunks().0) {
            self.set(word, u64::from_le_bytes(*bytes));
        }
    }

    fn usage_at(&self, first: usize) -> Usage {
        Usage {
            up_bytes: self.get(first),
            down_bytes: self.get(first + 1),
        }
    }

    fn set_usage_at(&self, first: usize, usage: Usage) {
        self.set(first, usage.up_bytes);
        self.set(first + 1, usage.down_bytes);
    }
}

/// Where a data thread adds the bytes of a client.
#[derive(Debug)]
pub(super) struct Account {
    ledger: Arc<Ledger>,
    name: Box<str>,
    slot: usize,
}

impl Account {
    /// Adds bytes that were carried.
    pub(super) fn add(&self, more: Usage) {
        let first = at(self.slot) + BYTES;
        let words = [(first, more.up_bytes), (first + 1, more.down_bytes)];
        for (word, more) in words {
            self.ledger.word(word).fetch_add(more, Ordering::Relaxed);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if let Some(owner) = self.ledger.table().owners.get_mut(&*self.name) {
            owner.holders -= 1;
        }
    }
}

/// The batches for the store. One for each ledger.
#[derive(Debug)]
pub(super) struct Batches {
    ledger: Arc<Ledger>,
    /// The batch that is being tried.
    batch: Option<UsageBatch>,
}

impl Batches {
    /// Returns the batches of `ledger`. The first one may be that of a former process.
    pub(super) fn new(ledger: Arc<Ledger>) -> Self {
        let number = ledger.get(NUMBER);
        let batch = (number != ledger.get(WRITTEN)).then(|| {
            let mut usage = BTreeMap::new();
            for (name, owner) in &ledger.table().owners {
                let cuts = [number, number.wrapping_sub(1)]
                    .map(|number| ledger.usage_at(cut(owner.slot, number)));
                usage.extend(used(name, cuts[0], cuts[1]));
            }
            batch(&ledger, usage)
        });
        Self { ledger, batch }
    }

    /// Returns the batch to write now. `seconds`: time of day, since 1970.
    pub(super) fn next(&mut self, seconds: u64) -> Option<&UsageBatch> {
        if self.batch.is_none() {
            self.batch = self.make(seconds);
        }
        self.batch.as_ref()
    }

    /// Notes that the batch is written.
    pub(super) fn on_written(&mut self) {
        self.ledger.set(WRITTEN, self.ledger.get(NUMBER));
        self.batch = None;
    }

    /// Removes the file if the store has everything.
    pub(super) fn finish(&mut self, seconds: u64) {
        if self.next(seconds).is_none()
            && let Some((dir, name)) = &self.ledger.place
            && let Err(error) = dir.remove(name)
        {
            tracing::debug!(%error, name, "removing");
        }
    }

    fn make(&self, seconds: u64) -> Option<UsageBatch> {
        let ledger = &*self.ledger;
        let number = ledger.get(NUMBER);
        let mut table = ledger.table();
        let table = &mut *table;
        table.is_full = false;
        let mut usage = BTreeMap::new();
        table.owners.retain(|name, owner| {
            let now = ledger.usage_at(at(owner.slot) + BYTES);
            let before = ledger.usage_at(cut(owner.slot, number));
            ledger.set_usage_at(cut(owner.slot, number + 1), now);
            let is_over = owner.holders == 0 && now == before;
            if is_over {
                ledger.set(at(owner.slot), 0);
                table.free.push(owner.slot);
            }
            usage.extend(used(name, now, before));
            !is_over
        });
        if usage.is_empty() {
            return None;
        }
        ledger.set(AT, seconds);
        ledger.set(NUMBER, number + 1);
        Some(batch(ledger, usage))
    }
}

/// Returns the last batch of `ledger`, with these contents.
fn batch(ledger: &Ledger, usage: BTreeMap<String, Usage>) -> UsageBatch {
    UsageBatch {
        run: format!("{:016x}{:016x}", ledger.get(RUN), ledger.get(RUN + 1)),
        number: ledger.get(NUMBER).cast_signed(),
        at: ledger.get(AT),
        usage,
    }
}

/// Returns the bytes that the client `name` has carried between `before` and `now`, if any.
fn used(name: &str, now: Usage, before: Usage) -> Option<(String, Usage)> {
    let more = Usage {
        up_bytes: now.up_bytes.saturating_sub(before.up_bytes),
        down_bytes: now.down_bytes.saturating_sub(before.down_bytes),
    };
    (more != Usage::default()).then(|| (name.to_owned(), more))
}

/// Returns the first word of a slot.
const fn at(slot: usize) -> usize {
    HEADER + slot * SLOT
}

/// Returns the first word of a slot's cut for the batch `number`.
const fn cut(slot: usize, number: u64) -> usize {
    at(slot) + CUTS + 2 * (number % 2) as usize
}

/// First word of a file with this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"pleach 1");
const RUN: usize = 1;
const NUMBER: usize = 3;
const WRITTEN: usize = 4;
const AT: usize = 5;
const USED: usize = 6;
const STORE_AT: usize = 8;
const STORE_WORDS: usize = 32;
/// Length of the header, in words.
const HEADER: usize = 64;
/// Length of a slot, in words: two cache lines, because different threads add to neighbours.
const SLOT: usize = 16;
const NAME_WORDS: usize = 4;
const BYTES: usize = 4;
const CUTS: usize = 8;
/// Maximum number of slots, as many as an endpoint has sessions.
const SLOTS: usize = 1 << 20;
/// Number of slots for which room is made at once.
const CHUNK: usize = 512;
const WORDS: usize = HEADER + SLOTS * SLOT;

#[cfg(test)]
mod tests;
