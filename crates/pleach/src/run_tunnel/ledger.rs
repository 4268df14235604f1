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
    ops::Bound,
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
    /// Opens the ledger of the tunnel `tunnel` for the store with the id `store`. If no file can be used, the ledger is in
    /// memory alone. `run`: id of a run that begins, if no former one goes on.
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
        let begin = Begin { store, run };
        let kept = dir.and_then(|dir| Ok((Self::kept(&dir, &name, &begin)?, dir)));
        let (words, table, place) = match kept {
            Ok(((words, table), dir)) => (words, table, Some((dir, name))),
            Err(error) => {
                tracing::warn!(
                    "the bytes of clients that are not in the store yet are lost if this process is killed: {name}: {error}"
                );
                let words = MappedWords::in_memory(WORDS)?;
                begin.set(&Words(&words));
                (words, Table::default(), None)
            }
        };
        Ok(Arc::new(Self {
            words,
            table: Mutex::new(table),
            place,
        }))
    }

    /// Opens the file, and takes up the run in it unless it is for another store.
    fn kept(dir: &StateDir, name: &str, begin: &Begin<'_>) -> io::Result<(MappedWords, Table)> {
        let words = match MappedWords::of_file(dir.open_file(name)?, WORDS) {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                dir.remove(name)?;
                MappedWords::of_file(dir.open_file(name)?, WORDS)?
            }
            opened => opened?,
        };
        words.reserve(0..HEADER)?;
        let file = Words(&words);
        let table = match file.get(0) {
            MAGIC if file.store() == begin.store_words() => file.recall()?,
            0 => None,
            found => {
                let reason = if found == MAGIC {
                    "it is for another store"
                } else {
                    "it is not a file of this version"
                };
                tracing::warn!("{name}: {reason}; bytes of clients are lost");
                None
            }
        };
        if table.is_none() {
            begin.set(&file);
        }
        Ok((words, table.unwrap_or_default()))
    }

    /// Removes the file, when the store has everything.
    pub(super) fn remove(&self) {
        if let Some((dir, name)) = &self.place
            && let Err(error) = dir.remove(name)
        {
            tracing::debug!(%error, name, "removing");
        }
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
                let is_reserved = !table.used.is_multiple_of(CHUNK);
                let chunk = at(table.used)..at(table.used + CHUNK);
                let reserved = if is_reserved {
                    Ok(())
                } else {
                    self.words.reserve(chunk)
                };
                if let Err(error) = reserved {
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
        let (first, file) = (at(slot), Words(&self.words));
        // The first word of a name says that the slot is in use. A slot from before this run may still have one.
        (0..SLOT).for_each(|word| file.set(first + word, 0));
        file.set(USED, table.used as u64);
        file.set_bytes(first + 1, &bytes[8..]);
        file.set_bytes(first, &bytes[..8]);
        Some(slot)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    const fn file(&self) -> Words<'_> {
        Words(&self.words)
    }
}

/// What a run begins with.
struct Begin<'a> {
    store: &'a str,
    run: [u64; 2],
}

impl Begin<'_> {
    /// Returns the store's id as it is in the file. An id is at most as long: 32 digits, or the address of a service, of which
    /// the end tells more than the beginning.
    fn store_words(&self) -> Vec<u8> {
        let id = self.store.as_bytes();
        let mut bytes = id[id.len().saturating_sub(STORE_WORDS * 8)..].to_vec();
        bytes.resize(STORE_WORDS * 8, 0);
        bytes
    }

    fn set(&self, file: &Words<'_>) {
        file.set(0, 0);
        file.set(RUN, self.run[0]);
        file.set(RUN + 1, self.run[1]);
        for word in [NUMBER, WRITTEN, AT, USED] {
            file.set(word, 0);
        }
        file.set_bytes(STORE_AT, &self.store_words());
        file.set(0, MAGIC);
    }
}

/// The words of the file.
struct Words<'a>(&'a MappedWords);

impl Words<'_> {
    fn word(&self, index: usize) -> &AtomicU64 {
        &self.0.words()[index]
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

    fn usage(&self, first: usize) -> Usage {
        Usage {
            up_bytes: self.get(first),
            down_bytes: self.get(first + 1),
        }
    }

    fn set_usage(&self, first: usize, usage: Usage) {
        self.set(first, usage.up_bytes);
        self.set(first + 1, usage.down_bytes);
    }

    fn store(&self) -> Vec<u8> {
        self.bytes(STORE_AT, STORE_WORDS)
    }

    /// Returns the name in a slot. `None` if the slot is free, or if its contents make no sense.
    fn name(&self, slot: usize) -> Option<String> {
        let bytes = self.bytes(at(slot), NAME_WORDS);
        let len = bytes.iter().rposition(|byte| *byte != 0)? + 1;
        let name = String::from_utf8(bytes[..len].to_vec());
        name.ok().filter(|name| !name.contains('\0'))
    }

    /// Returns the slots of the run in the file. `None` if the file is damaged.
    ///
    /// # Errors
    /// If the file system has no room.
    fn recall(&self) -> io::Result<Option<Table>> {
        let (number, written) = (self.get(NUMBER), self.get(WRITTEN));
        let used = usize::try_from(self.get(USED)).unwrap_or(usize::MAX);
        if used > SLOTS || number.checked_sub(written).is_none_or(|more| more > 1) {
            tracing::warn!("the file with bytes of clients is damaged; they are lost");
            return Ok(None);
        }
        self.0.reserve(0..at(used.next_multiple_of(CHUNK)))?;
        let mut table = Table {
            used,
            ..Table::default()
        };
        for slot in 0..used {
            let name = self.name(slot);
            let name = name.filter(|name| !table.owners.contains_key(name));
            if let Some(name) = name {
                table.owners.insert(name, Owner { slot, holders: 0 });
                continue;
            }
            if self.get(at(slot)) != 0 {
                tracing::warn!("the bytes of a client are damaged, and lost");
                self.set(at(slot), 0);
            }
            table.free.push(slot);
        }
        Ok(Some(table))
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
        let file = self.ledger.file();
        for (word, more) in words {
            file.word(word).fetch_add(more, Ordering::Relaxed);
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
        let file = ledger.file();
        let number = file.get(NUMBER);
        let batch = (number != file.get(WRITTEN)).then(|| {
            let mut usage = BTreeMap::new();
            for (name, owner) in &ledger.table().owners {
                let cuts = [number, number.wrapping_sub(1)];
                let [now, before] = cuts.map(|number| file.usage(cut(owner.slot, number)));
                usage.extend(used(name, now, before));
            }
            batch(&file, usage)
        });
        Self { ledger, batch }
    }

    /// Whether there is a batch that was tried and may not be written.
    pub(super) const fn has_tried(&self) -> bool {
        self.batch.is_some()
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
        let file = self.ledger.file();
        file.set(WRITTEN, file.get(NUMBER));
        self.batch = None;
    }

    fn make(&self, seconds: u64) -> Option<UsageBatch> {
        let file = self.ledger.file();
        let number = file.get(NUMBER);
        let mut usage = BTreeMap::new();
        let mut last = None;
        loop {
            // Data threads wait for the table when a client begins or ends, so it is not held for long.
            let mut table = self.ledger.table();
            table.is_full = false;
            let after = last.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
            let owners = table.owners.range::<String, _>((after, Bound::Unbounded));
            let owners = owners
                .take(AT_ONCE)
                .map(|(name, owner)| (name.clone(), *owner));
            let owners: Vec<_> = owners.collect();
            let Some((name, _)) = owners.last() else {
                break;
            };
            last = Some(name.clone());
            for (name, owner) in owners {
                let now = file.usage(at(owner.slot) + BYTES);
                let before = file.usage(cut(owner.slot, number));
                file.set_usage(cut(owner.slot, number + 1), now);
                usage.extend(used(&name, now, before));
                if owner.holders == 0 && now == before {
                    file.set(at(owner.slot), 0);
                    table.free.push(owner.slot);
                    table.owners.remove(&name);
                }
            }
        }
        if usage.is_empty() {
            return None;
        }
        file.set(AT, seconds);
        file.set(NUMBER, number + 1);
        Some(batch(&file, usage))
    }
}

/// Returns the last batch of a file, with these contents.
fn batch(file: &Words<'_>, usage: BTreeMap<String, Usage>) -> UsageBatch {
    UsageBatch {
        run: format!("{:016x}{:016x}", file.get(RUN), file.get(RUN + 1)),
        number: file.get(NUMBER).cast_signed(),
        at: file.get(AT),
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
/// Number of slots of which a batch is made at once.
const AT_ONCE: usize = 256;
const WORDS: usize = HEADER + SLOTS * SLOT;

#[cfg(test)]
mod tests;
