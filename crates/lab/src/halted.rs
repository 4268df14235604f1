//! Halts a single thread of another process, to show what the other threads do without it.

use std::{fs, io, marker::PhantomData};

/// A halted thread of another process. Dropping it lets the thread go on.
///
/// The kernel accepts the end from the same thread only that has halted it, so the value stays there.
#[derive(Debug)]
pub struct HaltedThread {
    id: libc::pid_t,
    _stays: PhantomData<*const ()>,
}

impl HaltedThread {
    /// Halts the thread `name` of the process `process`.
    ///
    /// # Errors
    /// If there is no such thread, or this process may not trace it.
    pub fn halt(process: u32, name: &str) -> io::Result<Self> {
        let this = Self {
            id: find(process, name)?,
            _stays: PhantomData,
        };
        ptrace(libc::PTRACE_SEIZE, this.id)?;
        ptrace(libc::PTRACE_INTERRUPT, this.id)?;
        this.wait()?;
        Ok(this)
    }

    /// Waits until the thread is halted or has ended.
    fn wait(&self) -> io::Result<()> {
        // SAFETY: a null pointer for the status is permitted.
        let waited = unsafe { libc::waitpid(self.id, core::ptr::null_mut(), libc::__WALL) };
        if waited < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for HaltedThread {
    fn drop(&mut self) {
        if ptrace(libc::PTRACE_DETACH, self.id).is_err() {
            // Its process has been killed. The process is gone only when this thread has been waited for.
            let _ = self.wait();
        }
    }
}

fn find(process: u32, name: &str) -> io::Result<libc::pid_t> {
    for task in fs::read_dir(format!("/proc/{process}/task"))? {
        let task = task?;
        // A thread may end meanwhile.
        let known = fs::read_to_string(task.path().join("comm"));
        if known.is_ok_and(|known| known.trim_end() == name)
            && let Some(id) = task.file_name().to_str().and_then(|id| id.parse().ok())
        {
            return Ok(id);
        }
    }
    Err(io::ErrorKind::NotFound.into())
}

fn ptrace(request: libc::c_uint, id: libc::pid_t) -> io::Result<()> {
    let nothing = core::ptr::null_mut::<libc::c_void>();
    // SAFETY: address and data of these requests are zero: no options, no signal.
    let done = unsafe { libc::ptrace(request, id, nothing, nothing) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
