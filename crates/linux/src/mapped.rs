//! Numbers in a file that are still there after the process was killed.
//!
//! The file is mapped into memory, so a change is a store into memory, without a system call. The kernel keeps what was
//! stored however the process ends, but not over a crash of the machine unless it has been written to a disk.

use std::{fs::File, io, ops::Range, ptr::NonNull, sync::atomic::AtomicU64};

use rustix::{
    fs::{FallocateFlags, fallocate},
    io::retry_on_intr,
    mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap},
};

/// A file of 64-bit numbers, in memory. Unmapped when dropped.
#[derive(Debug)]
pub struct MappedWords {
    base: NonNull<AtomicU64>,
    len: usize,
    /// `None`: the numbers end with the process.
    file: Option<File>,
}

// SAFETY: the mapping belongs to the value alone, does not move, and is accessed by atomic operations only.
unsafe impl Send for MappedWords {}
// SAFETY: as above.
unsafe impl Sync for MappedWords {}

impl MappedWords {
    /// Maps `file`, which becomes `len` numbers long. A file gets room on its file system by [`Self::reserve`] alone, so a
    /// large `len` costs nothing. Nobody else may make the file shorter: access to a number that is not in the file any more
    /// ends the process.
    ///
    /// # Errors
    /// If the file is longer, or cannot be mapped.
    pub fn of_file(file: File, len: usize) -> io::Result<Self> {
        let bytes = (len * WORD) as u64;
        if file.metadata()?.len() > bytes {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file is too long",
            ));
        }
        file.set_len(bytes)?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            mmap(
                core::ptr::null_mut(),
                len * WORD,
                access,
                MapFlags::SHARED,
                &file,
                0,
            )
        }?;
        Self::new(base.cast(), len, Some(file))
    }

    /// Returns `len` numbers that are 0 and end with the process.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn in_memory(len: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            mmap_anonymous(
                core::ptr::null_mut(),
                len * WORD,
                access,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        Self::new(base.cast(), len, None)
    }

    fn new(base: *mut AtomicU64, len: usize, file: Option<File>) -> io::Result<Self> {
        let base = NonNull::new(base).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len, file })
    }

    /// Makes room for the numbers `range` on the file system. Access to others may end the process if the file system is
    /// full.
    ///
    /// # Errors
    /// If the file system is full.
    pub fn reserve(&self, range: Range<usize>) -> io::Result<()> {
        let Some(file) = &self.file else {
            return Ok(());
        };
        let [start, len] = [range.start, range.len()].map(|words| (words * WORD) as u64);
        let reserve = || fallocate(file, FallocateFlags::empty(), start, len);
        Ok(retry_on_intr(reserve)?)
    }

    /// Whether the numbers outlive the process.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Returns the numbers.
    #[must_use]
    pub const fn words(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has room for `len` numbers, is aligned to a page, lives as long as `self`, and any bits are a
        // valid `AtomicU64`.
        unsafe { core::slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl Drop for MappedWords {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, to which no reference is left.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len * WORD) };
    }
}

/// Length of a number in bytes.
const WORD: usize = size_of::<AtomicU64>();

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::MetadataExt as _, sync::atomic::Ordering};

    use super::*;

    fn open(path: &std::path::Path) -> File {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).expect("opens")
    }

    #[test]
    fn numbers_are_in_the_file_and_take_no_more_room_than_reserved() {
        let dir = tempfile::TempDir::new().expect("directory");
        let path = dir.path().join("numbers");
        let len = 1 << 22;
        let words = MappedWords::of_file(open(&path), len).expect("mapped");
        words.reserve(0..100).expect("room");
        words.words()[99].store(7, Ordering::Relaxed);
        let room = path.metadata().expect("file").blocks() * 512;
        assert!((800..100_000).contains(&room), "{room}");
        // Another mapping sees what the first one has stored, as the next process does.
        let again = MappedWords::of_file(open(&path), len).expect("mapped");
        assert_eq!(again.words()[99].load(Ordering::Relaxed), 7);
        assert_eq!(again.words()[100].load(Ordering::Relaxed), 0);
        assert!(again.is_kept());
        assert!(MappedWords::of_file(open(&path), len - 1).is_err());
    }

    #[test]
    fn numbers_may_be_in_memory_alone() {
        let words = MappedWords::in_memory(1 << 22).expect("memory");
        words.reserve(0..100).expect("no file");
        assert!(!words.is_kept());
        assert_eq!(words.words()[5].fetch_add(3, Ordering::Relaxed), 0);
        assert_eq!(words.words()[5].load(Ordering::Relaxed), 3);
    }
}
